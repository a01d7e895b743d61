//! The route of backups of the pool's metadata.

use super::error::{ApiError, Json};
use super::shared::{Shared, blocking, host_path};
use crate::app::App;
use crate::backups::Place;
use crate::host_paths::Purpose;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{BackUp, Backup, ErrorBody};
use hindcast_engine::Error;
use jiff::Timestamp;
use std::path::PathBuf;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(back_up))
}

/// Creates a backup of the pool's metadata.
///
/// The backup is durable when the response arrives. `path` is a path on the server's machine.
#[utoipa::path(post, path = "/pool/backups", request_body = BackUp, responses((status = CREATED, body = Backup), (status = "default", body = ErrorBody)))]
async fn back_up(
    State(app): Shared,
    Json(how): Json<BackUp>,
) -> Result<(StatusCode, Json<Backup>), ApiError> {
    let path = how.path.as_deref().map(|path| host_path(path, Purpose::Directory));
    blocking(&app, move |app| {
        let (directory, info) = match path.map(|path| path(app)).transpose()? {
            None => {
                let directory = PathBuf::from(&app.data).join(crate::backups::DIRECTORY);
                (directory, app.backups.make(&app.pool, None)?)
            }
            Some(checked) => {
                let directory = PathBuf::from(&checked.path);
                let failed = |e| Error::io(format!("create {}", directory.display()), e);
                let (way, _hold) = checked.directory().map_err(failed)?;
                let place = Place { way: &way, shown: &directory };
                let info = app.backups.make(&app.pool, Some(place))?;
                (directory, info)
            }
        };
        let backup = Backup {
            path: directory.join(info.file.unwrap_or_default()).display().to_string(),
            pool: info.pool.to_string(),
            sequence: info.sequence,
            made: Timestamp::from_nanosecond(info.time.into()).unwrap_or_default(),
            rows: info.rows,
            bytes: info.bytes,
            pvs: info.pvs,
        };
        Ok((StatusCode::CREATED, Json(backup)))
    })
    .await
}
