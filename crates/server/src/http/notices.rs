//! The routes of notices.

use super::error::{ApiError, Json};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use hindcast_api::{ErrorBody, NoticeDelivery};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(test_notices))
}

/// Sends a test notice.
///
/// The server sends it to all receivers that are configured, and returns the result of each.
#[utoipa::path(post, path = "/notify/test", responses((status = OK, body = Vec<NoticeDelivery>), (status = "default", body = ErrorBody)))]
async fn test_notices(State(app): Shared) -> Result<Json<Vec<NoticeDelivery>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.test_notices()?))).await
}
