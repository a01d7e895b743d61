//! Implements the operations of the admin API on targets.

use super::credentials::{Account, Secret};
use super::exports::Found;
use super::registry::{Named, Scope, TargetSettings};
use super::target::IscsiTarget;
use super::{doors, names, to_api};
use crate::clones::clone_behind;
use crate::moments::{self, Past};
use crate::passthrough::{FileDevice, FileSpec, canonical, identity_of_serial};
use hindcast_api as api;
use hindcast_engine::disk::Hold;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::is_unseen;
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn conflict(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Conflict, message)
}

impl IscsiTarget {
    /// Returns all targets, sorted by name.
    pub(crate) fn targets(&self) -> Vec<api::Target> {
        let sessions = self.server.sessions();
        self.exports.all().iter().map(|found| to_api::target(&self.exports, found, &sessions)).collect()
    }

    /// Returns the target that `name` names.
    pub(crate) fn target(&self, name: &str) -> Result<api::Target> {
        let found = self.exports.find(name)?;
        Ok(to_api::target(&self.exports, &found, &self.server.sessions()))
    }

    /// Returns the access rules and the CHAP accounts that apply to all targets.
    pub(crate) fn defaults(&self) -> api::TargetDefaults {
        to_api::defaults(&self.exports)
    }

    /// Creates a target without LUNs.
    pub(crate) fn create(&self, new: &api::CreateTarget) -> Result<api::Target> {
        let _one_at_a_time = self.changing.lock();
        let name = names::target_name(&new.name)?;
        if let Some(bad) = name.chars().find(|c| is_unseen(*c)) {
            return Err(invalid(format!("create target {name:?}: the character {bad:?} is invisible")));
        }
        if let Ok(found) = self.exports.find(&name) {
            return Err(conflict(match found.volume {
                Some(volume) => {
                    format!("create target {name}: it is the own target of volume {}", volume.name)
                }
                None => format!("create target {name}: the name is taken"),
            }));
        }
        let settings = TargetSettings { alias: alias(new.alias.as_deref())?, ..TargetSettings::default() };
        self.exports.store.update(|registry| {
            registry.named.insert(name.clone(), Named { settings, ..Named::default() });
            Ok(())
        })?;
        self.target(&name)
    }

    /// Finds a created target. Fails for a volume's own target, because its LUNs can't be changed.
    fn named(&self, name: &str, verb: &str) -> Result<Found> {
        let found = self.exports.find(name)?;
        match &found.volume {
            Some(volume) => Err(conflict(format!(
                "{verb} {}: it is the own target of volume {}; create another target for more LUNs, or disable this one",
                found.name, volume.name
            ))),
            None => Ok(found),
        }
    }

    fn check_no_sessions(&self, found: &Found, verb: &str) -> Result<()> {
        let targets = self.exports.live_targets(&found.scope);
        let sessions: usize = targets.iter().map(|t| t.nexuses().len()).sum();
        if sessions == 0 {
            return Ok(());
        }
        let message = format!(
            "{verb} {}: {sessions} initiators are logged in; --force ends their sessions",
            found.name
        );
        Err(Error::new(ErrorKind::Busy, message))
    }

    /// Deletes a created target. The volumes and files behind its LUNs stay unchanged. Without
    /// `force` the deletion fails while an initiator is logged in.
    pub(crate) fn delete(&self, name: &str, force: bool) -> Result<String> {
        let _one_at_a_time = self.changing.lock();
        let found = self.named(name, "delete")?;
        if !force {
            self.check_no_sessions(&found, "delete")?;
        }
        let units = found.luns(&self.exports.store.get());
        let files = self.exports.store.update(|registry| registry.remove_target(&found.name))?;
        self.disconnect(&found.name);
        self.exports.forget_target(&found.name);
        units.values().for_each(|unit| self.exports.drop_orphans(unit));
        // A volume's own target may have the name of the deleted target. Initiators reach that one
        // again.
        self.enforce();
        files.iter().for_each(|file| drop(self.exports.forget_unit(file)));
        Ok(found.name)
    }

    /// Enables or disables a target, and changes its alias.
    pub(crate) fn patch(&self, name: &str, patch: &api::PatchTarget) -> Result<api::Target> {
        let _one_at_a_time = self.changing.lock();
        let found = self.exports.find(name)?;
        let new_alias = patch.alias.as_deref().map(|text| alias(Some(text))).transpose()?;
        self.exports.store.update(|registry| {
            registry.change(&found.scope, |settings| {
                if let Some(enabled) = patch.enabled {
                    settings.enabled = enabled;
                }
                if let Some(alias) = new_alias {
                    settings.alias = alias;
                }
                Ok(())
            })
        })?;
        self.enforce();
        Ok(to_api::target(&self.exports, &found, &self.server.sessions()))
    }

    /// Maps a volume, snapshot, file or device to a LUN. Returns the target, with the warnings that
    /// concern the new LUN.
    pub(crate) fn add_lun(&self, name: &str, new: &api::AddLun) -> Result<api::Target> {
        let _one_at_a_time = self.changing.lock();
        let found = self.named(name, "add a LUN to")?;
        let (backing, file) = match (&new.volume, &new.file, &new.device) {
            (Some(volume), None, None) => {
                if new.read_only || new.block_size.is_some() || new.serial.is_some() {
                    return Err(invalid(
                        "add a LUN: block size, serial number and read-only are properties of the volume; leave them out",
                    ));
                }
                let pool = &self.exports.pool;
                let backing = match volume.split_once('@') {
                    Some((volume, moment)) => match moments::find(pool, volume, moment)? {
                        Past::Snapshot(snapshot) => {
                            clone_behind(pool, &snapshot).map_or(snapshot.uuid, |clone| clone.uuid)
                        }
                        // A LUN does not keep the moment from expiring while no initiator is logged
                        // in.
                        Past::Moment(moment) => {
                            pool.resolve(volume, &moment)?;
                            return Err(invalid(
                                "add a LUN: a moment can't be a LUN of another target; recover it to a new volume first",
                            ));
                        }
                    },
                    None => pool.volume(volume)?.uuid,
                };
                (backing, None)
            }
            (None, Some(path), None) => self.file(path, false, new)?,
            (None, None, Some(path)) => self.file(path, true, new)?,
            _ => return Err(invalid("add a LUN: name one volume, file or device")),
        };
        if let Some(spec) = &file {
            // This checks that the file is usable, and closes it again. The logical unit opens the
            // file later.
            FileDevice::open(spec.clone())?.check_tail()?;
        }
        let lun = self.exports.store.update(|registry| {
            registry.files.extend(file.map(|spec| (spec.uuid, spec)));
            registry.add_lun(&found.name, new.lun, backing)
        })?;
        // Access rules apply before an initiator sees the logical unit.
        self.enforce();
        self.exports.realign(&found.name);
        let target = self.target(&found.name)?;
        let added = BTreeMap::from([(lun, backing)]);
        let warnings = doors::warnings(&self.exports, &self.exports.store.get(), &found, &added);
        Ok(api::Target { warnings, ..target })
    }

    /// Checks a file or device, and returns its identity. The second value is the specification
    /// that the caller stores. It is `None` if the file or device is exported already.
    fn file(&self, given: &str, device: bool, new: &api::AddLun) -> Result<(Uuid, Option<FileSpec>)> {
        let (path, hold) = (canonical(given)?, Hold::of(given));
        if hold.is_some() && path != given {
            return Err(conflict(format!("export {given}: it was replaced during the request; try again")));
        }
        // If the request holds the file open, the checks read that file. The path can name another
        // file now.
        let way = hold.as_ref().map_or_else(|| PathBuf::from(&path), Hold::way);
        let kind = std::fs::metadata(way).map_err(|e| Error::io(format!("export {path}"), e))?.file_type();
        match device {
            true if !kind.is_block_device() => {
                return Err(invalid(format!("export {path}: it is not a block device")));
            }
            false if !kind.is_file() => {
                return Err(invalid(format!("export {path}: it is not a regular file")));
            }
            _ => {}
        }
        let own = |pv: &str| self.data.join(pv).canonicalize().is_ok_and(|own| own == *path);
        if Path::new(&path).starts_with(&self.data) || self.exports.pool.pvs().iter().any(|pv| own(&pv.path))
        {
            return Err(conflict(format!("export {path}: it belongs to the pool")));
        }
        let block_size = new.block_size.unwrap_or(512);
        if !matches!(block_size, 512 | 4096) {
            return Err(invalid(format!("export {path}: the block size must be 512 or 4096")));
        }
        let (uuid, serial) = match &new.serial {
            Some(serial) => identity_of_serial(serial)?,
            None => (crate::world::uuid(), None),
        };
        let registry = self.exports.store.get();
        if let Some(known) = registry.files.values().find(|f| f.path == path) {
            if known.read_only != new.read_only || known.block_size != block_size {
                return Err(conflict(format!(
                    "export {path}: it is already exported with another block size or another access"
                )));
            }
            if new.serial.is_some() && known.uuid != uuid {
                return Err(conflict(format!(
                    "export {path}: it is already exported with another serial number"
                )));
            }
            return Ok((known.uuid, None));
        }
        if registry.files.contains_key(&uuid) || self.exports.source(&uuid).is_ok() {
            return Err(conflict(format!("export {path}: another file or device has this serial number")));
        }
        Ok((uuid, Some(FileSpec { uuid, path, read_only: new.read_only, block_size, serial })))
    }

    /// Removes the LUN `lun` of a created target. Without `force` this fails while an initiator is
    /// logged in.
    pub(crate) fn remove_lun(&self, name: &str, lun: u16, force: bool) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let found = self.named(name, "remove a LUN from")?;
        if !force
            && self.exports.store.get().named.get(&found.name).is_some_and(|t| t.luns.contains_key(&lun))
        {
            self.check_no_sessions(&found, "remove a LUN from")?;
        }
        let unit = found.luns(&self.exports.store.get()).remove(&lun);
        let file = self.exports.store.update(|registry| registry.remove_lun(&found.name, lun))?;
        self.exports.realign(&found.name);
        unit.iter()
            .filter(|unit| file.as_ref() != Some(unit))
            .for_each(|unit| self.exports.drop_orphans(unit));
        file.iter().for_each(|file| drop(self.exports.forget_unit(file)));
        Ok(())
    }

    /// Returns the target that a request names, or [`Scope::All`] for `None`.
    fn scope(&self, name: Option<&str>) -> Result<Scope> {
        name.map_or(Ok(Scope::All), |name| Ok(self.exports.find(name)?.scope))
    }

    /// Adds an access rule at the position `new.at`, counted from 1, or at the end. Sessions that
    /// the rules now refuse end.
    pub(crate) fn add_rule(&self, name: Option<&str>, new: &api::AddRule) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let scope = self.scope(name)?;
        let rule = to_api::parse_rule(new)?;
        self.exports.store.update(|registry| registry.add_rule(&scope, rule, new.at))?;
        self.enforce();
        Ok(())
    }

    /// Removes the access rule `number`, counted from 1. Sessions that no rule allows any more end.
    pub(crate) fn remove_rule(&self, name: Option<&str>, number: usize) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let scope = self.scope(name)?;
        self.exports.store.update(|registry| registry.remove_rule(&scope, number))?;
        self.enforce();
        Ok(())
    }

    /// Adds a CHAP account, or replaces the account with the same user name. The next login
    /// requires an account.
    pub(crate) fn set_chap(&self, name: Option<&str>, new: api::SetChap) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let scope = self.scope(name)?;
        let account = |user: String, secret: String| {
            if user.chars().any(is_unseen) {
                return Err(invalid("set CHAP: the user name has an invisible character"));
            }
            Account::new(user, Secret::new(secret)?)
        };
        let incoming = account(new.user, new.secret)?;
        let mutual = match (new.mutual_user, new.mutual_secret, new.no_mutual) {
            (Some(user), Some(secret), false) => Some(Some(account(user, secret)?)),
            (None, None, true) => Some(None),
            (None, None, false) => None,
            (_, _, true) => {
                return Err(invalid("set CHAP: give either a mutual user or no_mutual, not both"));
            }
            _ => return Err(invalid("set CHAP: mutual CHAP needs a user and a secret")),
        };
        self.exports.store.update(|registry| registry.set_account(&scope, incoming, mutual))?;
        self.enforce();
        Ok(())
    }

    /// Removes a CHAP account that is not the only one. Sessions that authenticated with it end.
    pub(crate) fn remove_account(&self, name: Option<&str>, user: &str) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let scope = self.scope(name)?;
        self.exports.store.update(|registry| registry.remove_account(&scope, user))?;
        self.enforce();
        Ok(())
    }

    /// Removes all CHAP accounts of a target, or those that apply to all targets. A target without
    /// accounts uses those that apply to all targets.
    pub(crate) fn remove_chap(&self, name: Option<&str>) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let scope = self.scope(name)?;
        self.exports.store.update(|registry| {
            registry.change(&scope, |settings| {
                settings.guard.chap = None;
                Ok(())
            })
        })?;
        self.enforce();
        Ok(())
    }

    /// Clears the reservations and registrations of one LUN of a target, or of all its LUNs for
    /// `None`. Returns the number of cleared registrations and reservations.
    pub(crate) fn clear_reservations(&self, name: &str, lun: Option<u16>) -> Result<usize> {
        let _one_at_a_time = self.changing.lock();
        let found = self.exports.find(name)?;
        let mut units = found.luns(&self.exports.store.get());
        if let Some(lun) = lun {
            units.retain(|number, _| *number == lun);
            if units.is_empty() {
                let text = format!("clear reservations of LUN {lun} of {}: there is no such LUN", found.name);
                return Err(Error::new(ErrorKind::NotFound, text));
            }
        }
        units.values().map(|unit| self.exports.clear_reservations(unit)).sum()
    }
}

/// Checks an alias. TargetAlias is text for people (RFC 7143 13.6). Returns `None` for an empty
/// text.
fn alias(text: Option<&str>) -> Result<Option<String>> {
    let text = text.unwrap_or("").trim();
    if text.len() > 255 || text.chars().any(char::is_control) {
        return Err(invalid("set the alias: it must have at most 255 bytes and no control characters"));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}
