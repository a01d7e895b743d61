//! The engine's plain data as the API's.

use hindcast_api as api;
use hindcast_engine::pool::{
    self, Health, Method, Order, Placement, Pool, PoolInfo, PoolStats, PvInfo, SnapshotInfo, SnapshotSpace,
    VolumeInfo,
};
use hindcast_engine::world::uuid_text;
use jiff::Timestamp;
use std::collections::BTreeMap;

pub(crate) fn health(health: &Health) -> api::Health {
    match health {
        Health::Healthy => api::Health { state: api::HealthState::Healthy, messages: Vec::new() },
        Health::Warning(messages) => {
            api::Health { state: api::HealthState::Warning, messages: messages.clone() }
        }
        Health::Poisoned(reason) => {
            api::Health { state: api::HealthState::Poisoned, messages: vec![reason.clone()] }
        }
    }
}

pub(super) fn placement(placement: api::Placement) -> Placement {
    match placement {
        api::Placement::Anywhere => Placement::Anywhere,
        api::Placement::Contiguous => Placement::Contiguous,
    }
}

pub(super) fn pool(info: &PoolInfo, stats: &PoolStats) -> api::Pool {
    api::Pool {
        uuid: uuid_text(&info.uuid),
        extent_size: info.config.extent_size,
        atomic_unit: info.config.atomic_unit,
        placement: match info.placement {
            Placement::Anywhere => api::Placement::Anywhere,
            Placement::Contiguous => api::Placement::Contiguous,
        },
        capacity: info.capacity,
        used: info.used,
        available: info.available,
        reserved: info.reserved,
        provisioned: info.provisioned,
        volumes: info.volumes,
        health: health(&info.health),
        journal: api::Journal {
            size: info.config.journal_size,
            segment_size: info.config.segment_size,
            capacity: stats.journal_capacity,
            used: stats.journal_used,
            sequenced_lsn: stats.sequenced_lsn,
            written_lsn: stats.written_lsn,
            synced_lsn: stats.synced_lsn,
            destaged_lsn: stats.destaged_lsn,
            backpressure_waits: stats.backpressure_waits,
        },
        map_cache: api::MapCache {
            used: stats.map_cache_used,
            hits: stats.map_hits,
            misses: stats.map_misses,
            evictions: stats.map_evictions,
            hit_rate: hit_rate(stats),
        },
    }
}

/// Hits per look-up; `None` before the first.
pub(crate) fn hit_rate(stats: &PoolStats) -> Option<f64> {
    let lookups = stats.map_hits + stats.map_misses;
    (lookups > 0).then(|| stats.map_hits as f64 / lookups as f64)
}

pub(super) fn pv(info: &PvInfo) -> api::Pv {
    api::Pv {
        id: info.id,
        uuid: uuid_text(&info.uuid),
        path: info.path.clone(),
        size: info.size,
        used: info.used,
        draining: info.draining,
    }
}

/// Nanoseconds since 1970.
pub(crate) fn time(nanos: u64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).unwrap_or_default()
}

pub(super) fn method(method: api::Method) -> Method {
    match method {
        api::Method::Cow => Method::Copy,
        api::Method::Row => Method::Redirect,
    }
}

pub(super) fn order(order: api::Order) -> Order {
    match order {
        api::Order::Dependent => Order::Dependent,
        api::Order::Independent => Order::Independent,
    }
}

/// What rests on what, to tell where volumes and snapshots come from.
pub(crate) struct Lineage {
    /// Snapshots in sight, by what they froze.
    snapshots: BTreeMap<(u64, u32), SnapshotInfo>,
    /// What branches rest on.
    bases: BTreeMap<u64, (u64, u32)>,
    /// Volumes by what they rest on.
    clones: BTreeMap<(u64, u32), Vec<String>>,
}

impl Lineage {
    pub(crate) fn new(pool: &Pool) -> Lineage {
        let bases = pool.branch_bases();
        let mut clones: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for volume in pool.volumes() {
            if let Some(of) = bases.get(&volume.branch) {
                clones.entry(*of).or_default().push(volume.name);
            }
        }
        let snapshots = pool.all_snapshots().into_iter().map(|s| (s.of, s)).collect();
        Lineage { snapshots, bases, clones }
    }

    /// The newest snapshot in sight that a branch's content from before `epoch` belongs to.
    fn before(&self, branch: u64, epoch: u32) -> Option<&SnapshotInfo> {
        let (mut branch, mut end) = (branch, epoch);
        loop {
            if let Some((_, found)) = self.snapshots.range((branch, 0)..(branch, end)).next_back() {
                return Some(found);
            }
            let base = self.bases.get(&branch)?;
            (branch, end) = (base.0, base.1.checked_add(1)?);
        }
    }

    /// Where a volume's current line of history begins.
    fn origin(&self, branch: u64) -> Option<String> {
        self.bases.get(&branch).and_then(|of| self.snapshots.get(of)).map(address)
    }

    pub(crate) fn snapshot(&self, info: &SnapshotInfo) -> api::Snapshot {
        api::Snapshot {
            volume: info.volume.clone(),
            name: info.name.clone(),
            uuid: uuid_text(&info.uuid),
            size: info.size,
            created: time(info.created),
            labels: info.labels.clone(),
            protected: info.protected,
            parent: self.before(info.of.0, info.of.1).map(address),
            clones: self.clones.get(&info.of).cloned().unwrap_or_default(),
            handles: info.handles,
            unique: None,
            shared: None,
        }
    }

    pub(crate) fn volume(&self, info: &VolumeInfo) -> api::Volume {
        let parent = self.before(info.branch, u32::MAX).map(address);
        api::Volume { origin: self.origin(info.branch), parent, ..volume(info) }
    }
}

/// Adds what snapshots of one volume take.
pub(crate) fn add_space(pool: &Pool, volume: &str, snapshots: &mut [api::Snapshot]) {
    let usage = match pool.space_usage(volume) {
        Ok(usage) => usage.of,
        Err(error) => return tracing::debug!(volume, %error, "the space of snapshots is not known"),
    };
    let of: BTreeMap<&str, &SnapshotSpace> = usage.iter().map(|s| (s.name.as_str(), s)).collect();
    for snapshot in snapshots {
        let space = of.get(snapshot.name.as_str());
        snapshot.unique = space.map(|s| s.unique);
        snapshot.shared = space.map(|s| s.shared);
    }
}

fn address(snapshot: &SnapshotInfo) -> String {
    format!("{}@{}", snapshot.volume, snapshot.name)
}

fn volume(info: &VolumeInfo) -> api::Volume {
    let pool::VolumeStats {
        reads,
        read_bytes,
        writes,
        write_bytes,
        flushes,
        discards,
        discard_bytes,
        staged_read_bytes,
        errors,
    } = info.stats;
    api::Volume {
        name: info.name.clone(),
        uuid: uuid_text(&info.uuid),
        size: info.size,
        chunk_size: info.chunk_size,
        block_size: info.block_size,
        read_only: info.read_only,
        method: match info.method {
            Method::Copy => api::Method::Cow,
            Method::Redirect => api::Method::Row,
        },
        order: match info.order {
            Order::Dependent => api::Order::Dependent,
            Order::Independent => api::Order::Independent,
        },
        snapshot_space: None,
        snapshot_reserve: info.policy.reserve_percent,
        auto_delete: info.policy.auto_delete,
        importing: info.importing,
        origin: None,
        parent: None,
        created: time(info.created),
        allocated: info.allocated,
        handles: info.handles,
        stats: api::VolumeStats {
            reads,
            read_bytes,
            writes,
            write_bytes,
            flushes,
            discards,
            discard_bytes,
            staged_read_bytes,
            errors,
        },
    }
}
