//! Hindcast's storage engine.
//!
//! Synchronous, `Send + Sync`, without sockets, runtime, or a clock of its own (I1). Everything that makes progress in
//! the background is a function that can be called by hand (I2), which is how the simulator runs this very code.
//!
//! The modules are the data path: a write comes in at [`device`] (implemented in `volume`), is ordered and kept by
//! `journal`, found again by `staging`, and moved to its place by `destage`, which asks `pool` for slots and records
//! them in `map`, all committed by `catalog`; `disk` and `world` are the seams at the bottom.
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as hindcast_engine;
#[cfg(test)]
#[macro_use]
#[path = "../tests/common/forward.rs"]
mod forward;

pub mod backup;
mod catalog;
pub mod cdp;
pub mod check;
mod clock;
mod codec;
mod damage;
mod destage;
pub mod device;
pub mod disk;
mod error;
mod fault;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod generation;
mod grace;
mod journal;
mod map;
pub mod pool;
pub mod salvage;
mod staging;
pub mod stream;
#[cfg(test)]
mod testing;
mod volume;
pub mod world;

pub use error::{Error, ErrorKind, Result};
pub use volume::{ChangeRun, Difference, Volume};
