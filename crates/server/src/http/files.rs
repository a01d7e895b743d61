//! The routes of the files in a view.

use super::error::{ApiError, Json, Path, Query};
use super::shared::{Shared, blocking};
use super::transfer::{PIECES, permit, spawn};
use crate::app::App;
use crate::file_readers::ReadingPlace;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use hindcast_api::{ChannelBody, ErrorBody, FileEntry, FileList, MAX_FILES_PAGE, Partition, name_bytes};
use hindcast_engine::{Error, ErrorKind};
use hindcast_files::{Place, Request};
use serde::Deserialize;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Time in which a client has to take a piece of content, of 256 KiB at most.
const SLOWEST: Duration = Duration::from_secs(60);

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(partitions)).routes(routes!(files)).routes(routes!(file))
}

/// Returns the partitions in a view.
///
/// A disk without a partition table is one partition with the number 0.
#[utoipa::path(get, path = "/views/{id}/partitions", params(("id" = String, Path)), responses((status = OK, body = Vec<Partition>), (status = "default", body = ErrorBody)))]
async fn partitions(State(app): Shared, Path(id): Path<String>) -> Result<Json<Vec<Partition>>, ApiError> {
    let turn = app.file_readers.question().await?;
    blocking(&app, move |app| {
        let none = &mut |_| Ok(());
        Ok(Json(app.file_readers.ask(&app.views, &id, turn, &Request::Partitions, none)?))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilesQuery {
    #[serde(default)]
    path: String,
    partition: Option<u32>,
    after: Option<String>,
    limit: Option<u64>,
}

/// Returns the entry at a path in a view, and its entries if it is a directory.
///
/// `path` begins at the root of the file system. Default: the root. `partition` is the number of
/// the partition. Default: the only one whose files can be read. A directory with more than `limit`
/// entries takes several requests: `after` is the `next` of the previous page. Default and largest
/// `limit`: 1000.
#[utoipa::path(get, path = "/views/{id}/files", params(("id" = String, Path), ("path" = Option<String>, Query), ("partition" = Option<u32>, Query), ("after" = Option<String>, Query), ("limit" = Option<u64>, Query)), responses((status = OK, body = FileList), (status = "default", body = ErrorBody)))]
async fn files(
    State(app): Shared,
    Path(id): Path<String>,
    Query(query): Query<FilesQuery>,
) -> Result<Json<FileList>, ApiError> {
    let turn = app.file_readers.question().await?;
    blocking(&app, move |app| {
        let limit = query.limit.unwrap_or(MAX_FILES_PAGE).clamp(1, MAX_FILES_PAGE);
        let place = Place { partition: query.partition, path: query.path };
        let limit = usize::try_from(limit).unwrap_or(1);
        let request = Request::List { place, after: query.after, limit };
        Ok(Json(app.file_readers.ask(&app.views, &id, turn, &request, &mut |_| Ok(()))?))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileQuery {
    path: String,
    partition: Option<u32>,
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
}

/// Returns the content of a file in a view.
///
/// `path` and `partition` are as for a directory. `offset` is the first byte, and `length` the
/// largest number of bytes. Default: the whole file. If the file can't be read to its end, the
/// connection breaks off.
#[utoipa::path(get, path = "/views/{id}/file", params(("id" = String, Path), ("path" = String, Query), ("partition" = Option<u32>, Query), ("offset" = Option<u64>, Query), ("length" = Option<u64>, Query)), responses((status = OK, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = ErrorBody)))]
async fn file(
    State(app): Shared,
    method: Method,
    Path(id): Path<String>,
    Query(query): Query<FileQuery>,
) -> Result<Response, ApiError> {
    let permit = permit(&app)?;
    let FileQuery { path, partition, offset, length } = query;
    let place = Place { partition, path };
    let (view, describe) = (id.clone(), Request::Describe { place: place.clone() });
    let turn = app.file_readers.question().await?;
    let entry: FileEntry = blocking(&app, move |app| {
        Ok(app.file_readers.ask(&app.views, &view, turn, &describe, &mut |_| Ok(()))?)
    })
    .await?;
    let length = entry.size.saturating_sub(offset).min(length.unwrap_or(u64::MAX));
    let mut response = match method == Method::HEAD || length == 0 {
        true => Response::default(),
        false => {
            let turn = app.file_readers.content()?;
            let request = Request::Read { place, offset, length };
            let (pieces, receiver) = mpsc::channel(PIECES);
            let (tell, begun) = oneshot::channel();
            let sending = Sending { pieces, tell: Some(tell), runtime: Handle::current() };
            spawn("file", move || {
                let _permit = permit;
                sending.run(&app, (&id, turn), &request, length);
            })?;
            // What can't be read at all is an error with its text, and not a body that breaks off.
            begun.await.map_err(|_| ApiError::internal("the reading of a file panicked"))??;
            Body::new(ChannelBody(receiver)).into_response()
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    if let Ok(disposition) = HeaderValue::from_str(&saved_as(&entry.name)) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}

/// The content of a file on its way to a client.
struct Sending {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    /// Tells once whether the content begins.
    tell: Option<oneshot::Sender<hindcast_engine::Result<()>>>,
    runtime: Handle,
}

impl Sending {
    /// Reads a file of a view and passes it on. The client gets an error in the body if it has
    /// fewer bytes than were promised.
    fn run(mut self, app: &App, (view, turn): (&str, ReadingPlace), request: &Request, length: u64) {
        let mut sent = 0;
        let read = app.file_readers.ask::<()>(&app.views, view, turn, request, &mut |piece| {
            sent += piece.len() as u64;
            self.begin(Ok(()));
            self.send(Ok(piece.into()))
        });
        let read = read.and_then(|()| match sent == length {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Unsupported, "read the file: it ends before its size")),
        });
        if let Err(error) = read {
            tracing::debug!(view, %error, "the content of a file was interrupted");
            let text = error.to_string();
            self.begin(Err(error));
            let _ = self.send(Err(io::Error::other(text)));
        }
    }

    fn begin(&mut self, outcome: hindcast_engine::Result<()>) {
        // The client may be gone.
        self.tell.take().map(|tell| tell.send(outcome));
    }

    /// Waits until the client takes the piece, but not for ever.
    fn send(&self, piece: io::Result<Bytes>) -> io::Result<()> {
        let sent = self.runtime.block_on(self.pieces.send_timeout(piece, SLOWEST));
        sent.map_err(|_| io::Error::from(io::ErrorKind::ConnectionAborted))
    }
}

/// Returns the header by which browsers save a file under its name (RFC 6266, RFC 8187).
fn saved_as(name: &str) -> String {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let encoded: String = name_bytes(name)
        .iter()
        .map(|b| if is_plain(b) { char::from(*b).to_string() } else { format!("%{b:02X}") })
        .collect();
    format!("attachment; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_not_break_out_of_its_header() {
        assert_eq!(
            saved_as("a \"b\"\r\nSet-Cookie: x"),
            "attachment; filename*=UTF-8''a%20%22b%22%0D%0ASet-Cookie%3A%20x"
        );
        assert_eq!(saved_as("k\u{e4}se.txt"), "attachment; filename*=UTF-8''k%C3%A4se.txt");
    }
}
