//! The routes of users.

use super::error::{ApiError, Confidential, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{CreateUser, ErrorBody, PatchUser, User};
use jiff::Timestamp;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(users, create_user)).routes(routes!(patch_user, remove_user))
}

/// Returns all users, sorted by name.
#[utoipa::path(get, path = "/access/users", responses((status = OK, body = Vec<User>)))]
async fn users(State(app): Shared) -> Result<Json<Vec<User>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.callers.users.list()?))).await
}

/// Creates a user, who logs in with a password.
#[utoipa::path(post, path = "/access/users", request_body = CreateUser, responses((status = CREATED, body = User), (status = "default", body = ErrorBody)))]
async fn create_user(
    State(app): Shared,
    Confidential(new): Confidential<CreateUser>,
) -> Result<(StatusCode, Json<User>), ApiError> {
    blocking(&app, move |app| {
        let user = app.callers.users.create(&new, Timestamp::now())?;
        tracing::info!(user = user.name, role = user.role.name(), "user created");
        Ok((StatusCode::CREATED, Json(user)))
    })
    .await
}

/// Changes a user.
///
/// The sessions of the user end.
#[utoipa::path(patch, path = "/access/users/{name}", params(("name" = String, Path)), request_body = PatchUser, responses((status = OK, body = User), (status = "default", body = ErrorBody)))]
async fn patch_user(
    State(app): Shared,
    Path(name): Path<String>,
    Confidential(patch): Confidential<PatchUser>,
) -> Result<Json<User>, ApiError> {
    blocking(&app, move |app| {
        let user = app.callers.users.change(&name, &patch)?;
        app.callers.sessions.end_of_user(&name);
        tracing::info!(user = user.name, role = user.role.name(), "user changed");
        Ok(Json(user))
    })
    .await
}

/// Removes a user.
///
/// The sessions of the user end.
#[utoipa::path(delete, path = "/access/users/{name}", params(("name" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_user(State(app): Shared, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.callers.users.remove(&name)?;
        app.callers.sessions.end_of_user(&name);
        tracing::info!(user = name, "user removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
