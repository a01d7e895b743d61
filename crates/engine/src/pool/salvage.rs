//! The report of an opening for salvage ([`crate::salvage`]): the catalog that it uses, what of the
//! pool is lost, and what is doubtful.

use super::Pool;
use crate::info::Salvage;

impl Pool {
    /// Returns what the opening found, if the pool was opened for salvage.
    pub fn salvage(&self) -> Option<&Salvage> {
        self.core.salvage.get()
    }
}
