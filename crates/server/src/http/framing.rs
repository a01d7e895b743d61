//! Refuses HTTP requests of which two programs could see the beginning or the end in different
//! places.
//!
//! If a proxy and this server disagree about where a request ends, the bytes of one client become
//! the request of another. HTTP allows a server to be lenient. Hyper, for example, ends a line at a
//! bare LF, and accepts a request that has both Content-Length and Transfer-Encoding.
//!
//! So [`Framing`] follows the received bytes by the strict reading of RFC 9112, before hyper sees
//! them. It replaces the byte that makes a request ambiguous by NUL. Hyper accepts NUL nowhere in a
//! head or between chunks: it answers 400 and closes the connection. A head that is too long is
//! handled in the same way.

/// Maximum size of a head, and of trailers, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// Number of bytes of a line that are kept. No line that determines the length of a body needs
/// more. Hyper accepts any number of blanks and leading zeros, so the rest of a longer line could
/// change that length. A longer line is refused if it determines the length of a body.
const MAX_LINE: usize = 256;
/// Maximum number of digits of a Content-Length: the number of digits of the largest `u64`.
const MAX_DECIMAL: usize = 20;
const MAX_HEX: usize = 16;

/// Headers that a request may have at most once.
const SINGLE: [&[u8]; 4] = [b"host", b"authorization", CONTENT_LENGTH, TRANSFER_ENCODING];
const CONTENT_LENGTH: &[u8] = b"content-length";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding";

/// The position of the next byte in a connection's stream of requests.
pub(super) struct Framing {
    at: At,
    /// The beginning of the current line, at most [`MAX_LINE`] bytes and a CR.
    line: Vec<u8>,
    /// Whether the current line is longer than [`MAX_LINE`].
    cut: bool,
    /// Number of bytes of lines since the last byte of content, or since the last head or trailers
    /// ended.
    bytes: usize,
    head: Head,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// In a line of a head or of trailers, in the line with a chunk's size, or in the line end
    /// after a chunk.
    Line(Line),
    /// In a body, of which this number of bytes remain.
    Body(u64),
    /// In a chunk, of which this number of bytes remain.
    Chunk(u64),
    /// After a refused byte. Nothing is checked any more.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The request line, or an empty line before it.
    Request,
    Header,
    ChunkSize,
    /// The empty line after a chunk's data.
    ChunkEnd,
    Trailer,
}

/// The content of the current head so far.
#[derive(Default)]
struct Head {
    /// Whether the head has had each of the headers in [`SINGLE`].
    seen: [bool; SINGLE.len()],
    length: u64,
    chunked: bool,
}

struct Ambiguous;

impl Framing {
    /// Makes a value for the beginning of a connection.
    pub(super) fn new() -> Framing {
        let (at, head) = (At::Line(Line::Request), Head::default());
        Framing { at, line: Vec::new(), cut: false, bytes: 0, head }
    }

    /// Checks received bytes. It replaces the first byte that makes them ambiguous by NUL. Returns
    /// the number of bytes up to and including that one; the caller must ignore the bytes after it.
    pub(super) fn look(&mut self, bytes: &mut [u8]) -> usize {
        let mut seen = 0;
        while seen < bytes.len() {
            let there = bytes.len() - seen;
            seen += match self.at {
                At::Refused => break,
                At::Body(left) => self.skip(left, there, At::Body, Line::Request),
                At::Chunk(left) => self.skip(left, there, At::Chunk, Line::ChunkEnd),
                At::Line(line) => {
                    if self.take(line, bytes[seen]).is_err() {
                        bytes[seen] = 0;
                        self.at = At::Refused;
                    }
                    1
                }
            };
        }
        seen
    }

    /// Returns whether a byte was refused. No later byte of the connection counts.
    pub(super) fn is_refused(&self) -> bool {
        self.at == At::Refused
    }

    /// Skips content, of which `left` bytes remain. `next` is the line after it.
    fn skip(&mut self, left: u64, there: usize, more: impl Fn(u64) -> At, next: Line) -> usize {
        let skip = usize::try_from(left).unwrap_or(usize::MAX).min(there);
        self.at = match left - skip as u64 {
            0 => At::Line(next),
            left => more(left),
        };
        self.bytes = 0;
        skip
    }

    /// Returns whether the next byte is content.
    #[cfg(test)]
    pub(super) fn is_in_content(&self) -> bool {
        matches!(self.at, At::Body(_) | At::Chunk(_))
    }

    /// Returns whether a request has begun and not ended.
    #[cfg(test)]
    pub(super) fn is_in_request(&self) -> bool {
        self.at != At::Line(Line::Request)
    }

    /// Processes one byte of a line. A line ends with CR LF, and has neither byte elsewhere.
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
                let cut = std::mem::take(&mut self.cut);
                self.at = self.end_of(line, &text, cut)?;
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
            _ => self.cut = true,
        }
        Ok(())
    }

    /// Returns what follows a complete line. If it was `cut`, `text` is only its beginning.
    fn end_of(&mut self, line: Line, text: &[u8], cut: bool) -> Result<At, Ambiguous> {
        let next = match line {
            // Empty lines in front of a request are nothing.
            Line::Request if text.is_empty() => Line::Request,
            Line::Request | Line::Header if !text.is_empty() => {
                if line == Line::Header {
                    self.head.header(text, cut)?;
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
            Line::ChunkSize if cut => return Err(Ambiguous),
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
    /// Processes a header line. If it was `cut`, `line` is only its beginning.
    fn header(&mut self, line: &[u8], cut: bool) -> Result<(), Ambiguous> {
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
            CONTENT_LENGTH | TRANSFER_ENCODING if cut => return Err(Ambiguous),
            CONTENT_LENGTH if self.chunked => return Err(Ambiguous),
            CONTENT_LENGTH => self.length = number(value, 10, MAX_DECIMAL)?,
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

/// Parses a number of at most `most` digits. Any other character is refused, even a sign.
fn number(digits: &[u8], radix: u32, most: usize) -> Result<u64, Ambiguous> {
    let text = std::str::from_utf8(digits).map_err(|_| Ambiguous)?;
    match text.len() <= most && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        true => u64::from_str_radix(text, radix).map_err(|_| Ambiguous),
        false => Err(Ambiguous),
    }
}

/// Parses the size of a chunk. Chunk extensions are refused: no client needs them, and programs
/// disagree about where they end.
fn chunk_size(line: &[u8]) -> Result<u64, Ambiguous> {
    number(line, 16, MAX_HEX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the position of the first refused byte. It must not depend on how the stream is
    /// divided into pieces.
    fn refused(stream: &str) -> Option<usize> {
        let at = |piece: usize| {
            let mut bytes = stream.as_bytes().to_vec();
            let mut framing = Framing::new();
            bytes.chunks_mut(piece).for_each(|piece| _ = framing.look(piece));
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
            "POST / HTTP/1.1\r\nContent-Length: 00000000000000000001\r\n\r\n\n",
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

    /// Hyper skips any number of blanks and zeros, so the part of a line that was cut could be
    /// anything.
    #[test]
    fn padding_hides_nothing() {
        let (zeros, blanks) = ("0".repeat(240), " ".repeat(240));
        let te = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked";
        for before in [
            format!("POST / HTTP/1.1\r\nContent-Length: {zeros}44\r"),
            format!("POST / HTTP/1.1\r\nContent-Length: {blanks}4{blanks}\r"),
            "POST / HTTP/1.1\r\nContent-Length: 000000000000000000044\r".to_owned(),
            format!("{te}\r\n\r\n{zeros}00000000000000002e\r"),
            format!("{te}\r\n\r\n0000000000000002e\r"),
            format!("{te}{blanks}, gzip, chunked\r"),
            format!("{te}{blanks}\r"),
        ] {
            assert_eq!(refused(&format!("{before}\n\r\n")), Some(before.len()), "{before}");
        }
        let long = format!("{}\r\nHost:{blanks}a\r\nAuthorization: {zeros}{zeros}\r\n\r\n", "GET / HTTP/1.1");
        assert_eq!(refused(&long), None);
        let twice = format!("GET / HTTP/1.1\r\nHost:{blanks}a\r\nHost:{blanks}b\r");
        assert_eq!(refused(&format!("{twice}\n\r\n")), Some(twice.len()));
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
