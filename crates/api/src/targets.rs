//! Requests and responses about iSCSI targets. They are plain data; the field names are the JSON
//! names.

use crate::named::named;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// An iSCSI target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Target {
    /// iSCSI name of the target.
    pub name: String,
    /// Name of the volume, if this is the volume's own target. Absent if an operator created the
    /// target.
    pub volume: Option<String>,
    /// Text for people. Initiators see it.
    pub alias: Option<String>,
    /// Whether initiators may log in. Initiators do not see a disabled target.
    pub enabled: bool,
    /// Logical units of the target, sorted by number.
    pub luns: Vec<Lun>,
    /// The target's own access rules, in order. The server checks the default rules for all targets
    /// after them.
    pub rules: Vec<AccessRule>,
    /// What the target does with an initiator that no rule matches.
    pub unmatched: Unmatched,
    /// CHAP accounts of the target. Absent: the default accounts for all targets apply.
    pub chap: Option<Chap>,
    /// Sessions of initiators that are logged in.
    pub sessions: Vec<TargetSession>,
    /// Registrations for persistent reservations of the target's logical units. They include
    /// registrations that were made through other targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<TargetReservation>,
    /// Warnings, one sentence each, about other targets that serve the same data under different
    /// access settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A registration for persistent reservations of a logical unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetReservation {
    /// Number of the logical unit.
    pub lun: u16,
    /// Initiator port that registered: `NAME,i,0xISID`.
    pub initiator: String,
    /// Target port through which it registered: `NAME,t,0xTAG`. TAG is the number of the portal
    /// group.
    pub port: String,
    /// Reservation key, 16 hexadecimal digits.
    pub key: String,
    /// Type of the reservation, if this initiator port holds it. Absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<String>,
}

/// Access settings that a new volume copied from the volume from which it was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Inherited {
    /// Name of the volume from which the new one was created.
    pub volume: String,
    /// Number of access rules that were copied.
    pub rules: usize,
    /// Number of access rules for NBD that were copied.
    #[serde(default)]
    pub nbd_rules: usize,
    /// User names of the CHAP accounts that were copied.
    pub chap_users: Vec<String>,
    /// Whether initiators may log in to the new volume's own target.
    pub enabled: bool,
    /// Whether NBD serves the new volume.
    pub nbd: bool,
}

/// Settings that apply to all targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetDefaults {
    /// Access rules that the server checks after a target's own rules.
    pub rules: Vec<AccessRule>,
    /// What a target without own rules does with an initiator that no rule matches.
    pub unmatched: Unmatched,
    /// CHAP accounts for discovery sessions, and for targets without own accounts.
    pub chap: Option<Chap>,
}

/// What a target does with an initiator that no access rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unmatched {
    /// The initiator has full access. This holds if there is no rule and the server listens only on
    /// addresses of its own machine.
    Open,
    /// The initiator is refused.
    Refused,
}

/// A logical unit of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lun {
    /// Number of the logical unit.
    pub lun: u16,
    /// Kind of the object behind the logical unit.
    pub backing: Backing,
    /// Name of the volume, address of the snapshot or moment, or path of the file or block device.
    pub source: String,
    /// UUID of the logical unit. Initiators see it. It is the same at every target.
    pub uuid: String,
    /// Size in bytes. Absent if the logical unit can't be opened.
    pub size: Option<u64>,
    /// Logical block size in bytes. Absent if the logical unit can't be opened.
    pub block_size: Option<u32>,
    /// Whether the logical unit refuses the writes of all initiators.
    pub read_only: bool,
    /// Why the logical unit can't be opened. Initiators do not see it then. Absent if it can be
    /// opened.
    pub error: Option<String>,
}

named! {
    /// Kind of the object behind a logical unit.
    pub enum Backing {
        /// A volume of the pool.
        Volume = "volume",
        /// A snapshot of a volume, read-only.
        Snapshot = "snapshot",
        /// A moment of a volume's history, read-only.
        Moment = "moment",
        /// A regular file.
        File = "file",
        /// A block device.
        Device = "device",
    }
}

/// An access rule. The server checks a target's own rules, and then the default rules for all
/// targets. The first rule that matches an initiator decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessRule {
    /// Pattern of the initiator names that the rule matches. `*` matches any text, `?` any one
    /// character.
    pub initiator: String,
    /// Address that the rule matches, or a range like 10.0.0.0/8. Absent: every address.
    pub address: Option<String>,
    /// CHAP account that an initiator must have proven to match the rule. Absent: any account, or
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Access of initiators that match the rule.
    pub access: Access,
    /// Numbers of the logical units that these initiators see. Absent: all.
    pub luns: Option<Vec<u16>>,
}

/// Access of an initiator to a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// The initiator may read and write.
    #[default]
    ReadWrite,
    /// The initiator may read.
    ReadOnly,
    /// The initiator has no access. The target refuses its login.
    Denied,
}

impl Access {
    /// Returns the name of the value, for people.
    pub fn name(self) -> &'static str {
        match self {
            Access::ReadWrite => "read-write",
            Access::ReadOnly => "read-only",
            Access::Denied => "denied",
        }
    }
}

/// CHAP settings. Responses never have secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Chap {
    /// User name of the first account, which initiators use.
    pub user: String,
    /// User names of the other accounts. Absent if there is only one account.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// User name with which the target authenticates to an initiator that asks for it. Absent if
    /// mutual CHAP is not set.
    pub mutual_user: Option<String>,
}

impl Chap {
    /// Returns the user names of all accounts.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.user).chain(self.others.iter().map(String::as_str))
    }
}

/// The session of an initiator that is logged in to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetSession {
    /// Name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session's identity (ISID), 12 hexadecimal digits.
    pub isid: String,
    /// The target's part of the session's identity (TSIH).
    pub tsih: u16,
    /// Number of the portal group through which the initiator logged in.
    pub portal_group: u16,
    /// Addresses of the initiator, one for each connection of the session.
    pub addresses: Vec<String>,
    /// CHAP account that the initiator has proven. Absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether the target refuses writes of this session.
    pub read_only: bool,
    /// Numbers of the logical units that the initiator sees.
    #[serde(default)]
    pub luns: Vec<u16>,
    /// Seconds since the login.
    pub age: u64,
    /// Number of commands that the initiator sent on the session's connections.
    pub commands: u64,
    /// Number of commands that read, of `commands`.
    #[serde(default)]
    pub reads: u64,
    /// Number of commands that wrote, of `commands`.
    #[serde(default)]
    pub writes: u64,
    /// Number of commands that the server carries out now.
    #[serde(default)]
    pub in_flight: u64,
    /// Number of bytes that the initiator read on the session's connections.
    pub read_bytes: u64,
    /// Number of bytes that the initiator wrote on the session's connections.
    pub write_bytes: u64,
}

/// A target to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTarget {
    /// iSCSI name, or a short name NAME that becomes `iqn.2026-11.io.hindcast:NAME`.
    pub name: String,
    /// Text for people. Initiators see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// Changes to a target. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTarget {
    /// true: initiators may log in. false: the target ends its sessions and refuses logins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Text for people. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// A logical unit to add. Exactly one of `volume`, `file` and `device` is required.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddLun {
    /// Number of the logical unit, 0 to 16383. Absent: the lowest free number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
    /// Name of a volume, or address of a snapshot (`VOLUME@NAME`). A snapshot refuses writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Absolute path of a regular file on the server's machine. It is exported unchanged, without
    /// the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Absolute path of a block device on the server's machine. It is exported unchanged, without
    /// the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Refuse writes to the file or device. A volume has its own setting.
    #[serde(default)]
    pub read_only: bool,
    /// Logical block size of the file or device in bytes: 512 or 4096. Absent: 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Serial number of the file or device: 1 to 64 letters, digits, `-`, `_`, `.` and `:`. All
    /// identifiers of the logical unit are derived from it, so they are the same on every server. A
    /// serial number in the form of a UUID becomes the logical unit's UUID. Absent: a random UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

/// An access rule to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddRule {
    /// Pattern of the initiator names that the rule matches. `*` matches any text, `?` any one
    /// character.
    pub initiator: String,
    /// Address that the rule matches, or a range like 10.0.0.0/8. Absent: every address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// CHAP account that an initiator must have proven to match the rule. Absent: any account, or
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Access of initiators that match the rule.
    #[serde(default)]
    pub access: Access,
    /// Numbers of the logical units that these initiators see. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<Vec<u16>>,
    /// Position of the rule in the order, from 1. Absent: the last position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
}

/// A CHAP account to add. It replaces an account with the same user name. A secret has 12 to 255
/// bytes. No secret may serve in both directions.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetChap {
    /// User name that initiators use.
    pub user: String,
    /// Secret that initiators prove to know.
    pub secret: String,
    /// User name with which the target authenticates to an initiator that asks for it. It requires
    /// `mutual_secret`. Absent: the mutual account stays unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_user: Option<String>,
    /// Secret that the target proves to know. It requires `mutual_user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_secret: Option<String>,
    /// Remove the mutual account. The target then no longer authenticates to initiators.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_mutual: bool,
}

impl fmt::Debug for SetChap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetChap")
            .field("user", &self.user)
            .field("mutual_user", &self.mutual_user)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let chap = SetChap {
            user: "alice".into(),
            secret: "sesame-sesame".into(),
            mutual_user: Some("target".into()),
            mutual_secret: Some("open-open-open".into()),
            no_mutual: false,
        };
        let shown = format!("{chap:?}");
        assert!(shown.contains("alice") && !shown.contains("sesame") && !shown.contains("open"), "{shown}");
    }
}
