//! The routes of tasks.

use super::caller::Caller;
use super::error::{ApiError, Json, Path};
use super::roles::{self, Needs};
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::task_kinds;
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
        caller.require(role_of_stop(&id), &format!("stop task {id}"))?;
        app.stop_task(&id)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Returns the role that a request needs that stops a task: that of the route with which the work
/// begins or ends without the list of tasks. Otherwise the list would be a way around that role.
///
/// A task of no kind, or of the server itself, can't be stopped by anyone. The answer says so.
fn role_of_stop(id: &str) -> Role {
    let Some((method, path)) = task_kinds::of_task(id).and_then(|kind| kind.direct) else {
        return Role::Operator;
    };
    match roles::find(method, path).map(|row| row.needs) {
        Some(Needs::Role(role)) => role,
        _ => Role::Admin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_stopped_by_who_may_stop_its_work() {
        for kind in task_kinds::KINDS.iter().filter_map(|kind| kind.direct) {
            assert!(roles::find(kind.0, kind.1).is_some(), "{kind:?} is no route");
        }
        // All that concerns physical volumes and layouts is for admins.
        for kind in ["drain", "rebuild", "take-over", "grow"] {
            assert_eq!(role_of_stop(&format!("{kind}:/dev/sdb")), Role::Admin, "{kind}");
        }
        for kind in ["flatten", "relocate", "import", "export", "rebalance", "scrub", "free", "nothing"] {
            assert_eq!(role_of_stop(&format!("{kind}:db")), Role::Operator, "{kind}");
        }
        assert_eq!(role_of_stop(""), Role::Operator);
    }
}
