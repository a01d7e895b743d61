//! The routes of iSCSI targets.

use super::error::{ApiError, Confidential, Json, Path, Query};
use super::shared::{DeleteQuery, Shared, blocking, host_path};
use crate::app::App;
use crate::host_paths::Purpose;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{AddLun, AddRule, CreateTarget, ErrorBody, PatchTarget, SetChap, Target, TargetDefaults};
use serde::Deserialize;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(targets, create_target))
        .routes(routes!(target, patch_target, delete_target))
        .routes(routes!(add_lun))
        .routes(routes!(remove_lun))
        .routes(routes!(add_rule))
        .routes(routes!(remove_rule))
        .routes(routes!(set_chap, remove_chap))
        .routes(routes!(remove_account))
        .routes(routes!(clear_reservations))
        .routes(routes!(defaults))
        .routes(routes!(add_default_rule))
        .routes(routes!(remove_default_rule))
        .routes(routes!(set_default_chap, remove_default_chap))
        .routes(routes!(remove_default_account))
}

/// All iSCSI targets, by name: those that volumes have by default, and those that were created.
#[utoipa::path(get, path = "/targets", responses((status = OK, body = Vec<Target>)))]
async fn targets(State(app): Shared) -> Result<Json<Vec<Target>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.iscsi.targets()))).await
}

/// Creates a target; LUNs are added to it afterwards.
#[utoipa::path(post, path = "/targets", request_body = CreateTarget, responses((status = CREATED, body = Target), (status = "default", body = ErrorBody)))]
async fn create_target(
    State(app): Shared,
    Json(new): Json<CreateTarget>,
) -> Result<(StatusCode, Json<Target>), ApiError> {
    blocking(&app, move |app| {
        let target = app.iscsi.create(&new)?;
        tracing::info!(target = target.name, "target created");
        Ok((StatusCode::CREATED, Json(target)))
    })
    .await
}

/// One target, by its iSCSI name, its short name, or the volume whose target it is.
#[utoipa::path(get, path = "/targets/{target}", params(("target" = String, Path)), responses((status = OK, body = Target), (status = "default", body = ErrorBody)))]
async fn target(State(app): Shared, Path(name): Path<String>) -> Result<Json<Target>, ApiError> {
    blocking(&app, move |app| Ok(Json(app.iscsi.target(&name)?))).await
}

/// Changes a target. One that is switched off ends its sessions.
#[utoipa::path(patch, path = "/targets/{target}", params(("target" = String, Path)), request_body = PatchTarget, responses((status = OK, body = Target), (status = "default", body = ErrorBody)))]
async fn patch_target(
    State(app): Shared,
    Path(name): Path<String>,
    Json(patch): Json<PatchTarget>,
) -> Result<Json<Target>, ApiError> {
    blocking(&app, move |app| {
        let target = app.iscsi.patch(&name, &patch)?;
        tracing::info!(target = target.name, enabled = target.enabled, "target");
        Ok(Json(target))
    })
    .await
}

/// Deletes a target that was created; with `force` also one that initiators use.
#[utoipa::path(delete, path = "/targets/{target}", params(("target" = String, Path), ("force" = Option<bool>, Query)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn delete_target(
    State(app): Shared,
    Path(name): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        let target = app.iscsi.delete(&name, query.force)?;
        tracing::info!(target, "target deleted");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Adds a logical unit to a target that was created.
#[utoipa::path(post, path = "/targets/{target}/luns", params(("target" = String, Path)), request_body = AddLun, responses((status = CREATED, body = Target), (status = "default", body = ErrorBody)))]
async fn add_lun(
    State(app): Shared,
    Path(name): Path<String>,
    Json(mut new): Json<AddLun>,
) -> Result<(StatusCode, Json<Target>), ApiError> {
    let path = |path: &Option<String>| path.as_deref().map(|path| host_path(path, Purpose::Export));
    let (file, device) = (path(&new.file), path(&new.device));
    blocking(&app, move |app| {
        let held = (file.map(|path| path(app)).transpose()?, device.map(|path| path(app)).transpose()?);
        new.file = held.0.as_ref().map(|file| file.path.clone());
        new.device = held.1.as_ref().map(|device| device.path.clone());
        let target = app.iscsi.add_lun(&name, &new)?;
        tracing::info!(target = target.name, luns = target.luns.len(), "LUN added");
        Ok((StatusCode::CREATED, Json(target)))
    })
    .await
}

/// Removes a logical unit; with `force` also while initiators use the target.
#[utoipa::path(delete, path = "/targets/{target}/luns/{lun}", params(("target" = String, Path), ("lun" = u16, Path), ("force" = Option<bool>, Query)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_lun(
    State(app): Shared,
    Path((name, lun)): Path<(String, u16)>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_lun(&name, lun, query.force)?;
        tracing::info!(target = name, lun, "LUN removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Adds an access rule to a target. Sessions that it refuses end.
#[utoipa::path(post, path = "/targets/{target}/rules", params(("target" = String, Path)), request_body = AddRule, responses((status = CREATED, body = Target), (status = "default", body = ErrorBody)))]
async fn add_rule(
    State(app): Shared,
    Path(name): Path<String>,
    Json(rule): Json<AddRule>,
) -> Result<(StatusCode, Json<Target>), ApiError> {
    blocking(&app, move |app| {
        app.iscsi.add_rule(Some(&name), &rule)?;
        tracing::info!(target = name, ?rule, "access rule added");
        Ok((StatusCode::CREATED, Json(app.iscsi.target(&name)?)))
    })
    .await
}

/// Removes the access rule with a number, from 1. Sessions that nothing allows any more end.
#[utoipa::path(delete, path = "/targets/{target}/rules/{number}", params(("target" = String, Path), ("number" = usize, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_rule(
    State(app): Shared,
    Path((name, number)): Path<(String, usize)>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_rule(Some(&name), number)?;
        tracing::info!(target = name, number, "access rule removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Adds a CHAP account to a target, or replaces the one of that name. Initiators prove one of them
/// from their next login on.
#[utoipa::path(put, path = "/targets/{target}/chap", params(("target" = String, Path)), request_body = SetChap, responses((status = OK, body = Target), (status = "default", body = ErrorBody)))]
async fn set_chap(
    State(app): Shared,
    Path(name): Path<String>,
    Confidential(chap): Confidential<SetChap>,
) -> Result<Json<Target>, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.set_chap(Some(&name), chap)?;
        tracing::info!(target = name, "CHAP set");
        Ok(Json(app.iscsi.target(&name)?))
    })
    .await
}

/// Removes one of a target's CHAP accounts. Sessions that proved it end.
#[utoipa::path(delete, path = "/targets/{target}/chap/{user}", params(("target" = String, Path), ("user" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_account(
    State(app): Shared,
    Path((name, user)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_account(Some(&name), &user)?;
        tracing::info!(target = name, user, "CHAP account removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationsQuery {
    lun: Option<u16>,
}

/// Drops all reservations of a target's logical units, or of one of them. Those who had registered
/// learn of it.
#[utoipa::path(delete, path = "/targets/{target}/reservations", params(("target" = String, Path), ("lun" = Option<u16>, Query)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn clear_reservations(
    State(app): Shared,
    Path(name): Path<String>,
    Query(query): Query<ReservationsQuery>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        let dropped = app.iscsi.clear_reservations(&name, query.lun)?;
        tracing::warn!(target = name, lun = query.lun, dropped, "reservations cleared");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Asks initiators of a target for nothing more than the defaults do.
#[utoipa::path(delete, path = "/targets/{target}/chap", params(("target" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_chap(State(app): Shared, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_chap(Some(&name))?;
        tracing::info!(target = name, "CHAP removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// What applies to all targets.
#[utoipa::path(get, path = "/target-defaults", responses((status = OK, body = TargetDefaults)))]
async fn defaults(State(app): Shared) -> Result<Json<TargetDefaults>, ApiError> {
    blocking(&app, |app| Ok(Json(app.iscsi.defaults()))).await
}

/// Adds an access rule for all targets; a target's own rules are asked first.
#[utoipa::path(post, path = "/target-defaults/rules", request_body = AddRule, responses((status = CREATED, body = TargetDefaults), (status = "default", body = ErrorBody)))]
async fn add_default_rule(
    State(app): Shared,
    Json(rule): Json<AddRule>,
) -> Result<(StatusCode, Json<TargetDefaults>), ApiError> {
    blocking(&app, move |app| {
        app.iscsi.add_rule(None, &rule)?;
        tracing::info!(?rule, "access rule added for all targets");
        Ok((StatusCode::CREATED, Json(app.iscsi.defaults())))
    })
    .await
}

/// Removes the access rule for all targets with a number, from 1.
#[utoipa::path(delete, path = "/target-defaults/rules/{number}", params(("number" = usize, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_default_rule(State(app): Shared, Path(number): Path<usize>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_rule(None, number)?;
        tracing::info!(number, "access rule for all targets removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Removes one of the CHAP accounts of discovery and of targets that have none of their own.
/// Sessions that proved it end.
#[utoipa::path(delete, path = "/target-defaults/chap/{user}", params(("user" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_default_account(
    State(app): Shared,
    Path(user): Path<String>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_account(None, &user)?;
        tracing::info!(user, "CHAP account removed for discovery and all targets");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Adds a CHAP account for discovery, and for targets that have none of their own, or replaces the
/// one of that name.
#[utoipa::path(put, path = "/target-defaults/chap", request_body = SetChap, responses((status = OK, body = TargetDefaults), (status = "default", body = ErrorBody)))]
async fn set_default_chap(
    State(app): Shared,
    Confidential(chap): Confidential<SetChap>,
) -> Result<Json<TargetDefaults>, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.set_chap(None, chap)?;
        tracing::info!("CHAP set for discovery and all targets");
        Ok(Json(app.iscsi.defaults()))
    })
    .await
}

/// Asks for CHAP no more, but at targets that have their own.
#[utoipa::path(delete, path = "/target-defaults/chap", responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_default_chap(State(app): Shared) -> Result<StatusCode, ApiError> {
    blocking(&app, |app| {
        app.iscsi.remove_chap(None)?;
        tracing::info!("CHAP for discovery and all targets removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
