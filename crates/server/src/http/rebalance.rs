//! The routes of rebalancing.

use super::error::{ApiError, Json};
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::convert;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{ErrorBody, Rebalance, Rebalancing};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(rebalancing, rebalance, stop_rebalance))
}

/// Returns the progress of the rebalancing that is under way, or of the last one.
#[utoipa::path(get, path = "/pool/rebalance", responses((status = OK, body = Rebalancing)))]
async fn rebalancing(State(app): Shared) -> Result<Json<Rebalancing>, ApiError> {
    blocking(&app, |app| Ok(Json(convert::rebalancing(&app.pool.rebalancing())))).await
}

/// Begins to rebalance the pool.
///
/// In the background, the server moves data to the physical volumes on which the placement `share`
/// places it now. A rebalancing that is under way begins anew. It continues after a restart of the
/// server. It begins by itself when a physical volume is added or removed, or when a drain is
/// cancelled.
#[utoipa::path(post, path = "/pool/rebalance", request_body = Rebalance, responses((status = ACCEPTED, body = Rebalancing), (status = "default", body = ErrorBody)))]
async fn rebalance(
    State(app): Shared,
    Json(how): Json<Rebalance>,
) -> Result<(StatusCode, Json<Rebalancing>), ApiError> {
    blocking(&app, move |app| {
        let begun = app.pool.rebalance(how.rate)?;
        app.seen_tasks.begun("rebalance", "pool");
        tracing::info!(event = "rebalance.began", rate = how.rate, "rebalancing begins");
        Ok((StatusCode::ACCEPTED, Json(convert::rebalancing(&begun))))
    })
    .await
}

/// Stops the rebalancing.
///
/// Data that was moved stays at its new place.
#[utoipa::path(delete, path = "/pool/rebalance", responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn stop_rebalance(State(app): Shared) -> Result<StatusCode, ApiError> {
    blocking(&app, |app| {
        app.seen_tasks.stopping("rebalance:pool", || app.pool.stop_rebalance())?;
        tracing::info!(event = "rebalance.stopped", "rebalancing stopped");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
