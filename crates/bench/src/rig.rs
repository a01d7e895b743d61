//! A Hindcast server under test ([`Rig`]), with the operations that measurements repeat on it.

use crate::process;
use crate::scratch::Scratch;
use crate::server::{self, Hindcast, Server, timed};
use anyhow::{Context, Result};
use hindcast_api::{Client, CreateSnapshots, DeleteSnapshots, NewSnapshot};
use std::path::PathBuf;
use std::time::Duration;

/// How long background work may go on before a measurement begins regardless.
pub(crate) const SETTLE_LIMIT: Duration = Duration::from_secs(300);

/// The server under test, where it is, and the arguments of the benchmark.
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

    /// Writes all of a volume, and brings it into its everyday state of caching.
    pub(crate) fn fill(&self, name: &str, size: u64) -> Result<()> {
        server::fill_export(&self.hindcast.export(name), size, &self.dir())
            .with_context(|| format!("fill {name}"))?;
        self.rest()
    }

    /// Everyday state: no background work, nothing cached.
    pub(crate) fn rest(&self) -> Result<()> {
        self.settle()?;
        self.scratch.forget_cached()
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.api().delete_volume(name, true)?;
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

    /// Writes that a volume has taken.
    pub(crate) fn writes_of(&self, volume: &str) -> Result<u64> {
        Ok(self.api().volume(volume)?.stats.writes)
    }

    /// Bytes of the pool in use.
    pub(crate) fn used(&self) -> Result<u64> {
        Ok(self.api().pool()?.used)
    }
}
