//! Requests and responses about views: moments that stay for as long as somebody needs them.

use crate::client::{Client, ClientError, segment};
use hyper::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Default lease of a view, in seconds.
pub const VIEW_LEASE: u64 = 3600;
/// Longest lease of a view, in seconds.
pub const LONGEST_VIEW_LEASE: u64 = 30 * 86_400;

/// A moment that does not expire while the view exists, and its addresses. It is read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct View {
    /// Identity of the view.
    pub id: String,
    /// Name of the volume.
    pub volume: String,
    /// Name that the creator chose, for people. Absent if there is none.
    pub name: Option<String>,
    /// Address of the moment. It means the same content for as long as the view exists.
    pub address: String,
    /// LSN of the moment. Absent for a view of a snapshot.
    pub lsn: Option<u64>,
    /// Time of the moment.
    pub time: Timestamp,
    /// Size of the volume at that moment, in bytes.
    pub size: u64,
    /// Time at which the view was created.
    pub created: Timestamp,
    /// Time at which the lease ends. The view stays while clients use it.
    pub expires: Timestamp,
    /// Number of clients that use the moment now.
    pub clients: u64,
    /// NBD addresses.
    pub nbd: Vec<String>,
    /// iSCSI addresses.
    pub iscsi: Vec<String>,
    /// Commands that use the view, by system.
    pub commands: Vec<ViewCommand>,
}

/// A command that uses a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ViewCommand {
    /// System or program for which the command is.
    pub system: String,
    /// The command.
    pub command: String,
}

/// A view to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateView {
    /// The moment: a time, a time before now like `-90s`, `lsn:N`, or the name of a mark or
    /// snapshot.
    pub moment: String,
    /// Lease in seconds: 60 to 2592000. Absent: 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u64>,
    /// Name for people: at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Show the last flush at or before the moment.
    #[serde(default)]
    pub last_flush: bool,
}

/// A new lease of a view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchView {
    /// Lease from now on, in seconds. Absent: 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u64>,
}

impl Client {
    /// Returns all views, oldest first.
    pub fn views(&self) -> Result<Vec<View>, ClientError> {
        self.get("/views")
    }

    /// Returns one view.
    pub fn view(&self, id: &str) -> Result<View, ClientError> {
        self.get(&format!("/views/{}", segment(id)))
    }

    /// Creates a view of a volume.
    pub fn create_view(&self, volume: &str, new: &CreateView) -> Result<View, ClientError> {
        self.send(Method::POST, &format!("/volumes/{}/views", segment(volume)), new)
    }

    /// Gives a view a new lease.
    pub fn renew_view(&self, id: &str, patch: &PatchView) -> Result<View, ClientError> {
        self.send(Method::PATCH, &format!("/views/{}", segment(id)), patch)
    }

    /// Ends a view.
    pub fn delete_view(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("/views/{}", segment(id)))
    }
}
