//! The stored schedules. [`crate::scheduler`] runs them.
//!
//! The data directory stores the plan of each schedule. The names of the snapshots show what a
//! schedule has done: each name is a prefix that no other schedule has, and a time. So a run writes
//! no other state. After a crash the next run is due at the same time as without the crash.

pub(crate) mod names;
pub(crate) mod plan;
pub(crate) mod retention;
pub(crate) mod state;
mod stored;
pub(crate) mod when;

use crate::atomic_file::DurableFile;
use hindcast_engine::Result;
use hindcast_engine::disk::Dir;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Name, kind and version of the file of schedules.
pub(crate) const STORED: (&str, &str, u32) = (stored::FILE, stored::KIND, stored::VERSION);

/// Returns the content of the file of schedules with new UUIDs of volumes. `identities` maps old
/// UUIDs to new ones.
pub(crate) fn renew(content: &[u8], identities: &BTreeMap<Uuid, Uuid>) -> Result<Vec<u8>> {
    let mut plans = stored::decode(content)?;
    for id in plans.values_mut().flat_map(|plan| &mut plan.volumes) {
        *id = *identities.get(id).unwrap_or(id);
    }
    stored::encode(&plans)
}

/// Returns the names of all schedules in the file of schedules.
pub(crate) fn names(dir: &Arc<dyn Dir>) -> Result<Vec<String>> {
    let file = DurableFile::new(dir.clone(), stored::FILE, stored::KIND, stored::VERSION);
    let content = file.read()?;
    Ok(content.map_or_else(|| Ok(BTreeMap::new()), |bytes| stored::decode(&bytes))?.into_keys().collect())
}

/// Checks the content of the file of schedules.
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    stored::decode(content).map(drop)
}
