//! The check that every request passes before its handler: who calls, and whether the caller may.

use super::answers::{finish, hold};
use super::auditing::{Audited, not_ready};
use super::caller::{Arrival, Key, Peer, unknown};
use super::described::Described;
use super::error::ApiError;
use super::guests::{Guest, through};
use super::roles::{self, Needs, Row, VIEW, VOLUME_OF_VIEW};
use super::room::AnswerRoom;
use super::selection::Selection;
use super::withhold::Withhold;
use super::{by_uuid, cookie, origin};
use crate::app::App;
use crate::held_names::Held;
use crate::host_paths::Door;
use crate::identity::principal::{Principal, forbidden};
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_target::Repeated;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Maximum size of a request's body in bytes, except for imports. Other requests are small, so a
/// larger body is a mistake.
pub(super) const MAX_BODY: usize = 64 << 10;

/// Why the server does not know a caller.
enum Stranger {
    /// The user of the process at the other end of the Unix socket has no access.
    Local,
    /// The bearer token is wrong.
    WrongToken,
    /// The request may come from a page of another site.
    Foreign(&'static str),
}

/// The check of the requests of one listener.
#[derive(Clone)]
pub(super) struct RouteGuard {
    pub(super) app: Arc<App>,
    pub(super) door: Door,
    /// Room for the responses of all listeners.
    pub(super) room: Arc<AnswerRoom>,
    /// What the description of the API says of responses.
    pub(super) described: Arc<Described>,
}

impl RouteGuard {
    /// Handles a request: finds the caller, checks its role and scope, calls the handler, and
    /// writes the audit.
    ///
    /// Requests outside the routes of the API need no credentials.
    pub(super) async fn handle(self, request: Request, next: Next) -> Response {
        let path = request.extensions().get::<MatchedPath>().cloned();
        let Some(path) = path.filter(|path| roles::needs_row(path.as_str())) else {
            return next.run(request).await;
        };
        let Some(row) = roles::find(request.method().as_str(), path.as_str()) else {
            return no_row(path.as_str()).into_response();
        };
        let changes = row.method != "GET";
        let (door, mut audited) = (self.door, Audited::new(&request));
        let guest = request.extensions().get::<Arc<Guest>>().cloned();
        // The volumes of the request keep their names until it has ended, also if its client goes
        // away.
        let held = request.extensions().get::<Arc<Held>>().cloned().unwrap_or_default();
        let work = async move {
            let checked = self.check(row, request, (&held, &mut audited)).await;
            let selected = checked.and_then(|mut request| {
                let selection = Selection::take(&mut request, row.path, &self.described)?;
                Ok((request, selection))
            });
            let response = match selected {
                Ok((request, selection)) => {
                    let withhold = request.extensions().get::<Withhold>().cloned();
                    let mut response = finish(next.run(request).await).await;
                    if let Some(withhold) = withhold {
                        response = withhold.filter(&self.app, response).await;
                    }
                    if let Some(selection) = selection {
                        response = selection.apply(response).await;
                    }
                    // A change that was made is never answered as if it were refused for lack of
                    // room. Answers to changes are short.
                    match changes {
                        true => response,
                        false => hold(response, guest.as_ref(), &self.room),
                    }
                }
                Err(error) => error.into_response(),
            };
            audited.close(&self.app, changes, response).await
        };
        if !changes {
            return work.await;
        }
        // A client that goes away must not keep a change out of the audit.
        match tokio::spawn(through(door, work)).await {
            Ok(response) => response,
            Err(error) => ApiError::internal(format!("the request panicked: {error}")).into_response(),
        }
    }

    /// Returns the request for the handler, with its caller.
    async fn check(
        &self,
        row: &Row,
        mut request: Request,
        (held, audited): (&Held, &mut Audited),
    ) -> Result<Request, ApiError> {
        if row.needs == Needs::Nothing {
            origin::check_without_cookie(&request).map_err(forbidden)?;
        }
        let caller = match self.identify(&mut request) {
            Ok(caller) => caller,
            // Wrong credentials do not matter here.
            Err(_) if row.needs == Needs::Nothing => None,
            Err(Stranger::Local) => {
                let stranger =
                    "only root, the server's own user and members of --api-socket-group may use this socket";
                return Err(forbidden(stranger).into());
            }
            Err(Stranger::Foreign(why)) => return Err(forbidden(why).into()),
            Err(Stranger::WrongToken) => {
                let guest = request.extensions().get::<Arc<Guest>>().cloned();
                return Err(wrong_token(guest).await);
            }
        };
        // A log-in is the act of the one who logs in, not of the caller whose cookie comes with it.
        if row.needs != Needs::Nothing {
            audited.caller = caller.clone();
        }
        if caller.is_none() && row.needs != Needs::Nothing {
            return Err(unknown("the bearer token is missing or wrong, or the session has ended").into());
        }
        if !row.is_harmless() {
            audited.turn = Some(self.app.audit.ready().await.map_err(|why| not_ready(&why))?);
        }
        self.admit(row, caller, request, (held, audited)).await
    }

    /// Returns the caller. `None`: the request has no credentials.
    ///
    /// With a session, the request gets the session's key as an extension.
    fn identify(&self, request: &mut Request) -> Result<Option<Arc<Principal>>, Stranger> {
        if self.door == Door::Local {
            let peer = request.extensions().get::<Peer>().and_then(|peer| peer.0.clone());
            return peer.map(Some).ok_or(Stranger::Local);
        }
        if let Some(token) = bearer(request.headers()) {
            let caller = self.app.callers.bearer(token).ok_or(Stranger::WrongToken)?;
            return Ok(Some(Arc::new(caller)));
        }
        let Some(arrival) = request.extensions().get::<Arrival>().copied() else { return Ok(None) };
        let secret = cookie::cookie(request.headers(), arrival);
        let known = secret.and_then(|secret| self.app.callers.sessions.caller(secret, Instant::now()));
        let Some((caller, key)) = known else { return Ok(None) };
        origin::check_with_cookie(request, arrival).map_err(Stranger::Foreign)?;
        request.extensions_mut().insert(Key(key));
        Ok(Some(caller))
    }

    /// Checks that the caller may use the route, and adds the caller to the request.
    async fn admit(
        &self,
        row: &Row,
        caller: Option<Arc<Principal>>,
        request: Request,
        (held, audited): (&Held, &mut Audited),
    ) -> Result<Request, ApiError> {
        let guest = request.extensions().get::<Arc<Guest>>();
        let network = self.door == Door::Network;
        if caller.is_some() && network && !guest.is_none_or(|guest| guest.settle()) {
            return Err(ApiError::full());
        }
        let (mut parts, mut body) = request.into_parts();
        if row.method != "GET" && !row.streams() {
            (body, audited.asked) = read_json(body).await?;
            // The access of tokens and users is by names.
            let is_access = row.path.starts_with("/access/");
            if let Some(asked) = audited.asked.as_mut().filter(|_| caller.is_some() && !is_access)
                && by_uuid::settle_body(&self.app, held, asked).await?
            {
                body = Body::from(asked.to_string());
                parts.headers.remove(header::CONTENT_LENGTH);
            }
        }
        let withhold = caller.as_ref().and_then(|c| Withhold::of(c, &parts.uri, audited.asked.as_ref()));
        withhold.map(|withhold| parts.extensions.insert(withhold));
        if let Some(caller) = caller {
            let parameters = RawPathParams::from_request_parts(&mut parts, &()).await;
            let parameters = parameters.map_err(|e| ApiError::new(ErrorKind::Invalid, e.body_text()))?;
            let mut parameters: Vec<(&str, &str)> = parameters.iter().collect();
            let id = parameters.iter().find(|(name, _)| *name == "id" && row.reach == VIEW);
            let of_view = id.and_then(|(_, id)| self.app.volume_of_view(id));
            parameters.extend(of_view.as_deref().map(|volume| (VOLUME_OF_VIEW, volume)));
            row.admit(&caller, &parameters, audited.asked.as_ref())?;
            parts.extensions.insert(caller);
        }
        Ok(Request::from_parts(parts, body))
    }
}

/// Reads a body whole. Returns it for the handler, and its JSON value. A body that is not JSON has
/// none; the handler refuses it.
async fn read_json(body: Body) -> Result<(Body, Option<Value>), ApiError> {
    let bytes: Bytes = axum::body::to_bytes(body, MAX_BODY)
        .await
        .map_err(|e| ApiError::new(ErrorKind::Invalid, format!("read the body of the request: {e}")))?;
    let value: Option<Value> = serde_json::from_slice(&bytes).ok();
    // A list could stand for an object, by the order of its fields. The checks of scopes and the
    // audit go by the names of fields.
    if value.as_ref().is_some_and(|value| !value.is_object() && !value.is_null()) {
        return Err(ApiError::new(ErrorKind::Invalid, "the body of the request must be a JSON object"));
    }
    Ok((Body::from(bytes), value))
}

/// Returns the answer for a route that has no row for the method of the request.
fn no_row(path: &str) -> Response {
    if roles::knows_path(path) {
        let body = ErrorBody {
            kind: ErrorKind::Unsupported,
            message: "this path of the admin API does not have this method".into(),
        };
        return (StatusCode::METHOD_NOT_ALLOWED, axum::Json(body)).into_response();
    }
    ApiError::from(forbidden(format!("use {path}: no role may use this route"))).into_response()
}

/// Returns the bearer token of a request.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = given.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the error for a wrong token, after a delay.
async fn wrong_token(guest: Option<Arc<Guest>>) -> ApiError {
    let address = guest.as_ref().and_then(|guest| guest.address());
    tell_of_wrong_token(address);
    let held = match guest {
        Some(guest) => guest.hold_back().await,
        None => true,
    };
    if held {
        return unknown("the bearer token is missing or wrong").into();
    }
    tell_of_guessing(address);
    ApiError::guessing()
}

fn tell_of_wrong_token(peer: Option<IpAddr>) {
    static WRONG: Repeated = Repeated::new();
    if let Some(turn) = WRONG.turn() {
        tracing::warn!(
            peer = shown(peer),
            suppressed = turn.suppressed(),
            "a request to the admin API had a wrong token"
        );
    }
}

fn tell_of_guessing(peer: Option<IpAddr>) {
    static MANY: Repeated = Repeated::new();
    if let Some(turn) = MANY.turn() {
        let (peer, suppressed) = (shown(peer), turn.suppressed());
        tracing::warn!(
            peer,
            suppressed,
            "many requests to the admin API have a wrong token; the server answers them with 429"
        );
    }
}

fn shown(peer: Option<IpAddr>) -> String {
    peer.map_or_else(|| "unix".to_owned(), |peer| peer.to_canonical().to_string())
}
