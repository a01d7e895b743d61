//! What the routes share: the application, the threads that work for requests, and the paths and
//! parameters that several requests have.

use super::error::ApiError;
use super::guests;
use crate::app::App;
use crate::host_paths::{Checked, Door, Purpose};
use crate::realtime;
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;

/// Exports and imports that may go on at the same time: each has a thread, and reads or writes as
/// fast as it can.
pub(crate) const MAX_TRANSFERS: usize = 8;

/// Of the threads that wait for the engine, those that requests over TCP may use.
pub(crate) const NETWORK_THREADS: usize = 6;

/// The application, as handlers get it.
pub(super) type Shared = State<Arc<App>>;

/// Parameters of a deletion.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteQuery {
    #[serde(default)]
    pub(super) force: bool,
}

/// A path of the host in a request that is being handled, as it may be used while the answer lives.
pub(super) fn host_path(
    path: &str,
    purpose: Purpose,
) -> impl FnOnce(&App) -> Result<Checked, ApiError> + use<> {
    let (door, path) = (guests::door(), path.to_owned());
    move |app| Ok(app.host_paths.check(door, &app.pool, &path, purpose)?)
}

/// Calls the engine, which may wait for a disk, from a thread that may block.
pub(super) async fn blocking<T, F>(app: &Arc<App>, work: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
{
    urgent(app, move |app| realtime::lowered(|| work(app))).await
}

/// Calls the engine from a thread that runs before others: for work that takes no time, except for
/// a disk that it may wait for.
pub(super) async fn urgent<T, F>(app: &Arc<App>, work: F) -> Result<T, ApiError>
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
