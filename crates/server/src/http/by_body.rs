//! Requests whose body decides which role they need. Their rows in the table of roles have the
//! role operator. The functions here require the role admin for what takes something away.

use super::cdp;
use super::error::ApiError;
use crate::identity::principal::Principal;
use hindcast_api::{PatchSnapshot, PatchVolume, Role};
use hindcast_engine::pool::VolumeInfo;

/// Checks that `caller` may make these changes to a volume. `has_history`: moments of the past can
/// be recovered, also if the history is switched off.
pub(super) fn check_volume(
    caller: &Principal,
    info: &VolumeInfo,
    patch: &PatchVolume,
    has_history: bool,
) -> Result<(), ApiError> {
    let admin = |when: bool, what: &str| match when {
        true => caller.require(Role::Admin, what),
        false => Ok(()),
    };
    let name = &info.name;
    admin(patch.force, &format!("change volume {name} with force"))?;
    admin(patch.size.is_some_and(|size| size < info.size), &format!("shrink volume {name}"))?;
    admin(patch.read_only.is_some(), &format!("change whether volume {name} is read-only"))?;
    admin(patch.nbd.is_some(), &format!("change whether NBD serves volume {name}"))?;
    admin(patch.auto_delete == Some(true), &format!("delete snapshots of {name} automatically"))?;
    let lower = patch.snapshot_reserve.is_some_and(|percent| percent < info.policy.reserve_percent);
    let takes = lower && info.policy.auto_delete;
    admin(takes, &format!("lower the space at which snapshots of {name} are deleted"))?;
    let Some(change) = &patch.cdp else { return Ok(()) };
    if caller.role.covers(Role::Admin) {
        return Ok(());
    }
    let Some(old) = info.cdp else {
        let limits = change.retain_seconds.unwrap_or(0) > 0 || change.retain_bytes.unwrap_or(0) > 0;
        return Ok(admin(has_history && limits, &format!("limit the old history of volume {name}"))?);
    };
    let Some(new) = cdp::settings(Some(old), change)? else {
        return Ok(admin(true, &format!("end the history of volume {name}"))?);
    };
    let shorter = |old: Option<u64>, new: Option<u64>| new.is_some_and(|new| old.is_none_or(|old| new < old));
    let (old, new) = (old.retention, new.retention);
    let shorter = shorter(old.time, new.time) || shorter(old.bytes, new.bytes);
    Ok(admin(shorter, &format!("shorten the history of volume {name}"))?)
}

/// Checks that `caller` may make these changes to a snapshot.
pub(super) fn check_snapshot(caller: &Principal, patch: &PatchSnapshot) -> Result<(), ApiError> {
    let takes_away = [
        (patch.force, "change a snapshot with force"),
        (patch.protected == Some(false), "remove the protection of a snapshot"),
        (patch.writable == Some(false), "discard what was written to a snapshot"),
        // A schedule deletes snapshots by their names.
        (patch.name.is_some(), "rename a snapshot"),
    ];
    for (_, what) in takes_away.into_iter().filter(|(when, _)| *when) {
        caller.require(Role::Admin, what)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use hindcast_api::{PatchCdp, PrincipalKind};

    #[test]
    fn an_operator_grows_and_an_admin_shrinks() {
        let (_place, pool) = testing::pool();
        testing::create(&pool, "db");
        let operator = Principal::new(PrincipalKind::Token, "o", Role::Operator);
        let admin = Principal::new(PrincipalKind::Token, "a", Role::Admin);
        let history = |patch: PatchCdp| PatchVolume { cdp: Some(patch), ..PatchVolume::default() };
        let limit = |seconds| history(PatchCdp { retain_seconds: Some(seconds), ..PatchCdp::default() });
        let begin = PatchCdp { enabled: Some(true), retain_seconds: Some(60), ..PatchCdp::default() };
        let info = pool.volume("db").unwrap();
        check_volume(&operator, &info, &history(begin), false).unwrap();
        let info = pool.set_cdp("db", cdp::settings(None, &begin).unwrap()).unwrap();
        let size = |bytes| PatchVolume { size: Some(bytes), ..PatchVolume::default() };
        let off = history(PatchCdp { enabled: Some(false), ..PatchCdp::default() });
        let forced = PatchVolume { force: true, ..PatchVolume::default() };
        for good in [size(info.size), size(info.size * 2), limit(61), limit(0)] {
            check_volume(&operator, &info, &good, true).unwrap();
        }
        for bad in [size(512), off, limit(59), forced] {
            assert!(check_volume(&operator, &info, &bad, true).is_err(), "{bad:?}");
            check_volume(&admin, &info, &bad, true).unwrap();
        }
        // The history that is switched off still exists.
        let info = pool.set_cdp("db", None).unwrap();
        assert!(check_volume(&operator, &info, &limit(1), true).is_err());
        check_volume(&operator, &info, &limit(1), false).unwrap();
    }
}
