//! The routes of the scrub of the data in place, and of damage.

use super::error::{ApiError, Json};
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::convert;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{BeginScrub, Damage, ErrorBody, PatchScrub, Scrub};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Maximum number of damaged ranges in a response, more or less.
const MOST_RANGES: usize = 10_000;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(scrub, begin_scrub, patch_scrub, stop_scrub)).routes(routes!(damage))
}

/// Returns the progress of the scrub of the data in place.
#[utoipa::path(get, path = "/pool/scrub", responses((status = OK, body = Scrub)))]
async fn scrub(State(app): Shared) -> Result<Json<Scrub>, ApiError> {
    blocking(&app, |app| Ok(Json(convert::scrub(&app.pool.data_scrub())))).await
}

/// Begins a scrub of the data in place.
///
/// In the background, the server reads everything that is in use, and verifies it. A scrub that is
/// under way begins anew. The scrub continues after a restart of the server. The pool must have the
/// feature `sums`.
#[utoipa::path(post, path = "/pool/scrub", request_body = BeginScrub, responses((status = ACCEPTED, body = Scrub), (status = "default", body = ErrorBody)))]
async fn begin_scrub(
    State(app): Shared,
    Json(how): Json<BeginScrub>,
) -> Result<(StatusCode, Json<Scrub>), ApiError> {
    blocking(&app, move |app| {
        let begun = app.pool.scrub(how.rate, how.adopt)?;
        app.seen_tasks.begun("scrub", "pool");
        tracing::info!(
            event = "scrub.began",
            rate = how.rate,
            adopt = how.adopt,
            "a scrub of the data begins"
        );
        Ok((StatusCode::ACCEPTED, Json(convert::scrub(&begun))))
    })
    .await
}

/// Pauses the scrub, or resumes it.
#[utoipa::path(patch, path = "/pool/scrub", request_body = PatchScrub, responses((status = OK, body = Scrub), (status = "default", body = ErrorBody)))]
async fn patch_scrub(State(app): Shared, Json(patch): Json<PatchScrub>) -> Result<Json<Scrub>, ApiError> {
    blocking(&app, move |app| Ok(Json(convert::scrub(&app.pool.pause_scrub(patch.paused)?)))).await
}

/// Stops the scrub where it is.
#[utoipa::path(delete, path = "/pool/scrub", responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn stop_scrub(State(app): Shared) -> Result<StatusCode, ApiError> {
    blocking(&app, |app| {
        app.seen_tasks.stopping("scrub:pool", || app.pool.stop_scrub())?;
        tracing::info!(event = "scrub.stopped", "the scrub was stopped");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Returns the known damage of all volumes and snapshots.
///
/// A read of a damaged range fails until the range is written again. Damage that no read, no
/// background work and no scrub has met is not known.
#[utoipa::path(get, path = "/pool/damage", responses((status = OK, body = Vec<Damage>), (status = "default", body = ErrorBody)))]
async fn damage(State(app): Shared) -> Result<Json<Vec<Damage>>, ApiError> {
    blocking(&app, |app| {
        let found = app.pool.damage_by_owner(MOST_RANGES)?;
        Ok(Json(found.into_iter().map(convert::damage).collect()))
    })
    .await
}
