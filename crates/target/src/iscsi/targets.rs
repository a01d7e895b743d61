//! The interface that the daemon implements for the iSCSI server, [`Targets`]: which targets there
//! are, which initiators may log in to them, and how initiators prove their identity.

use super::chap::Secret;
use crate::scsi::{Access, Target};
use std::net::SocketAddr;
use std::sync::Arc;

/// What an initiator has proven of who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof<'a> {
    /// It may still prove one of the accounts that it is asked for.
    Pending,
    /// The account that it has proven; none where none was asked for.
    Given(Option<&'a str>),
}

/// An initiator that discovers targets or logs in to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Initiator<'a> {
    /// Its iSCSI name, as it says; proven only by CHAP.
    pub name: &'a str,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The address it connected to.
    pub local: SocketAddr,
    /// The portal group tag of the portal it connected to.
    pub portal_group: u16,
    /// What it has proven.
    pub proof: Proof<'a>,
}

/// A target as SendTargets shows it (RFC 7143, appendix C).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetEntry {
    /// Its iSCSI name.
    pub name: String,
    /// The portal groups by which it can be reached; empty means all.
    pub portal_groups: Vec<u16>,
}

/// One side's name and secret (RFC 7143, 12.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChapUser {
    /// CHAP_N.
    pub name: String,
    /// The shared secret.
    pub secret: Secret,
}

/// How an initiator has to prove who it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AuthPolicy {
    /// It need not.
    #[default]
    None,
    /// As one of `users`.
    Chap {
        /// The accounts that may log in.
        users: Vec<ChapUser>,
        /// What the target proves itself with, if the initiator asks it to. Its secret must not be
        /// one of `users`'.
        mutual: Option<ChapUser>,
    },
}

/// Permission to log in to a target, which need not be open yet.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The target's iSCSI name.
    pub name: String,
    /// What the initiator may do with it.
    pub access: Access,
    /// What it has to prove first.
    pub auth: AuthPolicy,
    /// TargetAlias: text for people.
    pub alias: Option<String>,
}

/// Why a login is refused (RFC 7143, 11.13.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// There is no such target, or this initiator must not know of it.
    NotFound,
    /// This initiator may not log in.
    Forbidden,
    /// It was removed for good.
    Removed,
    /// Not now: its volume is busy or cannot be opened.
    Unavailable,
    /// Not now: as many targets are open as may be.
    TooMany,
}

/// The targets. Called from connection threads; may block.
pub trait Targets: Send + Sync {
    /// The targets to show to an initiator, in order.
    fn list(&self, initiator: &Initiator<'_>) -> Vec<TargetEntry>;

    /// How an initiator has to prove who it is before it may discover targets.
    fn discovery_auth(&self, initiator: &Initiator<'_>) -> AuthPolicy;

    /// Permission to log in to a target. It is called twice. The first call comes before the
    /// initiator has proven its identity ([`Proof::Pending`]). It asks whether the initiator may
    /// log in with any account or none, and what it has to prove; so it must not cost much. The
    /// second call comes when the initiator has proven its identity.
    fn login(&self, target: &str, initiator: &Initiator<'_>) -> Result<Grant, Denied>;

    /// The target of a grant, for an initiator that has proven its identity. Every call returns the
    /// same [`Target`] as long as a session uses it.
    fn open(&self, grant: &Grant) -> Result<Arc<Target>, Denied>;
}
