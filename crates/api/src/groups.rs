//! Requests and responses about groups of volumes.

use crate::client::{Client, ClientError, segment};
use hyper::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A named, ordered set of volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// Names of its volumes, in their order. Deleted volumes are left out.
    pub volumes: Vec<String>,
}

/// A group to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateGroup {
    /// Name of the group: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric. No
    /// volume may have it.
    pub name: String,
    /// Names of 1 to 200 volumes.
    pub volumes: Vec<String>,
}

/// Changes to a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchGroup {
    /// Names of volumes to add at the end.
    #[serde(default)]
    pub add: Vec<String>,
    /// Names of volumes to remove.
    #[serde(default)]
    pub remove: Vec<String>,
}

impl Client {
    /// Returns all groups, sorted by name.
    pub fn groups(&self) -> Result<Vec<Group>, ClientError> {
        self.get("/groups")
    }

    /// Returns one group.
    pub fn group(&self, name: &str) -> Result<Group, ClientError> {
        self.get(&format!("/groups/{}", segment(name)))
    }

    /// Creates a group.
    pub fn create_group(&self, new: &CreateGroup) -> Result<Group, ClientError> {
        self.send(Method::POST, "/groups", new)
    }

    /// Changes a group.
    pub fn patch_group(&self, name: &str, patch: &PatchGroup) -> Result<Group, ClientError> {
        self.send(Method::PATCH, &format!("/groups/{}", segment(name)), patch)
    }

    /// Deletes a group. Its volumes stay.
    pub fn delete_group(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&format!("/groups/{}", segment(name)))
    }
}
