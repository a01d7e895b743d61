//! The routes of layouts, their members, and spare disks.

use super::error::{ApiError, Json, Path};
use super::shared::{Shared, blocking, host_path};
use crate::app::App;
use crate::convert;
use crate::host_paths::Purpose;
use axum::extract::State;
use axum::http::StatusCode;
use hindcast_api::{
    AddLayout, AddPv, ErrorBody, ErrorKind, GrowPv, LayoutKind, MemberTarget, PatchMember, Pv, PvLayout,
    SpareDisk,
};
use hindcast_engine::pool::{GrowSpec, LayoutShape, LayoutSpec, PvSpec};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(add_layout))
        .routes(routes!(grow_pv))
        .routes(routes!(patch_member))
        .routes(routes!(spares, add_spare))
        .routes(routes!(remove_spare))
}

/// Makes a mirror or a RAID-5 of disks, and adds it to the pool as a physical volume.
#[utoipa::path(post, path = "/pool/layouts", request_body = AddLayout, responses((status = CREATED, body = Pv), (status = "default", body = ErrorBody)))]
async fn add_layout(
    State(app): Shared,
    Json(new): Json<AddLayout>,
) -> Result<(StatusCode, Json<Pv>), ApiError> {
    let paths: Vec<_> = new.members.iter().map(|member| host_path(&member.path, Purpose::Pv)).collect();
    blocking(&app, move |app| {
        let held = paths.into_iter().map(|path| path(app)).collect::<Result<Vec<_>, _>>()?;
        let spec = |(member, path): (&AddPv, String)| PvSpec { path, size: member.size, force: member.force };
        let members = new.members.iter().zip(held.iter().map(|held| held.path.clone())).map(spec).collect();
        let shape = shape(&new)?;
        let reserve = usize::try_from(new.reserve.unwrap_or(0)).unwrap_or(usize::MAX);
        if let Some(member) = new.members.iter().find(|member| member.dedicated) {
            return Err(dedicated_member(&member.path));
        }
        let spec = LayoutSpec { name: new.name, shape, reserve, members };
        let info =
            if new.dedicated { app.pool.add_dedicated_layout(&spec) } else { app.pool.add_layout(&spec) }?;
        tracing::info!(event = "pv.added", path = info.path, id = info.id, "layout added");
        Ok((StatusCode::CREATED, Json(convert::pv(&info))))
    })
    .await
}

/// The error for a disk of a layout, or a spare, that is to be dedicated.
fn dedicated_member(path: &str) -> ApiError {
    let text = format!("add {path}: a disk of a layout can't be `dedicated`; the layout can");
    ApiError::new(ErrorKind::Invalid, text)
}

/// Returns the shape of a layout that is to be added.
fn shape(new: &AddLayout) -> Result<LayoutShape, ApiError> {
    let number =
        |given: Option<u64>, default| usize::try_from(given.unwrap_or(default as u64)).unwrap_or(usize::MAX);
    let foreign = match new.kind {
        LayoutKind::Mirror => new.columns.and(Some("columns")).or(new.unit.and(Some("unit"))),
        LayoutKind::Raid5 => new.copies.and(Some("copies")),
    };
    if let Some(field) = foreign {
        let text = format!("add layout {}: `{field}` is not for {}", new.name, new.kind.name());
        return Err(ApiError::new(ErrorKind::Invalid, text));
    }
    Ok(match new.kind {
        LayoutKind::Mirror => LayoutShape::Mirror { copies: number(new.copies, 2) },
        LayoutKind::Raid5 => LayoutShape::Raid5 {
            columns: number(new.columns, new.members.len()),
            unit: new.unit.unwrap_or(LayoutShape::DEFAULT_UNIT),
        },
    })
}

/// Makes a physical volume larger.
///
/// `pv` is its percent-encoded path, its UUID, its number, or the name of a mirror or RAID-5. A
/// plain one gets the whole of its disk, which was made larger. A mirror or RAID-5 gets more disks.
/// Where that needs content to be moved, the task `grow` does it in the background.
#[utoipa::path(post, path = "/pool/pvs/{pv}/grow", params(("pv" = String, Path)), request_body = GrowPv, responses((status = OK, body = Pv), (status = "default", body = ErrorBody)))]
async fn grow_pv(
    State(app): Shared,
    Path(pv): Path<String>,
    Json(how): Json<GrowPv>,
) -> Result<Json<Pv>, ApiError> {
    let paths: Vec<_> = how.disks.iter().map(|disk| host_path(&disk.path, Purpose::Pv)).collect();
    blocking(&app, move |app| {
        if let Some(disk) = how.disks.iter().find(|disk| disk.dedicated) {
            return Err(dedicated_member(&disk.path));
        }
        let held = paths.into_iter().map(|path| path(app)).collect::<Result<Vec<_>, _>>()?;
        let spec = |(disk, path): (&AddPv, String)| PvSpec { path, size: disk.size, force: disk.force };
        let disks = how.disks.iter().zip(held.iter().map(|held| held.path.clone())).map(spec).collect();
        let info = app.pool.grow(&pv, &GrowSpec { disks, size: how.size, rate: how.rate })?;
        tracing::info!(event = "pv.changed", path = info.path, id = info.id, "physical volume grows");
        if info.layout.as_ref().is_some_and(|layout| layout.growth.is_some()) {
            app.seen_tasks.begun("grow", &info.path);
        }
        Ok(Json(convert::pv(&info)))
    })
    .await
}

/// Puts a member of a layout out, or begins to give it its content again.
///
/// `member` is its percent-encoded path. With `onto`, another disk takes its place. A member that
/// is in stays in until that disk has everything.
#[utoipa::path(patch, path = "/pool/members/{member}", params(("member" = String, Path)), request_body = PatchMember, responses((status = OK, body = PvLayout), (status = "default", body = ErrorBody)))]
async fn patch_member(
    State(app): Shared,
    Path(member): Path<String>,
    Json(patch): Json<PatchMember>,
) -> Result<Json<PvLayout>, ApiError> {
    let path = patch.onto.as_ref().map(|onto| host_path(&onto.path, Purpose::Pv));
    blocking(&app, move |app| {
        if let Some(disk) = patch.onto.as_ref().filter(|disk| disk.dedicated) {
            return Err(dedicated_member(&disk.path));
        }
        let held = path.map(|path| path(app)).transpose()?;
        let onto = patch.onto.as_ref().zip(held.as_ref());
        let onto =
            onto.map(|(onto, held)| PvSpec { path: held.path.clone(), size: onto.size, force: onto.force });
        let info = match patch.state {
            MemberTarget::Out if onto.is_some() => {
                let text = format!("put {member} out: `onto` is only for a member that comes in");
                return Err(ApiError::new(ErrorKind::Invalid, text));
            }
            MemberTarget::Out if patch.rate.is_some() => {
                let text = format!("put {member} out: `rate` is only for a member that comes in");
                return Err(ApiError::new(ErrorKind::Invalid, text));
            }
            MemberTarget::Out => app.pool.put_member_out(&member)?,
            MemberTarget::In => app.pool.rebuild_member(&member, onto.as_ref(), patch.rate)?,
        };
        tracing::info!(event = "pv.changed", member, layout = info.name, "member of a layout changed");
        Ok(Json(convert::layout(&info)))
    })
    .await
}

/// Lists the spare disks.
#[utoipa::path(get, path = "/pool/spares", responses((status = OK, body = [SpareDisk]), (status = "default", body = ErrorBody)))]
async fn spares(State(app): Shared) -> Result<Json<Vec<SpareDisk>>, ApiError> {
    blocking(&app, |app| Ok(Json(app.pool.spares().iter().map(convert::spare).collect()))).await
}

/// Adds a spare disk.
///
/// It takes the place of a member of a mirror or of a RAID-5 that is out for as long as `hindcast
/// serve --spare-after` says, if it is large enough.
#[utoipa::path(post, path = "/pool/spares", request_body = AddPv, responses((status = CREATED, body = SpareDisk), (status = "default", body = ErrorBody)))]
async fn add_spare(
    State(app): Shared,
    Json(new): Json<AddPv>,
) -> Result<(StatusCode, Json<SpareDisk>), ApiError> {
    let path = host_path(&new.path, Purpose::Pv);
    blocking(&app, move |app| {
        if new.dedicated {
            return Err(dedicated_member(&new.path));
        }
        let held = path(app)?;
        let spec = PvSpec { path: held.path.clone(), size: new.size, force: new.force };
        let info = app.pool.add_spare(&spec)?;
        tracing::info!(event = "spare.added", path = info.path, "spare disk added");
        Ok((StatusCode::CREATED, Json(convert::spare(&info))))
    })
    .await
}

/// Removes a spare disk, which can be used for something else then.
///
/// `spare` is its percent-encoded path.
#[utoipa::path(delete, path = "/pool/spares/{spare}", params(("spare" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn remove_spare(State(app): Shared, Path(spare): Path<String>) -> Result<StatusCode, ApiError> {
    blocking(&app, move |app| {
        app.pool.remove_spare(&spare)?;
        tracing::info!(event = "spare.removed", path = spare, "spare disk removed");
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
