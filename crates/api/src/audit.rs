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
    /// Number of refused requests of this caller before this one that have no entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<u64>,
    /// SHA-256 of the line before this one, as 64 hexadecimal digits. Zeros: there is none.
    pub prev: String,
    /// Place of the entry in the audit, in responses only. A page of older entries ends before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
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
    /// The places at which the chain is broken, in their order. Empty: it is whole.
    pub problems: Vec<String>,
    /// Number of further places, which `problems` does not list.
    pub unlisted: u64,
}

/// Which entries of the audit a client reads.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// Time of the first entry.
    pub since: Option<Timestamp>,
    /// Name of the caller.
    pub who: Option<String>,
    /// Only entries before the one at this place.
    pub before: Option<String>,
    /// Maximum number of entries.
    pub limit: Option<u64>,
}

impl Client {
    /// Returns a page of the newest entries of the audit, the oldest of them first. A page has at
    /// most as many entries as one response may have.
    pub fn audit(&self, wanted: &AuditQuery) -> Result<Vec<AuditEntry>, ClientError> {
        let segment = crate::client::segment;
        let since = wanted.since.map(|since| format!("since={}", segment(&since.to_string())));
        let who = wanted.who.as_ref().map(|who| format!("who={}", segment(who)));
        let before = wanted.before.as_ref().map(|before| format!("before={}", segment(before)));
        let limit = wanted.limit.map(|limit| format!("limit={limit}"));
        let query: Vec<String> = [since, who, before, limit].into_iter().flatten().collect();
        self.get(&format!("/audit?{}", query.join("&")))
    }

    /// Verifies the chain of all entries of the audit.
    pub fn verify_audit(&self) -> Result<AuditVerification, ClientError> {
        self.get("/audit/verification")
    }
}
