//! Requests and responses about access rules for NBD. They are plain data; the field names are the
//! JSON names.

use crate::client::{Client, ClientError, segment};
use crate::targets::{Access, Unmatched};
use hyper::Method;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The access rules for NBD of a volume, or those for all volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NbdAccess {
    /// Name of the volume. Absent: the rules are those for all volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The volume's own rules, in order. The server checks the rules for all volumes after them.
    pub rules: Vec<NbdRule>,
    /// What the server does with a client that no rule matches, on a listener that other machines
    /// reach.
    pub unmatched: Unmatched,
    /// What the server does with a client that no rule matches, on a listener with a loopback
    /// address.
    pub unmatched_on_loopback: Unmatched,
    /// Warnings, one sentence each, about rules that have no effect now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// An access rule for NBD. The server checks a volume's own rules, and then the rules for all
/// volumes. The first rule that matches a client decides. Rules do not concern clients on Unix
/// sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NbdRule {
    /// Addresses, or ranges like 10.0.0.0/8, that the rule matches. Empty: every address.
    pub addresses: Vec<String>,
    /// Subject that the client's certificate must have, as `CN=NAME`. Absent: any certificate, or
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Access of clients that match the rule.
    pub access: Access,
}

/// An access rule for NBD to add.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNbdRule {
    /// Addresses, or ranges like 10.0.0.0/8, that the rule matches. Empty: every address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Subject that the client's certificate must have, as `CN=NAME`. Absent: any certificate, or
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Access of clients that match the rule.
    #[serde(default)]
    pub access: Access,
    /// Position of the rule in the order, from 1. Absent: the last position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
}

impl fmt::Display for NbdRule {
    /// Writes the rule for people: `read-write for 10.0.0.0/8, certificate CN=vm1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = if self.addresses.is_empty() { "*".to_owned() } else { self.addresses.join(" ") };
        write!(f, "{} for {addresses}", self.access.name())?;
        self.certificate.iter().try_for_each(|subject| write!(f, ", certificate {subject}"))
    }
}

/// Returns the path of the NBD rules of a volume, or of those for all volumes.
fn scope(volume: Option<&str>) -> String {
    volume.map_or_else(|| "/nbd-access".into(), |volume| format!("/volumes/{}/nbd-access", segment(volume)))
}

impl Client {
    /// Returns the NBD rules for all volumes, and then those of each volume that has some.
    pub fn all_nbd_access(&self) -> Result<Vec<NbdAccess>, ClientError> {
        self.get("/nbd-access")
    }

    /// Returns the NBD rules of a volume.
    pub fn nbd_access(&self, volume: &str) -> Result<NbdAccess, ClientError> {
        self.get(&scope(Some(volume)))
    }

    /// Adds an NBD rule to a volume, or with `None` to those for all volumes. Returns the rules.
    pub fn add_nbd_rule(&self, volume: Option<&str>, rule: &AddNbdRule) -> Result<NbdAccess, ClientError> {
        self.send(Method::POST, &format!("{}/rules", scope(volume)), rule)
    }

    /// Removes an NBD rule by its number, from 1, from a volume, or with `None` from those for all
    /// volumes.
    pub fn remove_nbd_rule(&self, volume: Option<&str>, number: usize) -> Result<(), ClientError> {
        self.delete(&format!("{}/rules/{number}", scope(volume)))
    }
}
