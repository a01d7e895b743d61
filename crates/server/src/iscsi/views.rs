//! Targets as the API shows and takes them.

use super::exports::{Exports, Found, Source};
use super::registry::{Guard, Registry, Uuid};
use hindcast_api as api;
use hindcast_engine::cdp;
use hindcast_engine::device::DeviceInfo;
use hindcast_engine::world::uuid_text as uuid;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::{LunMask, Otherwise, Permit, Refused, Rule};
use hindcast_target::iscsi::{IscsiTraffic, SessionInfo};
use hindcast_target::scsi::{Nexus, Target};
use std::path::Path;
use std::sync::Arc;

/// A target as it stands.
pub(super) fn target(exports: &Exports, found: &Found, sessions: &[SessionInfo]) -> api::Target {
    let registry = exports.store.get();
    let settings = registry.settings(&found.scope);
    let targets = exports.live_targets(&found.scope);
    // The rules were applied to the sessions there are: what they say now is what each of them may do.
    let read_only = |s: &SessionInfo| {
        let peer = s.connections.first().map(|c| c.peer.ip());
        let permit = peer.and_then(|p| exports.permit(&registry, &settings.guard, &s.initiator, p));
        permit.is_some_and(|permit| permit.read_only)
    };
    let theirs = |target: &Arc<Target>| -> Vec<api::TargetSession> {
        let of = sessions.iter().filter(|s| s.target.as_deref() == Some(target.name()));
        of.map(|s| session(s, read_only(s))).collect()
    };
    api::Target {
        name: found.name.clone(),
        volume: found.volume.as_ref().map(|v| v.name.clone()),
        alias: settings.alias.clone(),
        enabled: settings.enabled,
        luns: found.luns(&registry).iter().map(|(lun, id)| view_lun(exports, &registry, *lun, id)).collect(),
        rules: settings.guard.rules.iter().map(rule).collect(),
        unmatched: unmatched(exports, &settings.guard, &registry.all),
        chap: chap(&settings.guard),
        sessions: targets.iter().flat_map(theirs).collect(),
    }
}

/// What applies to all.
pub(super) fn defaults(exports: &Exports) -> api::TargetDefaults {
    let registry = exports.store.get();
    api::TargetDefaults {
        rules: registry.all.rules.iter().map(rule).collect(),
        unmatched: unmatched(exports, &Guard::default(), &registry.all),
        chap: chap(&registry.all),
    }
}

fn unmatched(exports: &Exports, own: &Guard, all: &Guard) -> api::Unmatched {
    match exports.otherwise {
        Otherwise::Open if own.rules.is_empty() && all.rules.is_empty() => api::Unmatched::Open,
        _ => api::Unmatched::Refused,
    }
}

fn chap(guard: &Guard) -> Option<api::Chap> {
    guard.chap.as_ref().map(|chap| api::Chap {
        user: chap.incoming.user.clone(),
        mutual_user: chap.mutual.as_ref().map(|m| m.user.clone()),
    })
}

fn view_lun(exports: &Exports, registry: &Registry, lun: u16, id: &Uuid) -> api::Lun {
    let source = exports.source(id);
    let address = |source: &Result<Source>| source.as_ref().map_or_else(|_| "?".into(), Source::address);
    let (backing, name) = match registry.files.get(id) {
        Some(file) if Path::new(&file.path).is_file() => (api::Backing::File, file.path.clone()),
        Some(file) => (api::Backing::Device, file.path.clone()),
        None => match &source {
            Ok(Source::Snapshot(..)) => (api::Backing::Snapshot, address(&source)),
            Ok(Source::Moment(..)) => (api::Backing::Moment, address(&source)),
            _ => (api::Backing::Volume, address(&source)),
        },
    };
    let info = match registry.files.contains_key(id) {
        true => exports.unit(id).map(|lu| lu.info()),
        // Not opened only because somebody looks.
        false => source.map(|source| {
            let (size, read_only, volume) = match source {
                Source::Volume(v) => (v.size, v.read_only, v),
                Source::Snapshot(s, v) => (s.size, true, v),
                Source::Moment(lsn, v) => {
                    let point = exports.pool.resolve(&v.name, &cdp::Moment::Lsn(lsn));
                    (point.map_or(v.size, |p| p.size), true, v)
                }
            };
            DeviceInfo { size, block_size: volume.block_size, preferred_size: 0, read_only, uuid: *id }
        }),
    };
    let (info, error) = match info {
        Ok(info) => (Some(info), None),
        Err(error) => (None, Some(error.to_string())),
    };
    api::Lun {
        lun,
        backing,
        source: name,
        uuid: uuid(id),
        size: info.as_ref().map(|i| i.size),
        block_size: info.as_ref().map(|i| i.block_size),
        read_only: info.as_ref().is_some_and(|i| i.read_only),
        error,
    }
}

fn rule(rule: &Rule) -> api::AccessRule {
    let permit = rule.permit.as_ref();
    api::AccessRule {
        initiator: rule.initiator.to_string(),
        address: rule.address.map(|a| a.to_string()),
        access: match permit {
            None => api::Access::Denied,
            Some(permit) if permit.read_only => api::Access::ReadOnly,
            Some(_) => api::Access::ReadWrite,
        },
        luns: permit.and_then(|permit| match &permit.luns {
            LunMask::All => None,
            LunMask::Only(luns) => Some(luns.clone()),
        }),
    }
}

/// A rule that somebody typed.
pub(super) fn parse_rule(new: &api::AddRule) -> Result<Rule> {
    let invalid = |why: String| Error::new(ErrorKind::Invalid, format!("add a rule: {why}"));
    let refused = |e: Refused| invalid(e.to_string());
    let luns = match &new.luns {
        Some(_) if new.access == api::Access::Denied => {
            return Err(invalid("a refused initiator sees no LUN, so none can be named".into()));
        }
        Some(luns) if luns.is_empty() => {
            return Err(invalid("name at least one LUN, or leave them out".into()));
        }
        Some(luns) => LunMask::only(luns.clone()),
        None => LunMask::All,
    };
    let read_only = new.access == api::Access::ReadOnly;
    Ok(Rule {
        initiator: new.initiator.parse().map_err(refused)?,
        address: new.address.as_ref().map(|text| text.parse().map_err(refused)).transpose()?,
        permit: (new.access != api::Access::Denied).then_some(Permit { read_only, luns }),
    })
}

fn isid(session: &SessionInfo) -> String {
    session.isid.iter().map(|b| format!("{b:02x}")).collect()
}

/// The device server's side of a session.
pub(super) fn nexus(target: &Target, session: &SessionInfo) -> Option<Arc<Nexus>> {
    let isid = isid(session);
    let port = |nexus: &Arc<Nexus>| {
        let (name, id) = nexus.initiator().rsplit_once(",i,").unwrap_or_default();
        name == session.initiator && id.trim_start_matches("0x").eq_ignore_ascii_case(&isid)
    };
    target.nexuses().into_iter().find(port)
}

fn session(info: &SessionInfo, read_only: bool) -> api::TargetSession {
    let sum =
        |value: fn(&IscsiTraffic) -> u64| -> u64 { info.connections.iter().map(|c| value(&c.traffic)).sum() };
    api::TargetSession {
        initiator: info.initiator.clone(),
        isid: isid(info),
        tsih: info.tsih,
        portal_group: info.portal_group,
        addresses: info.connections.iter().map(|c| c.peer.to_string()).collect(),
        read_only,
        age: info.age.as_secs(),
        commands: sum(|t| t.commands),
        read_bytes: sum(|t| t.bytes_read),
        write_bytes: sum(|t| t.bytes_written),
    }
}
