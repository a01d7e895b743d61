//! Requests about notices, by which the server reports problems to a command or a webhook.

use crate::client::{Client, ClientError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Result of the delivery of one notice to one receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NoticeDelivery {
    /// The receiver: `command` or `webhook`.
    pub receiver: String,
    /// Why the delivery failed. Absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Requests about notices.
impl Client {
    /// Sends a test notice to all configured receivers, and returns the results.
    pub fn test_notices(&self) -> Result<Vec<NoticeDelivery>, ClientError> {
        self.send(hyper::Method::POST, "/notify/test", &())
    }
}
