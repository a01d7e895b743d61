//! The routes of traces of disk accesses.

use super::error::{ApiError, Json};
use super::shared::{Shared, blocking, host_path};
use crate::app::App;
use crate::host_paths::Purpose;
use crate::traces::TraceWish;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{BeginTrace, ErrorBody, Trace};
use hindcast_engine::disk::TraceEnd;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(trace, begin_trace, end_trace))
}

/// Returns the trace that is under way, or the last one since the server started.
#[utoipa::path(get, path = "/pool/trace", responses((status = OK, body = Trace)))]
async fn trace(State(app): Shared) -> Result<Json<Trace>, ApiError> {
    Ok(Json(app.traces.show()))
}

/// Begins to write all accesses to the disks of physical volumes to a file.
///
/// `path` is a path on the server's machine. One trace is possible at a time. It ends by itself
/// when its file or its time has come to the limit, when the file system has too little space left,
/// and when the server stops.
#[utoipa::path(post, path = "/pool/trace", request_body = BeginTrace, responses((status = CREATED, body = Trace), (status = "default", body = ErrorBody)))]
async fn begin_trace(
    State(app): Shared,
    Json(how): Json<BeginTrace>,
) -> Result<(StatusCode, Json<Trace>), ApiError> {
    let path = how.path.as_deref().map(|path| host_path(path, Purpose::NewFile));
    blocking(&app, move |app| {
        let checked = path.map(|path| path(app)).transpose()?;
        let path = checked.as_ref().map(|checked| checked.path.clone());
        let wanted = TraceWish { path, max_size: how.max_size, seconds: how.seconds };
        Ok((StatusCode::CREATED, Json(app.traces.begin(&app.pool, wanted)?)))
    })
    .await
}

/// Ends the trace that is under way.
#[utoipa::path(delete, path = "/pool/trace", responses((status = OK, body = Trace), (status = "default", body = ErrorBody)))]
async fn end_trace(State(app): Shared) -> Result<Json<Trace>, ApiError> {
    blocking(&app, |app| Ok(Json(app.traces.end(TraceEnd::Stopped)?))).await
}
