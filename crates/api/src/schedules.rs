//! Requests and responses about schedules. A schedule takes and deletes snapshots at intervals.

use crate::WallClock;
use crate::client::{Client, ClientError, segment};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Number of snapshots that a schedule keeps, by kind. A snapshot is kept if any kind keeps it. If
/// all numbers are 0, every snapshot is kept.
///
/// Days, weeks and months are those of the schedule's time zone, or of UTC if it has none. Hours
/// are those of UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Number of newest snapshots to keep.
    #[serde(default)]
    pub last: u32,
    /// Number of hours of which the newest snapshot is kept. Hours without a snapshot do not count.
    #[serde(default)]
    pub hourly: u32,
    /// Number of days of which the newest snapshot is kept. Days without a snapshot do not count.
    #[serde(default)]
    pub daily: u32,
    /// Number of weeks of which the newest snapshot is kept. A week begins on Monday. Weeks without
    /// a snapshot do not count.
    #[serde(default)]
    pub weekly: u32,
    /// Number of months of which the newest snapshot is kept. Months without a snapshot do not
    /// count.
    #[serde(default)]
    pub monthly: u32,
}

/// A schedule of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// Name of the schedule.
    pub name: String,
    /// Prefix of the names of its snapshots. The names have the form `PREFIX-20261122T031400Z`.
    pub prefix: String,
    /// Names of the volumes, those of its groups included. Their snapshots are taken at one
    /// instant.
    pub volumes: Vec<String>,
    /// Names of the volumes that the schedule has beside those of its groups.
    #[serde(default)]
    pub own_volumes: Vec<String>,
    /// Names of groups. Each run takes snapshots of the volumes that are in them at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Interval between snapshots in seconds. Without `wall`, snapshots are due at multiples of it
    /// since 1970-01-01T00:00:00Z. For example, hourly snapshots are due on the hour.
    pub every: u64,
    /// Times by the clock on the wall. Absent: the schedule knows no time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<WallClock>,
    /// Number of snapshots that the schedule keeps.
    pub keep: Retention,
    /// Whether the schedule is paused. A paused schedule takes and deletes no snapshots.
    pub paused: bool,
    /// Time at which the schedule was created or resumed, or got more volumes, or other times by
    /// the clock on the wall.
    pub since: Timestamp,
    /// Time at which the next snapshots are due. Absent while the schedule is paused, or if its
    /// time zone is not known to the server any more.
    pub next: Option<Timestamp>,
    /// The same time in the schedule's time zone, with its offset from UTC, such as
    /// `2026-11-29T02:30:00+01:00`. Absent without a time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_local: Option<String>,
    /// Time of the last run that took snapshots. Absent if there was none since the server started.
    pub last_run: Option<Timestamp>,
    /// Error of the last run. Absent if the last run succeeded.
    pub error: Option<String>,
    /// Number of existing snapshots that belong to the schedule.
    pub snapshots: u64,
}

/// A schedule to create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSchedule {
    /// Name of the schedule: 1 to 64 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// Prefix of the names of the schedule's snapshots: 1 to 64 characters of `[A-Za-z0-9._-]`, the
    /// first one alphanumeric. No other schedule may have the same prefix. Absent: the name of the
    /// schedule.
    #[serde(default)]
    pub prefix: Option<String>,
    /// Names of volumes. With those of the groups there must be 1 to 200.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// Names of groups. Each run takes snapshots of the volumes that are in them at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Interval between snapshots in seconds, from 10 to 2678400 (31 days).
    pub every: u64,
    /// Times by the clock on the wall. Absent: the schedule runs at multiples of its interval since
    /// 1970-01-01T00:00:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<WallClock>,
    /// Number of snapshots to keep. Absent: every snapshot is kept.
    #[serde(default)]
    pub keep: Retention,
}

/// Changes to a schedule. Absent fields stay unchanged. After the change there must be 1 to 200
/// volumes, those of the groups included. Snapshots of a volume that leaves the schedule stay, and
/// no rule deletes them any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchSchedule {
    /// Pause or resume the schedule. Snapshots that were due during the pause are not taken later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Names of volumes to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Names of volumes to remove. Volumes of groups stay: remove the group, or change it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// Names of groups to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add_groups: Vec<String>,
    /// Names of groups to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_groups: Vec<String>,
    /// Interval between snapshots in seconds, from 10 to 2678400 (31 days).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// Times by the clock on the wall. They replace all that the schedule has. If none of `at`,
    /// `on` and `between` is set, the schedule runs at multiples of its interval since
    /// 1970-01-01T00:00:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<WallClock>,
    /// Number of snapshots to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Retention>,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Requests about schedules.
impl Client {
    /// Returns all schedules, sorted by name.
    pub fn schedules(&self) -> Result<Vec<Schedule>> {
        self.get("/schedules")
    }

    /// Returns one schedule.
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

    /// Deletes a schedule. Its snapshots stay.
    pub fn delete_schedule(&self, name: &str) -> Result<()> {
        self.delete(&format!("/schedules/{}", segment(name)))
    }
}
