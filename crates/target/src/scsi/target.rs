//! A target: its ports and its inventory of logical units.

use super::cdb::Cdb;
use super::command::Outcome;
use super::inquiry;
use super::lu::LogicalUnit;
use super::nexus::{Access, Nexus, NexusEvents};
use super::sense::{Asc, Sense};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The largest logical unit number: what flat space addressing can say.
pub const MAX_LUN: u16 = 0x3fff;

/// A logical unit number as it is on the wire (SAM-5 4.7.3): peripheral device addressing below
/// 256, else flat space.
pub fn lun_to_wire(lun: u16) -> u64 {
    let first = if lun < 256 { lun } else { 0x4000 | (lun & MAX_LUN) };
    u64::from(first) << 48
}

/// The number that an addressed LUN field means; `None` for methods and levels that are not in use
/// here.
pub fn lun_from_wire(wire: u64) -> Option<u16> {
    if wire & 0xffff_ffff_ffff != 0 {
        return None;
    }
    let first = u16::try_from(wire >> 48).ok()?;
    match first >> 14 {
        0 if first < 256 => Some(first),
        1 => Some(first & MAX_LUN),
        _ => None,
    }
}

/// A SCSI target port: of iSCSI, a target name and a portal group (RFC 7143 4.4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPort {
    /// The target's name.
    pub target: Arc<str>,
    /// The target portal group tag.
    pub portal_group: u16,
    /// RELATIVE TARGET PORT IDENTIFIER, from 1.
    pub relative_id: u16,
}

impl TargetPort {
    /// The SCSI port name: `iqn,t,0xTPGT`.
    pub fn name(&self) -> String {
        format!("{},t,0x{:04x}", self.target, self.portal_group)
    }
}

/// A target.
pub struct Target {
    name: Arc<str>,
    ports: RwLock<Vec<Arc<TargetPort>>>,
    luns: RwLock<Arc<BTreeMap<u16, Arc<LogicalUnit>>>>,
    nexuses: Mutex<Vec<Weak<Nexus>>>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Target {
    /// A target with a port for each portal group, in the order of their relative identifiers (1,
    /// 2, …).
    pub fn new(name: &str, portal_groups: &[u16]) -> Arc<Target> {
        let name: Arc<str> = name.into();
        let port = |(n, &portal_group): (usize, &u16)| {
            let relative_id = u16::try_from(n + 1).unwrap_or(u16::MAX);
            Arc::new(TargetPort { target: name.clone(), portal_group, relative_id })
        };
        let ports = RwLock::new(portal_groups.iter().enumerate().map(port).collect());
        Arc::new(Target { name, ports, luns: RwLock::default(), nexuses: Mutex::default() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its ports.
    pub fn ports(&self) -> Vec<Arc<TargetPort>> {
        self.ports.read().clone()
    }

    /// The logical units by number.
    pub fn inventory(&self) -> Arc<BTreeMap<u16, Arc<LogicalUnit>>> {
        self.luns.read().clone()
    }

    /// Adds, replaces or (with `None`) removes a logical unit; initiators learn that the inventory
    /// changed. Numbers go up to [`MAX_LUN`]; larger ones are not reachable.
    pub fn set_lun(&self, lun: u16, lu: Option<Arc<LogicalUnit>>) {
        {
            let mut luns = self.luns.write();
            let mut changed = BTreeMap::clone(&luns);
            match lu {
                Some(lu) => changed.insert(lun, lu),
                None => changed.remove(&lun),
            };
            *luns = Arc::new(changed);
        }
        for nexus in self.nexuses() {
            nexus.sync_luns(true);
        }
    }

    /// The sessions' nexuses.
    pub fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.nexuses.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A session begins. `initiator` is the SCSI initiator port's name, `iqn,i,0xISID`. `None` if
    /// the target has no port in that portal group, or the name is none. The session must
    /// [`Nexus::detach`] at its end.
    pub fn attach(
        self: &Arc<Self>,
        initiator: &str,
        portal_group: u16,
        access: Access,
        events: Arc<dyn NexusEvents>,
    ) -> Option<Arc<Nexus>> {
        // What of it persists in reservations is on a line of text.
        if initiator.chars().any(|c| c.is_control() || c.is_whitespace() && c != ' ') {
            return None;
        }
        let port = self.ports.read().iter().find(|p| p.portal_group == portal_group)?.clone();
        let nexus = Nexus::new(self.clone(), initiator, port, access, events);
        self.nexuses.lock().push(Arc::downgrade(&nexus));
        nexus.sync_luns(false); // the inventory may have changed before it was known
        Some(nexus)
    }

    pub(crate) fn forget(&self, nexus: &Nexus) {
        self.nexuses.lock().retain(|n| n.upgrade().is_some_and(|n| !std::ptr::eq(&*n, nexus)));
    }
}

/// A command to a logical unit that is not there (SPC-4 6.4.2, 6.33, 6.39): INQUIRY, REPORT LUNS
/// and REQUEST SENSE are answered all the same.
pub(crate) fn without_lu(nexus: &Nexus, cdb: &Cdb) -> Outcome {
    let not_supported = Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED);
    let (mut data, limit) = match cdb.code() {
        0x12 if !cdb.bit(1, 0) && cdb.u8(2) == 0 => (inquiry::absent(), usize::from(cdb.u16(3))),
        0xa0 => match report_luns(nexus, cdb) {
            Ok(data) => (data, cdb.u32(6) as usize),
            Err(sense) => return Outcome::check(sense),
        },
        0x03 => {
            (Sense { descriptor_format: cdb.bit(1, 0), ..not_supported }.to_bytes(), usize::from(cdb.u8(4)))
        }
        _ => return Outcome::check(not_supported),
    };
    data.truncate(limit);
    Outcome::data(data)
}

/// REPORT LUNS (SPC-4 6.33).
pub(crate) fn report_luns(nexus: &Nexus, cdb: &Cdb) -> Result<Vec<u8>, Sense> {
    let luns = match cdb.u8(2) {
        0x00 | 0x02 => {
            nexus.luns_are_reported();
            nexus.luns()
        }
        0x01 => Vec::new(), // there are no well-known logical units
        _ => return Err(Sense::cdb_field(2)),
    };
    let len = u32::try_from(luns.len() * 8).unwrap_or(u32::MAX);
    let mut data = len.to_be_bytes().to_vec();
    data.extend([0; 4]);
    for lun in luns {
        data.extend(lun_to_wire(lun).to_be_bytes());
    }
    Ok(data)
}
