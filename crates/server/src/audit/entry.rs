//! Entries of the audit: those of the server itself, and bodies of requests without their secrets.

use hindcast_api::AuditEntry;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// Maximum number of characters of a text in an entry.
const MAX_TEXT: usize = 256;
/// Maximum number of elements of a list in an entry.
const MAX_LIST: usize = 64;
/// Maximum depth of values in an entry.
const MAX_DEPTH: usize = 6;
/// Words in the names of keys whose values are secrets.
const SECRETS: [&str; 5] = ["secret", "password", "token", "link", "key"];
/// Beginning of the server's entries about lines that are gone.
const GONE: &str = "lines of the audit are gone";

/// Returns an entry of the server itself. Its method is empty, which no request has.
pub(super) fn note(text: impl Into<String>) -> AuditEntry {
    AuditEntry {
        time: Timestamp::now(),
        who: None,
        kind: None,
        role: None,
        address: "server".into(),
        method: String::new(),
        route: String::new(),
        subject: text.into(),
        asked: None,
        status: 0,
        error: None,
        micros: 0,
        suppressed: None,
        prev: String::new(),
        at: None,
    }
}

/// Returns the server's entry about lines that are gone. Verifications report it.
pub(super) fn gone(why: &str) -> AuditEntry {
    note(format!("{GONE}: {why}"))
}

/// Returns whether the entry is one that [`gone`] made.
pub(super) fn is_gone(entry: &AuditEntry) -> bool {
    entry.method.is_empty() && entry.subject.starts_with(GONE)
}

/// Returns a body for an entry: without secrets, and with long texts and lists cut.
pub(crate) fn without_secrets(value: &Value) -> Value {
    pruned(value, MAX_DEPTH)
}

fn pruned(value: &Value, depth: usize) -> Value {
    match value {
        Value::String(text) if text.chars().count() > MAX_TEXT => {
            Value::String(text.chars().take(MAX_TEXT).chain(['…']).collect())
        }
        Value::Array(_) | Value::Object(_) if depth == 0 => Value::String("…".into()),
        Value::Array(all) => Value::Array(all.iter().take(MAX_LIST).map(|v| pruned(v, depth - 1)).collect()),
        Value::Object(fields) => {
            let kept = fields.iter().take(MAX_LIST).map(|(key, value)| {
                let lower = key.to_ascii_lowercase();
                let secret = SECRETS.iter().any(|word| lower.contains(word)) && !value.is_null();
                let value = if secret { Value::String("left out".into()) } else { pruned(value, depth - 1) };
                (key.chars().take(MAX_TEXT).collect(), value)
            });
            Value::Object(kept.collect::<Map<String, Value>>())
        }
        other => other.clone(),
    }
}
