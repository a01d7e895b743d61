//! Warnings about data that initiators reach through several targets. Each of these targets is a
//! door to the data. One door can have weaker access rules or CHAP accounts than another.

use super::exports::{Exports, Found};
use super::names;
use super::registry::{Registry, Scope, TargetSettings};
use hindcast_engine::pool::VolumeInfo;
use hindcast_target::iscsi::access::Otherwise;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Returns warnings about targets that share the data of `luns` with `found`, but guard it
/// differently. For a volume's own target, it also warns of a created target with the same name.
pub(super) fn warnings(
    exports: &Exports,
    registry: &Registry,
    found: &Found,
    luns: &BTreeMap<u16, Uuid>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(volume) = &found.volume {
        let target = names::of_volume(volume);
        if registry.named.contains_key(&target) {
            warnings.push(format!(
                "another target has the name {target} too, and initiators reach that one; rename volume {}",
                volume.name
            ));
        }
        let own = registry.settings(&found.scope);
        for (name, lun) in registry.mappings(&volume.uuid) {
            let other = registry.settings(&Scope::Named(name.to_owned()));
            warnings.extend(weaker(exports, &own, &other).map(|what| {
                format!(
                    "LUN {lun} of {name} is this volume; {what} at that target, but not at this one: {}",
                    closing(volume)
                )
            }));
        }
        return warnings;
    }
    let own = registry.settings(&found.scope);
    let volumes = exports.pool.volumes();
    for (lun, id) in luns {
        let Some((volume, what)) = shown(exports, &volumes, id) else { continue };
        let door = registry.settings(&Scope::Volume(volume.uuid));
        let (name, target) = (&volume.name, names::of_volume(volume));
        if let Some(asked) = weaker(exports, &door, &own) {
            warnings.push(format!(
                "initiators also reach {what} (LUN {lun}) at {target}, the own target of volume {name}; {asked} at this target, but not at that one: {}",
                closing(volume)
            ));
        }
        if let Some(what) = weaker(exports, &own, &door) {
            warnings.push(format!(
                "{what} at {target}, the own target of volume {name}; they apply here too, and an initiator that they refuse does \
                 not see LUN {lun}"
            ));
        }
    }
    warnings
}

/// Returns the volume whose data a LUN shows, and a text that names the volume or the snapshot.
fn shown<'a>(exports: &Exports, volumes: &'a [VolumeInfo], id: &Uuid) -> Option<(&'a VolumeInfo, String)> {
    if let Some(volume) = volumes.iter().find(|v| v.uuid == *id) {
        return Some((volume, format!("volume {}", volume.name)));
    }
    let snapshot = exports.pool.all_snapshots().into_iter().find(|s| s.uuid == *id)?;
    let volume = volumes.iter().find(|v| v.name == snapshot.volume)?;
    Some((volume, format!("snapshot {}@{}", volume.name, snapshot.name)))
}

fn closing(volume: &VolumeInfo) -> String {
    format!(
        "`hindcast target set {0} --disabled` disables it, `hindcast target allow {0} …` restricts its initiators",
        volume.name
    )
}

/// Returns a text about the rules or accounts that `strong` has and `weak` lacks. Returns `None` if
/// there are none, or if `weak` is disabled.
fn weaker(exports: &Exports, weak: &TargetSettings, strong: &TargetSettings) -> Option<&'static str> {
    if !weak.enabled {
        return None;
    }
    let rules = weak.guard.rules.is_empty() && !strong.guard.rules.is_empty();
    let registry = exports.store.get();
    // The door is closed already if no rule admits any initiator.
    let is_shut = exports.otherwise == Otherwise::Deny && registry.all.rules.is_empty();
    let rules = rules && !is_shut;
    let chap = match (&weak.guard.chap, &strong.guard.chap) {
        (None, Some(_)) => !(weak.guard.rules.is_empty() && is_shut),
        (Some(weak), Some(strong)) => weak.accounts.iter().any(|account| !strong.accounts.contains(account)),
        (_, None) => false,
    };
    match (rules, chap) {
        (true, true) => Some("there are access rules and CHAP accounts"),
        (true, false) => Some("there are access rules"),
        (false, true) => Some("there are CHAP accounts"),
        (false, false) => None,
    }
}
