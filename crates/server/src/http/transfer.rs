//! The routes of differences, exports and imports. Each stream has a thread of its own, so no other
//! work waits for a stream.

use super::error::{ApiError, Json, Path, Query};
use super::guests;
use super::shared::{MAX_TRANSFERS, Shared, blocking};
use crate::app::App;
use crate::exports_running::RunningExport;
use crate::host_paths::Door;
use crate::lineage::Lineage;
use crate::progress::End;
use crate::{moments, realtime};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hindcast_api::{ByteRange, ChannelBody, Difference, ErrorBody, ErrorKind, Snapshot, UnfinishedImport};
use hindcast_engine::Difference as Compared;
use hindcast_engine::pool::SnapshotInfo;
use hindcast_engine::stream::Export;
use http_body_util::BodyExt;
use serde::Deserialize;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

/// Maximum number of ranges in one response.
const MAX_RANGES: usize = 10_000;
/// Maximum number of pieces that wait between a thread and its connection.
pub(super) const PIECES: usize = 4;
/// Time for which the server reads and discards the rest of a refused stream after the response. A
/// client that still sends reads the response in that time. If the server closed the connection
/// earlier, the client could lose the response.
const DRAIN_TIME: Duration = Duration::from_secs(30);

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(difference))
        .routes(routes!(export))
        .routes(routes!(import))
        .routes(routes!(unfinished_import, cancel_import))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DifferenceQuery {
    from: String,
    to: Option<String>,
    #[serde(default)]
    offset: u64,
    /// Identity of the two states, from the response with an earlier part.
    identity: Option<String>,
}

/// Returns a part of the difference between an earlier and a later state of a volume.
///
/// The difference has all ranges whose content may differ. `from` and `to` are snapshots or
/// moments. Default of `to`: the current content of the volume. A large difference takes several
/// requests: `offset` is the `next` of the previous part, in bytes, and `identity` is its
/// `identity`. Default of `offset`: 0.
#[utoipa::path(get, path = "/volumes/{volume}/difference", params(("volume" = String, Path), ("from" = String, Query), ("to" = Option<String>, Query), ("offset" = Option<u64>, Query), ("identity" = Option<String>, Query)), responses((status = OK, body = Difference), (status = "default", body = ErrorBody)))]
async fn difference(
    State(app): Shared,
    Path(volume): Path<String>,
    Query(query): Query<DifferenceQuery>,
) -> Result<Json<Difference>, ApiError> {
    blocking(&app, move |app| {
        let (from, from_name) = moments::open_frozen(&app.pool, &volume, &query.from)?;
        let (to, to_name) = match &query.to {
            Some(to) => moments::open_frozen(&app.pool, &volume, to).map(|(to, name)| (to, Some(name)))?,
            None => (app.pool.open_weak(&volume)?, None),
        };
        let difference = Compared::new(from, to)?;
        let identity = difference.of().map(|uuid| uuid.to_string()).join("/");
        if query.identity.is_some_and(|earlier| earlier != identity) {
            let why = "continue the comparison: one of the names means another state now; start again";
            return Err(ApiError::new(ErrorKind::Conflict, why));
        }
        let size = difference.size();
        let mut at = query.offset;
        let mut ranges: Vec<ByteRange> = Vec::new();
        while at < size && ranges.len() < MAX_RANGES {
            let (found, end) = difference.step(at, size - at)?;
            for range in found {
                let length = range.end - range.start;
                match ranges.last_mut() {
                    Some(last) if last.offset + last.length == range.start => last.length += length,
                    _ => ranges.push(ByteRange { offset: range.start, length }),
                }
            }
            at = end;
        }
        let next = (at < size).then_some(at);
        Ok(Json(Difference { from: from_name, to: to_name, identity, size, ranges, next }))
    })
    .await
}

/// A place among the running transfers. The bytes of a transfer pass through the API's thread, so
/// that thread has normal priority while a transfer runs.
pub(super) struct Permit {
    _transfer: OwnedSemaphorePermit,
    /// Its drop reports the end of the transfer.
    _over: oneshot::Sender<()>,
}

pub(super) fn permit(app: &Arc<App>) -> Result<Permit, ApiError> {
    let busy = |_| ApiError::new(ErrorKind::Busy, "start a transfer: too many are running; try again later");
    let transfer = app.transfers.clone().try_acquire_owned().map_err(busy)?;
    let (over, when_over) = oneshot::channel();
    if guests::door() == Door::Network {
        // The threads of that runtime are not raised.
        return Ok(Permit { _transfer: transfer, _over: over });
    }
    let app = app.clone();
    realtime::lower();
    tokio::spawn(async move {
        let _ = when_over.await;
        if app.transfers.available_permits() == MAX_TRANSFERS {
            realtime::keep_raised();
        }
    });
    Ok(Permit { _transfer: transfer, _over: over })
}

pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ApiError> {
    let begin = || {
        realtime::lower();
        work()
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(begin);
    thread.map(|_| ()).map_err(|e| ApiError::internal(format!("start a thread: {e}")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportQuery {
    from: Option<String>,
    #[serde(default)]
    start: u64,
}

/// Exports a snapshot or a moment as a stream.
///
/// `snapshot` and `from` are names of snapshots, or moments. With `from`, the stream has only the
/// difference from that older state. An import makes a snapshot of the stream. The snapshot of a
/// moment has the name of the mark, or the time of the moment. `start` is the offset
/// in the volume at which the stream begins, in bytes. Default: 0. An interrupted import resumes
/// with a stream that begins at its `position`.
#[utoipa::path(get, path = "/volumes/{volume}/snapshots/{snapshot}/export", params(("volume" = String, Path), ("snapshot" = String, Path), ("from" = Option<String>, Query), ("start" = Option<u64>, Query)), responses((status = OK, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = ErrorBody)))]
async fn export(
    State(app): Shared,
    Path((volume, snapshot)): Path<(String, String)>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, ApiError> {
    let permit = permit(&app)?;
    let address = format!("{volume}@{snapshot}");
    let begin = move |app: &App| {
        let state = |at: &str| moments::past_state(&app.pool, &volume, at);
        let (to, from) = (state(&snapshot)?, query.from.as_deref().map(state).transpose()?);
        Ok(app.pool.export_past(&volume, to, from, query.start)?)
    };
    let export = blocking(&app, begin).await?;
    let (pieces, receiver) = mpsc::channel(PIECES);
    spawn("export", move || {
        let _permit = permit;
        let running = app.exports.begin(&address);
        app.seen_tasks.begun("export", running.name());
        match give_out(export, &running, &pieces) {
            End::Done => tracing::info!(event = "transfer.exported", address, "exported"),
            end => {
                let why =
                    if let End::Failed(why) = &end { why.as_str() } else { "it was stopped by request" };
                if end != End::Stopped && !pieces.is_closed() {
                    tracing::error!(
                        event = "transfer.failed",
                        address,
                        error = why,
                        "an export was interrupted"
                    );
                }
                app.seen_tasks.ends(&running.task(), end.clone());
                // Without its trailer the stream is known to be incomplete.
                let _ = pieces.blocking_send(Err(io::Error::other(why.to_owned())));
            }
        }
    })?;
    let body = Body::new(ChannelBody(receiver));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// Sends the pieces of an export. Returns how it ended.
fn give_out(mut export: Export, running: &RunningExport, pieces: &mpsc::Sender<io::Result<Bytes>>) -> End {
    loop {
        match export.next_piece() {
            Ok(None) => return End::Done,
            Ok(Some(piece)) => {
                let bytes = piece.len() as u64;
                if pieces.blocking_send(Ok(piece.into())).is_err() {
                    return End::Failed("the connection was closed".into());
                }
                if !running.sent(bytes) {
                    return End::Stopped;
                }
            }
            Err(error) => return End::Failed(error.to_string()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportQuery {
    name: Option<String>,
}

/// Imports a stream into a volume, and creates the snapshot of the stream.
///
/// `name` is the name of the volume. Default: the name in the stream. A later import of the same
/// content resumes an interrupted import.
#[utoipa::path(post, path = "/imports", params(("name" = Option<String>, Query)), request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = CREATED, body = Snapshot), (status = "default", body = ErrorBody)))]
async fn import(
    State(app): Shared,
    Query(query): Query<ImportQuery>,
    body: Body,
) -> Result<(StatusCode, Json<Snapshot>), ApiError> {
    let permit = permit(&app)?;
    let (pieces, receiver) = mpsc::channel(PIECES);
    let (tell, told) = oneshot::channel();
    let importing = app.clone();
    spawn("import", move || {
        let _permit = permit;
        let _ = tell.send(take_in(&importing, query.name.as_deref(), receiver));
    })?;
    // Beside the answer: what is refused is answered at once, however much of the stream is still
    // to come.
    tokio::spawn(receive(body, pieces));
    let taken = told.await.map_err(|_| ApiError::internal("the import panicked"))?;
    let snapshot = taken.map_err(|refused| match refused {
        Refused::Stream(error) => ApiError::of_request(error),
        Refused::Pool(error) => error.into(),
    })?;
    app.seen_tasks.begun("import", &snapshot.volume);
    tracing::info!(event = "transfer.imported", volume = snapshot.volume, name = snapshot.name, "imported");
    blocking(&app, move |app| Ok((StatusCode::CREATED, Json(Lineage::new(&app.pool).snapshot(&snapshot)))))
        .await
}

/// Passes the pieces of a request's body to the thread that imports it, and then `None`. If the
/// body is interrupted, no `None` follows. If the thread has ended, this function reads and
/// discards the rest for [`DRAIN_TIME`].
async fn receive(mut body: Body, pieces: mpsc::Sender<Option<Bytes>>) {
    loop {
        match body.frame().await {
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if pieces.send(Some(data)).await.is_err() {
                    break;
                }
            }
            Some(Err(error)) => return tracing::debug!(%error, "a stream was interrupted"),
            None => {
                let _ = pieces.send(None).await;
                return;
            }
        }
    }
    drop(pieces);
    let drain = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIME, drain).await;
}

/// Why an import failed.
enum Refused {
    /// The bytes are not a stream, the stream is damaged, or it was interrupted.
    Stream(hindcast_engine::Error),
    Pool(hindcast_engine::Error),
}

/// Imports a stream from `pieces`. `None` is the end of a complete body. If the channel ends
/// without it, the stream was interrupted.
fn take_in(
    app: &Arc<App>,
    name: Option<&str>,
    mut pieces: mpsc::Receiver<Option<Bytes>>,
) -> Result<SnapshotInfo, Refused> {
    let checking = app.clone();
    let mut import = app.pool.import(name).with_check(move |name| checking.iscsi.check_new_name(name));
    let result = loop {
        match pieces.blocking_recv() {
            Some(Some(bytes)) => {
                if let Err(error) = import.push(&bytes) {
                    break Err(if import.is_malformed() {
                        Refused::Stream(error)
                    } else {
                        Refused::Pool(error)
                    });
                }
            }
            Some(None) if import.is_complete() => return import.finish().map_err(Refused::Pool),
            Some(None) | None => {
                let text = format!(
                    "import the stream: it was interrupted at byte {} of the volume",
                    import.position()
                );
                let error = hindcast_engine::Error::new(hindcast_engine::ErrorKind::Io, text);
                break Err(Refused::Stream(error));
            }
        }
    };
    if let Err(error) = import.keep() {
        tracing::debug!(%error, "an import continues at an earlier position");
    }
    result
}

/// Returns the unfinished import into a volume, or null if there is none.
#[utoipa::path(get, path = "/volumes/{volume}/import", params(("volume" = String, Path)), responses((status = OK, body = Option<UnfinishedImport>), (status = "default", body = ErrorBody)))]
async fn unfinished_import(
    State(app): Shared,
    Path(volume): Path<String>,
) -> Result<Json<Option<UnfinishedImport>>, ApiError> {
    blocking(&app, move |app| {
        let found = app.pool.unfinished_import(&volume)?;
        Ok(Json(found.map(|i| UnfinishedImport {
            volume,
            position: i.position,
            from: i.from.as_ref().map(Uuid::to_string),
            to: i.to.to_string(),
            running: i.running,
        })))
    })
    .await
}

/// Aborts the import into a volume.
///
/// The volume accepts writes again. It keeps the content that has arrived so far.
#[utoipa::path(delete, path = "/volumes/{volume}/import", params(("volume" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn cancel_import(State(app): Shared, Path(volume): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.pool.cancel_import(&volume)?;
        app.seen_tasks.ends(&format!("import:{volume}"), End::Stopped);
        tracing::info!(event = "transfer.cancelled", volume, "import cancelled");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
