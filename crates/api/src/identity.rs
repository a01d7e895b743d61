//! Who calls the admin API, and what a caller may do: roles, access tokens, users, sessions and
//! one-time links.

use crate::client::{Client, ClientError, segment};
use crate::named::named;
use hyper::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

type Result<T, E = ClientError> = std::result::Result<T, E>;

named! {
    /// What a caller of the admin API may do.
    pub enum Role {
        /// Reads everything except secrets, tokens, users and the audit.
        Viewer = "viewer",
        /// A viewer who also makes changes that lose nothing: snapshots, marks, labels, clones,
        /// recoveries as new volumes, larger sizes, new volumes and schedules.
        Operator = "operator",
        /// An operator who also deletes, rolls back, and decides who is let in.
        Admin = "admin",
        /// Reads the replication stream of volumes, and nothing else.
        Replicate = "replicate",
        /// Reads `/metrics`, and nothing else.
        Metrics = "metrics",
    }
}

impl Role {
    /// Returns whether a caller with this role may do what needs the role `needed`.
    pub fn covers(self, needed: Role) -> bool {
        match self {
            Role::Admin => true,
            Role::Operator => matches!(needed, Role::Operator | Role::Viewer | Role::Metrics),
            Role::Viewer => matches!(needed, Role::Viewer | Role::Metrics),
            Role::Replicate | Role::Metrics => self == needed,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

named! {
    /// How a caller proved who it is.
    pub enum PrincipalKind {
        /// By the credentials of a process that connected to the Unix socket.
        Local = "local",
        /// By an access token.
        Token = "token",
        /// By a session of a user who logged in with a password.
        User = "user",
        /// By a session that began with a one-time link.
        Link = "link",
    }
}

/// An access token. Its secret is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessToken {
    /// Name of the token.
    pub name: String,
    /// Role of its holder.
    pub role: Role,
    /// Names of the volumes that its holder may use, and patterns in which `*` stands for any
    /// characters. Empty: everything that the role allows.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// Whether its holder may create views, which are read-only and expire, of these volumes with
    /// the role viewer, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub views: bool,
    /// Time of its creation.
    pub created: Timestamp,
    /// Time from which on the server refuses it. Absent: never.
    #[serde(default)]
    pub expires: Option<Timestamp>,
    /// Time of its last use. After a restart of the server it can be a few minutes too old. Absent:
    /// it was never used.
    #[serde(default)]
    pub last_used: Option<Timestamp>,
}

/// An access token to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Name of the token: 1 to 64 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// Role of its holder.
    pub role: Role,
    /// Names of the volumes that its holder may use, and patterns in which `*` stands for any
    /// characters. Empty: everything that the role allows.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// Whether its holder may create views, which are read-only and expire, of these volumes with
    /// the role viewer, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub views: bool,
    /// Seconds after which the token expires. Absent: it never expires.
    #[serde(default)]
    pub expires_seconds: Option<u64>,
}

/// A token that was created, with its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The token.
    pub token: AccessToken,
    /// The secret, which a client sends as bearer token. The server cannot show it again.
    pub secret: String,
}

/// A user, who logs in with a password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct User {
    /// Name of the user.
    pub name: String,
    /// Role of the user.
    pub role: Role,
    /// Time of its creation.
    pub created: Timestamp,
}

/// A user to create.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateUser {
    /// Name of the user: 1 to 64 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// Role of the user.
    pub role: Role,
    /// Password of at least 12 characters.
    pub password: String,
}

/// Changes to a user. They end the sessions of the user.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchUser {
    /// New password of at least 12 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// New role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
}

/// Credentials that a browser trades for a session: a name and a password, or a one-time link.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogIn {
    /// Name of a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Password of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Secret of a one-time link: what follows `#link=` in its URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// How the caller proved who it is.
    pub kind: PrincipalKind,
    /// Name of the local user, of the token, or of the user.
    pub name: String,
    /// Role of the caller.
    pub role: Role,
    /// Names and patterns of the volumes that the caller may use. Empty: everything that the role
    /// allows.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// Time at which the session ends. It moves as long as the session is used. Absent: the caller
    /// has no session.
    #[serde(default)]
    pub expires: Option<Timestamp>,
}

/// A session of a browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActiveSession {
    /// Identity of the session. It is no secret.
    pub id: String,
    /// How the session began.
    pub kind: PrincipalKind,
    /// Name of the user.
    pub name: String,
    /// Role of the session.
    pub role: Role,
    /// Address from which the session began.
    pub address: String,
    /// Time at which the session began.
    pub since: Timestamp,
    /// Time of its last request.
    pub last_used: Timestamp,
    /// Time at which it ends if it is not used.
    pub expires: Timestamp,
}

/// A link that a browser trades for a session, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedLink {
    /// URL with the secret of the link.
    pub url: String,
    /// Time at which the link expires.
    pub expires: Timestamp,
    /// Identity of the server's process, as in [`Instance`]. The port of the URL must tell it, too.
    #[serde(default)]
    pub instance: String,
}

/// The identity of a server's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// A random text, which every start of the server makes anew.
    pub instance: String,
}

impl Client {
    /// Returns all users, sorted by name.
    pub fn users(&self) -> Result<Vec<User>> {
        self.get("/access/users")
    }

    /// Creates a user.
    pub fn create_user(&self, new: &CreateUser) -> Result<User> {
        self.send(Method::POST, "/access/users", new)
    }

    /// Changes a user, and ends its sessions.
    pub fn patch_user(&self, name: &str, patch: &PatchUser) -> Result<User> {
        self.send(Method::PATCH, &format!("/access/users/{}", segment(name)), patch)
    }

    /// Removes a user, and ends its sessions.
    pub fn remove_user(&self, name: &str) -> Result<()> {
        self.delete(&format!("/access/users/{}", segment(name)))
    }

    /// Returns the sessions of browsers, the oldest first.
    pub fn sessions(&self) -> Result<Vec<ActiveSession>> {
        self.get("/access/sessions")
    }

    /// Ends a session.
    pub fn end_session(&self, id: &str) -> Result<()> {
        self.delete(&format!("/access/sessions/{}", segment(id)))
    }

    /// Returns who the server takes this client for.
    pub fn who_am_i(&self) -> Result<WhoAmI> {
        self.get("/session")
    }

    /// Creates a link that a browser trades for a session with the role of this client.
    pub fn create_link(&self) -> Result<CreatedLink> {
        self.get_by(Method::POST, "/access/links")
    }

    /// Returns the identity of the server's process. It needs no credentials.
    pub fn instance(&self) -> Result<Instance> {
        self.get("/instance")
    }

    /// Returns all access tokens, sorted by name.
    pub fn tokens(&self) -> Result<Vec<AccessToken>> {
        self.get("/access/tokens")
    }

    /// Creates an access token.
    pub fn create_token(&self, new: &CreateToken) -> Result<CreatedToken> {
        self.send(Method::POST, "/access/tokens", new)
    }

    /// Revokes an access token. The server refuses it from now on.
    pub fn revoke_token(&self, name: &str) -> Result<()> {
        self.delete(&format!("/access/tokens/{}", segment(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_covers_what_it_should() {
        use Role::{Admin, Metrics, Operator, Replicate, Viewer};
        let covered = |role: Role| -> Vec<Role> {
            [Viewer, Operator, Admin, Replicate, Metrics].into_iter().filter(|n| role.covers(*n)).collect()
        };
        assert_eq!(covered(Viewer), [Viewer, Metrics]);
        assert_eq!(covered(Operator), [Viewer, Operator, Metrics]);
        assert_eq!(covered(Admin).len(), 5);
        assert_eq!(covered(Replicate), [Replicate]);
        assert_eq!(covered(Metrics), [Metrics]);
    }
}
