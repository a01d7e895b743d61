//! New identities for all volumes and snapshots of a pool that is a copy of another one.
//!
//! One transaction of the catalog changes them all. Files beside the catalog may name the old
//! identities. Their owner has to change them, and [`Reidentification`] maps the old identities to
//! the new ones. Until that has ended, the pool does not open.

use super::Pool;
use crate::catalog::{Catalog, Identities};
use crate::disk::Dir;
use crate::error::{Error, ErrorKind, Result};
use crate::space::lock::lock;
use crate::world::uuid;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// The beginning of the error that an opening returns while a change of identities has not ended.
pub const REIDENTIFYING: &str = "open the pool: its volumes and snapshots have new identities";

/// Number of bytes of page cache while an interrupted change is ended.
const CACHE: usize = 1 << 20;

/// A change of identities that has not ended. Volumes and snapshots have new identities, durably,
/// and the old ones are still known. No other process can open the pool while this exists.
pub struct Reidentification {
    catalog: Arc<Catalog>,
    identities: BTreeMap<Uuid, Uuid>,
    /// The pool, or the lock of a pool that is not open.
    _held: Box<dyn Send + Sync>,
}

impl Pool {
    /// Closes the pool and gives every volume and snapshot another identity. A snapshot keeps the
    /// identity of its content, so streams continue from what was exported before. Labels whose
    /// keys are in `references` have identities as text: those of volumes and snapshots of this
    /// pool are changed too.
    ///
    /// Returns [`ErrorKind::Busy`] if a volume is open. After an error the old identities are in
    /// force. Only after a failed commit may they be the new ones; [`Reidentification::resume`]
    /// tells.
    pub fn reidentify(self: Arc<Self>, references: &[&str]) -> Result<Reidentification> {
        if Arc::strong_count(&self) > 1 {
            return Err(Error::new(ErrorKind::Busy, "give new identities: the pool is in use"));
        }
        self.drain()?;
        self.close()?;
        // A record that waits in the journal would bring an old identity back.
        let (done, last) = (self.core.catalog.positions()?.destaged_lsn, self.core.journal.last().lsn);
        if done != last {
            let text = format!("give new identities: the journal still has LSN {done} to {last} to destage");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let all = self.core.catalog.put_new_identities(&mut || uuid(&*self.core.world.rng), references)?;
        Ok(Reidentification { catalog: self.core.catalog.clone(), identities: all.0, _held: Box::new(self) })
    }
}

impl Reidentification {
    /// Returns a change that has begun and not ended; `None` if there is none. Returns
    /// [`ErrorKind::Busy`] if another process has the pool open.
    pub fn resume(dir: &dyn Dir) -> Result<Option<Reidentification>> {
        let held = lock(dir)?;
        let catalog = Arc::new(Catalog::open(dir, CACHE)?);
        let identities = catalog.identities()?;
        Ok(identities.map(|all| Reidentification { catalog, identities: all.0, _held: held }))
    }

    /// Returns the new identities, by the old ones.
    pub fn identities(&self) -> &BTreeMap<Uuid, Uuid> {
        &self.identities
    }

    /// Ends the change: forgets the old identities, so that the pool opens again. The caller must
    /// have replaced every old identity, durably.
    pub fn end(self) -> Result<()> {
        self.catalog.forget_old_identities()
    }
}

/// Refuses to open a pool whose owner has files that may name old identities.
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
