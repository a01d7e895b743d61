//! Requests and responses about differences between two states, and about snapshots as streams of
//! bytes.

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

/// Bytes that an import reads at once.
const PIECE: usize = 256 << 10;
/// Pieces between the thread that reads and the connection.
const PIECES: usize = 4;

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ByteRange {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

/// A part of the difference between two states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// What was compared: the name of a snapshot, or `lsn:NUMBER`. Asked for by these the next part
    /// is of the same.
    pub from: String,
    /// With what; absent: the volume as it is now.
    pub to: Option<String>,
    /// What these names meant: a next part that is asked for with it is of the same, or refused.
    pub identity: String,
    /// Size of the later state, bytes.
    pub size: u64,
    /// What may differ, in order. It can be too much (whole chunks, what was written again as it
    /// was), never too little.
    pub ranges: Vec<ByteRange>,
    /// Where to go on; absent when this is all.
    pub next: Option<u64>,
}

/// An import that was begun and did not end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnfinishedImport {
    /// The volume that it fills.
    pub volume: String,
    /// Where an export that goes on with it has to start, a byte of the volume.
    pub position: u64,
    /// Identity of the content that it builds upon; absent: it is a whole snapshot.
    pub from: Option<String>,
    /// Identity of the content that results.
    pub to: String,
    /// A stream arrives for it now. A new one of the same content takes over: the one that arrives
    /// now is refused.
    #[serde(default)]
    pub running: bool,
}

/// A body that arrives piece by piece.
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

/// Differences and streams.
impl Client {
    /// What differs between a snapshot or a moment and a later one of the same volume, or the
    /// volume as it is now: the first part of it.
    pub fn difference(&self, volume: &str, from: &str, to: Option<&str>) -> Result<Difference> {
        let (from, to) = (segment(from), to.map(|to| format!("&to={}", segment(to))).unwrap_or_default());
        self.get(&format!("/volumes/{}/difference?from={from}{to}", segment(volume)))
    }

    /// The part that follows; `None` after the last.
    pub fn difference_after(&self, volume: &str, part: &Difference) -> Result<Option<Difference>> {
        let Some(next) = part.next else { return Ok(None) };
        let to = part.to.as_ref().map(|to| format!("&to={}", segment(to))).unwrap_or_default();
        let (volume, from, identity) = (segment(volume), segment(&part.from), segment(&part.identity));
        let query = format!("offset={next}&from={from}{to}&identity={identity}");
        self.get(&format!("/volumes/{volume}/difference?{query}")).map(Some)
    }

    /// Writes a snapshot to `out`, or what differs from the snapshot `from`, beginning at byte
    /// `start` of the volume. Tells how many bytes that were.
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

    /// Takes a stream in, into the volume `name` or the one that it names. Returns the snapshot
    /// that it brought.
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

    /// The import into a volume that did not end, if there is one.
    pub fn unfinished_import(&self, volume: &str) -> Result<Option<UnfinishedImport>> {
        self.get(&format!("/volumes/{}/import", segment(volume)))
    }

    /// Gives an import up: the volume takes writes again, with what has arrived so far.
    pub fn cancel_import(&self, volume: &str) -> Result<()> {
        self.delete(&format!("/volumes/{}/import", segment(volume)))
    }
}
