//! The routes of the audit.

use super::error::{ApiError, Json, Query};
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::audit::{EntryPlace, Wanted};
use axum::extract::State;
use hindcast_api::{AuditEntry, AuditVerification, ErrorBody, ErrorKind};
use jiff::Timestamp;
use serde::Deserialize;
use std::io;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Default number of entries in a response.
const LIMIT: usize = 1000;
/// Maximum number of entries in a response.
const MAX_LIMIT: usize = 10_000;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(entries)).routes(routes!(verification))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    since: Option<Timestamp>,
    who: Option<String>,
    before: Option<String>,
    limit: Option<usize>,
}

fn failed(error: io::Error) -> ApiError {
    ApiError::new(ErrorKind::Io, format!("read the audit: {error}"))
}

/// Returns the newest entries of the audit, the oldest of them first.
///
/// `since` is the time of the first, `who` the name of the caller. `limit` is the maximum number of
/// entries. Default: 1000. Maximum: 10000. `before` is the place `at` of an entry: the response has
/// older entries only. A response has entries of at most 4 MiB. Further ones are in the next page,
/// before the first entry of this one. The last page is empty.
#[utoipa::path(get, path = "/audit", params(("since" = Option<String>, Query), ("who" = Option<String>, Query), ("before" = Option<String>, Query), ("limit" = Option<usize>, Query)), responses((status = OK, body = Vec<AuditEntry>), (status = "default", body = ErrorBody)))]
async fn entries(
    State(app): Shared,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Vec<AuditEntry>>, ApiError> {
    let AuditQuery { since, who, before, limit } = query;
    let place = |text: &String| {
        let wrong = || format!("read the audit: before={text:?} is no place of an entry");
        EntryPlace::parse(text).ok_or_else(|| ApiError::new(ErrorKind::Invalid, wrong()))
    };
    let before = before.as_ref().map(place).transpose()?;
    let wanted = Wanted { since, who, before, limit: limit.unwrap_or(LIMIT).min(MAX_LIMIT) };
    blocking(&app, move |app| Ok(Json(app.audit.page(&wanted).map_err(failed)?))).await
}

/// Verifies the chain of all entries of the audit.
#[utoipa::path(get, path = "/audit/verification", responses((status = OK, body = AuditVerification), (status = "default", body = ErrorBody)))]
async fn verification(State(app): Shared) -> Result<Json<AuditVerification>, ApiError> {
    blocking(&app, |app| Ok(Json(app.audit.verify().map_err(failed)?))).await
}
