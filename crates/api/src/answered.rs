//! A connection whose answers are read also after a write failed ([`Answered`]).

use crate::endpoint::Stream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection to a server that may answer before it has read the whole request.
///
/// A server that refuses a long body answers, and closes the connection. The next write of the
/// client then fails. hyper would discard an answer that it has not read. So a write that fails
/// reports no error here, and never ends. hyper then reads on: first the answer, and then the end
/// of the connection or its error.
pub(crate) struct Answered {
    stream: Pin<Box<dyn Stream>>,
    /// Whether a write failed.
    broken: bool,
}

impl Answered {
    pub(crate) fn new(stream: Pin<Box<dyn Stream>>) -> Answered {
        Answered { stream, broken: false }
    }

    fn written<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(_)) => {
                self.broken = true;
                Poll::Pending
            }
            written => written,
        }
    }
}

impl AsyncRead for Answered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, buf)
    }
}

impl AsyncWrite for Answered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.broken {
            return Poll::Pending;
        }
        let written = self.stream.as_mut().poll_write(context, buf);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.broken {
            return Poll::Pending;
        }
        let written = self.stream.as_mut().poll_write_vectored(context, bufs);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.broken {
            return Poll::Pending;
        }
        let flushed = self.stream.as_mut().poll_flush(context);
        self.written(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use hyper::client::conn::http1;
    use hyper::{Request, body::Bytes};
    use hyper_util::rt::TokioIo;
    use std::task::Waker;

    const ANSWER: &[u8] = b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n";

    /// A stream whose answer arrives just before the first write fails.
    #[derive(Default)]
    struct Closed {
        /// What is left of the answer. `None`: no write has failed yet.
        answer: Option<&'static [u8]>,
        reader: Option<Waker>,
    }

    impl AsyncRead for Closed {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let Some(answer) = &mut self.answer else {
                self.reader = Some(context.waker().clone());
                return Poll::Pending;
            };
            buf.put_slice(std::mem::take(answer));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Closed {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            self.answer.get_or_insert(ANSWER);
            self.reader.take().into_iter().for_each(Waker::wake);
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Sends a request with a body, and returns the status of the answer.
    fn status(stream: impl Stream + Unpin + 'static) -> hyper::Result<u16> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let body = Full::new(Bytes::from(vec![0; 1 << 20]));
            let request = Request::post("/").header("host", "x").body(body).unwrap();
            Ok(sender.send_request(request).await?.status().as_u16())
        })
    }

    #[test]
    fn the_answer_is_read_after_a_failed_write() {
        assert_eq!(status(Answered::new(Box::pin(Closed::default()))).unwrap(), 409);
        assert!(status(Closed::default()).is_err(), "hyper gives up");
    }
}
