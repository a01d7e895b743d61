//! Hindcast's storage engine.
//!
//! The engine is synchronous and `Send + Sync`. It has no sockets, no runtime, and no clock of its
//! own (I1). Everything that makes progress in the background is a function that can be called by
//! hand (I2): the simulator runs this very code.
//!
//! The folders lie in layers, and each imports only those below it. At the bottom are the seams
//! [`disk`] and [`world`]. Above them are the parts of a pool: `journal`, `catalog`, `branch`,
//! `space`, `map`. `core` has them all; `destage` and `upkeep` work on them in the background. At
//! the top, users have [`Volume`] and [`pool::Pool`]. docs/ARCHITECTURE.md has the picture.
//!
//! # Example
//!
//! A pool in memory, a volume, a snapshot, and a view of a moment between two writes:
//!
//! ```
//! use bytes::Bytes;
//! use hindcast_engine::cdp::{CdpSettings, Moment};
//! use hindcast_engine::device::{BlockDevice, WriteOp};
//! use hindcast_engine::disk::MemDir;
//! use hindcast_engine::pool::{NewVolume, Placement, Pool, PoolConfig, PoolOptions, PvSpec};
//! use hindcast_engine::world::{ManualClock, SplitMix, World};
//! use std::sync::Arc;
//!
//! # fn main() -> hindcast_engine::Result<()> {
//! let dir = Arc::new(MemDir::new());
//! let world = World { clock: Arc::new(ManualClock::new(1)), rng: Arc::new(SplitMix::new(1)) };
//! let pv = PvSpec { path: "pv.img".into(), size: Some(64 << 20), force: false };
//! let (journal_size, segment_size) = (4 << 20, 256 << 10);
//! let config = PoolConfig { journal_size, segment_size, ..PoolConfig::default() };
//! Pool::create(dir.clone(), &world, &config, Placement::Anywhere, &[pv])?;
//! let pool = Pool::open(dir, world, PoolOptions::default())?;
//!
//! pool.create_volume(&NewVolume {
//!     name: "db".into(),
//!     size: 16 << 20,
//!     chunk_size: 16 << 10,
//!     block_size: 512,
//!     read_only: false,
//! })?;
//! pool.set_cdp("db", Some(CdpSettings::default()))?;
//! let volume = pool.open_volume("db", false)?;
//! let write = |byte: u8| {
//!     let mut ops = [WriteOp::new(0, Bytes::from(vec![byte; 4096]))];
//!     volume.write(&mut ops, true); // durable when it returns
//!     ops[0].result.clone()
//! };
//! write(1)?;
//! pool.create_snapshots(&[("db", "monday")])?;
//! write(2)?;
//! let between = pool.stats().sequenced_lsn;
//! write(3)?;
//!
//! let first_byte = |device: &dyn BlockDevice| {
//!     let mut block = [0; 4096];
//!     device.read(0, &mut block).map(|()| block[0])
//! };
//! assert_eq!(first_byte(&*volume)?, 3);
//! assert_eq!(first_byte(&*pool.open_snapshot("db", "monday")?)?, 1);
//! assert_eq!(first_byte(&*pool.open_moment("db", &Moment::Lsn(between))?)?, 2);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod area;
pub mod backup;
mod branch;
mod catalog;
pub mod cdp;
pub mod check;
mod clock;
mod codec;
mod control;
mod core;
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
mod hash;
mod health;
pub mod ids;
mod info;
mod journal;
mod map;
mod pace;
mod placed;
mod policies;
pub mod pool;
mod repairs;
#[cfg_attr(not(feature = "mutations"), expect(unreachable_pub))]
mod rule;
pub mod salvage;
mod sequence;
mod settings;
mod shortage;
mod space;
mod staging;
pub mod stream;
mod sums;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod throttle;
mod units;
mod upkeep;
mod verified;
mod volume;
pub mod world;

pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "mutations")]
pub use rule::Rule;
pub use volume::{ChangeRun, Difference, Volume};
