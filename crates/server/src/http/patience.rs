//! Timeouts of clients of the admin API. The server closes the connection of a client that neither
//! sends the rest of a request nor reads the rest of a response.
//!
//! Time counts only while the server waits for the client. In each window the client has to move a
//! minimum number of bytes. If one byte were enough, a slow client could hold a connection, a
//! thread's work and a place among the transfers forever.

use super::framing::Framing;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Time that the server waits for a client in one window. In it, the client has to move
/// [`BODY_LEAST`] or [`ANSWER_LEAST`].
const WINDOW: Duration = Duration::from_secs(60);
/// Minimum number of bytes of a body in each window. Every body but a stream is at most that long,
/// so it has to arrive within one window.
const BODY_LEAST: u64 = 64 << 10;
/// Minimum number of bytes of responses in each window.
const ANSWER_LEAST: u64 = 4 << 10;

struct Patience {
    window: Duration,
    least: u64,
    timer: Option<Pin<Box<Sleep>>>,
    /// Start of the current wait for the client. `None`: the server does not wait for it.
    since: Option<Instant>,
    /// Time of the completed waits in this window.
    waited: Duration,
    /// Number of bytes that the client moved in this window.
    moved: u64,
}

impl Patience {
    fn new(window: Duration, least: u64) -> Patience {
        Patience { window, least, timer: None, since: None, waited: Duration::ZERO, moved: 0 }
    }

    /// Counts bytes that arrived or were sent. Fails when the client was too slow.
    fn moved(&mut self, bytes: usize) -> io::Result<()> {
        self.moved += bytes as u64;
        self.look(Instant::now())
    }

    /// Records that the server waits for the client, and wakes the task at the end of the window.
    /// Fails when the client was too slow.
    fn waits(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let now = Instant::now();
        self.look(now)?;
        self.since = Some(now);
        let left = self.window.saturating_sub(self.waited);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(left)));
        timer.as_mut().reset(now + left);
        // Should it be over already, the task runs again at once.
        if timer.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        Ok(())
    }

    fn look(&mut self, now: Instant) -> io::Result<()> {
        if let Some(since) = self.since.take() {
            self.waited += now - since;
        }
        if self.waited < self.window {
            return Ok(());
        }
        if self.moved < self.least {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the client did not send or read in time"));
        }
        (self.waited, self.moved) = (Duration::ZERO, 0);
        Ok(())
    }
}

/// Bytes that hyper reads after a refused byte. Hyper parses an incomplete head, or incomplete
/// trailers, again only when they seem to be complete.
const END: &[u8] = b"\r\n\r\n";

/// A connection with a timeout for the reading of responses, and with a check that requests are
/// unambiguous. After an ambiguous byte, nothing more is read from the stream.
pub(super) struct TimedIo<S> {
    stream: S,
    /// `None`: the connection speaks HTTP/2, whose frames have lengths.
    framing: Option<Framing>,
    /// Part of [`END`] that hyper has not read yet.
    end: &'static [u8],
    patience: Patience,
}

impl<S> TimedIo<S> {
    pub(super) fn new(stream: S) -> TimedIo<S> {
        let patience = Patience::new(WINDOW, ANSWER_LEAST);
        TimedIo { stream, framing: Some(Framing::new()), end: END, patience }
    }

    /// Makes a connection of HTTP/2.
    pub(super) fn http2(stream: S) -> TimedIo<S> {
        TimedIo { framing: None, ..TimedIo::new(stream) }
    }

    fn written(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => Poll::Ready(self.patience.moved(bytes).map(|()| bytes)),
            Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
            Poll::Pending => match self.patience.waits(context) {
                Ok(()) => Poll::Pending,
                Err(e) => Poll::Ready(Err(e)),
            },
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.framing.as_ref().is_some_and(Framing::is_refused) {
            let (now, later) = self.end.split_at(self.end.len().min(buf.remaining()));
            buf.put_slice(now);
            self.end = later;
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buf);
        if let Some(framing) = &mut self.framing {
            let counts = framing.look(&mut buf.filled_mut()[before..]);
            buf.set_filled(before + counts);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, buf);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bufs);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS keeps what was written until the client reads.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.written(flushed.map_ok(|()| 0), context).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A request's body with a timeout for its arrival.
pub(super) struct TimedBody<B> {
    body: B,
    patience: Patience,
}

impl<B> TimedBody<B> {
    pub(super) fn new(body: B) -> TimedBody<B> {
        TimedBody { body, patience: Patience::new(WINDOW, BODY_LEAST) }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for TimedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            return match self.patience.waits(context) {
                Ok(()) => Poll::Pending,
                Err(e) => Poll::Ready(Some(Err(e.into()))),
            };
        };
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into)?;
        self.patience.moved(frame.data_ref().map_or(0, Bytes::len))?;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::task::ready;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::sync::mpsc;

    /// Runs a test with paused time: time advances as soon as all tasks wait.
    fn run(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn an_answer_that_is_not_taken_is_given_up() {
        run(async {
            let (ours, _theirs) = duplex(1024);
            let start = Instant::now();
            let written = TimedIo::new(ours).write_all(&[0; 4096]).await;
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(start.elapsed().as_secs(), WINDOW.as_secs());
        });
    }

    #[test]
    fn a_byte_now_and_then_is_not_taking_an_answer() {
        run(async {
            let (ours, mut theirs) = duplex(1024);
            tokio::spawn(async move {
                loop {
                    sleep(Duration::from_secs(1)).await;
                    if theirs.read_u8().await.is_err() {
                        return;
                    }
                }
            });
            let written = TimedIo::new(ours).write_all(&[0; 1 << 20]).await;
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_slow_reader_that_takes_enough_is_served() {
        run(async {
            let (ours, mut theirs) = duplex(1024);
            tokio::spawn(async move {
                let mut piece = [0; 1024];
                while theirs.read_exact(&mut piece).await.is_ok() {
                    sleep(Duration::from_secs(10)).await;
                }
            });
            TimedIo::new(ours).write_all(&[0; 64 << 10]).await.unwrap();
        });
    }

    struct Pieces(mpsc::Receiver<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            Poll::Ready(ready!(self.0.poll_recv(context)).map(|piece| Ok(Frame::data(piece))))
        }
    }

    #[test]
    fn a_body_that_does_not_come_is_given_up_and_one_that_comes_slowly_is_not() {
        run(async {
            let (send, pieces) = mpsc::channel(1);
            let start = Instant::now();
            assert!(TimedBody::new(Pieces(pieces)).collect().await.is_err());
            assert_eq!(start.elapsed().as_secs(), WINDOW.as_secs());
            drop(send);
            for (every, bytes, comes) in [(1, 1, false), (17, 40 << 10, true)] {
                let (send, pieces) = mpsc::channel(1);
                tokio::spawn(async move {
                    for _ in 0..200 {
                        sleep(Duration::from_secs(every)).await;
                        if send.send(vec![0; bytes].into()).await.is_err() {
                            return;
                        }
                    }
                });
                assert_eq!(TimedBody::new(Pieces(pieces)).collect().await.is_ok(), comes, "{bytes} bytes");
            }
        });
    }

    /// Time that the server itself takes does not count against the client.
    #[test]
    fn time_counts_only_while_the_client_is_waited_for() {
        run(async {
            let (send, pieces) = mpsc::channel(8);
            for _ in 0..4 {
                send.send(Bytes::from_static(b"x")).await.unwrap();
            }
            drop(send);
            let mut body = TimedBody::new(Pieces(pieces));
            while let Some(frame) = body.frame().await {
                frame.unwrap();
                sleep(WINDOW * 2).await;
            }
        });
    }
}
