//! Responses about tasks: what the server does in the background for an operator.

use crate::client::{Client, ClientError, segment};
use crate::named::named;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

named! {
    /// State of a task.
    pub enum TaskState {
        /// It goes on.
        Running = "running",
        /// It waits for something, and goes on by itself or on a request.
        Waiting = "waiting",
        /// It has ended, and everything is done.
        Done = "done",
        /// It has failed.
        Failed = "failed",
        /// A request stopped it, or its volume was deleted or renamed.
        Stopped = "stopped",
    }
}

/// Something that the server does in the background.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Identity: the kind and the subject.
    pub id: String,
    /// Kind: `flatten`, `relocate`, `rebalance`, `drain`, `rebuild`, `take-over`, `grow`, `export`,
    /// `import` or `scrub`. The server does three kinds on its own, and lists them while they last:
    /// `free`, which frees the space of volumes that were deleted for good, `dissolve`, which frees
    /// what only deleted snapshots needed, and `recompress`, which compresses old history harder.
    pub kind: String,
    /// Name of what it is done to: a volume, a physical volume, or the pool.
    pub subject: String,
    /// Time at which the server first saw the task after the server started.
    pub begun: Timestamp,
    /// Time at which the server noticed the end of the task. Absent: the task has not ended. The
    /// server lists a task for an hour after its end, and at most the last 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// Number of bytes that are done.
    pub done: u64,
    /// Number of bytes of the whole task. Absent if it is not known.
    pub total: Option<u64>,
    /// Bytes per second lately. Absent if it is not known yet.
    pub rate: Option<f64>,
    /// Seconds until the end at that rate. Absent if it is not known.
    pub seconds_left: Option<f64>,
    /// State of the task.
    pub state: TaskState,
    /// What the task waits for, why it can't go on now, or why it failed.
    pub error: Option<String>,
    /// Whether a request can stop it.
    pub can_stop: bool,
}

impl Client {
    /// Returns the tasks that go on, and those that have ended lately.
    pub fn tasks(&self) -> Result<Vec<Task>, ClientError> {
        self.get("/tasks")
    }

    /// Stops a task. What is done stays done.
    pub fn stop_task(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("/tasks/{}", segment(id)))
    }
}
