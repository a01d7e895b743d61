//! The routes of `/api/v1`, with their OpenAPI descriptions, and of `/healthz` and `/metrics`.

use super::caller::Caller;
use super::described::Described;
use super::error::{ApiError, Json, Path, Query};
use super::guard::{MAX_BODY, RouteGuard};
use super::guests::through;
use super::pages::{Entries, KeyPart, Page};
use super::probe::Probe;
use super::room::AnswerRoom;
use super::shared::{DeleteVolumeQuery, Shared, blocking, host_path};
use super::{
    access, audit, backups, by_body, by_uuid, cdp, clients, clock, console, described, events, features,
    files, flatten, groups, layouts, live, notices, policy, rebalance, relocation, schedules, scrub,
    sessions, snapshots, targets, tasks, timeline, tokens, traces, transfer, trash, users, views,
};
use crate::app::App;
use crate::convert;
use crate::held_names::Held;
use crate::host_paths::{Door, Purpose};
use crate::iscsi::Making;
use crate::lineage::Lineage;
use crate::metrics;
use crate::same::Same;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router, body::Bytes};
use hindcast_api::{
    API_V1, AddPv, CreateVolume, DamagedRange, DeleteVolume, DeletedVolume, ErrorBody, Health, HealthState,
    PatchPlacement, PatchPool, PatchPv, PatchVolume, Pool, Pv, Status, Volume, VolumeStatistics,
};
use hindcast_engine::pool::{NewVolume, Placement, PvSpec, SnapshotPolicy, VolumeInfo};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[derive(OpenApi)]
#[openapi(info(
    title = "Hindcast",
    description = "Admin API of a Hindcast server. Sizes are in bytes. Times have the form of RFC 3339. Every error response of /api/v1 has the body ErrorBody.",
    license(name = "Apache-2.0", identifier = "Apache-2.0")
))]
struct Document;

/// Returns the router of requests that arrive through `door`.
///
/// The guard checks every request for a route. The fallback answers all other requests, without
/// credentials: over TCP with the files of the console.
pub(super) fn router(app: Arc<App>, probe: &Probe, room: &Arc<AnswerRoom>, door: Door) -> Router {
    let (router, document) = all_routes().split_for_parts();
    let document = described::completed(document);
    let described = Arc::new(Described::of(&serde_json::to_value(&document).unwrap_or_default()));
    let document = Bytes::from(document.to_json().unwrap_or_default());
    let document_response = ([(header::CONTENT_TYPE, "application/json")], document);
    let guard = RouteGuard { app: app.clone(), door, room: room.clone(), described };
    let router = router
        .route(&format!("{API_V1}/openapi.json"), get(async move || document_response))
        .fallback(move |request: Request| async move {
            match door {
                Door::Network => console::answer(request).await,
                Door::Local => ApiError::no_such_path().into_response(),
            }
        })
        .layer(middleware::from_fn(move |request, next| guard.clone().handle(request, next)))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(Extension(probe.clone()))
        .layer(middleware::from_fn(move |request, next: Next| through(door, next.run(request))));
    let served = app.clone();
    let router = match door {
        Door::Local => router,
        Door::Network => router
            .layer(middleware::from_fn(move |request, next| policy::over_tcp(served.clone(), request, next))),
    };
    // A layer around the whole router comes before the routing.
    let named = app.clone();
    Router::new().fallback_service(router.with_state(app)).layer(middleware::from_fn(
        move |request: Request, next: Next| {
            let named = named.clone();
            async move {
                match by_uuid::with_names(&named, request).await {
                    Ok(request) => next.run(request).await,
                    Err(error) => error.into_response(),
                }
            }
        },
    ))
}

/// Returns all routes, with their descriptions.
fn all_routes() -> OpenApiRouter<Arc<App>> {
    let api = OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(health))
        .routes(routes!(pool, patch_pool))
        .merge(layouts::router())
        .routes(routes!(pvs, add_pv))
        .routes(routes!(patch_pv, remove_pv))
        .routes(routes!(volumes, create_volume))
        .routes(routes!(volume, patch_volume, delete_volume))
        .routes(routes!(volume_stats))
        .merge(notices::router())
        .merge(snapshots::router())
        .merge(cdp::router())
        .merge(timeline::router())
        .merge(tasks::router())
        .merge(live::router())
        .merge(events::router())
        .merge(views::router())
        .merge(files::router())
        .merge(transfer::router())
        .merge(trash::router())
        .merge(groups::router())
        .merge(clients::router())
        .merge(clock::router())
        .merge(rebalance::router())
        .merge(relocation::router())
        .merge(backups::router())
        .merge(features::router())
        .merge(scrub::router())
        .merge(traces::router())
        .merge(flatten::router())
        .merge(schedules::router())
        .merge(targets::router())
        .merge(access::router())
        .merge(tokens::router())
        .merge(users::router())
        .merge(audit::router())
        .merge(sessions::router());
    OpenApiRouter::with_openapi(Document::openapi())
        .nest(API_V1, api)
        .routes(routes!(metrics_text))
        .routes(routes!(healthz))
}

/// Returns the OpenAPI document of all routes.
#[cfg(test)]
pub(super) fn document() -> String {
    described::completed(all_routes().split_for_parts().1).to_json().unwrap()
}

/// Returns the state of the server.
#[utoipa::path(get, path = "/status", responses((status = OK, body = Status)))]
async fn status(State(app): Shared, Caller(caller): Caller) -> Result<Json<Status>, ApiError> {
    blocking(&app, move |app| {
        let protection = app.protection(|volume| caller.scope.covers(volume));
        Ok(Json(Status { protection, ..app.status() }))
    })
    .await
}

/// Returns the health of the pool.
#[utoipa::path(get, path = "/health", responses((status = OK, body = Health)))]
async fn health(State(app): Shared) -> Result<Json<Health>, ApiError> {
    blocking(&app, |app| Ok(Json(app.health()))).await
}

/// Reports the health of the pool to probes, without a token.
///
/// The status is 200 while the pool accepts writes. It is 503 if the pool refuses writes, or does
/// not answer within 10 seconds. The body has the state and one line with the code of each problem,
/// or `no answer`. It has no names or paths, because a probe has no token.
#[utoipa::path(get, path = "/healthz", responses((status = OK, body = String), (status = SERVICE_UNAVAILABLE, body = String)))]
async fn healthz(Extension(probe): Extension<Probe>) -> Response {
    let Some(health) = probe.health().await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no answer\n").into_response();
    };
    let code = match health.state {
        HealthState::Healthy | HealthState::Warning => StatusCode::OK,
        HealthState::Poisoned => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut text = format!("{}\n", health.state.name());
    for problem in &health.problems {
        text.push_str(&problem.code);
        text.push('\n');
    }
    (code, text).into_response()
}

/// Returns metrics in the text format of OpenMetrics, for Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = OK, body = String, content_type = "application/openmetrics-text")))]
async fn metrics_text(State(app): Shared) -> Result<Response, ApiError> {
    let shared = app.clone();
    let text = blocking(&app, move |_| {
        metrics::encode(&shared).map_err(|e| ApiError::internal(format!("encode metrics: {e}")))
    })
    .await?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// Returns the state of the pool.
#[utoipa::path(get, path = "/pool", responses((status = OK, body = Pool)))]
async fn pool(State(app): Shared) -> Result<Json<Pool>, ApiError> {
    blocking(&app, |app| Ok(Json(pool_now(app)?))).await
}

fn pool_now(app: &App) -> Result<Pool, ApiError> {
    let now = convert::pool(&app.pool.info(), &app.pool.stats(), app.pool.index_size()?);
    Ok(Pool { filling: app.space_trend.filling(&app.pool), ..now })
}

/// Changes the settings of the pool.
#[utoipa::path(patch, path = "/pool", request_body = PatchPool, responses((status = OK, body = Pool), (status = "default", body = ErrorBody)))]
async fn patch_pool(State(app): Shared, Json(patch): Json<PatchPool>) -> Result<Json<Pool>, ApiError> {
    blocking(&app, move |app| {
        let PatchPool { placement: policy, slice_size, snapshots, snapshot_percent } = patch;
        let wanted = PatchPlacement { policy, slice_size, snapshots, snapshot_percent };
        if let Some(placement) = own_placement(app, &wanted)? {
            app.pool.set_placement(placement)?;
            let placement = policy.map_or("", |policy| policy.name());
            tracing::info!(event = "pool.changed", placement, "placement set");
        }
        Ok(Json(pool_now(app)?))
    })
    .await
}

/// Returns all physical volumes.
#[utoipa::path(get, path = "/pool/pvs", responses((status = OK, body = Vec<Pv>)))]
async fn pvs(State(app): Shared) -> Result<Json<Vec<Pv>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.pool.pvs().iter().map(convert::pv).collect()))).await
}

/// Adds a physical volume to the pool.
#[utoipa::path(post, path = "/pool/pvs", request_body = AddPv, responses((status = CREATED, body = Pv), (status = "default", body = ErrorBody)))]
async fn add_pv(State(app): Shared, Json(new): Json<AddPv>) -> Result<(StatusCode, Json<Pv>), ApiError> {
    let path = host_path(&new.path, Purpose::Pv);
    blocking(&app, move |app| {
        let held = path(app)?;
        let spec = PvSpec { path: held.path.clone(), size: new.size, force: new.force };
        let info = if new.dedicated { app.pool.add_dedicated_pv(&spec) } else { app.pool.add_pv(&spec) }?;
        tracing::info!(event = "pv.added", path = info.path, id = info.id, "physical volume added");
        Ok((StatusCode::CREATED, Json(convert::pv(&info))))
    })
    .await
}

/// Changes a physical volume: its weight, and whether it is drained.
///
/// `pv` is its number, its UUID, its percent-encoded path, or the name of a mirror or RAID-5.
#[utoipa::path(patch, path = "/pool/pvs/{pv}", params(("pv" = String, Path)), request_body = PatchPv, responses((status = OK, body = Pv), (status = "default", body = ErrorBody)))]
async fn patch_pv(
    State(app): Shared,
    Path(pv): Path<String>,
    Json(patch): Json<PatchPv>,
) -> Result<Json<Pv>, ApiError> {
    blocking(&app, move |app| {
        if let Some(weight) = patch.weight {
            let path = app.pool.set_weight(&pv, weight)?.path;
            tracing::info!(event = "pv.changed", pv = path, weight, "physical volume changed");
        }
        if let Some(draining) = patch.draining {
            app.pool.drain_pv(&pv, draining)?;
            let path = app.pool.find_pv(&pv)?.path;
            tracing::info!(event = "pv.changed", pv = path, draining, "physical volume changed");
            // A drain that ends while data is left was stopped.
            if draining {
                app.seen_tasks.begun("drain", &path);
            }
        }
        Ok(Json(convert::pv(&app.pool.find_pv(&pv)?)))
    })
    .await
}

/// Removes an empty physical volume from the pool.
///
/// `pv` is its number, its UUID, its percent-encoded path, or the name of a mirror or RAID-5.
#[utoipa::path(delete, path = "/pool/pvs/{pv}", params(("pv" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_pv(State(app): Shared, Path(pv): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.pool.remove_pv(&pv)?;
        tracing::info!(event = "pv.removed", pv, "physical volume removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Returns all volumes, sorted by name.
#[utoipa::path(get, path = "/volumes", responses((status = OK, body = Vec<Volume>)))]
async fn volumes(State(app): Shared, page: Page) -> Result<Entries<Volume>, ApiError> {
    blocking(&app, move |app| {
        let (found, next) = page.cut(app.pool.volumes(), |v| vec![KeyPart::Text(v.name.clone())]);
        let (lineage, served) = (Lineage::new(&app.pool), app.iscsi.nbd_rules().all());
        let (snapshots, clients) = (app.pool.snapshot_counts(), app.clients_by_volume());
        let count = |counts: &BTreeMap<String, u64>, v: &VolumeInfo| counts.get(&v.name).copied();
        let told = |v: &VolumeInfo| {
            let cdp = app.pool.cdp(&v.name).ok();
            let recorded = cdp.as_ref().and_then(|info| info.newest).map(convert::time);
            Volume {
                nbd: served(v),
                snapshots: Some(count(&snapshots, v).unwrap_or(0)),
                clients: Some(count(&clients, v).unwrap_or(0)),
                history: cdp.as_ref().and_then(convert::window),
                last_change: app.last_changes.of(v.uuid).max(recorded),
                ..lineage.volume(v)
            }
        };
        Ok(Entries(found.iter().map(told).collect(), next))
    })
    .await
}

/// Returns the placement that a request names. `None`: it names none.
fn own_placement(app: &App, patch: &PatchPlacement) -> Result<Option<Placement>, ApiError> {
    Ok(convert::own_placement(patch, app.pool.extent_size())?)
}

fn label(app: &App, name: &str, patch: &PatchVolume) -> Result<VolumeInfo, ApiError> {
    let changes: Vec<_> = patch.labels.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
    let info = app.pool.label_volume(name, &changes)?;
    let labels: Vec<String> = info.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    tracing::info!(event = "volume.changed", volume = name, labels = labels.join(" "), "volume changed");
    Ok(info)
}

fn place_volume(app: &App, name: &str, wanted: &PatchPlacement) -> Result<VolumeInfo, ApiError> {
    let info = app.pool.set_volume_placement(name, own_placement(app, wanted)?)?;
    let placement = wanted.policy.map_or("pool", |policy| policy.name());
    tracing::info!(event = "volume.changed", volume = name, placement, "volume changed");
    Ok(info)
}

fn set_direct_min(app: &App, name: &str, wanted: Option<u64>) -> Result<VolumeInfo, ApiError> {
    let info = app.pool.set_volume_direct_min(name, convert::direct_min(wanted))?;
    let direct = wanted.map_or_else(|| "pool".to_owned(), |bytes| bytes.to_string());
    tracing::info!(event = "volume.changed", volume = name, direct, "volume changed");
    Ok(info)
}

/// Creates a volume.
#[utoipa::path(post, path = "/volumes", request_body = CreateVolume, responses((status = CREATED, body = Volume), (status = "default", body = ErrorBody)))]
async fn create_volume(
    State(app): Shared,
    Json(new): Json<CreateVolume>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    let image = new.origin.as_deref().map(|path| host_path(path, Purpose::Image));
    blocking(&app, move |app| {
        let method = new.method.map(Same::same).unwrap_or_default();
        let wanted = NewVolume {
            name: new.name,
            size: new.size,
            chunk_size: new.chunk_size.unwrap_or(app.chunk),
            block_size: new.block_size.unwrap_or(512),
            read_only: new.read_only,
        };
        let history = new.cdp.as_ref().map(|patch| cdp::settings(None, patch)).transpose()?.flatten();
        let placement = new.placement.map_or(Ok(None), |patch| own_placement(app, &patch))?;
        let origin = image.map(|image| image(app)).transpose()?;
        let making = [Making { name: &wanted.name, of: None }];
        let made = app.iscsi.make_volumes(&making, |pool| match (&origin, &new.on) {
            (None, None) => pool.create_volume(&wanted),
            (None, Some(on)) => pool.create_volume_on(&wanted, on),
            (Some(image), None) => pool.create_volume_over(&wanted, &image.path),
            (Some(image), Some(on)) => pool.create_volume_over_on(&wanted, &image.path, on),
        });
        let mut info = made?.0;
        tracing::info!(event = "volume.created", volume = info.name, size = info.size, "volume created");
        if method != info.method {
            info = app.pool.set_method(&info.name, method)?;
        }
        // Not half of what was asked for. Should this fail too, the volume is there to be seen.
        let undo = |_: &hindcast_engine::Error| drop(app.pool.delete_volume(&wanted.name, false));
        if placement.is_some() {
            info = app.pool.set_volume_placement(&info.name, placement).inspect_err(undo)?;
        }
        if new.direct_min.is_some() {
            let own = convert::direct_min(new.direct_min);
            info = app.pool.set_volume_direct_min(&info.name, own).inspect_err(undo)?;
        }
        if history.is_some() {
            info = app.pool.set_cdp(&info.name, history).inspect_err(undo)?;
        }
        Ok((StatusCode::CREATED, Json(app.shown_by(&Lineage::of_new(&app.pool), &info))))
    })
    .await
}

/// Returns one volume.
#[utoipa::path(get, path = "/volumes/{name}", params(("name" = String, Path)), responses((status = OK, body = Volume), (status = "default", body = ErrorBody)))]
async fn volume(State(app): Shared, Path(name): Path<String>) -> Result<Json<Volume>, ApiError> {
    blocking(&app, move |app| {
        let volume = app.shown(&app.pool.volume(&name)?);
        let snapshot_space = app.pool.space_usage(&name).ok().map(|usage| usage.snapshots);
        let damaged = app.pool.damaged_ranges(&name)?;
        let damaged = damaged.into_iter().map(|(offset, length)| DamagedRange { offset, length }).collect();
        Ok(Json(Volume { snapshot_space, damaged, ..volume }))
    })
    .await
}

/// Returns the statistics of one volume: its requests, the costs of preserving, and where its
/// requests go.
#[utoipa::path(get, path = "/volumes/{name}/stats", params(("name" = String, Path)), responses((status = OK, body = VolumeStatistics), (status = "default", body = ErrorBody)))]
async fn volume_stats(
    State(app): Shared,
    Path(name): Path<String>,
) -> Result<Json<VolumeStatistics>, ApiError> {
    blocking(&app, move |app| {
        let statistics = app.pool.volume_statistics(&name)?;
        Ok(Json(convert::statistics(name, &statistics)))
    })
    .await
}

/// Changes a volume.
///
/// The server makes the changes in this order: `read_only`, `method`, `order`, `placement`,
/// `direct`, snapshot policy, history, `nbd`, labels, `size`, `name`. If a change fails, the
/// request ends. The changes before it stay.
#[utoipa::path(patch, path = "/volumes/{name}", params(("name" = String, Path)), request_body = PatchVolume, responses((status = OK, body = Volume), (status = "default", body = ErrorBody)))]
async fn patch_volume(
    State(app): Shared,
    Caller(caller): Caller,
    Path(name): Path<String>,
    Extension(held): Extension<Arc<Held>>,
    Json(patch): Json<PatchVolume>,
) -> Result<Json<Volume>, ApiError> {
    blocking(&app, move |app| {
        let mut info = app.pool.volume(&name)?;
        by_body::check_volume(&caller, &info, &patch, app.pool.cdp(&name)?.from.is_some())?;
        if let Some(read_only) = patch.read_only {
            info = app.iscsi.change_volume(&name, |pool| pool.set_read_only(&name, read_only))?;
            tracing::info!(event = "volume.changed", volume = name, read_only, "volume changed");
        }
        if let Some(method) = patch.method {
            info = app.pool.set_method(&name, method.same())?;
            tracing::info!(event = "volume.changed", volume = name, method = method.name(), "volume changed");
        }
        if let Some(order) = patch.order {
            info = app.pool.set_order(&name, order.same())?;
            tracing::info!(event = "volume.changed", volume = name, order = order.name(), "volume changed");
        }
        if let Some(wanted) = &patch.placement {
            info = place_volume(app, &name, wanted)?;
        }
        if let Some(wanted) = patch.direct {
            info = set_direct_min(app, &name, wanted.min)?;
        }
        if patch.snapshot_reserve.is_some() || patch.auto_delete.is_some() {
            let old = info.policy;
            let policy = SnapshotPolicy {
                reserve_percent: patch.snapshot_reserve.unwrap_or(old.reserve_percent),
                auto_delete: patch.auto_delete.unwrap_or(old.auto_delete),
            };
            info = app.pool.set_snapshot_policy(&name, policy)?;
            let reserve = format!("{} %", policy.reserve_percent);
            tracing::info!(event = "volume.changed", volume = name, reserve, "volume changed");
        }
        if let Some(change) = &patch.cdp {
            let settings = cdp::settings(info.cdp, change)?;
            info = app.pool.set_cdp(&name, settings)?;
            tracing::info!(
                event = "volume.changed",
                volume = name,
                history = cdp::words(info.cdp),
                "volume changed"
            );
        }
        if let Some(nbd) = patch.nbd {
            app.set_nbd(&info, nbd)?;
            tracing::info!(event = "volume.changed", volume = name, nbd, "volume changed");
        }
        if !patch.labels.is_empty() {
            info = label(app, &name, &patch)?;
        }
        if let Some(size) = patch.size {
            info = app.iscsi.change_volume(&name, |pool| pool.resize_volume(&name, size, patch.force))?;
            tracing::info!(event = "volume.resized", volume = name, size, "volume resized");
        }
        if let Some(new_name) = patch.name {
            info = rename(app, &name, &new_name, &held)?;
        }
        Ok(Json(app.shown(&info)))
    })
    .await
}

/// Renames a volume, when no other request that found it by its UUID is under way.
fn rename(app: &App, volume: &str, new_name: &str, request: &Held) -> Result<VolumeInfo, ApiError> {
    let _leaving = app.held_names.leave(&app.pool, volume, request)?;
    let info = app.iscsi.rename_volume(volume, new_name)?;
    app.nbd.volume_renamed(volume, new_name);
    tracing::info!(event = "volume.renamed", volume, new_name, "volume renamed");
    Ok(info)
}

/// Deletes a volume.
///
/// The volume goes to the trash, with its snapshots, its history and its settings. It can be
/// restored until the server purges it. With `now`, or if the server has no trash, it is deleted
/// for good. The server frees its space in the background.
///
/// `force` is required for a volume that clients use, or that is a LUN of a target. With `now`, it
/// is also required for a volume that has snapshots or a history.
#[utoipa::path(delete, path = "/volumes/{name}", params(("name" = String, Path), ("force" = Option<bool>, Query), ("now" = Option<bool>, Query)), responses((status = OK, body = DeletedVolume), (status = "default", body = ErrorBody)))]
async fn delete_volume(
    State(app): Shared,
    Path(name): Path<String>,
    Query(query): Query<DeleteVolumeQuery>,
    Extension(held): Extension<Arc<Held>>,
) -> Result<Json<DeletedVolume>, ApiError> {
    blocking(&app, move |app| {
        let _leaving = app.held_names.leave(&app.pool, &name, &held)?;
        let how = DeleteVolume { force: query.force, now: query.now };
        Ok(Json(app.delete_volume(&name, how)?))
    })
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    /// The console's types are made from its copy of the document.
    #[test]
    fn the_console_has_the_document() {
        let document: Value = serde_json::from_str(&super::document()).unwrap();
        let copy: Value = serde_json::from_str(include_str!("../../../../web/openapi.json")).unwrap();
        let parts = |of: &Value, part: &str| of[part].as_object().cloned().unwrap_or_default();
        let paths = (parts(&document, "paths"), parts(&copy, "paths"));
        let differ: Vec<&String> =
            paths.0.keys().filter(|path| paths.0.get(*path) != paths.1.get(*path)).collect();
        assert!(
            document == copy,
            "the API differs from web/openapi.json, in {differ:?} or in its types: start a server, and in web/ run \
             `npm run types -- --from http://127.0.0.1:8440` and `npm run build`"
        );
    }
}
