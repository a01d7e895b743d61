//! The life of the server process. It opens the pool, listens, announces that it is ready, waits
//! for a signal, and stops in order.

use crate::activity::Sampler;
use crate::app::App;
use crate::audit::Audit;
use crate::backups::Backups;
use crate::certificate::Certificates;
use crate::config::Config;
use crate::convert::error_body;
use crate::events::Events;
use crate::exports_running::RunningExports;
use crate::file_readers::FileReaders;
use crate::groups::Groups;
use crate::held_names::HeldNames;
use crate::host_paths::HostPaths;
use crate::http::{self, ApiServer};
use crate::identity::Callers;
use crate::iscsi::IscsiTarget;
use crate::last_changes::LastChanges;
use crate::latency::Latencies;
use crate::listen::{Address, Listener};
use crate::maintenance::Maintenance;
use crate::nbd::{NbdTarget, PoolExports};
use crate::notify::Notifier;
use crate::periodic::Worker;
use crate::progress::SeenTasks;
use crate::schedule::state::Schedules;
use crate::settings::Settings;
use crate::space_trend::{self, SpaceTrend};
use crate::traces::Traces;
use crate::views::Views;
use crate::web::{Web, WebConfig};
use crate::{
    anchor_tuner, backups, data_directory, descriptors, live, logging, notices, open_pool, realtime,
    scheduler, tasks, trash, view_requests, world,
};
use hindcast_api::{ErrorBody, ErrorKind, Size};
use hindcast_engine::disk::{Dir, TraceEnd};
use hindcast_engine::pool::Pool;
use hindcast_target::iscsi::IscsiConfig;
use hindcast_target::nbd::NbdConfig;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, oneshot, watch};

/// Number of threads that call the engine for admin requests. Requests over TCP may use
/// [`http::NETWORK_THREADS`] of them.
const ADMIN_THREADS: usize = 12;
/// Number of threads that serve connections over TCP.
const WEB_THREADS: usize = 2;
/// Number of threads that may wait for disks, or compute, for requests over TCP.
const WEB_BLOCKING_THREADS: usize = 16;
/// Maximum time that a stop waits for the pool, beyond the time that clients get. A disk may never
/// answer. The end of the process without a clean close loses no acknowledged write.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which new events are saved.
const EVENTS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between writes of the times at which tokens were used.
const CALLERS_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between updates of the status that the service manager shows.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);

/// Runs a server until it receives SIGTERM or SIGINT.
pub fn serve(settings: Settings) -> Result<(), ErrorBody> {
    let config = settings.resolve()?;
    let events = Events::new();
    let _log = logging::start(&config.log, config.log_format, events.clone())?;
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(ADMIN_THREADS)
        .on_thread_start(|| {
            realtime::keep_raised();
        })
        .build()
        .map_err(|e| io_error("start the runtime", &e))?;
    let hangup = {
        let _inside = runtime.enter();
        handle(SignalKind::hangup())?
    };
    let pool = open_pool::open(&config)?;
    if !config.allowed.is_empty() {
        warn_of_stray_images(HostPaths::new(&config.data, &config.allowed, &[]), pool.clone());
    }
    if !pool.is_only_shown() {
        events.open(&config.data);
    }
    let web = web_runtime().map_err(|e| io_error("start the runtime of the network", &e))?;
    let result = runtime.block_on(run(&config, pool, (events, hangup), web.handle()));
    web.shutdown_background();
    // Whatever still blocks is waiting for a disk; nothing depends on it any more.
    runtime.shutdown_background();
    result
}

/// Starts the runtime that serves the admin API over TCP. It has ordinary threads, so that work for
/// clients over the network never delays what runs with a raised priority.
fn web_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WEB_THREADS)
        .max_blocking_threads(WEB_BLOCKING_THREADS)
        .thread_name("web")
        .on_thread_start(|| {
            realtime::lower();
        })
        .enable_all()
        .build()
}

fn io_error(what: &str, error: &dyn std::fmt::Display) -> ErrorBody {
    ErrorBody { kind: ErrorKind::Io, message: format!("{what}: {error}") }
}

/// Warns of volumes whose images can't be read any more. These images were chosen before
/// `--allow-path` was configured, and a symbolic link leads out of its directories. The search may
/// take time, so it runs on a thread that the start does not wait for.
fn warn_of_stray_images(paths: HostPaths, pool: Arc<Pool>) {
    let look = move || {
        for (volume, image) in paths.stray_images(&pool) {
            tracing::warn!(
                volume,
                image,
                "a symbolic link leads the image out of the directories of --allow-path; add the directory it leads to"
            );
        }
    };
    if let Err(error) = std::thread::Builder::new().name("images".into()).spawn(look) {
        tracing::warn!(%error, "the thread that checks images could not be started");
    }
}

/// Binds the listeners of the admin API. Those for TCP belong to the runtime `web`.
///
/// Also returns why the default address has no listener, if it was to have one.
async fn bind(config: &Config, web: &Handle) -> Result<(Vec<Listener>, Option<String>), ErrorBody> {
    let (mut listeners, mut unbound) = (Vec::new(), None);
    let required = config.api.iter().map(|address| (address, true));
    for (address, required) in required.chain(config.api_if_free.iter().map(|address| (address, false))) {
        let (address, access) = (address.clone(), config.socket);
        let bound = match &address {
            Address::Unix(_) => Listener::bind(&address, &access).await,
            Address::Tcp(_) => {
                let bound = web.spawn(async move { Listener::bind(&address, &access).await });
                bound.await.map_err(|e| io_error("listen", &e))?
            }
        };
        match bound {
            Ok(listener) => listeners.push(listener),
            Err(error) if required => return Err(error),
            Err(error) => {
                tracing::warn!("{error}; the admin API is not there; --api chooses other addresses");
                unbound = Some(error.message);
            }
        }
    }
    Ok((listeners, unbound))
}

/// Prepares the admin API over TCP: its certificate, if a listener speaks TLS, and its URLs.
fn web(
    config: &WebConfig,
    listeners: &[Listener],
    dir: &Arc<dyn Dir>,
    web_threads: &Handle,
) -> Result<Web, ErrorBody> {
    let addresses: Vec<SocketAddr> = listeners.iter().filter_map(Listener::tcp).collect();
    let needs_tls = addresses.iter().any(|address| config.speaks_tls(address.ip()));
    let certificates = match &config.files {
        Some(files) => Some(Certificates::read(files.clone())),
        None if needs_tls => Some(Certificates::own(dir.clone(), &config.names(listeners))),
        None => None,
    };
    let certificates = certificates.transpose().map_err(error_body)?.map(Arc::new);
    if let Some(certificates) = &certificates {
        let current = certificates.current();
        let (fingerprint, self_signed) = (current.fingerprint.text(), current.self_signed);
        tracing::info!(fingerprint, self_signed, "certificate of the admin API (SHA-256)");
    }
    Ok(Web {
        certificates,
        config: config.clone(),
        unbound: None,
        instance: world::uuid().simple().to_string(),
        urls: addresses.into_iter().map(|address| config.url(address)).collect(),
        urgent: Handle::current(),
        ordinary: web_threads.clone(),
    })
}

/// Starts the targets. Requests of their clients are timed.
fn start_targets(
    config: &Config,
    pool: &Arc<Pool>,
    (nbd, iscsi): (NbdConfig, IscsiConfig),
    latencies: &Latencies,
) -> Result<(NbdTarget, IscsiTarget), ErrorBody> {
    let iscsi = IscsiTarget::start(&iscsi, pool.clone(), latencies.clone(), &config.data);
    let iscsi = iscsi.map_err(error_body)?;
    let exports = PoolExports::new(pool.clone(), iscsi.nbd_rules(), config.nbd_open, latencies.clone());
    Ok((NbdTarget::start(&nbd, exports).map_err(error_body)?, iscsi))
}

async fn run(
    config: &Config,
    pool: Arc<Pool>,
    (events, hangup): (Events, Signal),
    web_threads: &Handle,
) -> Result<(), ErrorBody> {
    let mut signals = Signals::new()?;
    let (listeners, unbound) = bind(config, web_threads).await?;
    let (connections, limits) = descriptors::connections(config, &pool)?;
    let (nbd, iscsi) = connections.clip(config);
    let latencies = Latencies::default();
    let (nbd, iscsi) = start_targets(config, &pool, (nbd, iscsi), &latencies)?;
    let own = data_directory::settings_of(&pool, &config.data);
    let audit = Audit::open(Some(config.data.as_path()).filter(|_| !pool.is_only_shown()), own.clone());
    let web = Web { unbound, ..web(&config.web, &listeners, &own, web_threads)? };
    let (schedules, groups) = (Schedules::open(own.clone()), Groups::open(own.clone()));
    let views = Views::open(own.clone(), &pool); // before the maintenance thread, which lets moments expire
    let maintenance =
        Maintenance::start(pool.clone()).map_err(|e| io_error("start the maintenance thread", &e))?;
    let app = Arc::new(App {
        listeners: http::addresses(&listeners, web.urls.clone(), nbd.addresses(), iscsi.addresses()),
        limits,
        host_paths: HostPaths::new(&config.data, &config.allowed, &config.own_files),
        network: Arc::new(Semaphore::new(http::NETWORK_THREADS)),
        pool,
        callers: Callers::open(&own, config.socket, config.api_token.clone()),
        web,
        audit,
        nbd,
        iscsi,
        started: Timestamp::now(),
        data: config.data.display().to_string(),
        chunk: config.chunk,
        hooks: config.hooks.clone(),
        transfers: Arc::new(Semaphore::new(http::MAX_TRANSFERS)),
        changing_writable: Mutex::default(),
        schedules,
        groups,
        held_names: HeldNames::default(),
        views,
        file_readers: FileReaders::new(),
        events,
        latencies,
        sampler: Sampler::new(),
        last_changes: LastChanges::default(),
        space_trend: Arc::new(SpaceTrend::open(&own)),
        seen_tasks: SeenTasks::default(),
        exports: RunningExports::default(),
        streams: Arc::default(),
        stopping: watch::Sender::new(false),
        backups: Arc::new(Backups::open(&config.data, config.metadata_keep, config.metadata_interval)),
        traces: Traces::new(&config.data),
        prices: config.prices,
        trash: config.trash,
        problems_since: Mutex::default(),
        receivers: config.receivers.clone(),
    });
    let workers = start_workers(&app)?;
    tokio::spawn(look_at_hangup(hangup, app.clone()));
    let api = http::serve(&app, listeners, connections.api, web_threads)
        .map_err(|e| io_error("start the admin API", &e))?;
    let running = Running { app, api, workers, maintenance };
    attend(running, &mut signals, config.stop_timeout).await
}

/// The parts of a running server that its stop ends.
struct Running {
    app: Arc<App>,
    api: ApiServer,
    workers: Vec<Worker>,
    maintenance: Maintenance,
}

/// Reports that the server is ready, waits for a signal, and stops.
async fn attend(running: Running, signals: &mut Signals, stop_timeout: Duration) -> Result<(), ErrorBody> {
    let Running { app, api, workers, maintenance } = running;
    // After everything that lives as long as the server was started.
    let raised = realtime::raise();
    if raised.is_none() {
        tracing::info!(
            "real-time scheduling is not allowed (RLIMIT_RTPRIO): snapshots may wait for a processor"
        );
    }
    let notifier = Notifier::from_env();
    notifier.ready(&summary(&app));
    tracing::info!(
        api = app.listeners.api.join(" "),
        nbd = app.listeners.nbd.join(" "),
        iscsi = app.listeners.iscsi.join(" "),
        volumes = app.pool.info().volumes,
        "ready"
    );
    tokio::select! {
        name = signals.next() => tracing::info!(signal = name, "stopping; a second signal stops at once"),
        () = report(&notifier, &app, &maintenance) => {}
    }
    notifier.stopping();
    app.stopping.send_replace(true);
    tokio::select! {
        result = stop(app, api, (workers, maintenance), stop_timeout) => result,
        name = signals.next() => {
            // As safe as being killed: what was acknowledged is in the journal.
            tracing::warn!(signal = name, "stopping at once");
            logging::finish();
            std::process::exit(1);
        }
    }
}

/// Starts the threads with periodic work.
fn start_workers(app: &Arc<App>) -> Result<Vec<Worker>, ErrorBody> {
    let failed = |of: &str, error| io_error(&format!("start the {of} thread"), &error);
    let events = app.events.clone();
    let always = [
        scheduler::start(app.clone()).map_err(|e| failed("schedule", e))?,
        anchor_tuner::start(app.pool.clone(), app.prices).map_err(|e| failed("anchor", e))?,
        backups::start(app.pool.clone(), app.backups.clone()).map_err(|e| failed("backup", e))?,
        live::start(app.clone()).map_err(|e| failed("live", e))?,
        space_trend::start(app.pool.clone(), app.space_trend.clone()).map_err(|e| failed("space", e))?,
        tasks::start(app.clone()).map_err(|e| failed("tasks", e))?,
        trash::start(app.clone()).map_err(|e| failed("trash", e))?,
        notices::start(app.clone()).map_err(|e| failed("notice", e))?,
        Worker::start("events", EVENTS_INTERVAL, move || events.save()).map_err(|e| failed("event", e))?,
        view_requests::start(app.clone()).map_err(|e| failed("view", e))?,
        keep_up_callers(app).map_err(|e| failed("callers", e))?,
    ];
    Ok(always.into())
}

/// Starts the thread that writes when tokens were used, and looks for a new certificate.
fn keep_up_callers(app: &Arc<App>) -> std::io::Result<Worker> {
    let app = app.clone();
    Worker::start("callers", CALLERS_INTERVAL, move || {
        app.callers.keep_up();
        app.audit.keep_up();
        look_for_certificate(&app);
    })
}

/// Stops the server: first the service of clients, then background work, then the pool.
async fn stop(
    app: Arc<App>,
    api: ApiServer,
    (workers, maintenance): (Vec<Worker>, Maintenance),
    deadline: Duration,
) -> Result<(), ErrorBody> {
    let target = app.clone();
    let nbd = beside("stop-nbd", move || target.nbd.stop(deadline))?;
    let target = app.clone();
    let iscsi = beside("stop-iscsi", move || target.iscsi.stop(deadline))?;
    api.stop(deadline).await;
    let closed = async {
        nbd.await.map_err(|e| io_error("stop the NBD target", &e))?;
        iscsi.await.map_err(|e| io_error("stop the iSCSI target", &e))?;
        let close = beside("close", move || {
            workers.into_iter().for_each(Worker::stop);
            // There may be none.
            let _ = app.traces.end(TraceEnd::Shutdown);
            maintenance.stop();
            app.events.close();
            app.audit.close();
            realtime::lowered(|| {
                app.pool.close()?;
                // A stop is orderly without a backup too; the log says why there is none.
                if !app.pool.is_only_shown() {
                    let _ = app.backups.make(&app.pool, None);
                }
                hindcast_engine::Result::Ok(())
            })
        })?;
        close.await.map_err(|e| io_error("close the pool", &e))?.map_err(error_body)
    };
    // Threads that wait for something that never comes stay behind.
    match tokio::time::timeout(deadline + CLOSE_TIMEOUT, closed).await {
        Ok(closed) => closed?,
        Err(_) => {
            let why = "the server is blocked, for example by a disk; nothing is lost, because every acknowledged write is in the journal";
            return Err(io_error("stop in time", &why));
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// Runs `work` on a thread of its own, because all threads of the runtime may wait for a disk.
fn beside<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>, ErrorBody> {
    let (tell, told) = oneshot::channel();
    let run = move || {
        realtime::keep_raised();
        // The receiver may be gone.
        let _ = tell.send(work());
    };
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(|e| io_error("start a thread", &e))?;
    Ok(told)
}

/// Reports the status to the service manager, and that the server is alive: the maintenance thread
/// runs and the engine answers. It never returns.
async fn report(notifier: &Notifier, app: &Arc<App>, maintenance: &Maintenance) {
    let mut interval = tokio::time::interval(notifier.watchdog_interval().unwrap_or(STATUS_INTERVAL));
    let mut last = String::new();
    loop {
        interval.tick().await;
        let app = app.clone();
        let Ok(text) = tokio::task::spawn_blocking(move || realtime::lowered(|| summary(&app))).await else {
            continue;
        };
        if maintenance.is_alive() {
            notifier.alive();
        }
        if text != last {
            notifier.status(&text);
            last = text;
        }
    }
}

fn summary(app: &App) -> String {
    let info = app.pool.info();
    let health = app.health();
    let mut text =
        format!("{}: {} volumes, {} available", health.state.name(), info.volumes, Size(info.available));
    for problem in &health.problems {
        text.push_str("; ");
        // The protocol is one line a key.
        text.extend(problem.message.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    text
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, ErrorBody> {
        Ok(Signals {
            terminate: handle(SignalKind::terminate())?,
            interrupt: handle(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

fn handle(kind: SignalKind) -> Result<Signal, ErrorBody> {
    signal(kind).map_err(|e| io_error("handle signals", &e))
}

fn look_for_certificate(app: &App) {
    if let Some(certificates) = &app.web.certificates {
        certificates.look();
    }
}

/// Looks for a new certificate of the admin API at each SIGHUP. The signal has no other effect: a
/// terminal that closes, or a log rotation that signals every daemon, must not end the server.
async fn look_at_hangup(mut hangup: Signal, app: Arc<App>) {
    while hangup.recv().await.is_some() {
        tracing::info!(
            "SIGHUP: the server looks for a new certificate of the admin API; it reads its other settings at the start only"
        );
        let app = app.clone();
        let look = tokio::task::spawn_blocking(move || realtime::lowered(|| look_for_certificate(&app)));
        if let Err(error) = look.await {
            tracing::error!(%error, "the look for a new certificate panicked");
        }
    }
}
