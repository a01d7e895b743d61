//! A Hindcast server under test ([`Rig`]), with the operations that measurements repeat on it.

use crate::process;
use crate::scratch::Scratch;
use crate::server::{self, Hindcast, Server};
use anyhow::{Context, Result};
use serde_json::{Value, json};
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
        self.hindcast.api("DELETE", &format!("/volumes/{name}?force=true"), &Value::Null)?;
        self.settle()
    }

    pub(crate) fn snapshot(&self, volume: &str, name: &str) -> Result<Duration> {
        let body = json!({ "snapshots": [{ "volume": volume, "name": name }] });
        Ok(self.hindcast.api("POST", "/snapshots", &body)?.1)
    }

    pub(crate) fn delete(&self, volume: &str, names: &[String]) -> Result<Duration> {
        let body = json!({ "names": names });
        Ok(self.hindcast.api("POST", &format!("/volumes/{volume}/snapshots/delete"), &body)?.1)
    }

    /// Writes that a volume has taken.
    pub(crate) fn writes_of(&self, volume: &str) -> Result<u64> {
        let (volume, _) = self.hindcast.api("GET", &format!("/volumes/{volume}"), &Value::Null)?;
        volume["stats"]["writes"].as_u64().context("no `stats.writes` in the volume's state")
    }

    /// Bytes of the pool in use.
    pub(crate) fn used(&self) -> Result<u64> {
        let (pool, _) = self.hindcast.api("GET", "/pool", &Value::Null)?;
        pool["used"].as_u64().context("no `used` in the pool's state")
    }
}
