//! The file of targets: the registry as the running server has it ([`Store`]), and what is done
//! with the file without a server.

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

/// Does the file of targets mean something?
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    stored::decode(content).map(drop)
}

/// The content of the file of targets with other identities of volumes and snapshots: the new ones,
/// by the old ones. Exported files get new ones, too.
pub(crate) fn renew(content: &[u8], identities: &BTreeMap<Uuid, Uuid>) -> Result<Vec<u8>> {
    let mut registry = stored::decode(content)?;
    registry.renew(identities, &mut crate::world::uuid);
    stored::encode(&registry)
}

/// iSCSI names of the targets that initiators may log in to and that a copy of the pool has, too,
/// whatever its identities; and the paths of exported files. As the file of targets has it.
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

/// The file in a data directory.
pub(super) fn file(dir: &Arc<dyn Dir>) -> DurableFile {
    DurableFile::new(dir.clone(), stored::FILE, stored::KIND, stored::VERSION)
}

/// The registry and its file.
pub(crate) struct Store {
    file: DurableFile,
    /// One change at a time; logins go on meanwhile.
    changing: Mutex<()>,
    current: RwLock<Arc<Registry>>,
}

impl Store {
    /// Reads the file; without one nothing was ever set.
    pub(crate) fn open(file: DurableFile) -> Result<Store> {
        let registry = match file.load()? {
            Some(bytes) => stored::decode(&bytes)?,
            None => Registry::default(),
        };
        Ok(Store { file, changing: Mutex::new(()), current: RwLock::new(Arc::new(registry)) })
    }

    /// As it is.
    pub(crate) fn get(&self) -> Arc<Registry> {
        self.current.read().clone()
    }

    /// Changes it. The change counts, and survives power loss, when this returns; when it fails
    /// nothing has changed.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Registry) -> Result<T>) -> Result<T> {
        let _one_at_a_time = self.changing.lock();
        let mut next = Registry::clone(&self.get());
        let result = change(&mut next)?;
        if next != *self.get() {
            let bytes = stored::encode(&next)?;
            // What the next start would refuse must not replace what it takes.
            stored::decode(&bytes)?;
            self.file.save(&bytes)?;
            *self.current.write() = Arc::new(next);
        }
        Ok(result)
    }
}
