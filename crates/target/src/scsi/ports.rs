//! Target ports and their groups, and the wire format of logical unit numbers.

use super::sense::{Asc, Sense, SenseKey};
use std::sync::Arc;

/// The largest logical unit number: the limit of flat space addressing.
pub const MAX_LUN: u16 = 0x3fff;

/// Returns the LUN field of a logical unit number (SAM-5 4.7.3). Numbers below 256 use peripheral
/// device addressing. Other numbers use flat space addressing.
pub fn lun_to_wire(lun: u16) -> u64 {
    let first = if lun < 256 { lun } else { 0x4000 | (lun & MAX_LUN) };
    u64::from(first) << 48
}

/// Returns the logical unit number in a LUN field. Returns `None` for an addressing method or a
/// level that the device server does not use.
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

/// A SCSI target port. In iSCSI it is a target name and a portal group (RFC 7143 4.4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPort {
    /// The target's name.
    pub target: Arc<str>,
    /// The target portal group tag.
    pub portal_group: u16,
    /// RELATIVE TARGET PORT IDENTIFIER. The first is 1.
    pub relative_id: u16,
}

impl TargetPort {
    /// Returns the SCSI port name: `iqn,t,0xTPGT`.
    pub fn name(&self) -> String {
        format!("{},t,0x{:04x}", self.target, self.portal_group)
    }
}

/// ASYMMETRIC ACCESS STATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the standard's own
pub enum AccessState {
    ActiveOptimized = 0x0,
    ActiveNonOptimized = 0x1,
    Standby = 0x2,
    Unavailable = 0x3,
    Transitioning = 0xf,
}

impl AccessState {
    /// Returns the sense data for a command that needs an active port. Returns `None` in an active
    /// state.
    pub(crate) fn sense(self) -> Option<Sense> {
        let asc = match self {
            AccessState::ActiveOptimized | AccessState::ActiveNonOptimized => return None,
            AccessState::Standby => Asc::TARGET_PORT_IN_STANDBY,
            AccessState::Unavailable => Asc::TARGET_PORT_UNAVAILABLE,
            AccessState::Transitioning => Asc::ACCESS_STATE_TRANSITION,
        };
        Some(Sense::new(SenseKey::NotReady, asc))
    }
}

/// A target port group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortGroup {
    /// TARGET PORT GROUP.
    pub id: u16,
    /// PREF.
    pub preferred: bool,
    /// The asymmetric access state of the group for this logical unit.
    pub state: AccessState,
    /// The relative target port identifiers of the ports of the group.
    pub ports: Vec<u16>,
}
