//! The routes of tasks.

use super::caller::Caller;
use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{ErrorBody, Role, Task};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(tasks)).routes(routes!(stop_task))
}

/// Returns the tasks that go on in the background, and those that have ended in the last hour.
///
/// Those that go on come first. A task that has ended has the time `ended`.
#[utoipa::path(get, path = "/tasks", responses((status = OK, body = Vec<Task>), (status = "default", body = ErrorBody)))]
async fn tasks(State(app): Shared) -> Result<Json<Vec<Task>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.tasks()))).await
}

/// Stops a task.
///
/// What is done stays done.
#[utoipa::path(delete, path = "/tasks/{id}", params(("id" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn stop_task(
    State(app): Shared,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        if id.starts_with("drain:") {
            caller.require(Role::Admin, "stop the draining of a physical volume")?;
        }
        app.stop_task(&id)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
