//! What an opening for salvage ([`crate::salvage`]) tells: which catalog it rests on, what of the
//! pool is lost, and what leaves a doubt.

use super::Pool;
use crate::error::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The catalog that a salvage rests on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CatalogSource {
    /// The pool's own.
    #[default]
    Own,
    /// One that was made, in memory, out of a backup of the metadata.
    Backup {
        /// The file, or the physical volume, that the backup is in.
        path: String,
        /// A later backup of the pool has a larger one.
        sequence: u64,
        /// When it was made, in nanoseconds since the Unix epoch.
        time: u64,
        /// It was made at an orderly stop, and nothing shows that the pool was opened since: it is
        /// the catalog itself.
        exact: bool,
    },
}

/// Something of the pool that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SalvageFinding {
    /// What kind, for programs: `catalog`, `catalog-row`, `backup`, `pv`, `pv-label`, `pv-age`,
    /// `journal`, `history`, `damage-unknown` or `unlocked`.
    pub code: &'static str,
    /// What it is about: `pv 1 (/dev/vdb)`, `volumes`.
    pub object: String,
    /// What is wrong, for people.
    pub detail: String,
}

/// A volume or a snapshot that is known by name, and of which nothing can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostDevice {
    /// The volume.
    pub volume: String,
    /// Its snapshot; `None`: the volume itself.
    pub snapshot: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Why, for people.
    pub why: String,
}

/// What an opening for salvage found.
#[derive(Debug, Default)]
pub struct Salvage {
    /// The catalog that everything rests on.
    pub source: CatalogSource,
    /// What is not as it must be.
    pub findings: Vec<SalvageFinding>,
    /// Why what is read may be wrong, wherever it is read. Empty: what is read is right.
    pub doubts: Vec<String>,
    /// What is known by name only.
    pub lost: Vec<LostDevice>,
    /// Of physical volumes that are not whole: bytes from the start that can be read, and why not
    /// all of them.
    pub(crate) limits: BTreeMap<u32, (u64, Arc<str>)>,
    /// Why no moment of any history is shown.
    pub(crate) histories: Option<String>,
}

impl Salvage {
    /// Nothing is lost that the opening has met, and nothing is in doubt. Ranges of volumes are
    /// found by [`Pool::losses`] only.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.doubts.is_empty() && self.lost.is_empty()
    }

    pub(crate) fn find(&mut self, code: &'static str, object: impl Into<String>, detail: impl Into<String>) {
        self.findings.push(SalvageFinding { code, object: object.into(), detail: detail.into() });
    }

    /// No moment of any history can be shown any more; the first reason stays.
    pub(crate) fn distrust_histories(&mut self, why: impl Into<String>) {
        self.histories.get_or_insert_with(|| why.into());
    }
}

impl Pool {
    /// What the opening found, if the pool was opened for salvage.
    pub fn salvage(&self) -> Option<&Salvage> {
        self.salvage.get()
    }

    /// Fails with [`ErrorKind::Lost`] where moments would be reconstructed from what may lack
    /// records.
    pub(crate) fn check_histories(&self) -> Result<()> {
        match self.salvage.get().and_then(|found| found.histories.as_ref()) {
            Some(why) => Err(Error::new(ErrorKind::Lost, format!("show a moment of the past: {why}"))),
            None => Ok(()),
        }
    }
}
