//! The routes of the server's clock.

use super::error::{ApiError, Json};
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::convert;
use axum::extract::State;
use hindcast_api::{Clock, ErrorBody};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(clock)).routes(routes!(confirm_clock))
}

/// Returns the state of the server's clock and the changes of the clock.
#[utoipa::path(get, path = "/pool/clock", responses((status = OK, body = Clock)))]
async fn clock(State(app): Shared) -> Result<Json<Clock>, ApiError> {
    blocking(&app, |app| Ok(Json(convert::clock(&app.pool.clock())))).await
}

/// Confirms that the time of the server's clock is right.
///
/// The server suspends expiry by time after the clock has jumped. After the confirmation, expiry
/// continues.
#[utoipa::path(post, path = "/pool/clock/confirmation", responses((status = OK, body = Clock), (status = "default", body = ErrorBody)))]
async fn confirm_clock(State(app): Shared) -> Result<Json<Clock>, ApiError> {
    blocking(&app, |app| {
        app.pool.confirm_clock()?;
        tracing::info!(event = "pool.clock-confirmed", "the clock was confirmed");
        Ok(Json(convert::clock(&app.pool.clock())))
    })
    .await
}
