//! Loading the logs of all branches when a pool is opened.

use crate::catalog::{Catalog, GroupRecord, SegmentRecord};
use crate::cdp::log::record::{SHARED, SegmentHead};
use crate::cdp::log::segment::{LogFile, Open, Sealed, SegmentDisk};
use crate::cdp::log::shared::SharedLog;
use crate::disk::{Dir, OpenFiles, SyncPurpose};
use crate::error::{Error, Result};
use crate::ids::BranchId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Loads the segments that the catalog knows. Open segments are opened, and what was never
/// committed is cut off. Sealed segments are opened when they are read, and damage is found then.
/// Files that the catalog does not know are removed. Branches that began in the journal have no
/// segments there.
pub(crate) fn load_segments(
    (dir, files, shared): (&dyn Dir, &OpenFiles, &SharedLog),
    catalog: &Catalog,
    pool: Uuid,
    branch_of: impl Fn(BranchId) -> Option<Arc<crate::branch::Branch>>,
) -> Result<()> {
    let mut groups: BTreeMap<(BranchId, u64), Vec<GroupRecord>> = BTreeMap::new();
    for ((branch, seq, _), group) in catalog.cdp_groups()? {
        groups.entry((branch, seq)).or_default().push(group);
    }
    let failed = |e| Error::io("list the data directory", e);
    let there: BTreeSet<String> = dir.list().map_err(failed)?.into_iter().collect();
    let (mut known, mut missing) = (BTreeSet::new(), false);
    for ((id, seq), record) in catalog.cdp_segments()? {
        let Some(branch) = branch_of(id) else { continue };
        let head = SegmentHead { pool, branch: id, seq, edition: record.edition };
        known.insert(head.file_name());
        let mut log = branch.cdp.log.write();
        log.next_seq = log.next_seq.max(seq + 1);
        if record.sealed {
            let file = LogFile::new(head, files.named(head.file_name()));
            log.sealed.insert(seq, Arc::new(Sealed::new(file, record)));
        } else {
            missing |= !there.contains(&head.file_name());
            let (file, disk) = open_segment(files, head, &record)?;
            log.open = Some(Open::load(file, &disk, record, groups.remove(&(id, seq)).unwrap_or_default()));
        }
    }
    for ((number, _), run) in catalog.cdp_runs()? {
        let head = SegmentHead { pool, branch: SHARED, seq: number, edition: 0 };
        known.insert(head.file_name());
        shared.used(number);
        let Some(branch) = branch_of(run.branch) else { continue };
        let file = shared.known(head, files).of_run(run.branch);
        shared.added(&file, run.record.end);
        let mut log = branch.cdp.log.write();
        log.next_seq = log.next_seq.max(run.seq + 1);
        log.put_sealed(run.seq, Arc::new(Sealed::new(file, run.record)));
    }
    shared.loaded();
    for name in there.iter().filter(|name| SegmentHead::names(name) && !known.contains(*name)) {
        // A leftover of a crash. If it can't be removed now it will be another time.
        let _ = dir.remove(name);
    }
    if missing {
        // The names of files that were made anew become durable. Records that are appended to such
        // a file must not lose the file's name.
        dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))?;
    }
    Ok(())
}

/// Opens the file of an open segment. If the file is missing, or too short, that is damage like any
/// other, and is found when it is read.
fn open_segment(
    files: &OpenFiles,
    head: SegmentHead,
    record: &SegmentRecord,
) -> Result<(LogFile, SegmentDisk)> {
    let name = head.file_name();
    let failed = |e| Error::io(format!("open {name}"), e);
    let (file, disk) = files.create(name.clone()).map_err(failed)?;
    if disk.len().map_err(failed)? > record.end {
        disk.set_len(record.end).map_err(failed)?;
    }
    Ok((LogFile::new(head, file), SegmentDisk::new(head, disk)))
}
