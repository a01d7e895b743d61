//! Counts of what runs did.

/// Counts of what a run did, for the closing line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations.
    pub ops: u64,
    /// Crashes, both planned ones and ends of a pool that could not continue.
    pub crashes: u64,
    /// Acknowledged records that were lost in power losses and in accepted losses of the journal.
    /// Such losses are allowed.
    pub lost: u64,
    /// Writes that the pool refused because it had no space.
    pub refused: u64,
    /// Records that the pool sequenced.
    pub records: u64,
    /// Snapshots that were taken.
    pub snapshots: u64,
    /// The largest number of snapshots that existed at once in one run.
    pub most_snapshots: u64,
    /// Clones and rollbacks.
    pub clones: u64,
    /// Moments that were compared with other states.
    pub moments_compared: u64,
    /// Moments that were opened before their records were carried out.
    pub moments_waiting: u64,
    /// Runs of histories that were sorted from shared segments into segments of their own.
    pub runs_sorted: u64,
    /// Bytes that were written by reference.
    pub referred: u64,
    /// Bytes that histories recorded without a copy.
    pub kept: u64,
    /// Snapshots that a policy deleted.
    pub auto_deleted: u64,
    /// Imports that were completed.
    pub imports: u64,
    /// Times that the catalog found its file system full.
    pub ran_full: u64,
    /// Disk operations that change something.
    pub disk_ops: u64,
}

impl Summary {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Summary) {
        self.ops += other.ops;
        self.crashes += other.crashes;
        self.lost += other.lost;
        self.refused += other.refused;
        self.records += other.records;
        self.snapshots += other.snapshots;
        self.most_snapshots = self.most_snapshots.max(other.most_snapshots);
        self.clones += other.clones;
        self.moments_compared += other.moments_compared;
        self.moments_waiting += other.moments_waiting;
        self.runs_sorted += other.runs_sorted;
        self.referred += other.referred;
        self.kept += other.kept;
        self.auto_deleted += other.auto_deleted;
        self.ran_full += other.ran_full;
        self.imports += other.imports;
        self.disk_ops += other.disk_ops;
    }
}
