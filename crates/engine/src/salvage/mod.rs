//! Salvage: reading what is left of a pool that does not open any more.
//!
//! [`Pool::open_salvage`](crate::pool::Pool::open_salvage) opens the parts of a pool that exist. It
//! writes to none of them: recovery runs in memory, and the pool is read-only from the start.
//! Missing or damaged parts do not keep the pool from opening. They are named
//! ([`crate::info::Salvage`]), and reads that need them fail. [`crate::pool::Pool::losses`] lists
//! what can't be read of each volume and snapshot, by metadata alone.
//!
//! One rule decides everywhere: what can't be proved absent is lost. A map page that can't be read
//! is an error, never a hole, and a row that may have been there is named.

mod journal;
mod names;
mod open;
mod pvs;
mod source;
mod walk;

pub use open::SalvageOptions;
pub use walk::{Loss, LossReason, Losses};
