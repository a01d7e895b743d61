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

/// Returns all iSCSI targets, sorted by name.
///
/// They are the own targets of volumes, and the targets that an operator created. Targets of
/// snapshots and moments are included while initiators use them.
#[utoipa::path(get, path = "/targets", responses((status = OK, body = Vec<Target>)))]
async fn targets(State(app): Shared) -> Result<Json<Vec<Target>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.iscsi.targets()))).await
}

/// Creates a target without LUNs.
#[utoipa::path(post, path = "/targets", request_body = CreateTarget, responses((status = CREATED, body = Target), (status = "default", body = ErrorBody)))]
async fn create_target(
    State(app): Shared,
    Json(new): Json<CreateTarget>,
) -> Result<(StatusCode, Json<Target>), ApiError> {
    blocking(&app, move |app| {
        let target = app.iscsi.create(&new)?;
        tracing::info!(event = "target.created", target = target.name, "target created");
        Ok((StatusCode::CREATED, Json(target)))
    })
    .await
}

/// Returns one target.
///
/// `target` is its iSCSI name, its short name, the name of the volume whose own target it is, or
/// the address of a snapshot or moment.
#[utoipa::path(get, path = "/targets/{target}", params(("target" = String, Path)), responses((status = OK, body = Target), (status = "default", body = ErrorBody)))]
async fn target(State(app): Shared, Path(name): Path<String>) -> Result<Json<Target>, ApiError> {
    blocking(&app, move |app| Ok(Json(app.iscsi.target(&name)?))).await
}

/// Changes a target.
///
/// A target that becomes disabled ends its sessions.
#[utoipa::path(patch, path = "/targets/{target}", params(("target" = String, Path)), request_body = PatchTarget, responses((status = OK, body = Target), (status = "default", body = ErrorBody)))]
async fn patch_target(
    State(app): Shared,
    Path(name): Path<String>,
    Json(patch): Json<PatchTarget>,
) -> Result<Json<Target>, ApiError> {
    blocking(&app, move |app| {
        let target = app.iscsi.patch(&name, &patch)?;
        tracing::info!(
            event = "target.changed",
            target = target.name,
            enabled = target.enabled,
            "target changed"
        );
        Ok(Json(target))
    })
    .await
}

/// Deletes a target that an operator created.
///
/// With `force` it deletes the target even while initiators use it.
#[utoipa::path(delete, path = "/targets/{target}", params(("target" = String, Path), ("force" = Option<bool>, Query)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn delete_target(
    State(app): Shared,
    Path(name): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        let target = app.iscsi.delete(&name, query.force)?;
        tracing::info!(event = "target.deleted", target, "target deleted");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Adds a logical unit to a target that an operator created.
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
        tracing::info!(event = "target.changed", target = target.name, luns = target.luns.len(), "LUN added");
        Ok((StatusCode::CREATED, Json(target)))
    })
    .await
}

/// Removes a logical unit from a target that an operator created.
///
/// With `force` it removes the logical unit even while initiators use the target.
#[utoipa::path(delete, path = "/targets/{target}/luns/{lun}", params(("target" = String, Path), ("lun" = u16, Path), ("force" = Option<bool>, Query)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_lun(
    State(app): Shared,
    Path((name, lun)): Path<(String, u16)>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_lun(&name, lun, query.force)?;
        tracing::info!(event = "target.changed", target = name, lun, "LUN removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Adds an access rule to a target.
///
/// Sessions that the rule refuses end.
#[utoipa::path(post, path = "/targets/{target}/rules", params(("target" = String, Path)), request_body = AddRule, responses((status = CREATED, body = Target), (status = "default", body = ErrorBody)))]
async fn add_rule(
    State(app): Shared,
    Path(name): Path<String>,
    Json(rule): Json<AddRule>,
) -> Result<(StatusCode, Json<Target>), ApiError> {
    blocking(&app, move |app| {
        app.iscsi.add_rule(Some(&name), &rule)?;
        tracing::info!(event = "access.changed", target = name, ?rule, "access rule added");
        Ok((StatusCode::CREATED, Json(app.iscsi.target(&name)?)))
    })
    .await
}

/// Removes an access rule from a target.
///
/// `number` is the position of the rule in the order, from 1. Sessions that are no longer allowed
/// end.
#[utoipa::path(delete, path = "/targets/{target}/rules/{number}", params(("target" = String, Path), ("number" = usize, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_rule(
    State(app): Shared,
    Path((name, number)): Path<(String, usize)>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_rule(Some(&name), number)?;
        tracing::info!(event = "access.changed", target = name, number, "access rule removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Adds a CHAP account to a target, or replaces the account with the same user name.
///
/// From the next login on, initiators have to authenticate with one of the target's accounts. The
/// default accounts do not apply to a target that has accounts of its own.
#[utoipa::path(put, path = "/targets/{target}/chap", params(("target" = String, Path)), request_body = SetChap, responses((status = OK, body = Target), (status = "default", body = ErrorBody)))]
async fn set_chap(
    State(app): Shared,
    Path(name): Path<String>,
    Confidential(chap): Confidential<SetChap>,
) -> Result<Json<Target>, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.set_chap(Some(&name), chap)?;
        tracing::info!(event = "access.changed", target = name, "CHAP set");
        Ok(Json(app.iscsi.target(&name)?))
    })
    .await
}

/// Removes one of several CHAP accounts of a target.
///
/// The server refuses to remove the only account. Sessions that authenticated with the removed
/// account end.
#[utoipa::path(delete, path = "/targets/{target}/chap/{user}", params(("target" = String, Path), ("user" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_account(
    State(app): Shared,
    Path((name, user)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_account(Some(&name), &user)?;
        tracing::info!(event = "access.changed", target = name, user, "CHAP account removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationsQuery {
    lun: Option<u16>,
}

/// Removes all reservations and registrations of a target's logical units, or of one of them.
///
/// `lun` is the number of the logical unit. Default: all. The server sends a unit attention to the
/// initiators that had registered.
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

/// Removes all CHAP accounts of a target.
///
/// The default accounts for all targets then apply to the target.
#[utoipa::path(delete, path = "/targets/{target}/chap", params(("target" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_chap(State(app): Shared, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_chap(Some(&name))?;
        tracing::info!(event = "access.changed", target = name, "CHAP removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Returns the settings that apply to all targets.
#[utoipa::path(get, path = "/target-defaults", responses((status = OK, body = TargetDefaults)))]
async fn defaults(State(app): Shared) -> Result<Json<TargetDefaults>, ApiError> {
    blocking(&app, |app| Ok(Json(app.iscsi.defaults()))).await
}

/// Adds an access rule for all targets.
///
/// The server checks a target's own rules first.
#[utoipa::path(post, path = "/target-defaults/rules", request_body = AddRule, responses((status = CREATED, body = TargetDefaults), (status = "default", body = ErrorBody)))]
async fn add_default_rule(
    State(app): Shared,
    Json(rule): Json<AddRule>,
) -> Result<(StatusCode, Json<TargetDefaults>), ApiError> {
    blocking(&app, move |app| {
        app.iscsi.add_rule(None, &rule)?;
        tracing::info!(event = "access.changed", ?rule, "access rule added for all targets");
        Ok((StatusCode::CREATED, Json(app.iscsi.defaults())))
    })
    .await
}

/// Removes an access rule for all targets.
///
/// `number` is the position of the rule in the order, from 1. Sessions that are no longer allowed
/// end.
#[utoipa::path(delete, path = "/target-defaults/rules/{number}", params(("number" = usize, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_default_rule(State(app): Shared, Path(number): Path<usize>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_rule(None, number)?;
        tracing::info!(event = "access.changed", number, "access rule for all targets removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Removes one of several default CHAP accounts.
///
/// The default accounts apply to discovery and to targets without accounts of their own. The server
/// refuses to remove the only account. Sessions that authenticated with the removed account end.
#[utoipa::path(delete, path = "/target-defaults/chap/{user}", params(("user" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_default_account(
    State(app): Shared,
    Path(user): Path<String>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.remove_account(None, &user)?;
        tracing::info!(event = "access.changed", user, "CHAP account removed for discovery and all targets");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Adds a default CHAP account, or replaces the account with the same user name.
///
/// The default accounts apply to discovery and to targets without accounts of their own.
#[utoipa::path(put, path = "/target-defaults/chap", request_body = SetChap, responses((status = OK, body = TargetDefaults), (status = "default", body = ErrorBody)))]
async fn set_default_chap(
    State(app): Shared,
    Confidential(chap): Confidential<SetChap>,
) -> Result<Json<TargetDefaults>, ApiError> {
    blocking(&app, move |app| {
        app.iscsi.set_chap(None, chap)?;
        tracing::info!(event = "access.changed", "CHAP set for discovery and all targets");
        Ok(Json(app.iscsi.defaults()))
    })
    .await
}

/// Removes all default CHAP accounts.
///
/// Discovery, and targets without accounts of their own, then require no authentication.
#[utoipa::path(delete, path = "/target-defaults/chap", responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_default_chap(State(app): Shared) -> Result<StatusCode, ApiError> {
    blocking(&app, |app| {
        app.iscsi.remove_chap(None)?;
        tracing::info!(event = "access.changed", "CHAP for discovery and all targets removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
