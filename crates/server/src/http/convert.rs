//! The engine's plain data as the API's.

use hindcast_api as api;
use hindcast_engine::pool::{self, Health, Placement, PoolInfo, PoolStats, PvInfo, VolumeInfo};
use hindcast_engine::world::uuid_text;
use jiff::Timestamp;

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

pub(super) fn volume(info: &VolumeInfo) -> api::Volume {
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
        created: Timestamp::from_nanosecond(info.created.into()).unwrap_or_default(),
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
