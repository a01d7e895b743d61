//! The file of targets: the registry of the running server ([`Store`]), and operations on the file
//! without a server.

use super::registry::{Registry, Scope};
use super::{names, stored};
use crate::atomic_file::DurableFile;
use hindcast_engine::Result;
use hindcast_engine::disk::Dir;
use hindcast_engine::pool::VolumeInfo;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Name, kind and version of the file of targets.
pub(crate) const STORED: (&str, &str, u32) = (stored::FILE, stored::KIND, stored::VERSION);

/// Checks the content of the file of targets.
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    stored::decode(content).map(drop)
}

/// Returns the content of the file of targets with new UUIDs of volumes and snapshots. `identities`
/// maps old UUIDs to new ones. Exported files also get new UUIDs.
pub(crate) fn renew(content: &[u8], identities: &BTreeMap<Uuid, Uuid>) -> Result<Vec<u8>> {
    let mut registry = stored::decode(content)?;
    registry.renew(identities, &mut crate::world::uuid);
    stored::encode(&registry)
}

/// Returns the iSCSI names of enabled targets, and the paths of exported files, from the file of
/// targets. A target name that has a part of a volume's UUID is left out. A copy of the pool with
/// new UUIDs has all the returned names, too.
pub(crate) fn names_and_files(
    dir: &Arc<dyn Dir>,
    volumes: &[VolumeInfo],
) -> Result<(Vec<String>, Vec<String>)> {
    let content = file(dir).read()?;
    let registry = content.map_or_else(|| Ok(Registry::default()), |bytes| stored::decode(&bytes))?;
    let created = registry.named.iter().filter(|(_, target)| target.settings.enabled);
    let own = volumes
        .iter()
        .filter(|v| registry.settings(&Scope::Volume(v.uuid)).enabled)
        .filter_map(|v| names::by_name_alone(&v.name));
    let files = registry.files.values().map(|file| file.path.clone()).collect();
    Ok((own.chain(created.map(|(name, _)| name.clone())).collect(), files))
}

/// Returns the file of targets in a data directory.
pub(super) fn file(dir: &Arc<dyn Dir>) -> DurableFile {
    DurableFile::new(dir.clone(), stored::FILE, stored::KIND, stored::VERSION)
}

/// The registry and its file.
pub(crate) struct Store {
    file: DurableFile,
    /// Serializes changes. Logins continue meanwhile.
    changing: Mutex<()>,
    current: RwLock<Arc<Registry>>,
}

impl Store {
    /// Reads the file of targets. Without a file the registry is empty.
    pub(crate) fn open(file: DurableFile) -> Result<Store> {
        let registry = match file.load()? {
            Some(bytes) => stored::decode(&bytes)?,
            None => Registry::default(),
        };
        Ok(Store { file, changing: Mutex::new(()), current: RwLock::new(Arc::new(registry)) })
    }

    /// Returns the current registry.
    pub(crate) fn get(&self) -> Arc<Registry> {
        self.current.read().clone()
    }

    /// Changes the registry. When this returns, the change applies and survives a power loss. When
    /// it fails, the registry is unchanged.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Registry) -> Result<T>) -> Result<T> {
        let _one_at_a_time = self.changing.lock();
        let mut next = Registry::clone(&self.get());
        let result = change(&mut next)?;
        if next != *self.get() {
            let bytes = stored::encode(&next)?;
            // Content that the next start would refuse must not replace valid content.
            stored::decode(&bytes)?;
            self.file.save(&bytes)?;
            *self.current.write() = Arc::new(next);
        }
        Ok(result)
    }
}
