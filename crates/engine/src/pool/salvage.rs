//! What an opening for salvage ([`crate::salvage`]) tells: which catalog it rests on, what of the
//! pool is lost, and what leaves a doubt.

use super::Pool;
use crate::info::Salvage;

impl Pool {
    /// What the opening found, if the pool was opened for salvage.
    pub fn salvage(&self) -> Option<&Salvage> {
        self.core.salvage.get()
    }
}
