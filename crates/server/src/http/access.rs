//! The routes of access rules for NBD.

use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{AddNbdRule, ErrorBody, NbdAccess};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(all_access))
        .routes(routes!(add_rule_for_all))
        .routes(routes!(remove_rule_for_all))
        .routes(routes!(access))
        .routes(routes!(add_volume_rule))
        .routes(routes!(remove_volume_rule))
}

/// Returns the NBD rules for all volumes, and then those of each volume that has some.
#[utoipa::path(get, path = "/nbd-access", responses((status = OK, body = Vec<NbdAccess>)))]
async fn all_access(State(app): Shared) -> Result<Json<Vec<NbdAccess>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.all_nbd_access()?))).await
}

/// Adds an NBD rule for all volumes.
///
/// The server checks it after the own rules of a volume. Connections that the rules now refuse end.
#[utoipa::path(post, path = "/nbd-access/rules", request_body = AddNbdRule, responses((status = CREATED, body = NbdAccess), (status = "default", body = ErrorBody)))]
async fn add_rule_for_all(
    State(app): Shared,
    Json(rule): Json<AddNbdRule>,
) -> Result<(StatusCode, Json<NbdAccess>), ApiError> {
    blocking(&app, move |app| Ok((StatusCode::CREATED, Json(app.add_nbd_rule(None, &rule)?)))).await
}

/// Removes an NBD rule for all volumes by its number, from 1.
///
/// Connections that no rule allows any more end.
#[utoipa::path(delete, path = "/nbd-access/rules/{number}", params(("number" = usize, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_rule_for_all(State(app): Shared, Path(number): Path<usize>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.remove_nbd_rule(None, number)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Returns the NBD rules of a volume.
#[utoipa::path(get, path = "/volumes/{volume}/nbd-access", params(("volume" = String, Path)), responses((status = OK, body = NbdAccess), (status = "default", body = ErrorBody)))]
async fn access(State(app): Shared, Path(volume): Path<String>) -> Result<Json<NbdAccess>, ApiError> {
    blocking(&app, move |app| Ok(Json(app.nbd_access(Some(&volume))?))).await
}

/// Adds an NBD rule to a volume.
///
/// It also holds for the volume's snapshots and moments. Connections that the rules now refuse end.
#[utoipa::path(post, path = "/volumes/{volume}/nbd-access/rules", params(("volume" = String, Path)), request_body = AddNbdRule, responses((status = CREATED, body = NbdAccess), (status = "default", body = ErrorBody)))]
async fn add_volume_rule(
    State(app): Shared,
    Path(volume): Path<String>,
    Json(rule): Json<AddNbdRule>,
) -> Result<(StatusCode, Json<NbdAccess>), ApiError> {
    blocking(&app, move |app| Ok((StatusCode::CREATED, Json(app.add_nbd_rule(Some(&volume), &rule)?)))).await
}

/// Removes an NBD rule of a volume by its number, from 1.
///
/// Connections that no rule allows any more end.
#[utoipa::path(delete, path = "/volumes/{volume}/nbd-access/rules/{number}", params(("volume" = String, Path), ("number" = usize, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_volume_rule(
    State(app): Shared,
    Path((volume, number)): Path<(String, usize)>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.remove_nbd_rule(Some(&volume), number)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
