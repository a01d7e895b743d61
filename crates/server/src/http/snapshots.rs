//! The routes of snapshots, clones and rollback.

use super::by_body;
use super::caller::Caller;
use super::error::{ApiError, Json, Path};
use super::pages::{Entries, KeyPart, Page};
use super::shared::{Shared, blocking, urgent};
use crate::app::App;
use crate::clones::{check_labels, default_name};
use crate::convert;
use crate::lineage::Lineage;
use crate::same::Same;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{
    CreateClone, CreateSnapshots, DeleteSnapshots, ErrorBody, ErrorKind, PatchSnapshot, RollBack, RolledBack,
    Snapshot, Volume,
};
use hindcast_engine::pool::SnapshotInfo;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(all_snapshots, create_snapshots))
        .routes(routes!(snapshots))
        .routes(routes!(snapshot, patch_snapshot))
        .routes(routes!(delete_snapshots))
        .routes(routes!(roll_back))
        .routes(routes!(create_clone))
}

/// Returns the snapshots of all volumes, sorted by volume, and for each volume oldest first.
#[utoipa::path(get, path = "/snapshots", responses((status = OK, body = Vec<Snapshot>)))]
async fn all_snapshots(State(app): Shared, page: Page) -> Result<Entries<Snapshot>, ApiError> {
    blocking(&app, move |app| {
        let lineage = Lineage::new(&app.pool);
        let key = |s: &SnapshotInfo| {
            let volume = KeyPart::Text(s.volume.clone());
            vec![volume, KeyPart::Time(convert::time(s.created)), KeyPart::Text(s.uuid.to_string())]
        };
        let (found, next) = page.cut(app.pool.all_snapshots(), key);
        let mut all: Vec<Snapshot> = found.iter().map(|s| lineage.snapshot(s)).collect();
        for of_one in all.chunk_by_mut(|a, b| a.volume == b.volume) {
            let volume = of_one.first().map(|s| s.volume.clone()).unwrap_or_default();
            convert::add_space(&app.pool, &volume, of_one);
        }
        Ok(Entries(all, next))
    })
    .await
}

/// Creates snapshots of volumes, all at one instant.
///
/// Clients of the volumes continue to write meanwhile. The snapshots are durable when the response
/// arrives.
#[utoipa::path(post, path = "/snapshots", request_body = CreateSnapshots, responses((status = CREATED, body = Vec<Snapshot>), (status = "default", body = ErrorBody)))]
async fn create_snapshots(
    State(app): Shared,
    Json(new): Json<CreateSnapshots>,
) -> Result<(StatusCode, Json<Vec<Snapshot>>), ApiError> {
    urgent(&app, move |app| {
        let created = app.create_snapshots(&new)?;
        let lineage = Lineage::new(&app.pool);
        Ok((StatusCode::CREATED, Json(created.iter().map(|s| lineage.snapshot(s)).collect())))
    })
    .await
}

/// Returns the snapshots of a volume, oldest first.
#[utoipa::path(get, path = "/volumes/{volume}/snapshots", params(("volume" = String, Path)), responses((status = OK, body = Vec<Snapshot>), (status = "default", body = ErrorBody)))]
async fn snapshots(
    State(app): Shared,
    Path(volume): Path<String>,
    page: Page,
) -> Result<Entries<Snapshot>, ApiError> {
    blocking(&app, move |app| {
        let key = |s: &SnapshotInfo| {
            vec![KeyPart::Time(convert::time(s.created)), KeyPart::Text(s.uuid.to_string())]
        };
        let (found, next) = page.cut(app.pool.snapshots(&volume)?, key);
        let lineage = Lineage::new(&app.pool);
        let mut found: Vec<Snapshot> = found.iter().map(|s| lineage.snapshot(s)).collect();
        convert::add_space(&app.pool, &volume, &mut found);
        Ok(Entries(found, next))
    })
    .await
}

/// Returns one snapshot.
#[utoipa::path(get, path = "/volumes/{volume}/snapshots/{snapshot}", params(("volume" = String, Path), ("snapshot" = String, Path)), responses((status = OK, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn snapshot(
    State(app): Shared,
    Path((volume, snapshot)): Path<(String, String)>,
) -> Result<Json<Snapshot>, ApiError> {
    blocking(&app, move |app| {
        let found = app.snapshot(&volume, &snapshot)?;
        let mut found = Lineage::new(&app.pool).snapshot(&found);
        convert::add_space(&app.pool, &volume, std::slice::from_mut(&mut found));
        Ok(Json(found))
    })
    .await
}

/// Changes a snapshot.
///
/// The server makes the changes in this order: labels, protection, writability, name. If a change
/// fails, the request ends. The changes before it stay.
#[utoipa::path(patch, path = "/volumes/{volume}/snapshots/{snapshot}", params(("volume" = String, Path), ("snapshot" = String, Path)), request_body = PatchSnapshot, responses((status = OK, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn patch_snapshot(
    State(app): Shared,
    Caller(caller): Caller,
    Path((volume, snapshot)): Path<(String, String)>,
    Json(patch): Json<PatchSnapshot>,
) -> Result<Json<Snapshot>, ApiError> {
    by_body::check_snapshot(&caller, &patch)?;
    if patch.writable == Some(true) && patch.clone.is_none() {
        caller.require_volume(&default_name(&volume, &snapshot))?;
    }
    blocking(&app, move |app| {
        let mut found = app.snapshot(&volume, &snapshot)?;
        check_labels(patch.labels.keys())?;
        if patch.clone.is_some() && patch.writable != Some(true) {
            return Err(ApiError::new(
                ErrorKind::Invalid,
                "name a clone: only a snapshot that becomes writable has a clone",
            ));
        }
        if !patch.labels.is_empty() {
            let changes: Vec<_> = patch.labels.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
            found = app.pool.label_snapshot(&volume, &snapshot, &changes)?;
        }
        if let Some(protected) = patch.protected {
            found = app.pool.protect_snapshot(&volume, &snapshot, protected)?;
            tracing::info!(event = "snapshot.changed", volume, snapshot, protected, "snapshot changed");
        }
        let mut inherited = None;
        match patch.writable {
            Some(true) => {
                (found, inherited) =
                    app.make_writable(&volume, &snapshot, patch.clone.as_deref(), patch.force)?;
            }
            Some(false) => found = app.make_read_only(&volume, &snapshot, patch.force)?,
            None => {}
        }
        if let Some(name) = patch.name {
            found = app.pool.rename_snapshot(&volume, &snapshot, &name)?;
            app.nbd.snapshot_renamed(&volume, &snapshot, &name);
            tracing::info!(event = "snapshot.renamed", volume, snapshot, name, "snapshot renamed");
        }
        Ok(Json(Snapshot { inherited, ..Lineage::new(&app.pool).snapshot(&found) }))
    })
    .await
}

/// Deletes snapshots of a volume, all of them or none.
///
/// The snapshots disappear at once. The server frees their space in the background, after the last
/// client has stopped reading them.
#[utoipa::path(post, path = "/volumes/{volume}/snapshots/delete", params(("volume" = String, Path)), request_body = DeleteSnapshots, responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn delete_snapshots(
    State(app): Shared,
    Path(volume): Path<String>,
    Json(which): Json<DeleteSnapshots>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        let names: Vec<&str> = which.names.iter().map(String::as_str).collect();
        app.delete_snapshots(&volume, &names, which.force)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Rolls a volume back to a snapshot, or to a moment of its history.
///
/// `snapshot` is the name of a snapshot or mark, a time, a time before now like `-90s`, or `lsn:N`.
/// The rollback takes effect at once, whatever the size of the volume. Newer snapshots stay. The
/// server keeps the previous content of the volume as a snapshot.
#[utoipa::path(post, path = "/volumes/{volume}/snapshots/{snapshot}/rollback", params(("volume" = String, Path), ("snapshot" = String, Path)), request_body = RollBack, responses((status = OK, body = RolledBack), (status = "default", body = ErrorBody)))]
async fn roll_back(
    State(app): Shared,
    Path((volume, snapshot)): Path<(String, String)>,
    Json(how): Json<RollBack>,
) -> Result<Json<RolledBack>, ApiError> {
    blocking(&app, move |app| {
        let (volume, undo) = app.roll_back_to(&volume, &snapshot, how)?;
        let lineage = Lineage::new(&app.pool);
        Ok(Json(RolledBack { volume: app.shown_by(&lineage, &volume), undo: lineage.snapshot(&undo) }))
    })
    .await
}

/// Creates a clone: a writable volume with the content of a snapshot, or of a moment.
///
/// `snapshot` is the name of a snapshot or mark, a time, a time before now like `-90s`, or `lsn:N`.
/// A clone of a snapshot takes no space until a client writes to it. A clone of a moment is copied
/// out of the history in the background.
#[utoipa::path(post, path = "/volumes/{volume}/snapshots/{snapshot}/clones", params(("volume" = String, Path), ("snapshot" = String, Path)), request_body = CreateClone, responses((status = CREATED, body = Volume), (status = "default", body = ErrorBody)))]
async fn create_clone(
    State(app): Shared,
    Path((volume, snapshot)): Path<(String, String)>,
    Json(new): Json<CreateClone>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    blocking(&app, move |app| {
        let (mut clone, inherited) = app.clone_of(&volume, &snapshot, &new.name)?;
        if let Some(method) = new.method {
            clone = app.pool.set_method(&new.name, method.same())?;
        }
        Ok((StatusCode::CREATED, Json(Volume { inherited, ..app.shown(&clone) })))
    })
    .await
}
