//! Pools.
mod info;
pub use info::*;
