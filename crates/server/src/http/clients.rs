//! The routes of connected clients.

use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{ConnectedClient, ErrorBody};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(clients)).routes(routes!(disconnect))
}

/// Lists the clients that are connected now, over NBD and iSCSI.
#[utoipa::path(get, path = "/clients", responses((status = OK, body = Vec<ConnectedClient>), (status = "default", body = ErrorBody)))]
async fn clients(State(app): Shared) -> Result<Json<Vec<ConnectedClient>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.clients()))).await
}

/// Ends the connection or session of a client.
///
/// Requests that the server has not answered fail at the client. The client may connect again at
/// once, unless an access rule keeps it out.
#[utoipa::path(delete, path = "/clients/{id}", params(("id" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn disconnect(State(app): Shared, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.disconnect_client(&id)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
