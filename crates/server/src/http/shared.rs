//! Items that several routes use: the application, threads that call the engine, and paths and
//! parameters in requests.

use super::error::ApiError;
use super::guests;
use crate::app::App;
use crate::host_paths::{Checked, Door, Purpose};
use crate::realtime;
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Maximum number of exports and imports that run at the same time. Each has a thread, and reads or
/// writes as fast as it can.
pub(crate) const MAX_TRANSFERS: usize = 8;

/// Number of threads that requests over TCP may use, of all threads that call the engine.
pub(crate) const NETWORK_THREADS: usize = 6;

/// The application, as an argument of handlers.
pub(super) type Shared = State<Arc<App>>;

/// Query parameters of a deletion.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteQuery {
    #[serde(default)]
    pub(super) force: bool,
}

/// Query parameters of the deletion of a volume.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteVolumeQuery {
    #[serde(default)]
    pub(super) force: bool,
    #[serde(default)]
    pub(super) now: bool,
}

/// Returns a function that checks a path of the host in the current request. The path may be used
/// as long as the result of the check lives. The check depends on how the request arrived, so a
/// handler calls `host_path` itself, and not within [`blocking`].
pub(super) fn host_path(
    path: &str,
    purpose: Purpose,
) -> impl FnOnce(&App) -> Result<Checked, ApiError> + use<> {
    let (door, path) = (guests::door(), path.to_owned());
    move |app| Ok(app.host_paths.check(door, &app.pool, &path, purpose)?)
}

/// Calls the engine from a thread that may block, at normal priority. The engine may wait for a
/// disk.
pub(super) async fn blocking<T, F>(app: &Arc<App>, work: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
{
    run(app, false, move |app| realtime::lowered(|| work(app))).await
}

/// Calls the engine from a thread that may block, and keeps the thread's raised priority. `work`
/// must take little processor time. It may wait for a disk.
pub(super) async fn urgent<T, F>(app: &Arc<App>, work: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
{
    run(app, true, work).await
}

/// Calls the engine from a thread that may block. Urgent work of a request over TCP runs on a
/// thread of the runtime of the Unix socket.
async fn run<T, F>(app: &Arc<App>, urgent: bool, work: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
{
    let app = app.clone();
    let door = guests::door();
    // Clients that have the token must not keep the owner from administering the pool.
    let turn = match door {
        Door::Network => app.network.clone().acquire_owned().await.ok(),
        Door::Local => None,
    };
    let runtime = match (door, urgent) {
        (Door::Network, true) => app.web.urgent.clone(),
        _ => Handle::current(),
    };
    let work = move || {
        let _turn = turn;
        work(&app)
    };
    match runtime.spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ApiError::internal(format!("the operation panicked: {error}"))),
    }
}
