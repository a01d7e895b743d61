//! Entries of the audit about requests: what a request was, and how it ended.

use super::error::ApiError;
use super::guests::Guest;
use crate::app::App;
use crate::audit::{EntryTurn, without_secrets};
use crate::identity::principal::Principal;
use axum::extract::{MatchedPath, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use hindcast_api::{AuditEntry, ErrorBody, ErrorKind};
use hindcast_target::Repeated;
use jiff::Timestamp;
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;

/// Maximum length of a path in an entry, in characters.
const MAX_SUBJECT: usize = 1024;
/// Maximum number of characters of an error in an entry.
const MAX_ERROR: usize = 500;

/// A request, as the audit describes it.
pub(super) struct Audited {
    begun: Instant,
    address: String,
    method: String,
    route: String,
    subject: String,
    /// Whether the request has a token or logs in. The console asks without credentials whether it
    /// has a session; such a request makes no event.
    has_credentials: bool,
    /// The caller, as soon as it is known.
    pub(super) caller: Option<Arc<Principal>>,
    /// The body, as soon as it was read.
    pub(super) asked: Option<Value>,
    /// The place for the entry of a change.
    pub(super) turn: Option<EntryTurn>,
}

impl Audited {
    pub(super) fn new(request: &Request) -> Audited {
        let guest = request.extensions().get::<Arc<Guest>>().and_then(|guest| guest.address());
        let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        let has_token = request.headers().contains_key(AUTHORIZATION);
        let logs_in = request.method() == Method::POST && route.ends_with("/session");
        let subject = request.uri().path_and_query().map_or("", |path| path.as_str());
        Audited {
            begun: Instant::now(),
            address: guest.map_or_else(|| "unix".into(), |guest| guest.to_canonical().to_string()),
            method: request.method().as_str().into(),
            route: route.into(),
            subject: subject.chars().take(MAX_SUBJECT).collect(),
            has_credentials: has_token || logs_in,
            caller: None,
            asked: None,
            turn: None,
        }
    }

    fn entry(self, response: &Response, suppressed: Option<u64>) -> AuditEntry {
        let by_log_in = response.extensions().get::<Arc<Principal>>().cloned();
        let caller = by_log_in.or(self.caller);
        let error = response.extensions().get::<ErrorBody>();
        let error = error.map(|body| body.message.chars().take(MAX_ERROR).collect());
        // The body of a refused request is as long as its caller likes.
        let asked = self.asked.as_ref().filter(|_| !is_refused(response.status()));
        AuditEntry {
            time: Timestamp::now(),
            who: caller.as_ref().map(|caller| caller.name.clone()),
            kind: caller.as_ref().map(|caller| caller.kind),
            role: caller.as_ref().map(|caller| caller.role),
            address: self.address,
            method: self.method,
            route: self.route,
            subject: self.subject,
            asked: asked.map(without_secrets),
            status: response.status().as_u16(),
            error,
            micros: u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            suppressed,
            prev: String::new(),
            at: None,
        }
    }

    /// Writes the entry of a request before its response is sent, if the audit has such requests:
    /// those that change something, and those that are refused. Returns the response to send.
    pub(super) async fn close(mut self, app: &Arc<App>, changes: bool, response: Response) -> Response {
        let status = response.status();
        if !changes && !is_refused(status) {
            return response;
        }
        let mut suppressed = None;
        if is_refused(status) || (self.caller.is_none() && status.is_client_error()) {
            let turn = app.audit.refusals.turn(self.caller.as_ref(), Instant::now());
            let Some(left_out) = turn else { return response };
            suppressed = (left_out > 0).then_some(left_out);
            self.tell_of_refusal(status);
        }
        let turn = self.turn.take();
        let Err(why) = app.audit.record(self.entry(&response, suppressed), turn).await else {
            return response;
        };
        if !changes || !status.is_success() {
            return response;
        }
        let message = format!("write the audit: {why}; the request itself was carried out");
        ApiError::new(ErrorKind::Io, message).into_response()
    }

    /// Makes an event of a refused request, if there is room for one.
    fn tell_of_refusal(&self, status: StatusCode) {
        static REFUSED: Repeated = Repeated::events();
        if !is_refused(status) || (self.caller.is_none() && !self.has_credentials) {
            return;
        }
        let Some(turn) = REFUSED.turn() else { return };
        tracing::info!(
            event = "access.refused",
            peer = self.address,
            who = self.caller.as_ref().map(|caller| caller.name.as_str()),
            request = format_args!("{} {}", self.method, self.route),
            status = status.as_u16(),
            suppressed = turn.suppressed(),
            "a request to the admin API was refused"
        );
    }
}

fn is_refused(status: StatusCode) -> bool {
    [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS].contains(&status)
}

/// Returns the error for a change while the audit can't be written.
pub(super) fn not_ready(why: &str) -> ApiError {
    let message = format!("change something: the audit can't be written, so changes are refused: {why}");
    ApiError::new(ErrorKind::Io, message)
}
