//! New identities for all volumes and snapshots of a pool that is a copy of another one.
//!
//! One transaction of the catalog changes them all. What lies beside the catalog and names the old
//! identities is its owner's to change, who learns from [`Reidentification`] what became of which.
//! Until that has ended the pool does not open.

use super::Pool;
use crate::catalog::{Catalog, Identities};
use crate::disk::Dir;
use crate::error::{Error, ErrorKind, Result};
use crate::space::lock::lock;
use crate::world::uuid;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How the error begins that an opening returns while a change of identities has not ended.
pub const REIDENTIFYING: &str = "open the pool: its volumes and snapshots have new identities";

/// Bytes of page cache while an interrupted change is ended.
const CACHE: usize = 1 << 20;

/// Volumes and snapshots have new identities, durably, and the old ones are still known. Nobody
/// else can open the pool while this exists.
pub struct Reidentification {
    catalog: Arc<Catalog>,
    identities: BTreeMap<[u8; 16], [u8; 16]>,
    /// The pool, or the lock of one that is not open.
    _held: Box<dyn Send + Sync>,
}

impl Pool {
    /// Closes the pool and gives every volume and snapshot another identity. A snapshot keeps the
    /// identity of its content: streams go on from what was exported before. Values of labels
    /// whose keys are in `references` are identities as text: those of volumes and snapshots of
    /// this pool follow them.
    ///
    /// [`ErrorKind::Busy`] when anybody has a volume open. When this fails the identities are the
    /// old ones; after a failed commit they may be the new ones, as [`Reidentification::resume`]
    /// tells.
    pub fn reidentify(self: Arc<Self>, references: &[&str]) -> Result<Reidentification> {
        if Arc::strong_count(&self) > 1 {
            return Err(Error::new(ErrorKind::Busy, "give new identities: the pool is in use"));
        }
        self.drain()?;
        self.close()?;
        // A record that waited in the journal would bring an old identity back.
        let (done, last) = (self.core.catalog.positions()?.destaged_lsn, self.core.journal.last().0);
        if done != last {
            let text = format!("give new identities: the journal waits with LSN {done} to {last}");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let all = self.core.catalog.put_new_identities(&mut || uuid(&*self.core.world.rng), references)?;
        Ok(Reidentification { catalog: self.core.catalog.clone(), identities: all.0, _held: Box::new(self) })
    }
}

impl Reidentification {
    /// One that has begun and not ended; `None` when there is none. [`ErrorKind::Busy`] when
    /// another process has the pool open.
    pub fn resume(dir: &dyn Dir) -> Result<Option<Reidentification>> {
        let held = lock(dir)?;
        let catalog = Arc::new(Catalog::open(dir, CACHE)?);
        let identities = catalog.identities()?;
        Ok(identities.map(|all| Reidentification { catalog, identities: all.0, _held: held }))
    }

    /// New identities, by the old ones.
    pub fn identities(&self) -> &BTreeMap<[u8; 16], [u8; 16]> {
        &self.identities
    }

    /// Nothing names the old identities any more, durably: forgets them, and the pool opens again.
    pub fn end(self) -> Result<()> {
        self.catalog.forget_old_identities()
    }
}

/// Refuses to open a pool whose owner has files that may name identities that are gone.
pub(super) fn check_ended(catalog: &Catalog) -> Result<()> {
    match catalog.identities() {
        Ok(None) => Ok(()),
        Ok(Some(Identities(all))) => Err(Error::new(
            ErrorKind::Conflict,
            format!("{REIDENTIFYING} ({}), and what names the old ones was not changed yet", all.len()),
        )),
        Err(error) => Err(error),
    }
}
