//! Requests and responses about schedules: snapshots that are taken and deleted by time.

use crate::client::{Client, ClientError, segment};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many snapshots a schedule keeps, of each kind; a snapshot that counts for any kind stays.
/// All times are UTC. With nothing but zeros every snapshot is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// The newest ones.
    #[serde(default)]
    pub last: u32,
    /// The newest of each of so many hours that have one.
    #[serde(default)]
    pub hourly: u32,
    /// The newest of each of so many days that have one.
    #[serde(default)]
    pub daily: u32,
    /// The newest of each of so many weeks (from Monday) that have one.
    #[serde(default)]
    pub weekly: u32,
    /// The newest of each of so many months that have one.
    #[serde(default)]
    pub monthly: u32,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// Name.
    pub name: String,
    /// What its snapshots' names begin with: `PREFIX-20261122T031400Z`.
    pub prefix: String,
    /// The volumes, whose snapshots are taken at one instant.
    pub volumes: Vec<String>,
    /// Seconds between snapshots. They fall on multiples of it since 1970-01-01T00:00:00Z: hourly
    /// ones on the hour.
    pub every: u64,
    /// What is kept.
    pub keep: Retention,
    /// It does nothing for now.
    pub paused: bool,
    /// When it was created, or resumed.
    pub since: Timestamp,
    /// When the next snapshots are due; absent while it is paused.
    pub next: Option<Timestamp>,
    /// When it last took snapshots since the server was started.
    pub last_run: Option<Timestamp>,
    /// Why it last failed, if its last run did.
    pub error: Option<String>,
    /// How many snapshots of it there are.
    pub snapshots: u64,
}

/// A schedule to create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSchedule {
    /// 1 to 64 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// What its snapshots' names begin with, of the same characters; no other schedule may have it.
    /// Absent: the name.
    #[serde(default)]
    pub prefix: Option<String>,
    /// The volumes, 1 to 200.
    pub volumes: Vec<String>,
    /// Seconds between snapshots: 10 to 31 days.
    pub every: u64,
    /// What is kept.
    #[serde(default)]
    pub keep: Retention,
}

/// Changes to a schedule. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchSchedule {
    /// Stop for now, or go on. What was missed meanwhile is not made up for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Seconds between snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// What is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Retention>,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Schedules.
impl Client {
    /// All schedules, by name.
    pub fn schedules(&self) -> Result<Vec<Schedule>> {
        self.get("/schedules")
    }

    /// One schedule.
    pub fn schedule(&self, name: &str) -> Result<Schedule> {
        self.get(&format!("/schedules/{}", segment(name)))
    }

    /// Creates a schedule.
    pub fn create_schedule(&self, new: &CreateSchedule) -> Result<Schedule> {
        self.send(hyper::Method::POST, "/schedules", new)
    }

    /// Changes a schedule.
    pub fn patch_schedule(&self, name: &str, patch: &PatchSchedule) -> Result<Schedule> {
        self.send(hyper::Method::PATCH, &format!("/schedules/{}", segment(name)), patch)
    }

    /// Deletes a schedule; its snapshots stay.
    pub fn delete_schedule(&self, name: &str) -> Result<()> {
        self.delete(&format!("/schedules/{}", segment(name)))
    }
}
