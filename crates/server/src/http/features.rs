//! The routes of the pool's features.

use super::error::{ApiError, Json};
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::convert;
use axum::extract::State;
use hindcast_api::{ErrorBody, Feature, Upgrade};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(features)).routes(routes!(upgrade))
}

/// Returns the features that the server knows, and whether the pool has them.
#[utoipa::path(get, path = "/pool/features", responses((status = OK, body = Vec<Feature>)))]
async fn features(State(app): Shared) -> Result<Json<Vec<Feature>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.pool.features().iter().map(convert::feature).collect()))).await
}

/// Enables features of the pool. Returns those that the pool did not have before.
///
/// The features are durable when the response arrives. No request disables a feature: builds that
/// do not know it refuse the pool. With `dry_run` the server returns the features that it would
/// enable, and changes nothing.
#[utoipa::path(post, path = "/pool/upgrade", request_body = Upgrade, responses((status = OK, body = Vec<Feature>), (status = "default", body = ErrorBody)))]
async fn upgrade(State(app): Shared, Json(how): Json<Upgrade>) -> Result<Json<Vec<Feature>>, ApiError> {
    blocking(&app, move |app| {
        let features = match how.dry_run {
            true => app.pool.plan_upgrade(&how.enable)?,
            false => app.pool.upgrade(&how.enable)?,
        };
        if !how.dry_run {
            for feature in &features {
                tracing::info!(event = "pool.upgraded", feature = feature.name, "the pool was upgraded");
            }
        }
        Ok(Json(features.iter().map(convert::feature).collect()))
    })
    .await
}
