//! The routes of schedules.

use super::caller::Caller;
use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::identity::principal::Principal;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{CreateSchedule, ErrorBody, PatchSchedule, Retention, Role, Schedule};
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(schedules, create_schedule)).routes(routes!(
        schedule,
        patch_schedule,
        delete_schedule
    ))
}

/// Returns all schedules, sorted by name.
#[utoipa::path(get, path = "/schedules", responses((status = OK, body = Vec<Schedule>)))]
async fn schedules(State(app): Shared) -> Result<Json<Vec<Schedule>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.list_schedules()?))).await
}

/// Creates a schedule.
///
/// A schedule takes snapshots at fixed times. It deletes the snapshots that its retention does not
/// keep.
#[utoipa::path(post, path = "/schedules", request_body = CreateSchedule, responses((status = CREATED, body = Schedule), (status = "default", body = ErrorBody)))]
async fn create_schedule(
    State(app): Shared,
    Caller(caller): Caller,
    Json(new): Json<CreateSchedule>,
) -> Result<(StatusCode, Json<Schedule>), ApiError> {
    blocking(&app, move |app| {
        let prefix = new.prefix.as_deref().unwrap_or(&new.name);
        if new.keep != Retention::default() {
            check_takes_over(app, &caller, prefix, &new.volumes, &new.groups)?;
        }
        let schedule = app.create_schedule(&new)?;
        tracing::info!(
            event = "schedule.created",
            schedule = schedule.name,
            every = schedule.every,
            "schedule created"
        );
        Ok((StatusCode::CREATED, Json(schedule)))
    })
    .await
}

/// Checks that `caller` may let a schedule that deletes have these volumes and groups. An operator
/// may not, if the schedule would delete snapshots that are there.
fn check_takes_over(
    app: &App,
    caller: &Principal,
    prefix: &str,
    volumes: &[String],
    groups: &[String],
) -> Result<(), ApiError> {
    let volumes = volumes.iter().map(|name| Ok(app.pool.volume(name)?.uuid));
    let mut volumes = volumes.collect::<Result<BTreeSet<Uuid>, ApiError>>()?;
    for group in groups {
        // Also those in the trash: the schedule goes on with them when they are restored.
        volumes.extend(app.groups.get(group)?);
    }
    if app.pool.snapshot_names_of(&volumes).iter().any(|name| name.starts_with(prefix)) {
        caller.require(Role::Admin, &format!("let a schedule delete existing snapshots {prefix}-…"))?;
    }
    Ok(())
}

/// Returns one schedule.
#[utoipa::path(get, path = "/schedules/{name}", params(("name" = String, Path)), responses((status = OK, body = Schedule), (status = "default", body = ErrorBody)))]
async fn schedule(State(app): Shared, Path(name): Path<String>) -> Result<Json<Schedule>, ApiError> {
    blocking(&app, move |app| Ok(Json(app.schedule(&name)?))).await
}

/// Changes, pauses or resumes a schedule, adds volumes and groups to it, and removes others.
#[utoipa::path(patch, path = "/schedules/{name}", params(("name" = String, Path)), request_body = PatchSchedule, responses((status = OK, body = Schedule), (status = "default", body = ErrorBody)))]
async fn patch_schedule(
    State(app): Shared,
    Caller(caller): Caller,
    Path(name): Path<String>,
    Json(patch): Json<PatchSchedule>,
) -> Result<Json<Schedule>, ApiError> {
    blocking(&app, move |app| {
        if patch.keep.is_some() {
            caller.require(Role::Admin, &format!("change which snapshots schedule {name} keeps"))?;
        }
        let before = app.schedule(&name)?;
        let keeps_all = before.keep == Retention::default();
        if !keeps_all {
            check_takes_over(app, &caller, &before.prefix, &patch.add, &patch.add_groups)?;
        }
        if (patch.every.is_some() || patch.wall.is_some()) && !keeps_all {
            // More snapshots in the same time push older ones out.
            caller.require(Role::Admin, &format!("change when schedule {name}, which deletes, runs"))?;
        }
        let schedule = app.patch_schedule(&name, &patch)?;
        tracing::info!(
            event = "schedule.changed",
            schedule = name,
            paused = schedule.paused,
            every = schedule.every,
            volumes = schedule.volumes.join(" "),
            "schedule changed"
        );
        Ok(Json(schedule))
    })
    .await
}

/// Deletes a schedule.
///
/// The snapshots that the schedule took stay.
#[utoipa::path(delete, path = "/schedules/{name}", params(("name" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn delete_schedule(State(app): Shared, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.delete_schedule(&name)?;
        tracing::info!(event = "schedule.deleted", schedule = name, "schedule deleted");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
