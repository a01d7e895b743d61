//! Refuses requests that two programs could take to end, or to begin, in different places.
//!
//! Where a proxy and this server disagree about that, one client's bytes become another's request.
//! HTTP leaves to a server to be lenient; hyper ends a line at a bare LF, for one, and takes a
//! request that has both Content-Length and Transfer-Encoding. So what comes in is followed here, by
//! the strict reading of RFC 9112, before hyper sees it. The byte that makes a request ambiguous
//! becomes NUL, which hyper takes nowhere in a head or between chunks: it answers 400, and closes.
//! So does a head that goes on and on.

/// Longest head, and longest trailers.
const MAX_HEAD: usize = 64 << 10;
/// Of a line as much is kept: more than any that matters has.
const MAX_LINE: usize = 256;

/// Headers that come once at most.
const SINGLE: [&[u8]; 4] = [b"host", b"authorization", CONTENT_LENGTH, TRANSFER_ENCODING];
const CONTENT_LENGTH: &[u8] = b"content-length";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding";

/// Where in the stream of requests of a connection the next byte is.
pub(super) struct Framing {
    at: At,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// Bytes of lines since the last content.
    bytes: usize,
    head: Head,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// In a line of a head or of trailers, the size of a chunk, or the end of one.
    Line(Line),
    /// In so many bytes of a body.
    Body(u64),
    /// In so many bytes of a chunk.
    Chunk(u64),
    /// Behind what was refused: nothing is looked at any more.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The request itself.
    Request,
    Header,
    ChunkSize,
    /// The empty one behind a chunk.
    ChunkEnd,
    Trailer,
}

/// What a head has said so far.
#[derive(Default)]
struct Head {
    /// Which of [`SINGLE`] came.
    seen: [bool; SINGLE.len()],
    length: u64,
    chunked: bool,
}

struct Ambiguous;

impl Framing {
    /// At the beginning of a connection.
    pub(super) fn new() -> Framing {
        Framing { at: At::Line(Line::Request), line: Vec::new(), bytes: 0, head: Head::default() }
    }

    /// Looks at bytes that came in, and spoils them where they are ambiguous.
    pub(super) fn look(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let skip = match self.at {
                At::Refused => return,
                At::Body(left) => self.skip(left, rest.len(), At::Body, Line::Request),
                At::Chunk(left) => self.skip(left, rest.len(), At::Chunk, Line::ChunkEnd),
                At::Line(line) => {
                    if self.take(line, rest[0]).is_err() {
                        rest[0] = 0;
                        self.at = At::Refused;
                    }
                    1
                }
            };
            rest = &mut rest[skip..];
        }
    }

    /// Passes by content, of which `left` bytes are to come; `next` follows.
    fn skip(&mut self, left: u64, there: usize, more: impl Fn(u64) -> At, next: Line) -> usize {
        let skip = usize::try_from(left).unwrap_or(usize::MAX).min(there);
        self.at = match left - skip as u64 {
            0 => At::Line(next),
            left => more(left),
        };
        self.bytes = 0;
        skip
    }

    /// One byte of a line. Lines end with CR LF, and have neither elsewhere.
    fn take(&mut self, line: Line, byte: u8) -> Result<(), Ambiguous> {
        self.bytes += 1;
        if self.bytes > MAX_HEAD {
            return Err(Ambiguous);
        }
        let after_cr = self.line.last() == Some(&b'\r');
        match byte {
            b'\n' if after_cr => {
                self.line.pop();
                let text = std::mem::take(&mut self.line);
                self.at = self.end_of(line, &text)?;
                // The memory serves the next line.
                self.line = text;
                self.line.clear();
            }
            b'\n' | 0 => return Err(Ambiguous),
            _ if after_cr => return Err(Ambiguous),
            b'\r' => {
                self.line.truncate(MAX_LINE);
                self.line.push(byte);
            }
            _ if self.line.len() < MAX_LINE => self.line.push(byte),
            // Of a long line only the end matters, and that it was long.
            _ => {}
        }
        Ok(())
    }

    /// What follows a whole line.
    fn end_of(&mut self, line: Line, text: &[u8]) -> Result<At, Ambiguous> {
        let next = match line {
            // Empty lines in front of a request are nothing.
            Line::Request if text.is_empty() => Line::Request,
            Line::Request | Line::Header if !text.is_empty() => {
                if line == Line::Header {
                    self.head.header(text)?;
                }
                Line::Header
            }
            Line::Request | Line::Header => {
                self.bytes = 0;
                let head = std::mem::take(&mut self.head);
                return Ok(match (head.chunked, head.length) {
                    (true, _) => At::Line(Line::ChunkSize),
                    (false, 0) => At::Line(Line::Request),
                    (false, length) => At::Body(length),
                });
            }
            Line::ChunkSize => match chunk_size(text)? {
                0 => Line::Trailer,
                size => return Ok(At::Chunk(size)),
            },
            Line::ChunkEnd if text.is_empty() => Line::ChunkSize,
            Line::ChunkEnd => return Err(Ambiguous),
            Line::Trailer if text.is_empty() => {
                self.bytes = 0;
                Line::Request
            }
            Line::Trailer => Line::Trailer,
        };
        Ok(At::Line(next))
    }
}

impl Head {
    /// One header.
    fn header(&mut self, line: &[u8]) -> Result<(), Ambiguous> {
        let colon = line.iter().position(|byte| *byte == b':').ok_or(Ambiguous)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        // A blank in front continues the line before, or does not; one behind belongs to the name,
        // or does not.
        if name.is_empty() || name.iter().any(|byte| byte.is_ascii_whitespace()) {
            return Err(Ambiguous);
        }
        let Some(which) = SINGLE.iter().position(|single| name.eq_ignore_ascii_case(single)) else {
            return Ok(());
        };
        if std::mem::replace(&mut self.seen[which], true) {
            return Err(Ambiguous);
        }
        match SINGLE[which] {
            CONTENT_LENGTH if self.chunked => return Err(Ambiguous),
            CONTENT_LENGTH => self.length = number(value, 10)?,
            TRANSFER_ENCODING => {
                let also_has_length =
                    SINGLE.iter().zip(self.seen).any(|(name, seen)| seen && *name == CONTENT_LENGTH);
                if also_has_length || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Ambiguous);
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Digits and nothing else, not even a sign.
fn number(digits: &[u8], radix: u32) -> Result<u64, Ambiguous> {
    let text = std::str::from_utf8(digits).map_err(|_| Ambiguous)?;
    match text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        true => u64::from_str_radix(text, radix).map_err(|_| Ambiguous),
        false => Err(Ambiguous),
    }
}

/// The size of a chunk. Nobody needs chunk extensions, and not everybody knows where they end.
fn chunk_size(line: &[u8]) -> Result<u64, Ambiguous> {
    number(line, 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the first refused byte is, the same however the bytes come in pieces.
    fn refused(stream: &str) -> Option<usize> {
        let at = |piece: usize| {
            let mut bytes = stream.as_bytes().to_vec();
            let mut framing = Framing::new();
            bytes.chunks_mut(piece).for_each(|piece| framing.look(piece));
            let found = bytes.iter().zip(stream.bytes()).position(|(now, before)| *now != before);
            assert_eq!(found.is_some(), framing.at == At::Refused && !stream.contains('\0'));
            found
        };
        let whole = at(usize::MAX >> 1);
        for piece in [1, 2, 3, 7] {
            assert_eq!(at(piece), whole, "{stream:?}");
        }
        whole
    }

    #[test]
    fn what_is_clear_goes_by() {
        let long = format!("GET /{} HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(9000), "\u{e4}".repeat(9000));
        let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for stream in [
            get,
            "\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-LENGTH:  5 \r\nX:\r\nY:a:b\r\n\r\na\n\r\nb",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\nA\r\n0123\n\0\r\n89\r\n00\r\nT: x\r\n\r\n",
            &long,
        ] {
            assert_eq!(refused(stream), None, "{stream:?}");
            assert_eq!(refused(&format!("{stream}{get}{stream}")), None, "{stream:?}");
        }
    }

    #[test]
    fn a_head_ends() {
        let head = |n: usize| format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(n));
        let frame = head(0).len();
        assert_eq!(refused(&head(MAX_HEAD - frame).repeat(3)), None);
        assert_eq!(refused(&head(MAX_HEAD - frame + 1)), Some(MAX_HEAD));
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(refused(&format!("{chunked}{}0\r\n\r\n", "1\r\na\r\n".repeat(MAX_HEAD))), None);
        assert!(refused(&format!("{chunked}0\r\nX: {}", "a".repeat(MAX_HEAD))).is_some());
    }

    #[test]
    fn what_is_ambiguous_is_refused_where_it_becomes_so() {
        let te = "Transfer-Encoding: chunked\r\n";
        for (before, after) in [
            ("GET / HTTP/1.1", "\nHost: x\r\n\r\n"),
            ("GET / HTTP/1.1\r\nHost: x", "\n\r\n"),
            ("GET / HTTP/1.1\r\nHost: x\r\n", "\n"),
            ("", "\nGET / HTTP/1.1\r\n\r\n"),
            ("GET / HTTP/1.1\r\nA: b\r", "c\r\n\r\n"),
            ("GET / HTTP/1.1\r\nA: b\r", "\r\n\r\n"),
            ("GET / HTTP/1.1\r\nA: b\r\n c\r", "\n\r\n"),
            ("GET / HTTP/1.1\r\nContent-Length : 5\r", "\n\r\n"),
            ("GET / HTTP/1.1\r\n: 5\r", "\n\r\n"),
            ("GET / HTTP/1.1\r\nnothing\r", "\n\r\n"),
            ("GET / HTTP/1.1\r\nHost: x\r\nHost: x\r", "\n\r\n"),
            ("GET / HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r", "\n\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r", "\n\r\nabcde"),
            ("POST / HTTP/1.1\r\nContent-Length: 5, 5\r", "\n\r\nabcde"),
            ("POST / HTTP/1.1\r\nContent-Length: +5\r", "\n\r\nabcde"),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r", "\n\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length:\r", "\n\r\n"),
            ("POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r", "\n\r\n"),
            (&format!("POST / HTTP/1.1\r\nContent-Length: 5\r\n{}", te.trim_end_matches('\n')), "\n\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}Content-Length: 5\r"), "\n\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}Transfer-Encoding: chunked\r"), "\n\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r", "\n\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: identity\r", "\n\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}\r\n5;a=b\r"), "\nabcde\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}\r\n5 \r"), "\nabcde\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}\r\n+5\r"), "\nabcde\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}\r\n\r"), "\nabcde\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}\r\n5"), "\nabcde\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}\r\n5\r\nabcdef\r"), "\n0\r\n\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}\r\n5\r\nabcde"), "\n0\r\n\r\n"),
            (&format!("POST / HTTP/1.1\r\n{te}\r\n0\r\nA: b"), "\n\r\n"),
            ("GET / HTTP/1.1\r\nA: ", "\0\r\n\r\n"),
        ] {
            let stream = format!("{before}{after}");
            if !stream.contains('\0') {
                assert_eq!(refused(&stream), Some(before.len()), "{stream:?}");
            }
            let mut framing = Framing::new();
            framing.look(&mut stream.clone().into_bytes());
            assert!(framing.at == At::Refused, "{stream:?}");
            // Behind a request that is well, too.
            if !before.is_empty() {
                let first = "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n\n\n";
                let second = format!("{first}{stream}");
                framing = Framing::new();
                framing.look(&mut second.into_bytes());
                assert!(framing.at == At::Refused, "{stream:?}");
            }
        }
    }
}
