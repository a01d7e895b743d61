//! The parts of a running server ([`App`]). What the server does with them is in the modules that
//! add methods: snapshots, schedules, health and others.

use crate::backups::Backups;
use crate::freeze::VolumeHooks;
use crate::host_paths::HostPaths;
use crate::iscsi::IscsiTarget;
use crate::lineage::Lineage;
use crate::nbd::NbdTarget;
use crate::schedule::state::Schedules;
use crate::settings::Prices;
use hindcast_api::{Limits, Listeners};
use hindcast_engine::pool::{Pool, VolumeInfo};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The parts of a running server.
pub(crate) struct App {
    pub(crate) pool: Arc<Pool>,
    pub(crate) nbd: NbdTarget,
    pub(crate) iscsi: IscsiTarget,
    pub(crate) started: Timestamp,
    pub(crate) data: String,
    pub(crate) listeners: Listeners,
    pub(crate) limits: Limits,
    /// Where paths in requests may lead.
    pub(crate) host_paths: HostPaths,
    /// Threads for requests over TCP.
    pub(crate) network: Arc<Semaphore>,
    /// Chunk size of volumes that are created without one.
    pub(crate) chunk: u64,
    /// Commands around snapshots.
    pub(crate) hooks: VolumeHooks,
    pub(crate) schedules: Schedules,
    /// Backups of the metadata.
    pub(crate) backups: Arc<Backups>,
    /// What time and space are worth.
    pub(crate) prices: Prices,
    /// Exports and imports that may go on at the same time.
    pub(crate) transfers: Arc<Semaphore>,
    /// Held while it is changed what stands behind a snapshot's address.
    pub(crate) changing_writable: Mutex<()>,
}

impl App {
    /// A volume as the API shows it.
    pub(crate) fn shown(&self, info: &VolumeInfo) -> hindcast_api::Volume {
        self.shown_by(&Lineage::new(&self.pool), info)
    }

    /// A volume as the API shows it, for an answer about several volumes, which share `lineage`.
    pub(crate) fn shown_by(&self, lineage: &Lineage<'_>, info: &VolumeInfo) -> hindcast_api::Volume {
        let nbd = self.iscsi.nbd_rules().serves(info);
        hindcast_api::Volume { nbd, ..lineage.volume(info) }
    }
}
