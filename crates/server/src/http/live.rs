//! The routes of what clients do now.

use super::error::{ApiError, Json, Path, Query};
use super::shared::{Shared, blocking};
use super::streams::{Feed, Sent, StreamCaller, stream};
use crate::app::App;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use hindcast_api::{Activity, ErrorBody, ErrorKind, Live};
use serde::Deserialize;
use std::io;
use std::sync::Arc;
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(live)).routes(routes!(pool_activity)).routes(routes!(activity))
}

/// Returns what clients did in the last second.
///
/// With the header `Accept: text/event-stream`, the response is a stream of server-sent events that
/// goes on, one a second.
#[utoipa::path(get, path = "/live", responses((status = OK, body = Live), (status = "default", body = ErrorBody)))]
async fn live(State(app): Shared, listener: StreamCaller, headers: HeaderMap) -> Result<Response, ApiError> {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    let mut seconds = app.sampler.newest();
    if accepts.contains("text/event-stream") {
        seconds.mark_changed();
        return stream(&app, listener, Follower(seconds));
    }
    let last = seconds.borrow_and_update().clone();
    Ok(Json(Live::clone(&last)).into_response())
}

/// The seconds as they come.
struct Follower(watch::Receiver<Arc<Live>>);

impl Feed for Follower {
    async fn next(&mut self, sent: &mut Sent) -> io::Result<()> {
        self.0.changed().await.map_err(io::Error::other)?;
        let live = self.0.borrow_and_update().clone();
        sent.put(None, None, &*live)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActivityQuery {
    of: Option<String>,
}

impl ActivityQuery {
    fn is_hour(&self) -> Result<bool, ApiError> {
        match self.of.as_deref() {
            None | Some("5m") => Ok(false),
            Some("1h") => Ok(true),
            Some(of) => {
                let text = format!("show the activity of {of:?}: there are 5m and 1h");
                Err(ApiError::new(ErrorKind::Invalid, text))
            }
        }
    }
}

/// Returns what clients did lately.
///
/// `of` is `5m`, for points of one second, or `1h`, for points of ten seconds. Default: 5m.
#[utoipa::path(get, path = "/activity", params(("of" = Option<String>, Query)), responses((status = OK, body = Activity), (status = "default", body = ErrorBody)))]
async fn pool_activity(
    State(app): Shared,
    Query(query): Query<ActivityQuery>,
) -> Result<Json<Activity>, ApiError> {
    let hour = query.is_hour()?;
    blocking(&app, move |app| Ok(Json(app.sampler.activity(None, hour)))).await
}

/// Returns what clients did with a volume lately.
///
/// `of` is `5m`, for points of one second, or `1h`, for points of ten seconds. Default: 5m. A
/// volume that clients have not used has no points. Only the busiest volumes have points of one
/// second: others have points of ten seconds, or none.
#[utoipa::path(get, path = "/volumes/{volume}/activity", params(("volume" = String, Path), ("of" = Option<String>, Query)), responses((status = OK, body = Activity), (status = "default", body = ErrorBody)))]
async fn activity(
    State(app): Shared,
    Path(volume): Path<String>,
    Query(query): Query<ActivityQuery>,
) -> Result<Json<Activity>, ApiError> {
    let hour = query.is_hour()?;
    blocking(&app, move |app| {
        let id = app.pool.volume(&volume)?.uuid;
        Ok(Json(app.sampler.activity(Some(id), hour)))
    })
    .await
}
