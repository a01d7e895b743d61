//! The routes of sessions and one-time links.

use super::caller::{Arrival, Caller, Key};
use super::cookie::set_cookie;
use super::error::{ApiError, Confidential, Json, Path};
use super::guests::Guest;
use super::shared::{Shared, blocking};
use crate::app::App;
use crate::identity::principal::forbidden;
use crate::identity::sessions::who;
use crate::identity::{LogInError, NewSession};
use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hindcast_api::{
    ActiveSession, CreatedLink, ErrorBody, ErrorKind, Instance, LogIn, PrincipalKind, WhoAmI,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Number of passwords that are checked at a time. Each check takes 19 MiB and a processor.
const CHECKS: usize = 2;
/// Time that a log-in waits for its turn.
const TURN: Duration = Duration::from_secs(10);
/// A turn rests after the check of a password for this many times the time of the check. So all
/// checks together take at most a quarter of a processor.
const REST: u32 = 4 * CHECKS as u32 - 1;
/// The longest rest. A check that took very long, because the machine stood still, must not keep
/// others out.
const LONGEST_REST: Duration = Duration::from_secs(2);

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(session, log_in, log_out))
        .routes(routes!(sessions))
        .routes(routes!(end_session))
        .routes(routes!(create_link))
        .routes(routes!(instance))
}

/// Returns the identity of the server's process, without credentials.
///
/// It is a random text, which every start of the server makes anew. A client that knows it from the
/// Unix socket recognizes the server at another address.
#[utoipa::path(get, path = "/instance", responses((status = OK, body = Instance)))]
async fn instance(State(app): Shared) -> Json<Instance> {
    Json(Instance { instance: app.web.instance.clone() })
}

/// Returns who the caller is, and when its session ends.
#[utoipa::path(get, path = "/session", responses((status = OK, body = WhoAmI), (status = "default", body = ErrorBody)))]
async fn session(State(app): Shared, Caller(caller): Caller, key: Option<Extension<Key>>) -> Json<WhoAmI> {
    let expires = key.and_then(|Extension(key)| app.callers.sessions.expires(&key.0));
    Json(who(&caller, expires))
}

/// Logs in: trades a name and a password, or a one-time link, for a session.
///
/// The response sets a cookie. A wrong log-in takes as long as a right one. After five wrong ones
/// of an address or a user, one attempt every ten seconds is checked. Others get status 429.
#[utoipa::path(post, path = "/session", request_body = LogIn, responses((status = CREATED, body = WhoAmI), (status = "default", body = ErrorBody)))]
async fn log_in(
    State(app): Shared,
    arrival: Option<Extension<Arrival>>,
    guest: Option<Extension<Arc<Guest>>>,
    Confidential(given): Confidential<LogIn>,
) -> Result<Response, ApiError> {
    let arrival = match arrival {
        Some(Extension(arrival)) if arrival.local.is_some() => arrival,
        _ => {
            let message = "log in: sessions are for the admin API over TCP; a Unix socket knows its callers";
            return Err(ApiError::new(ErrorKind::Unsupported, message));
        }
    };
    let address = guest.and_then(|Extension(guest)| guest.address());
    // A link costs no hash, so it works however many passwords are being checked.
    let turn = if given.password.is_some() { Some(turn_of_check().await?) } else { None };
    let began = Instant::now();
    let outcome = blocking(&app, move |app| {
        let begun = match &given {
            LogIn { name: Some(name), password: Some(password), link: None } => {
                app.callers.log_in((name, password), address)
            }
            LogIn { name: None, password: None, link: Some(link) } => app.callers.follow(link, address),
            _ => {
                let message = "log in: give either a name and a password, or a link";
                return Err(ApiError::new(ErrorKind::Invalid, message));
            }
        };
        begun.map_err(refusal)
    });
    let outcome = outcome.await;
    if let Some(turn) = turn {
        rest(turn, began.elapsed());
    }
    let NewSession { secret, caller, expires } = outcome?;
    tracing::info!(name = caller.name, kind = caller.kind.name(), "logged in");
    let mut response = (StatusCode::CREATED, Json(who(&caller, Some(expires)))).into_response();
    response.headers_mut().insert(header::SET_COOKIE, set_cookie(Some(&secret), arrival)?);
    response.extensions_mut().insert(Arc::new(caller));
    Ok(response)
}

/// Waits until a password may be checked.
async fn turn_of_check() -> Result<SemaphorePermit<'static>, ApiError> {
    static TURNS: Semaphore = Semaphore::const_new(CHECKS);
    let busy =
        || ApiError::new(ErrorKind::Busy, "log in: too many log-ins are being checked; try again later");
    let turn = tokio::time::timeout(TURN, TURNS.acquire()).await.map_err(|_| busy())?;
    turn.map_err(|_| busy())
}

/// Gives a turn back after its rest. `worked` is the time that the check took. The answer does not
/// wait for the rest.
fn rest(turn: SemaphorePermit<'static>, worked: Duration) {
    tokio::spawn(async move {
        tokio::time::sleep((worked * REST).min(LONGEST_REST)).await;
        drop(turn);
    });
}

fn refusal(error: LogInError) -> ApiError {
    match error {
        LogInError::Wrong => ApiError::new(
            ErrorKind::Unauthorized,
            "log in: the name or the password is wrong, or the link was used or has expired",
        ),
        LogInError::Later(wait) => ApiError::later(wait),
        LogInError::Failed(error) => error.into(),
    }
}

/// Logs out: ends the session of the request.
#[utoipa::path(delete, path = "/session", responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn log_out(
    State(app): Shared,
    key: Option<Extension<Key>>,
    arrival: Option<Extension<Arrival>>,
) -> Result<Response, ApiError> {
    let Some(Extension(key)) = key else {
        return Err(ApiError::new(ErrorKind::Invalid, "log out: the request has no session"));
    };
    app.callers.sessions.end(&key.0);
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(Extension(arrival)) = arrival {
        response.headers_mut().insert(header::SET_COOKIE, set_cookie(None, arrival)?);
    }
    Ok(response)
}

/// Returns the sessions of browsers, the oldest first.
#[utoipa::path(get, path = "/access/sessions", responses((status = OK, body = Vec<ActiveSession>), (status = "default", body = ErrorBody)))]
async fn sessions(State(app): Shared) -> Json<Vec<ActiveSession>> {
    Json(app.callers.sessions.list(Instant::now()))
}

/// Ends a session.
#[utoipa::path(delete, path = "/access/sessions/{id}", params(("id" = String, Path)), responses((status = NO_CONTENT), (status = "default", body = ErrorBody)))]
async fn end_session(State(app): Shared, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    match app.callers.sessions.end_by_id(&id) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::new(ErrorKind::NotFound, format!("find session {id}: it does not exist"))),
    }
}

/// Creates a link that a browser trades for a session, once, within two minutes.
///
/// The session has the role of the caller. Only a caller over the Unix socket can create one.
#[utoipa::path(post, path = "/access/links", responses((status = CREATED, body = CreatedLink), (status = "default", body = ErrorBody)))]
async fn create_link(
    State(app): Shared,
    Caller(caller): Caller,
) -> Result<(StatusCode, Json<CreatedLink>), ApiError> {
    if caller.kind != PrincipalKind::Local {
        return Err(
            forbidden("create a link: this is possible only over the Unix socket, on the server").into()
        );
    }
    let Some(url) = app.web.urls.first() else {
        let message = "create a link: the admin API has no listener over TCP; start the server with --api HOST:PORT, too";
        return Err(ApiError::new(ErrorKind::Unavailable, message));
    };
    let (secret, expires) = app.callers.make_link(&caller)?;
    let instance = app.web.instance.clone();
    Ok((StatusCode::CREATED, Json(CreatedLink { url: format!("{url}/#link={secret}"), expires, instance })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_rests_for_as_long_as_the_work_demands() {
        let worked = Duration::from_millis(20);
        let begun = Instant::now();
        let first = turn_of_check().await.unwrap();
        let second = turn_of_check().await.unwrap();
        rest(first, worked);
        rest(second, worked);
        drop(turn_of_check().await.unwrap());
        assert!(begun.elapsed() >= worked * REST);
    }
}
