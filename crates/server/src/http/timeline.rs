//! The route of a volume's timeline.

use super::error::{ApiError, Json, Path, Query};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use hindcast_api::{Changed, ErrorBody, Timeline};
use serde::Deserialize;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(timeline)).routes(routes!(changed))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TimelineQuery {
    from: Option<String>,
    to: Option<String>,
    buckets: Option<u32>,
    regions: Option<u32>,
}

/// Returns a window of a volume's past: how much changed when and where, and the moments that have
/// a name or a purpose.
///
/// `from` and `to` are a time, a time before now like `-10m`, or the name of a snapshot or mark.
/// Default: the beginning of the history, and now. `buckets` is the maximum number of buckets, 1 to
/// 2000. Default: 200. The server chooses a round length. `regions` is the number of parts of the
/// volume for which the bytes are counted apart, at most 64. Default: none.
///
/// The request destages nothing, so it can be repeated as often as a picture moves.
#[utoipa::path(get, path = "/volumes/{volume}/timeline", params(("volume" = String, Path), ("from" = Option<String>, Query), ("to" = Option<String>, Query), ("buckets" = Option<u32>, Query), ("regions" = Option<u32>, Query)), responses((status = OK, body = Timeline), (status = "default", body = ErrorBody)))]
async fn timeline(
    State(app): Shared,
    Path(volume): Path<String>,
    Query(query): Query<TimelineQuery>,
) -> Result<Json<Timeline>, ApiError> {
    let TimelineQuery { from, to, buckets, regions } = query;
    let query = hindcast_api::TimelineQuery { from, to, buckets, regions };
    blocking(&app, move |app| Ok(Json(app.timeline(&volume, &query)?))).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangedQuery {
    from: String,
    to: Option<String>,
}

/// Returns what differs between two moments of a volume: sums by part of the volume, and the first
/// ranges.
///
/// `from` and `to` are moments. Default of `to`: the volume as it is now. The comparison opens the
/// moments, and stops after two seconds.
#[utoipa::path(get, path = "/volumes/{volume}/changed", params(("volume" = String, Path), ("from" = String, Query), ("to" = Option<String>, Query)), responses((status = OK, body = Changed), (status = "default", body = ErrorBody)))]
async fn changed(
    State(app): Shared,
    Path(volume): Path<String>,
    Query(query): Query<ChangedQuery>,
) -> Result<Json<Changed>, ApiError> {
    blocking(&app, move |app| Ok(Json(app.changed(&volume, &query.from, query.to.as_deref())?))).await
}
