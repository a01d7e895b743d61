//! Groups: named, ordered sets of volumes. A group stands for its volumes wherever a command takes
//! several.
//!
//! The data directory stores the groups, by the UUIDs of their volumes, because a volume can be
//! renamed.

use crate::atomic_file::DurableFile;
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

const FILE: &str = "groups.json";
const KIND: &str = "groups";
const VERSION: u32 = 1;
/// Name, kind and version of the file of groups.
pub(crate) const STORED: (&str, &str, u32) = (FILE, KIND, VERSION);
/// The largest number of volumes of a group: what one operation can include.
pub(crate) const MAX_VOLUMES: usize = 200;
const MAX_NAME: usize = 128;

/// The volumes of each group, by the name of the group.
type Members = BTreeMap<String, Vec<Uuid>>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredGroup {
    name: String,
    /// UUIDs.
    volumes: Vec<String>,
}

fn encode(groups: &Members) -> Result<Vec<u8>> {
    let stored = |(name, volumes): (&String, &Vec<Uuid>)| StoredGroup {
        name: name.clone(),
        volumes: volumes.iter().map(Uuid::to_string).collect(),
    };
    serde_json::to_vec_pretty(&groups.iter().map(stored).collect::<Vec<_>>())
        .map_err(|e| Error::with_source(ErrorKind::Invalid, format!("write {FILE}"), e))
}

/// Decodes the content of the file. Returns [`ErrorKind::Corrupt`] if the content is not valid: the
/// server writes only checked values.
fn decode(bytes: &[u8]) -> Result<Members> {
    let damaged = |why: String| Error::new(ErrorKind::Corrupt, format!("read {FILE}: {why}"));
    let stored: Vec<StoredGroup> = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    let mut groups = Members::new();
    for StoredGroup { name, volumes } in stored {
        let volumes =
            volumes.iter().map(|text| Uuid::try_parse(text)).collect::<std::result::Result<Vec<Uuid>, _>>();
        let volumes = volumes.map_err(|_| damaged(format!("a volume of group {name} has no UUID")))?;
        check_name(&name).and_then(|()| check_members(&volumes)).map_err(|e| damaged(e.to_string()))?;
        if groups.insert(name.clone(), volumes).is_some() {
            return Err(damaged(format!("there are two groups {name}")));
        }
    }
    Ok(groups)
}

/// Checks the content of the file of groups.
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    decode(content).map(drop)
}

/// Returns the content of the file of groups with new UUIDs of volumes. `identities` maps old UUIDs
/// to new ones.
pub(crate) fn renew(content: &[u8], identities: &BTreeMap<Uuid, Uuid>) -> Result<Vec<u8>> {
    let mut groups = decode(content)?;
    for id in groups.values_mut().flatten() {
        *id = *identities.get(id).unwrap_or(id);
    }
    encode(&groups)
}

/// Checks the name of a group. It follows the rules for names of volumes.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if first && name.len() <= MAX_NAME && name.bytes().all(ok) {
        return Ok(());
    }
    let text = format!(
        "use {name:?} for a group: a name must have 1 to {MAX_NAME} letters, digits, dots, underscores and hyphens, and start with a letter or digit"
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

fn check_members(volumes: &[Uuid]) -> Result<()> {
    let mut sorted = volumes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() == volumes.len() && (1..=MAX_VOLUMES).contains(&volumes.len()) {
        return Ok(());
    }
    let text = format!("change a group: it must have 1 to {MAX_VOLUMES} volumes, each of them once");
    Err(Error::new(ErrorKind::Invalid, text))
}

/// All groups, and the file that stores them.
pub(crate) struct Groups {
    file: DurableFile,
    state: Mutex<Result<Members>>,
}

impl Groups {
    /// Reads the file of groups in the data directory. The server also starts if the file can't be
    /// read. Requests about groups then fail, and the file stays unchanged.
    pub(crate) fn open(dir: Arc<dyn Dir>) -> Groups {
        let file = DurableFile::new(dir, FILE, KIND, VERSION);
        let state = file
            .load()
            .and_then(|content| content.map_or_else(|| Ok(Members::new()), |bytes| decode(&bytes)));
        if let Err(error) = &state {
            tracing::error!(%error, "groups of volumes can't be used");
        }
        Groups { file, state: Mutex::new(state) }
    }

    /// Returns all groups, by name.
    pub(crate) fn all(&self) -> Result<Members> {
        self.state.lock().clone()
    }

    /// Returns the volumes of a group.
    pub(crate) fn get(&self, name: &str) -> Result<Vec<Uuid>> {
        self.all()?.remove(name).ok_or_else(|| not_found(name))
    }

    /// Changes the groups. When this returns, the change survives a power loss. Returns
    /// [`ErrorKind::Invalid`] if a group has a wrong number of volumes after the change.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Members) -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let mut next = state.clone()?;
        change(&mut next)?;
        next.values().try_for_each(|volumes| check_members(volumes))?;
        self.file.save(&encode(&next)?)?;
        *state = Ok(next);
        Ok(())
    }
}

pub(crate) fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("find group {name}: it does not exist"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::disk::MemDir;

    fn id(n: u8) -> Uuid {
        Uuid::from_bytes([n; 16])
    }

    #[test]
    fn groups_survive_a_restart() {
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let groups = Groups::open(dir.clone());
        let put = |name: &str, volumes: Vec<Uuid>| {
            groups.update(|all| {
                all.insert(name.to_owned(), volumes);
                Ok(())
            })
        };
        put("shop", vec![id(2), id(1)]).unwrap();
        for bad in [vec![], vec![id(1), id(1)], (0..=MAX_VOLUMES as u128).map(Uuid::from_u128).collect()] {
            assert_eq!(put("shop", bad).unwrap_err().kind(), ErrorKind::Invalid);
        }
        let again = Groups::open(dir);
        assert_eq!(again.get("shop").unwrap(), [id(2), id(1)], "in their order");
        assert_eq!(again.get("none").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_is_damaged_is_refused_and_kept() {
        let good = encode(&Members::from([("a".to_owned(), vec![id(7)])])).unwrap();
        verify(&good).unwrap();
        let text = String::from_utf8(good.clone()).unwrap();
        for (old, new) in [("\"a\"", "\"-\""), ("07070707-", "0707-"), ("\"volumes\"", "\"volume\"")] {
            let bad = text.replacen(old, new, 1);
            assert_ne!(bad, text);
            assert_eq!(verify(bad.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt, "{new}");
        }
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        DurableFile::new(dir.clone(), FILE, KIND, VERSION).save(b"[").unwrap();
        let groups = Groups::open(dir.clone());
        assert_eq!(groups.all().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(groups.update(|_| Ok(())).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(DurableFile::new(dir, FILE, KIND, VERSION).load().unwrap().unwrap(), b"[");
        let renewed = renew(&good, &BTreeMap::from([(id(7), id(8))])).unwrap();
        assert_eq!(decode(&renewed).unwrap()["a"], [id(8)]);
    }
}
