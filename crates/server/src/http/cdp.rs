//! The routes of continuous data protection (CDP): history, moments, marks and recovery.

use super::error::{ApiError, Json, Path, Query};
use super::shared::{Shared, blocking, urgent};
use crate::app::App;
use crate::convert;
use crate::lineage::Lineage;
use crate::same::Same;
use crate::{anchor_tuner, moments};
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{
    CdpMeasured, CdpStatus, Change, CreateMark, CreateMarks, Encoding, ErrorBody, ErrorKind, FoundMoment,
    History, MAX_CHANGES, Mark, Recover, RecoverInPlace, Recovered, RolledBack, Size, Volume,
};
use hindcast_engine::cdp::{self, CdpSettings};
use hindcast_engine::ids::{Lsn, Stamp};
use serde::Deserialize;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Maximum number of parts of a history's time in one response. Each part takes memory of the
/// server.
const MAX_BUCKETS: u32 = 10_000;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(measured))
        .routes(routes!(history))
        .routes(routes!(changes))
        .routes(routes!(moment))
        .routes(routes!(create_mark))
        .routes(routes!(create_marks))
        .routes(routes!(delete_mark))
        .routes(routes!(recover))
        .routes(routes!(recover_in_place))
}

/// Returns the settings of a history in words.
pub(super) fn words(settings: Option<CdpSettings>) -> String {
    let Some(settings) = settings else { return "off".into() };
    let seconds = settings.retention.time.map(|nanos| format!("{} s", nanos / 1_000_000_000));
    let bytes = settings.retention.bytes.map(|bytes| Size(bytes).to_string());
    let kept: Vec<String> = seconds.into_iter().chain(bytes).collect();
    let kept = if kept.is_empty() { "for ever".into() } else { kept.join(", at most ") };
    let encoding: Encoding = settings.encoding.same();
    format!("{}, kept {kept}", encoding.name())
}

/// Returns the state of a volume's history.
#[utoipa::path(get, path = "/volumes/{volume}/cdp", params(("volume" = String, Path)), responses((status = OK, body = CdpStatus), (status = "default", body = ErrorBody)))]
async fn status(State(app): Shared, Path(volume): Path<String>) -> Result<Json<CdpStatus>, ApiError> {
    blocking(&app, move |app| {
        let info = app.pool.cdp(&volume)?;
        Ok(Json(convert::cdp_status(volume, &info)))
    })
    .await
}

/// Returns the inputs of the cost model for a volume.
///
/// The inputs are the server's measurements of the volume's history and of itself, and the
/// configured prices. The measurement takes about a second.
#[utoipa::path(get, path = "/volumes/{volume}/cdp/measured", params(("volume" = String, Path)), responses((status = OK, body = CdpMeasured), (status = "default", body = ErrorBody)))]
async fn measured(State(app): Shared, Path(volume): Path<String>) -> Result<Json<CdpMeasured>, ApiError> {
    blocking(&app, move |app| Ok(Json(anchor_tuner::measure(&app.pool, &volume, app.prices)?))).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    buckets: Option<u32>,
}

/// Returns the recoverable history of a volume, and the amount of changes over time.
///
/// `buckets` is the number of parts of equal length into which the time is divided. Default: 60.
/// Maximum: 10000.
#[utoipa::path(get, path = "/volumes/{volume}/history", params(("volume" = String, Path), ("buckets" = Option<u32>, Query)), responses((status = OK, body = History), (status = "default", body = ErrorBody)))]
async fn history(
    State(app): Shared,
    Path(volume): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<History>, ApiError> {
    let buckets = query.buckets.unwrap_or(60);
    if buckets > MAX_BUCKETS {
        return Err(ApiError::new(
            ErrorKind::Invalid,
            format!("list a history: buckets must be at most {MAX_BUCKETS}"),
        ));
    }
    blocking(&app, move |app| {
        let found = app.pool.history(&volume, buckets as usize)?;
        Ok(Json(convert::history(volume, &found)))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangesQuery {
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
    from: Option<String>,
    to: Option<String>,
    limit: Option<u64>,
}

/// Returns the changes of a range of a volume, oldest first.
///
/// A write to several chunks is one change in each chunk. `offset` and `length` are the range, in
/// bytes. Default: the whole volume. `from` and `to` are the first and the last moment. Default:
/// the beginning of the history, and now. `limit` is the maximum number of changes. Default: 1000.
/// Maximum: 100000.
#[utoipa::path(get, path = "/volumes/{volume}/changes", params(("volume" = String, Path), ("offset" = Option<u64>, Query), ("length" = Option<u64>, Query), ("from" = Option<String>, Query), ("to" = Option<String>, Query), ("limit" = Option<u64>, Query)), responses((status = OK, body = Vec<Change>), (status = "default", body = ErrorBody)))]
async fn changes(
    State(app): Shared,
    Path(volume): Path<String>,
    Query(query): Query<ChangesQuery>,
) -> Result<Json<Vec<Change>>, ApiError> {
    let limit = query.limit.unwrap_or(1000).min(MAX_CHANGES);
    blocking(&app, move |app| {
        let lsn = |text: &Option<String>| match text {
            Some(text) => {
                let moment = moments::moment(&app.pool, &volume, text)?;
                app.pool.resolve(&volume, &moment).map(|point| Some(point.lsn))
            }
            None => Ok(None),
        };
        let (from, to) = (lsn(&query.from)?.unwrap_or(Lsn::ZERO), lsn(&query.to)?.unwrap_or(Lsn::MAX));
        let end = query.length.map_or(u64::MAX, |length| query.offset.saturating_add(length));
        let found = app.pool.changes(&volume, query.offset..end, from..=to, limit as usize)?;
        Ok(Json(found.iter().map(convert::change).collect()))
    })
    .await
}

/// Finds a moment of a volume's history.
///
/// `moment` is a time, a time before now like `-90s`, `lsn:N`, or the name of a mark or snapshot.
#[utoipa::path(get, path = "/volumes/{volume}/moments/{moment}", params(("volume" = String, Path), ("moment" = String, Path)), responses((status = OK, body = FoundMoment), (status = "default", body = ErrorBody)))]
async fn moment(
    State(app): Shared,
    Path((volume, moment)): Path<(String, String)>,
) -> Result<Json<FoundMoment>, ApiError> {
    blocking(&app, move |app| {
        let point = app.pool.resolve(&volume, &moments::moment(&app.pool, &volume, &moment)?)?;
        Ok(Json(FoundMoment { lsn: point.lsn.0, time: convert::time(point.time), size: point.size, volume }))
    })
    .await
}

/// Creates a mark: a name for the present moment of a volume.
///
/// The mark is durable when the response arrives.
#[utoipa::path(post, path = "/volumes/{volume}/marks", params(("volume" = String, Path)), request_body = CreateMark, responses((status = CREATED, body = Mark), (status = "default", body = ErrorBody)))]
async fn create_mark(
    State(app): Shared,
    Path(volume): Path<String>,
    Json(new): Json<CreateMark>,
) -> Result<(StatusCode, Json<Mark>), ApiError> {
    urgent(&app, move |app| {
        let mark = app.pool.mark(&volume, &new.name)?;
        tracing::info!(event = "mark.created", volume, name = mark.name, lsn = mark.lsn.0, "moment marked");
        Ok((StatusCode::CREATED, Json(convert::mark(&mark))))
    })
    .await
}

/// Creates marks of one name for one present moment of several volumes.
///
/// The marks are durable when the response arrives.
#[utoipa::path(post, path = "/marks", request_body = CreateMarks, responses((status = CREATED, body = Mark), (status = "default", body = ErrorBody)))]
async fn create_marks(
    State(app): Shared,
    Json(new): Json<CreateMarks>,
) -> Result<(StatusCode, Json<Mark>), ApiError> {
    urgent(&app, move |app| {
        let volumes: Vec<&str> = new.volumes.iter().map(String::as_str).collect();
        let mark = app.pool.mark_all(&volumes, &new.name)?;
        let volumes = volumes.join(" ");
        tracing::info!(event = "mark.created", volumes, name = mark.name, lsn = mark.lsn.0, "moment marked");
        Ok((StatusCode::CREATED, Json(convert::mark(&mark))))
    })
    .await
}

/// Deletes a mark.
///
/// The marked moment stays in the history.
#[utoipa::path(delete, path = "/volumes/{volume}/marks/{mark}", params(("volume" = String, Path), ("mark" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn delete_mark(
    State(app): Shared,
    Path((volume, mark)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.pool.unmark(&volume, &mark)?;
        tracing::info!(event = "mark.deleted", volume, mark, "mark deleted");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Recovers the content of volumes at one moment into new volumes.
///
/// The new volumes are available at once, whatever their size.
#[utoipa::path(post, path = "/recoveries", request_body = Recover, responses((status = CREATED, body = Vec<Recovered>), (status = "default", body = ErrorBody)))]
async fn recover(
    State(app): Shared,
    Json(what): Json<Recover>,
) -> Result<(StatusCode, Json<Vec<Recovered>>), ApiError> {
    blocking(&app, move |app| {
        let made = app.recover(&what)?;
        let lineage = Lineage::new(&app.pool);
        let made = made.into_iter().map(|made| Recovered {
            volume: Volume { inherited: made.inherited, ..app.shown_by(&lineage, &made.volume) },
            moment: made.point.map(|p| convert::position(Stamp::new(p.lsn, p.time))),
        });
        Ok((StatusCode::CREATED, Json(made.collect())))
    })
    .await
}

/// Rolls volumes back to one moment.
///
/// The volumes are available at once, whatever their size. The server keeps the previous content of
/// each volume as a snapshot.
#[utoipa::path(post, path = "/recoveries/in-place", request_body = RecoverInPlace, responses((status = OK, body = Vec<RolledBack>), (status = "default", body = ErrorBody)))]
async fn recover_in_place(
    State(app): Shared,
    Json(what): Json<RecoverInPlace>,
) -> Result<Json<Vec<RolledBack>>, ApiError> {
    blocking(&app, move |app| {
        let done = app.recover_in_place(&what)?;
        let lineage = Lineage::new(&app.pool);
        let done = done.iter().map(|(volume, undo)| RolledBack {
            volume: app.shown_by(&lineage, volume),
            undo: lineage.snapshot(undo),
        });
        Ok(Json(done.collect()))
    })
    .await
}

/// Returns the settings that result from the changes `patch` to the settings `old`. `None`: CDP is
/// off. If CDP was off, unchanged settings get their default. Fails if CDP was off and `patch` does
/// not turn it on.
pub(super) fn settings(
    old: Option<cdp::CdpSettings>,
    patch: &hindcast_api::PatchCdp,
) -> Result<Option<cdp::CdpSettings>, ApiError> {
    let switched = patch.enabled.or(patch.encoding.map(|_| true));
    let mut new = match (old, switched) {
        (_, Some(false)) => return Ok(None),
        (Some(old), _) => old,
        (None, Some(true)) => cdp::CdpSettings::default(),
        (None, None) => {
            let message = "change the history of a volume: it has no history; give an encoding to begin one";
            return Err(ApiError::new(ErrorKind::Conflict, message));
        }
    };
    if let Some(encoding) = patch.encoding {
        new.encoding = encoding.same();
    }
    if let Some(compression) = patch.compression {
        new.compression = compression.same();
    }
    if let Some(anchors) = patch.anchors {
        new.anchors = convert::engine_anchors(anchors)?;
    }
    let limit = |value: u64| (value > 0).then_some(value);
    if let Some(distance) = patch.max_distance {
        new.max_distance = limit(distance);
    }
    if let Some(seconds) = patch.retain_seconds {
        new.retention.time = limit(convert::nanos(seconds)?);
    }
    if let Some(bytes) = patch.retain_bytes {
        new.retention.bytes = limit(bytes);
    }
    Ok(Some(new))
}
