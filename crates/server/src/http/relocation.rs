//! The routes of relocation.

use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{ErrorBody, Relocate, Relocating, Relocation};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(relocation, relocate, stop_relocation))
}

fn state(app: &App, volume: &str) -> Result<Relocation, ApiError> {
    let layout = app.pool.layout(volume)?;
    let running = app.pool.relocation(volume)?;
    Ok(Relocation {
        chunks: layout.chunks,
        runs: layout.runs,
        running: running.map(|r| Relocating { pass: r.pass, position: r.position, moved: r.moved_bytes }),
    })
}

/// Returns the layout of a volume's chunks, and the progress of its relocation.
#[utoipa::path(get, path = "/volumes/{volume}/relocation", params(("volume" = String, Path)), responses((status = OK, body = Relocation), (status = "default", body = ErrorBody)))]
async fn relocation(State(app): Shared, Path(volume): Path<String>) -> Result<Json<Relocation>, ApiError> {
    blocking(&app, move |app| Ok(Json(state(app, &volume)?))).await
}

/// Starts to relocate a volume's chunks.
///
/// In the background, the server moves the chunks so that they are in order on the physical
/// volumes. A restart of the server ends the relocation.
#[utoipa::path(post, path = "/volumes/{volume}/relocation", params(("volume" = String, Path)), request_body = Relocate, responses((status = ACCEPTED, body = Relocation), (status = "default", body = ErrorBody)))]
async fn relocate(
    State(app): Shared,
    Path(volume): Path<String>,
    Json(how): Json<Relocate>,
) -> Result<(StatusCode, Json<Relocation>), ApiError> {
    blocking(&app, move |app| {
        app.pool.relocate_volume(&volume, how.rate)?;
        app.seen_tasks.begun("relocate", &volume);
        tracing::info!(event = "relocation.began", volume, rate = how.rate, "relocation started");
        Ok((StatusCode::ACCEPTED, Json(state(app, &volume)?)))
    })
    .await
}

/// Stops the relocation of a volume.
///
/// Chunks that were moved stay where they are.
#[utoipa::path(delete, path = "/volumes/{volume}/relocation", params(("volume" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn stop_relocation(State(app): Shared, Path(volume): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.seen_tasks.stopping(&format!("relocate:{volume}"), || app.pool.stop_relocation(&volume))?;
        tracing::info!(event = "relocation.stopped", volume, "relocation stopped");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
