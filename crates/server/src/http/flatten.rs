//! The routes of flattening.

use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::convert;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{ErrorBody, Flatten, FlattenProgress, Flattening, VolumeOrigin};
use hindcast_engine::pool::Origin;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(flattening, flatten, stop_flattening))
}

fn state(app: &App, volume: &str) -> Result<Flattening, ApiError> {
    // First: by the time that it is not running any more, an origin that is left is there to stay.
    let running = app.pool.flattening(volume)?.map(|f| FlattenProgress {
        position: f.position,
        copied: f.copied_bytes,
        stalled: f.stalled,
    });
    let origin = app.pool.origin(volume)?.map(|origin| match origin {
        Origin::Image { path, length, unavailable } => VolumeOrigin::Image { path, length, unavailable },
        Origin::Snapshot { volume, snapshot } => VolumeOrigin::Snapshot { volume, snapshot },
        Origin::Moment { volume, lsn, time } => {
            VolumeOrigin::Moment { volume, lsn: lsn.0, time: time.map(convert::time) }
        }
    });
    Ok(Flattening { origin, running })
}

/// Returns the origin of a volume's content, and the progress of its flattening.
#[utoipa::path(get, path = "/volumes/{volume}/flatten", params(("volume" = String, Path)), responses((status = OK, body = Flattening), (status = "default", body = ErrorBody)))]
async fn flattening(State(app): Shared, Path(volume): Path<String>) -> Result<Json<Flattening>, ApiError> {
    blocking(&app, move |app| Ok(Json(state(app, &volume)?))).await
}

/// Starts to flatten a volume.
///
/// In the background, the server copies into the volume the content that the volume still reads
/// from its origin. The flattening continues after a restart of the server.
#[utoipa::path(post, path = "/volumes/{volume}/flatten", params(("volume" = String, Path)), request_body = Flatten, responses((status = ACCEPTED, body = Flattening), (status = "default", body = ErrorBody)))]
async fn flatten(
    State(app): Shared,
    Path(volume): Path<String>,
    Json(how): Json<Flatten>,
) -> Result<(StatusCode, Json<Flattening>), ApiError> {
    blocking(&app, move |app| {
        app.pool.flatten_volume(&volume, how.rate)?;
        app.seen_tasks.begun("flatten", &volume);
        tracing::info!(event = "flatten.began", volume, rate = how.rate, "flattening started");
        Ok((StatusCode::ACCEPTED, Json(state(app, &volume)?)))
    })
    .await
}

/// Stops the flattening of a volume.
///
/// The content that was copied so far stays in the volume.
#[utoipa::path(delete, path = "/volumes/{volume}/flatten", params(("volume" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn stop_flattening(State(app): Shared, Path(volume): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.seen_tasks.stopping(&format!("flatten:{volume}"), || app.pool.stop_flatten(&volume))?;
        tracing::info!(event = "flatten.stopped", volume, "flattening stopped");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
