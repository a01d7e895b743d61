//! The admin API over HTTP: routes, credentials, and the loops that serve connections.

mod backups;
mod cdp;
mod clock;
pub(crate) mod convert;
mod error;
mod flatten;
mod framing;
#[cfg(test)]
mod framing_hyper;
mod guests;
mod lineage;
mod patience;
mod probe;
mod relocation;
mod routes;
mod schedules;
mod serve;
mod snapshots;
mod targets;
mod transfer;

pub use error::error_body;
pub(crate) use serve::{ApiServer, addresses, serve};

use crate::anchor_tuner::Prices;
use crate::backups::Backups;
use crate::host_paths::{Checked, Door, HostPaths, Purpose};
use crate::iscsi::IscsiTarget;
use crate::nbd::NbdTarget;
use crate::realtime;
use crate::schedule::Schedules;
use crate::snapshots::VolumeHooks;
use error::ApiError;
use hindcast_api::{Limits, Listeners, Status};
use hindcast_engine::pool::{Pool, VolumeInfo};
use jiff::Timestamp;
use lineage::Lineage;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Exports and imports that may go on at the same time: each has a thread, and reads or writes as
/// fast as it can.
pub(crate) const MAX_TRANSFERS: usize = 8;

/// Of the threads that wait for the engine, those that requests over TCP may use.
pub(crate) const NETWORK_THREADS: usize = 6;

/// What handlers work on.
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
    pub(crate) backups: Backups,
    /// What time and space are worth.
    pub(crate) prices: Prices,
    /// Exports and imports that may go on at the same time.
    pub(crate) transfers: Arc<Semaphore>,
    /// Held while it is changed what stands behind a snapshot's address.
    pub(crate) changing_writable: Mutex<()>,
}

/// A path of the host in a request that is being handled, as it may be used while the answer lives.
fn host_path(path: &str, purpose: Purpose) -> impl FnOnce(&App) -> Result<Checked, ApiError> + use<> {
    let (door, path) = (guests::door(), path.to_owned());
    move |app| Ok(app.host_paths.check(door, &app.pool, &path, purpose)?)
}

impl App {
    /// A volume as the API shows it.
    pub(crate) fn shown(&self, info: &VolumeInfo) -> hindcast_api::Volume {
        self.shown_by(&Lineage::new(&self.pool), info)
    }

    /// A volume as the API shows it, for an answer about several volumes, which share `lineage`.
    fn shown_by(&self, lineage: &Lineage<'_>, info: &VolumeInfo) -> hindcast_api::Volume {
        let nbd = self.iscsi.nbd_rules().serves(info);
        hindcast_api::Volume { nbd, ..lineage.volume(info) }
    }

    fn status(&self) -> Status {
        let info = self.pool.info();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started: self.started,
            data: self.data.clone(),
            listeners: self.listeners.clone(),
            health: self.health(),
            capacity: info.capacity,
            used: info.used,
            available: info.available,
            volumes: info.volumes,
            nbd_connections: self.nbd.stats().connections as u64,
            iscsi_sessions: self.iscsi.stats().sessions as u64,
            limits: self.limits,
        }
    }
}

/// Calls the engine, which may wait for a disk, from a thread that may block.
async fn blocking<T, F>(app: &Arc<App>, work: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
{
    urgent(app, move |app| realtime::lowered(|| work(app))).await
}

/// Calls the engine from a thread that runs before others: for work that takes no time, except for
/// a disk that it may wait for.
async fn urgent<T, F>(app: &Arc<App>, work: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
{
    let app = app.clone();
    // Clients that have the token must not keep the owner from administering the pool.
    let turn = match guests::door() {
        Door::Network => app.network.clone().acquire_owned().await.ok(),
        Door::Local => None,
    };
    let work = move || {
        let _turn = turn;
        work(&app)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ApiError::internal(format!("the operation panicked: {error}"))),
    }
}
