//! The old and the new identities of volumes and snapshots. They are kept from the transaction that
//! changed them until everything outside of the catalog that names the old ones has been changed
//! too.
//!
//! The row exists exactly as long as the superblock has the feature `REIDENTIFIED`. Builds that do
//! not know the row refuse the pool in that time.

use super::features::REIDENTIFIED;
use super::superblock::Superblock;
use super::values::{SnapshotRecord, Value, seal, unseal};
use super::{Catalog, META, decode};
use crate::catalog::store::db;
use crate::error::{Result, corrupt};
use std::collections::BTreeMap;
use uuid::Uuid;

const IDENTITIES: &str = "identities";

/// The new identities, by the old ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Identities(pub(crate) BTreeMap<Uuid, Uuid>);

impl Value for Identities {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.0.len() as u64);
            self.0.iter().for_each(|(old, new)| _ = w.uuid(old).uuid(new));
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let count = r.u64()?;
        let pairs = (0..count).map(|_| Some((r.uuid()?, r.uuid()?)));
        let pairs: BTreeMap<_, _> = pairs.collect::<Option<_>>()?;
        let value = (pairs.len() as u64 == count).then_some(Identities(pairs))?;
        r.end(value)
    }
}

impl Catalog {
    /// Returns the change of identities that is under way, if the superblock has its feature.
    pub(crate) fn identities(&self) -> Result<Option<Identities>> {
        if !self.superblock()?.is_reidentified() {
            return Ok(None);
        }
        self.store.read("read the catalog", |txn| {
            let meta = db!("read the catalog", txn.open_table(META));
            let value = db!("read the catalog", meta.get(IDENTITIES));
            let value = value.ok_or_else(|| corrupt("find the new identities in the catalog"))?;
            decode("the new identities", value.value()).map(Some)
        })
    }

    /// Gives every volume and snapshot an identity that `draw` returns, and keeps the new identity
    /// of each old one. Values of labels with a key of `references` that name a volume or snapshot
    /// follow the change.
    ///
    /// The content of a snapshot does not change. So the identity of its content, which streams
    /// use, does not change either.
    pub(crate) fn put_new_identities(
        &self,
        draw: &mut dyn FnMut() -> Uuid,
        references: &[&str],
    ) -> Result<Identities> {
        let (volumes, snapshots) = (self.volumes()?, self.snapshots()?);
        let old = volumes.iter().map(|(_, v)| v.uuid).chain(snapshots.iter().map(|(_, s)| s.uuid));
        let all = Identities(old.map(|uuid| (uuid, draw())).collect());
        if all.0.len() != volumes.len() + snapshots.len() {
            return Err(corrupt("give new identities: two volumes or snapshots have the same one"));
        }
        let superblock = self.superblock()?;
        let mut txn = self.begin()?;
        for (id, mut volume) in volumes {
            volume.uuid = all.0[&volume.uuid];
            txn.put_volume(id, &volume)?;
        }
        let by_text = all.0.iter().map(|(old, new)| (old.to_string(), new.to_string())).collect();
        for (id, snapshot) in snapshots {
            txn.put_snapshot(id, &renewed(snapshot, &all, references, &by_text))?;
        }
        txn.put_superblock(&Superblock { features: superblock.features | REIDENTIFIED, ..superblock })?;
        txn.put(META, IDENTITIES, &all.encode())?;
        txn.commit()?;
        Ok(all)
    }

    /// Forgets the old identities, because nothing names them any more.
    pub(crate) fn forget_old_identities(&self) -> Result<()> {
        let superblock = self.superblock()?;
        let mut txn = self.begin()?;
        txn.put_superblock(&Superblock { features: superblock.features & !REIDENTIFIED, ..superblock })?;
        txn.remove(META, IDENTITIES)?;
        txn.commit()
    }
}

/// Returns a snapshot with its new identity.
fn renewed(
    mut snapshot: SnapshotRecord,
    all: &Identities,
    references: &[&str],
    by_text: &BTreeMap<String, String>,
) -> SnapshotRecord {
    if snapshot.origin.is_nil() {
        snapshot.origin = snapshot.uuid;
    }
    snapshot.uuid = all.0[&snapshot.uuid];
    for key in references {
        if let Some(value) = snapshot.labels.get_mut(*key)
            && let Some(new) = by_text.get(value)
        {
            new.clone_into(value);
        }
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalog of an interrupted change contains these bytes.
    #[test]
    fn golden_bytes() {
        let all = Identities(
            [(2, 4), (1, 3)]
                .map(|(old, new)| (Uuid::from_bytes([old; 16]), Uuid::from_bytes([new; 16])))
                .into(),
        );
        let hex: String = all.encode().iter().map(|b| format!("{b:02x}")).collect();
        let pairs = ["01", "03", "02", "04"].map(|byte| byte.repeat(16)).concat();
        assert_eq!(hex, format!("010200000000000000{pairs}4b3469b6"));
        assert_eq!(Identities::decode(&all.encode()), Some(all));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let twice = seal(1, |w| {
            w.u64(2u64).bytes(&[1; 16]).bytes(&[2; 16]).bytes(&[1; 16]).bytes(&[3; 16]);
        });
        assert_eq!(Identities::decode(&twice), None);
        for count in [0, 2, u64::MAX] {
            let wrong = seal(1, |w| {
                w.u64(count).bytes(&[1; 16]).bytes(&[2; 16]);
            });
            assert_eq!(Identities::decode(&wrong), None, "{count}");
        }
    }
}
