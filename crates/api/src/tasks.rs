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
    }
}

/// Something that the server does in the background.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Identity: the kind and the subject.
    pub id: String,
    /// Kind: `flatten`, `relocate`, `rebalance`, `drain`, `import` or `scrub`.
    pub kind: String,
    /// Name of what it is done to: a volume, a physical volume, or the pool.
    pub subject: String,
    /// Time at which the server first saw the task since its start.
    pub begun: Timestamp,
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
    /// What the task waits for, or why it can't go on now.
    pub error: Option<String>,
    /// Whether a request can stop it.
    pub can_stop: bool,
}

impl Client {
    /// Returns the tasks that go on.
    pub fn tasks(&self) -> Result<Vec<Task>, ClientError> {
        self.get("/tasks")
    }

    /// Stops a task. What is done stays done.
    pub fn stop_task(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("/tasks/{}", segment(id)))
    }
}
