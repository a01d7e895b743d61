//! A Hindcast server under test ([`Rig`]), and the operations that measurements repeat on it.

use crate::process;
use crate::scratch::Scratch;
use crate::server::{self, Hindcast, Server, timed};
use anyhow::{Context, Result};
use hindcast_api::{Client, CreateSnapshots, DeleteSnapshots, NewSnapshot};
use std::path::PathBuf;
use std::time::Duration;

/// Longest time that a measurement waits for background work to end. Then the measurement begins
/// although the server is busy.
pub(crate) const SETTLE_LIMIT: Duration = Duration::from_secs(300);

/// A server under test, its settings and scratch directory, and the arguments of the benchmark.
pub(crate) struct Rig<'a, A> {
    pub(crate) args: &'a A,
    pub(crate) hindcast: Hindcast,
    pub(crate) server: Server,
    pub(crate) scratch: &'a Scratch,
}

impl<A> Rig<'_, A> {
    pub(crate) fn api(&self) -> &Client {
        self.hindcast.api()
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.scratch.join("")
    }

    pub(crate) fn settle(&self) -> Result<()> {
        process::settle(self.server.pid(), SETTLE_LIMIT)
    }

    /// Writes all `size` bytes of a volume. Then waits for the background work, and drops all
    /// cached pages.
    pub(crate) fn fill(&self, name: &str, size: u64) -> Result<()> {
        server::fill_export(&self.hindcast.export(name), size, &self.dir())
            .with_context(|| format!("fill {name}"))?;
        self.rest()
    }

    /// Waits for the background work of the server, and drops the cached pages of its files.
    /// Measurements begin in this state.
    pub(crate) fn rest(&self) -> Result<()> {
        self.settle()?;
        self.scratch.forget_cached()
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.api().delete_volume(name, hindcast_api::DeleteVolume { force: true, now: true })?;
        self.settle()
    }

    pub(crate) fn snapshot(&self, volume: &str, name: &str) -> Result<Duration> {
        let one = NewSnapshot { volume: volume.to_owned(), name: Some(name.to_owned()) };
        let new = CreateSnapshots { snapshots: vec![one], ..CreateSnapshots::default() };
        Ok(timed(|| self.api().create_snapshots(&new))?.1)
    }

    pub(crate) fn delete(&self, volume: &str, names: &[String]) -> Result<()> {
        let which = DeleteSnapshots { names: names.to_vec(), force: false };
        Ok(self.api().delete_snapshots(volume, &which)?)
    }

    /// Returns the number of writes that a volume has received.
    pub(crate) fn writes_of(&self, volume: &str) -> Result<u64> {
        Ok(self.api().volume(volume)?.stats.writes)
    }

    /// Returns the number of bytes of the pool that are in use.
    pub(crate) fn used(&self) -> Result<u64> {
        Ok(self.api().pool()?.used)
    }
}
