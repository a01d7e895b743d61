//! Requests and responses about differences between two states of a volume, and about streams. A
//! stream is a snapshot, or a difference, as bytes.

use crate::Snapshot;
use crate::client::{Client, ClientError, segment};
use hyper::Method;
use hyper::body::{Body, Bytes, Frame};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use utoipa::ToSchema;

/// Number of bytes that an import reads at a time.
const PIECE: usize = 256 << 10;
/// Number of pieces that may wait between the thread that reads and the connection.
const PIECES: usize = 4;

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A part of the difference between two states of a volume. A large difference takes several
/// requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// The earlier state: the name of a snapshot, or `lsn:NUMBER`. A request for the next part
    /// passes this name.
    pub from: String,
    /// The later state: the name of a snapshot, or `lsn:NUMBER`. Absent: the current content of the
    /// volume.
    pub to: Option<String>,
    /// Identity of the two states. A request for the next part passes it. The server refuses that
    /// request if a name now means another state.
    pub identity: String,
    /// Size of the later state in bytes.
    pub size: u64,
    /// Ranges that may differ, in the order of offsets. They can include equal bytes, for example
    /// in whole chunks or where a client wrote the same content again. They never omit a
    /// difference.
    pub ranges: Vec<ByteRange>,
    /// Offset at which the next part begins. Absent in the last part.
    pub next: Option<u64>,
}

/// An import that was started and is not complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnfinishedImport {
    /// Name of the volume that the import fills.
    pub volume: String,
    /// Offset in the volume, in bytes, at which an export that continues the import has to start.
    pub position: u64,
    /// Identity of the content on which the stream builds. Absent: the stream is a whole snapshot.
    pub from: Option<String>,
    /// Identity of the resulting content.
    pub to: String,
    /// Whether the server is receiving a stream for this import now. A new stream of the same
    /// content takes over, and the server then refuses the earlier one.
    #[serde(default)]
    pub running: bool,
}

/// A body whose pieces arrive through a channel.
#[derive(Debug)]
pub struct ChannelBody(pub mpsc::Receiver<io::Result<Bytes>>);

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Requests about differences and streams.
impl Client {
    /// Returns the first part of the difference between a snapshot or moment and a later one of the
    /// same volume. With `to` absent, the later state is the current content of the volume.
    pub fn difference(&self, volume: &str, from: &str, to: Option<&str>) -> Result<Difference> {
        let (from, to) = (segment(from), to.map(|to| format!("&to={}", segment(to))).unwrap_or_default());
        self.get(&format!("/volumes/{}/difference?from={from}{to}", segment(volume)))
    }

    /// Returns the part of a difference after `part`, or `None` after the last one.
    pub fn difference_after(&self, volume: &str, part: &Difference) -> Result<Option<Difference>> {
        let Some(next) = part.next else { return Ok(None) };
        let to = part.to.as_ref().map(|to| format!("&to={}", segment(to))).unwrap_or_default();
        let (volume, from, identity) = (segment(volume), segment(&part.from), segment(&part.identity));
        let query = format!("offset={next}&from={from}{to}&identity={identity}");
        self.get(&format!("/volumes/{volume}/difference?{query}")).map(Some)
    }

    /// Writes a snapshot to `out` as a stream that begins at byte `start` of the volume. With
    /// `from`, the stream has only the difference from that snapshot. Returns the number of bytes
    /// written.
    pub fn export(
        &self,
        (volume, snapshot): (&str, &str),
        from: Option<&str>,
        start: u64,
        out: &mut dyn Write,
    ) -> Result<u64> {
        let from = from.map(|from| format!("&from={}", segment(from))).unwrap_or_default();
        let path = format!(
            "/volumes/{}/snapshots/{}/export?start={start}{from}",
            segment(volume),
            segment(snapshot)
        );
        self.download(&path, out)
    }

    /// Imports a stream into the volume `name`, or into the volume that the stream names. Returns
    /// the resulting snapshot.
    pub fn import(&self, name: Option<&str>, mut input: impl Read + Send + 'static) -> Result<Snapshot> {
        let (pieces, receiver) = mpsc::channel(PIECES);
        let read = move || {
            loop {
                let mut piece = vec![0; PIECE];
                let read = match input.read(&mut piece) {
                    Ok(0) => return,
                    Ok(len) => {
                        piece.truncate(len);
                        Ok(piece.into())
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let failed = read.is_err();
                if pieces.blocking_send(read).is_err() || failed {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("import".into())
            .spawn(read)
            .map_err(|e| ClientError::Protocol(format!("start a thread: {e}")))?;
        let name = name.map(|name| format!("?name={}", segment(name))).unwrap_or_default();
        self.upload(Method::POST, &format!("/imports{name}"), ChannelBody(receiver))
    }

    /// Returns the unfinished import into a volume, if there is one.
    pub fn unfinished_import(&self, volume: &str) -> Result<Option<UnfinishedImport>> {
        self.get(&format!("/volumes/{}/import", segment(volume)))
    }

    /// Cancels an import. The volume accepts writes again and keeps the content that has arrived.
    pub fn cancel_import(&self, volume: &str) -> Result<()> {
        self.delete(&format!("/volumes/{}/import", segment(volume)))
    }
}
