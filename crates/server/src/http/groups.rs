//! The routes of groups.

use super::caller::Caller;
use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{CreateGroup, ErrorBody, Group, PatchGroup, Retention, Role};
use hindcast_engine::pool::SnapshotInfo;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(groups, create_group)).routes(routes!(
        group,
        patch_group,
        delete_group
    ))
}

/// Returns all groups, sorted by name.
#[utoipa::path(get, path = "/groups", responses((status = OK, body = Vec<Group>), (status = "default", body = ErrorBody)))]
async fn groups(State(app): Shared) -> Result<Json<Vec<Group>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.list_groups()?))).await
}

/// Creates a group of volumes.
///
/// The group keeps the order of the volumes. Renamed volumes stay in it.
#[utoipa::path(post, path = "/groups", request_body = CreateGroup, responses((status = CREATED, body = Group), (status = "default", body = ErrorBody)))]
async fn create_group(
    State(app): Shared,
    Json(new): Json<CreateGroup>,
) -> Result<(StatusCode, Json<Group>), ApiError> {
    blocking(&app, move |app| {
        let group = app.create_group(&new)?;
        tracing::info!(
            event = "group.created",
            group = group.name,
            volumes = group.volumes.join(" "),
            "group created"
        );
        Ok((StatusCode::CREATED, Json(group)))
    })
    .await
}

/// Returns one group.
#[utoipa::path(get, path = "/groups/{name}", params(("name" = String, Path)), responses((status = OK, body = Group), (status = "default", body = ErrorBody)))]
async fn group(State(app): Shared, Path(name): Path<String>) -> Result<Json<Group>, ApiError> {
    blocking(&app, move |app| Ok(Json(app.group(&name)?))).await
}

/// Adds volumes to a group, and removes others.
#[utoipa::path(patch, path = "/groups/{name}", params(("name" = String, Path)), request_body = PatchGroup, responses((status = OK, body = Group), (status = "default", body = ErrorBody)))]
async fn patch_group(
    State(app): Shared,
    Caller(caller): Caller,
    Path(name): Path<String>,
    Json(patch): Json<PatchGroup>,
) -> Result<Json<Group>, ApiError> {
    blocking(&app, move |app| {
        // The next run of a schedule of the group deletes what its retention does not keep.
        for schedule in app.list_schedules()?.into_iter().filter(|s| s.groups.contains(&name)) {
            let old =
                |s: &SnapshotInfo| patch.add.contains(&s.volume) && s.name.starts_with(&schedule.prefix);
            if schedule.keep != Retention::default() && app.pool.all_snapshots().iter().any(old) {
                let what = format!("let schedule {} delete existing snapshots", schedule.name);
                caller.require(Role::Admin, &what)?;
            }
        }
        let group = app.patch_group(&name, &patch)?;
        tracing::info!(
            event = "group.changed",
            group = name,
            volumes = group.volumes.join(" "),
            "group changed"
        );
        Ok(Json(group))
    })
    .await
}

/// Deletes a group.
///
/// Its volumes stay.
#[utoipa::path(delete, path = "/groups/{name}", params(("name" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn delete_group(State(app): Shared, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.delete_group(&name)?;
        tracing::info!(event = "group.deleted", group = name, "group deleted");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
