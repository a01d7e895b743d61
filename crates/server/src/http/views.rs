//! The routes of views.

use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{CreateView, ErrorBody, PatchView, View};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(views)).routes(routes!(create_view)).routes(routes!(
        view,
        renew_view,
        delete_view
    ))
}

/// Returns all views, oldest first.
#[utoipa::path(get, path = "/views", responses((status = OK, body = Vec<View>), (status = "default", body = ErrorBody)))]
async fn views(State(app): Shared) -> Result<Json<Vec<View>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.list_views()?))).await
}

/// Returns one view.
#[utoipa::path(get, path = "/views/{id}", params(("id" = String, Path)), responses((status = OK, body = View), (status = "default", body = ErrorBody)))]
async fn view(State(app): Shared, Path(id): Path<String>) -> Result<Json<View>, ApiError> {
    blocking(&app, move |app| Ok(Json(app.view(&id)?))).await
}

/// Creates a view: a moment of a volume that does not expire while the view exists.
///
/// The view ends with its lease, unless clients use its address then. It survives restarts of the
/// server.
#[utoipa::path(post, path = "/volumes/{volume}/views", params(("volume" = String, Path)), request_body = CreateView, responses((status = CREATED, body = View), (status = "default", body = ErrorBody)))]
async fn create_view(
    State(app): Shared,
    Path(volume): Path<String>,
    Json(new): Json<CreateView>,
) -> Result<(StatusCode, Json<View>), ApiError> {
    blocking(&app, move |app| Ok((StatusCode::CREATED, Json(app.create_view(&volume, &new)?)))).await
}

/// Gives a view a new lease, from now on.
#[utoipa::path(patch, path = "/views/{id}", params(("id" = String, Path)), request_body = PatchView, responses((status = OK, body = View), (status = "default", body = ErrorBody)))]
async fn renew_view(
    State(app): Shared,
    Path(id): Path<String>,
    Json(patch): Json<PatchView>,
) -> Result<Json<View>, ApiError> {
    blocking(&app, move |app| Ok(Json(app.renew_view(&id, &patch)?))).await
}

/// Ends a view.
///
/// NBD clients that use its address are disconnected.
#[utoipa::path(delete, path = "/views/{id}", params(("id" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn delete_view(State(app): Shared, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.end_view(&id, "request")?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
