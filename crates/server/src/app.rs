//! The parts of a running server ([`App`]). Other modules add the methods: snapshots, schedules,
//! health and others.

use crate::activity::Sampler;
use crate::audit::Audit;
use crate::backups::Backups;
use crate::events::Events;
use crate::exports_running::RunningExports;
use crate::file_readers::FileReaders;
use crate::freeze::VolumeHooks;
use crate::groups::Groups;
use crate::held_names::HeldNames;
use crate::host_paths::HostPaths;
use crate::identity::Callers;
use crate::iscsi::IscsiTarget;
use crate::last_changes::LastChanges;
use crate::latency::Latencies;
use crate::lineage::Lineage;
use crate::nbd::NbdTarget;
use crate::progress::SeenTasks;
use crate::receivers::Receivers;
use crate::schedule::state::Schedules;
use crate::settings::{Prices, TrashTimes};
use crate::space_trend::SpaceTrend;
use crate::stream_places::StreamPlaces;
use crate::traces::Traces;
use crate::views::Views;
use crate::web::Web;
use hindcast_api::{Limits, Listeners};
use hindcast_engine::pool::{Pool, VolumeInfo};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

/// Times since which problems are there: (code, subject).
pub(crate) type ProblemTimes = BTreeMap<(String, Option<String>), Timestamp>;

/// The parts of a running server.
pub(crate) struct App {
    pub(crate) pool: Arc<Pool>,
    /// Everything by which the server recognizes callers of the admin API.
    pub(crate) callers: Callers,
    /// Who changed what through the admin API.
    pub(crate) audit: Audit,
    /// How the admin API is served over TCP.
    pub(crate) web: Web,
    pub(crate) nbd: NbdTarget,
    pub(crate) iscsi: IscsiTarget,
    pub(crate) started: Timestamp,
    pub(crate) data: String,
    pub(crate) listeners: Listeners,
    pub(crate) limits: Limits,
    /// Check of the host's paths in requests.
    pub(crate) host_paths: HostPaths,
    /// Permits for the threads that requests over TCP may use.
    pub(crate) network: Arc<Semaphore>,
    /// Default chunk size of new volumes, in bytes.
    pub(crate) chunk: u64,
    /// Commands before and after snapshots, by volume.
    pub(crate) hooks: VolumeHooks,
    pub(crate) schedules: Schedules,
    /// Named sets of volumes.
    pub(crate) groups: Groups,
    /// Names of volumes that requests by UUID use.
    pub(crate) held_names: HeldNames,
    /// Moments that the server keeps from expiring.
    pub(crate) views: Views,
    /// Processes that read files in views.
    pub(crate) file_readers: FileReaders,
    /// What happened on this server.
    pub(crate) events: Events,
    /// How long devices take.
    pub(crate) latencies: Latencies,
    /// What clients did lately.
    pub(crate) sampler: Sampler,
    /// When volumes were last written to.
    pub(crate) last_changes: LastChanges,
    /// How fast the pool fills up.
    pub(crate) space_trend: Arc<SpaceTrend>,
    /// What was seen of background tasks.
    pub(crate) seen_tasks: SeenTasks,
    /// The exports that run.
    pub(crate) exports: RunningExports,
    /// Places for responses that go on.
    pub(crate) streams: Arc<StreamPlaces>,
    /// Whether the server stops. Responses without an end end then.
    pub(crate) stopping: watch::Sender<bool>,
    /// Backups of the pool's metadata.
    pub(crate) backups: Arc<Backups>,
    /// Traces of disk accesses.
    pub(crate) traces: Traces,
    /// How long deleted volumes can be restored.
    pub(crate) trash: TrashTimes,
    /// The times since which the health's problems are there.
    pub(crate) problems_since: Mutex<ProblemTimes>,
    /// Receivers of notices about problems. `None`: the operator configured none.
    pub(crate) receivers: Option<Receivers>,
    /// Prices of recovery time and of storage.
    pub(crate) prices: Prices,
    /// Permits for exports and imports that run at the same time.
    pub(crate) transfers: Arc<Semaphore>,
    /// Lock of changes of the content at snapshots' addresses.
    pub(crate) changing_writable: Mutex<()>,
}

impl App {
    /// Returns the API's representation of a volume.
    pub(crate) fn shown(&self, info: &VolumeInfo) -> hindcast_api::Volume {
        self.shown_by(&Lineage::new(&self.pool), info)
    }

    /// Returns the API's representation of a volume, for a response with several volumes that share
    /// `lineage`.
    pub(crate) fn shown_by(&self, lineage: &Lineage<'_>, info: &VolumeInfo) -> hindcast_api::Volume {
        let nbd = self.iscsi.nbd_rules().serves(info);
        hindcast_api::Volume { nbd, ..lineage.volume(info) }
    }

    /// Returns the volumes that exist, in use or in the trash.
    pub(crate) fn known_volumes(&self) -> Vec<Uuid> {
        let in_use = self.pool.volumes().into_iter().map(|volume| volume.uuid);
        in_use.chain(self.pool.trash().into_iter().map(|info| info.volume.uuid)).collect()
    }
}
