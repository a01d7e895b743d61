//! Converts targets and access rules between the types of the server and the types of the API.

use super::doors;
use super::exports::{Exports, Found, Source};
use super::registry::{Guard, Registry};
use hindcast_api as api;
use hindcast_engine::cdp;
use hindcast_engine::device::DeviceInfo;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::{LunMask, Otherwise, Permit, Refused, Rule, is_unseen};
use hindcast_target::iscsi::{IscsiTraffic, SessionInfo};
use hindcast_target::scsi::{Nexus, Target};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// Converts the current state of a target.
pub(super) fn target(exports: &Exports, found: &Found, sessions: &[SessionInfo]) -> api::Target {
    let registry = exports.store.get();
    let settings = registry.settings(&found.scope);
    let targets = exports.live_targets(&found.scope);
    let theirs = |target: &Arc<Target>| -> Vec<api::TargetSession> {
        let of = |session: &SessionInfo| {
            let nexus = session.nexus.upgrade().filter(|nexus| Arc::ptr_eq(nexus.target(), target))?;
            Some(view_session(session, &nexus))
        };
        sessions.iter().filter_map(of).collect()
    };
    let luns = found.luns(&registry);
    api::Target {
        name: found.name.clone(),
        volume: found.volume.as_ref().map(|v| v.name.clone()),
        alias: settings.alias.clone(),
        enabled: settings.enabled,
        luns: luns.iter().map(|(lun, id)| view_lun(exports, &registry, *lun, id)).collect(),
        rules: settings.guard.rules.iter().map(rule).collect(),
        unmatched: unmatched(exports, &settings.guard, &registry.all),
        chap: chap(&settings.guard),
        sessions: targets.iter().flat_map(theirs).collect(),
        reservations: luns.iter().flat_map(|(lun, id)| view_registrants(exports, *lun, id)).collect(),
        warnings: doors::warnings(exports, &registry, found, &luns),
    }
}

fn view_registrants(exports: &Exports, lun: u16, id: &Uuid) -> Vec<api::TargetReservation> {
    let told = exports.registrants(id).unwrap_or_else(|error| {
        tracing::warn!(unit = %id, %error, "persistent reservations could not be read");
        Vec::new()
    });
    let view = |r: hindcast_target::scsi::Registrant| api::TargetReservation {
        lun,
        initiator: r.initiator,
        port: r.port,
        key: format!("{:016x}", r.key),
        holds: r.holds.map(str::to_owned),
    };
    told.into_iter().map(view).collect()
}

/// Converts the access rules and CHAP accounts that apply to all targets.
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
    let chap = guard.chap.as_ref()?;
    let (first, others) = chap.accounts.split_first()?;
    Some(api::Chap {
        user: first.user.clone(),
        others: others.iter().map(|account| account.user.clone()).collect(),
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
        // A request for the state of a target does not open the logical unit.
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
        uuid: id.to_string(),
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
        user: rule.user.clone(),
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

/// Parses an access rule of a request.
pub(super) fn parse_rule(new: &api::AddRule) -> Result<Rule> {
    let invalid = |why: String| Error::new(ErrorKind::Invalid, format!("add a rule: {why}"));
    let refused = |e: Refused| invalid(e.to_string());
    let luns = match &new.luns {
        Some(_) if new.access == api::Access::Denied => {
            return Err(invalid("a rule that refuses initiators has no LUNs; leave them out".into()));
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
        user: new.user.clone().map(checked_user).transpose()?,
        permit: (new.access != api::Access::Denied).then_some(Permit { read_only, luns }),
    })
}

fn isid(session: &SessionInfo) -> String {
    session.isid.iter().map(|b| format!("{b:02x}")).collect()
}

/// Checks the CHAP user name of an access rule. The account need not exist, because the operator
/// can create it later.
fn checked_user(user: String) -> Result<String> {
    match user.is_empty() || user.len() > 255 || user.chars().any(is_unseen) {
        true => Err(Error::new(
            ErrorKind::Invalid,
            "add a rule: a CHAP user name must have 1 to 255 bytes and no invisible character",
        )),
        false => Ok(user),
    }
}

/// Converts a session. The access comes from the nexus, because the nexus decides what the
/// initiator may do.
fn view_session(info: &SessionInfo, nexus: &Nexus) -> api::TargetSession {
    let sum =
        |value: fn(&IscsiTraffic) -> u64| -> u64 { info.connections.iter().map(|c| value(&c.traffic)).sum() };
    api::TargetSession {
        initiator: info.initiator.clone(),
        isid: isid(info),
        tsih: info.tsih,
        portal_group: info.portal_group,
        addresses: info.connections.iter().map(|c| c.peer.to_string()).collect(),
        user: info.user.clone(),
        read_only: !nexus.may_write(),
        luns: nexus.luns(),
        age: info.age.as_secs(),
        commands: sum(|t| t.commands),
        reads: sum(|t| t.reads),
        writes: sum(|t| t.writes),
        in_flight: info.in_flight as u64,
        read_bytes: sum(|t| t.bytes_read),
        write_bytes: sum(|t| t.bytes_written),
    }
}
