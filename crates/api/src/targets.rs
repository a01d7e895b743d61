//! Requests and responses about iSCSI targets. They are plain data; the field names are the JSON
//! names.

use crate::named::named;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// An iSCSI target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// The volume whose target it is by default; absent for targets that were created.
    pub volume: Option<String>,
    /// Text for people, shown to initiators.
    pub alias: Option<String>,
    /// Initiators may log in. A target that is off is not shown to them either.
    pub enabled: bool,
    /// Its logical units, by number.
    pub luns: Vec<Lun>,
    /// Its own access rules, in their order. The rules for all targets follow.
    pub rules: Vec<AccessRule>,
    /// What happens to initiators that no rule matches.
    pub unmatched: Unmatched,
    /// How initiators prove who they are; absent: as the defaults say.
    pub chap: Option<Chap>,
    /// The sessions that are logged in.
    pub sessions: Vec<TargetSession>,
    /// The registrations for persistent reservations of its logical units, by whichever target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<TargetReservation>,
    /// Doors to the same data that let in others than this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A registration for persistent reservations of a logical unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetReservation {
    /// Number of the logical unit.
    pub lun: u16,
    /// The initiator port that registered: its name and ISID.
    pub initiator: String,
    /// The target port by which it registered: a target's name and a portal group.
    pub port: String,
    /// Its key, hexadecimal.
    pub key: String,
    /// The type of the reservation, where it holds that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<String>,
}

/// What a new volume took over of the one that it was made of, when that had rules of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Inherited {
    /// The volume that it was made of.
    pub volume: String,
    /// How many access rules.
    pub rules: usize,
    /// CHAP accounts.
    pub chap_users: Vec<String>,
    /// Initiators may log in to its own target.
    pub enabled: bool,
    /// NBD serves it.
    pub nbd: bool,
}

/// What applies to all targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetDefaults {
    /// Access rules, asked after a target's own.
    pub rules: Vec<AccessRule>,
    /// What happens to initiators that no rule matches, at targets that have no rule of their own.
    pub unmatched: Unmatched,
    /// CHAP of discovery, and of targets that have none of their own.
    pub chap: Option<Chap>,
}

/// What happens where no access rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unmatched {
    /// Everything is allowed: there is no rule, and the server listens on this machine only.
    Open,
    /// The initiator is refused.
    Refused,
}

/// A logical unit of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lun {
    /// Logical unit number.
    pub lun: u16,
    /// What is behind it.
    pub backing: Backing,
    /// The volume's name, or the path of the file or block device.
    pub source: String,
    /// Identity that initiators see; the same by every target.
    pub uuid: String,
    /// Size in bytes; absent when it can't be opened.
    pub size: Option<u64>,
    /// Logical block size, bytes.
    pub block_size: Option<u32>,
    /// Writes of all initiators are refused.
    pub read_only: bool,
    /// Why it can't be opened; initiators don't see it then.
    pub error: Option<String>,
}

named! {
    /// Kinds of what is behind a logical unit.
    pub enum Backing {
        /// A volume of the pool.
        Volume = "volume",
        /// A snapshot of a volume, read-only.
        Snapshot = "snapshot",
        /// A moment of a volume's past, read-only.
        Moment = "moment",
        /// A plain file.
        File = "file",
        /// A block device.
        Device = "device",
    }
}

/// An access rule. Of the rules that apply to a target the first that matches an initiator decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessRule {
    /// Initiator names it matches; `*` is any text, `?` any one character.
    pub initiator: String,
    /// Addresses it matches, an address or a range like 10.0.0.0/8; absent: any.
    pub address: Option<String>,
    /// The CHAP account they have proven; absent: any, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What initiators that match may do.
    pub access: Access,
    /// The logical units they see; absent: all.
    pub luns: Option<Vec<u16>>,
}

/// What a rule says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read and write.
    #[default]
    ReadWrite,
    /// Read.
    ReadOnly,
    /// Nothing: the login is refused.
    Denied,
}

impl Access {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Access::ReadWrite => "read-write",
            Access::ReadOnly => "read-only",
            Access::Denied => "denied",
        }
    }
}

/// CHAP as it is set. Secrets are never reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Chap {
    /// The name that initiators use; of several accounts, the first.
    pub user: String,
    /// The other accounts, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// The name that the target uses towards initiators that ask for its proof; absent: it has
    /// none.
    pub mutual_user: Option<String>,
}

impl Chap {
    /// The names of all accounts.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.user).chain(self.others.iter().map(String::as_str))
    }
}

/// The session of an initiator that is logged in to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetSession {
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's part of the session's identity, hexadecimal.
    pub isid: String,
    /// The target's part of it.
    pub tsih: u16,
    /// The portal group that it came in by.
    pub portal_group: u16,
    /// Where its connections come from.
    pub addresses: Vec<String>,
    /// The CHAP account that it has proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Writes are refused to it.
    pub read_only: bool,
    /// The logical units that it sees.
    #[serde(default)]
    pub luns: Vec<u16>,
    /// Seconds since it logged in.
    pub age: u64,
    /// Commands that it sent.
    pub commands: u64,
    /// Bytes that it read.
    pub read_bytes: u64,
    /// Bytes that it wrote.
    pub write_bytes: u64,
}

/// A target to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTarget {
    /// An iSCSI name, or a short one that becomes `iqn.2026-11.io.hindcast:NAME`.
    pub name: String,
    /// Text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// Changes to a target. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTarget {
    /// Let initiators log in, or end their sessions and refuse them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Text for people; empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// A logical unit to add: exactly one of `volume`, `file` and `device`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddLun {
    /// Its number, 0 to 16383; absent: the lowest that is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
    /// Name of a volume, or address of a snapshot (`VOLUME@NAME`), which refuses writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Absolute path of a plain file, exported as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Absolute path of a block device, exported as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Refuse writes. For files and devices; a volume has a property of its own.
    #[serde(default)]
    pub read_only: bool,
    /// Logical block size of a file or device, 512 or 4096. Default: 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Serial number of a file or device, 1 to 64 letters, digits, '-', '_', '.' and ':'. All that
    /// identifies it follows from that, here and on other servers. One that looks like a UUID is
    /// its identity. Default: a random identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

/// An access rule to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddRule {
    /// Initiator names it matches; `*` is any text, `?` any one character.
    pub initiator: String,
    /// Addresses it matches, an address or a range like 10.0.0.0/8; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The CHAP account they have to prove; absent: any, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What initiators that match may do.
    #[serde(default)]
    pub access: Access,
    /// The logical units they see; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<Vec<u16>>,
    /// Its place in the order, from 1; absent: the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
}

/// A CHAP account to add, or to replace where there is one of that name. Secrets have 12 to 255
/// bytes, and no secret is used in both directions.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetChap {
    /// The name that initiators use.
    pub user: String,
    /// What they prove to know.
    pub secret: String,
    /// The name that the target uses towards initiators that ask for its proof; with
    /// `mutual_secret` or not at all. What was set before stays where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_user: Option<String>,
    /// What the target proves to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_secret: Option<String>,
    /// The target proves itself no more.
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
