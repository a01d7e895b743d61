//! Schedules as they are kept. [`crate::scheduler`] runs them.
//!
//! The data directory keeps what each schedule has to do. The snapshots themselves show what it has
//! done, by their names: a prefix that no other schedule has, and the time. So a run writes nothing
//! else. After a crash the next run is due at the time at which it would have been due anyway.

pub(crate) mod names;
pub(crate) mod plan;
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

/// The content of the file of schedules with other identities of volumes: the new ones, by the old
/// ones.
pub(crate) fn renew(content: &[u8], identities: &BTreeMap<Uuid, Uuid>) -> Result<Vec<u8>> {
    let mut plans = stored::decode(content)?;
    for id in plans.values_mut().flat_map(|plan| &mut plan.volumes) {
        *id = *identities.get(id).unwrap_or(id);
    }
    stored::encode(&plans)
}

/// The names of all schedules, as the file has them.
pub(crate) fn names(dir: &Arc<dyn Dir>) -> Result<Vec<String>> {
    let file = DurableFile::new(dir.clone(), stored::FILE, stored::KIND, stored::VERSION);
    let content = file.read()?;
    Ok(content.map_or_else(|| Ok(BTreeMap::new()), |bytes| stored::decode(&bytes))?.into_keys().collect())
}

/// Does the file of schedules mean something?
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    stored::decode(content).map(drop)
}
