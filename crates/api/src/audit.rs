//! The audit of the admin API: who changed what, and who was refused.

use crate::client::{Client, ClientError};
use crate::{PrincipalKind, Role};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A request that changed something, or was refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Time at which the server had carried it out.
    pub time: Timestamp,
    /// Name of the caller. Absent: the caller is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// How the caller proved who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PrincipalKind>,
    /// Role of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Address of the caller, or `unix`.
    pub address: String,
    /// Method of the request.
    pub method: String,
    /// Template of the path: `/api/v1/volumes/{name}`.
    pub route: String,
    /// Path and query of the request.
    pub subject: String,
    /// Body of the request. Secrets are left out, and long texts and lists are cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub asked: Option<Value>,
    /// HTTP status of the response.
    pub status: u16,
    /// Message of the error. Absent: the request succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time that the request took, in microseconds.
    pub micros: u64,
    /// Number of similar requests of unknown callers before this one that have no entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<u64>,
    /// SHA-256 of the line before this one, as 64 hexadecimal digits. Zeros: there is none.
    pub prev: String,
}

/// The result of a verification of the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditVerification {
    /// Number of files.
    pub files: u64,
    /// Number of entries that were verified.
    pub entries: u64,
    /// Whether the first entry continues an older file that is no longer there.
    pub continued: bool,
    /// SHA-256 of the last line. A later verification that finds this line, too, shows that nothing
    /// before it changed meanwhile.
    pub head: String,
    /// The first place at which the chain is broken. Absent: it is whole.
    pub problem: Option<String>,
}

impl Client {
    /// Returns the newest entries of the audit, the oldest of them first.
    pub fn audit(
        &self,
        since: Option<Timestamp>,
        who: Option<&str>,
        limit: Option<u64>,
    ) -> Result<Vec<AuditEntry>, ClientError> {
        let segment = crate::client::segment;
        let since = since.map(|since| format!("since={}", segment(&since.to_string())));
        let who = who.map(|who| format!("who={}", segment(who)));
        let limit = limit.map(|limit| format!("limit={limit}"));
        let query: Vec<String> = [since, who, limit].into_iter().flatten().collect();
        self.get(&format!("/audit?{}", query.join("&")))
    }

    /// Verifies the chain of all entries of the audit.
    pub fn verify_audit(&self) -> Result<AuditVerification, ClientError> {
        self.get("/audit/verification")
    }
}
