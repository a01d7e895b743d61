//! The interface that the daemon implements for the iSCSI server, [`Targets`]: which targets there
//! are, which initiators may log in to them, and how initiators prove their identity.

use super::chap::Secret;
use crate::scsi::{Access, Target};
use std::net::SocketAddr;
use std::sync::Arc;

/// The identity that an initiator has proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof<'a> {
    /// The initiator has not proven its identity yet. It may still prove one of the accounts that
    /// the server requests.
    Pending,
    /// The account that the initiator has proven. `None` if the server requested no account.
    Given(Option<&'a str>),
}

/// An initiator that discovers targets or logs in to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Initiator<'a> {
    /// iSCSI name that the initiator sent. Only CHAP proves the identity of the initiator.
    pub name: &'a str,
    /// Address that the initiator connects from.
    pub peer: SocketAddr,
    /// Address that the initiator connected to.
    pub local: SocketAddr,
    /// Portal group tag of the portal that the initiator connected to.
    pub portal_group: u16,
    /// The identity that the initiator has proven.
    pub proof: Proof<'a>,
}

/// A target as SendTargets reports it (RFC 7143, appendix C).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetEntry {
    /// iSCSI name of the target.
    pub name: String,
    /// Portal groups through which initiators can reach the target. An empty list means all of
    /// them.
    pub portal_groups: Vec<u16>,
}

/// The CHAP name and secret of one side (RFC 7143, 12.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChapUser {
    /// The name, CHAP_N.
    pub name: String,
    /// The shared secret.
    pub secret: Secret,
}

/// How an initiator must prove its identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AuthPolicy {
    /// The initiator need not prove its identity.
    #[default]
    None,
    /// The initiator must prove one of the accounts `users` with CHAP.
    Chap {
        /// Accounts that may log in.
        users: Vec<ChapUser>,
        /// Name and secret with which the target proves its own identity, if the initiator requests
        /// that. The secret must not be the secret of one of `users`.
        mutual: Option<ChapUser>,
    },
}

/// Permission to log in to a target. The target need not be open yet.
#[derive(Debug, Clone)]
pub struct Grant {
    /// iSCSI name of the target.
    pub name: String,
    /// Rights of the initiator at the target.
    pub access: Access,
    /// How the initiator must prove its identity first.
    pub auth: AuthPolicy,
    /// TargetAlias: a description of the target for people.
    pub alias: Option<String>,
}

/// The reason why a login is refused (RFC 7143, 11.13.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The target does not exist, or this initiator must not know that it exists.
    NotFound,
    /// This initiator may not log in to the target.
    Forbidden,
    /// The target was removed permanently.
    Removed,
    /// The target is not available now: its volume is busy or cannot be opened.
    Unavailable,
    /// The maximum number of targets is open.
    TooMany,
}

/// The targets of a server. The threads of connections call its functions, which may block.
pub trait Targets: Send + Sync {
    /// Returns the targets to report to an initiator, in order.
    fn list(&self, initiator: &Initiator<'_>) -> Vec<TargetEntry>;

    /// Returns how an initiator must prove its identity before it may discover targets.
    fn discovery_auth(&self, initiator: &Initiator<'_>) -> AuthPolicy;

    /// Returns the permission to log in to a target. The server calls it twice. The first call
    /// comes before the initiator has proven its identity ([`Proof::Pending`]). It returns whether
    /// the initiator may log in with any account or none, and how the initiator must prove its
    /// identity. So this call must be cheap. The second call comes when the initiator has proven
    /// its identity.
    fn login(&self, target: &str, initiator: &Initiator<'_>) -> Result<Grant, Denied>;

    /// Returns the target of a grant, for an initiator that has proven its identity. Every call
    /// returns the same [`Target`] as long as a session uses it.
    fn open(&self, grant: &Grant) -> Result<Arc<Target>, Denied>;
}
