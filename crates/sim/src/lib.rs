//! Hindcast's deterministic simulator.
//!
//! The real engine runs on [`SimDir`], one thread, one seed: random requests and background steps, crashes at any
//! operation with any subset of unsynced writes lost, torn or reordered, and other faults. A plain model in memory
//! checks every read, and after each crash that what is left is what I4 promises.
#![forbid(unsafe_code)]

mod disk;
mod fate;
mod image;
mod rand;

pub use disk::{Counts, CrashPoint, SimDir};
pub use fate::{PowerLoss, TearModel};
pub use rand::Rand;
