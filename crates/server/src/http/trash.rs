//! The routes of the trash.

use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{ErrorBody, RestoreVolume, TrashedVolume, Volume};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(trash)).routes(routes!(purge)).routes(routes!(restore))
}

/// Lists the deleted volumes that can be restored, oldest first.
#[utoipa::path(get, path = "/trash", responses((status = OK, body = Vec<TrashedVolume>), (status = "default", body = ErrorBody)))]
async fn trash(State(app): Shared) -> Result<Json<Vec<TrashedVolume>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.trash()))).await
}

/// Restores a deleted volume, with its snapshots, its history and its settings.
///
/// `id` is its UUID, the first digits of it, or its name if only one volume in the trash has it.
#[utoipa::path(post, path = "/trash/{id}/restore", params(("id" = String, Path)), request_body = RestoreVolume, responses((status = OK, body = Volume), (status = "default", body = ErrorBody)))]
async fn restore(
    State(app): Shared,
    Path(id): Path<String>,
    Json(how): Json<RestoreVolume>,
) -> Result<Json<Volume>, ApiError> {
    blocking(&app, move |app| {
        let info = app.restore_volume(&id, how.name.as_deref())?;
        Ok(Json(app.shown(&info)))
    })
    .await
}

/// Deletes a volume in the trash for good.
///
/// `id` is its UUID, the first digits of it, or its name if only one volume in the trash has it.
/// The server frees its space in the background.
#[utoipa::path(delete, path = "/trash/{id}", params(("id" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn purge(State(app): Shared, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.purge_volume(&id)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
