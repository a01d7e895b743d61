//! The routes of access tokens.

use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{AccessToken, CreateToken, CreatedToken, ErrorBody};
use jiff::Timestamp;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(tokens, create_token)).routes(routes!(revoke_token))
}

/// Returns all access tokens, sorted by name.
#[utoipa::path(get, path = "/access/tokens", responses((status = OK, body = Vec<AccessToken>), (status = "default", body = ErrorBody)))]
async fn tokens(State(app): Shared) -> Result<Json<Vec<AccessToken>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.callers.tokens.list()?))).await
}

/// Creates an access token.
///
/// The response is the only one with its secret.
#[utoipa::path(post, path = "/access/tokens", request_body = CreateToken, responses((status = CREATED, body = CreatedToken), (status = "default", body = ErrorBody)))]
async fn create_token(
    State(app): Shared,
    Json(new): Json<CreateToken>,
) -> Result<(StatusCode, Json<CreatedToken>), ApiError> {
    blocking(&app, move |app| {
        let made = app.callers.tokens.create(&new, Timestamp::now())?;
        let role = new.role.name();
        tracing::info!(token = new.name, role, volumes = ?new.volumes, expires = ?made.token.expires, "token created");
        Ok((StatusCode::CREATED, Json(made)))
    })
    .await
}

/// Revokes an access token.
///
/// The server refuses the token from now on.
#[utoipa::path(delete, path = "/access/tokens/{name}", params(("name" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn revoke_token(State(app): Shared, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.callers.tokens.revoke(&name)?;
        tracing::info!(token = name, "token revoked");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
