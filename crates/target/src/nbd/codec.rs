//! The transmission phase on the wire: requests, simple replies, structured reply chunks, error
//! numbers.
//!
//! All numbers are big-endian. Names follow the NBD protocol document, without its `NBD_` prefix.

/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a request header; a WRITE's payload follows it.
pub const REQUEST_LEN: usize = 28;
/// Bytes of a simple reply; a READ's data follows it.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of a chunk header; the payload follows it.
pub const CHUNK_HEADER_LEN: usize = 20;

/// Command flags.
pub mod cmd_flag {
    /// Stable storage before the reply.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES must leave the range provisioned.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ must be answered by one content chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS wants one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES must be fast or fail.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Transmission flags.
pub mod export_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes fail with EPERM.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and NO_HOLE are understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// DF is understood; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA cover all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// FAST_ZERO is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Chunk types of structured replies.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1;
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and the length of a run of zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Error number and message.
    pub const ERROR: u16 = (1 << 15) | 1;
}

/// Request types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Command {
    /// Read a range.
    Read = 0,
    /// Write a range; the data follows the header.
    Write = 1,
    /// End the session; no reply.
    Disc = 2,
    /// Make acknowledged writes durable.
    Flush = 3,
    /// Free a range.
    Trim = 4,
    /// Bring a range into memory.
    Cache = 5,
    /// Zero a range.
    WriteZeroes = 6,
    /// Describe a range.
    BlockStatus = 7,
}

impl Command {
    /// All commands, by number.
    pub const ALL: [Command; 8] = [
        Command::Read,
        Command::Write,
        Command::Disc,
        Command::Flush,
        Command::Trim,
        Command::Cache,
        Command::WriteZeroes,
        Command::BlockStatus,
    ];

    /// The command with this number.
    pub fn from_wire(kind: u16) -> Option<Command> {
        Command::ALL.get(usize::from(kind)).copied()
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Command::Read => "read",
            Command::Write => "write",
            Command::Disc => "disc",
            Command::Flush => "flush",
            Command::Trim => "trim",
            Command::Cache => "cache",
            Command::WriteZeroes => "write_zeroes",
            Command::BlockStatus => "block_status",
        }
    }
}

/// Error numbers of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// Operation not permitted.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Invalid argument.
    Inval = 22,
    /// No space left on device.
    NoSpc = 28,
    /// Value too large; only for READ with DF.
    Overflow = 75,
    /// Not supported; only for WRITE_ZEROES with FAST_ZERO.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

/// A request header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Command flags, [`cmd_flag`].
    pub flags: u16,
    /// The command as sent; see [`Command::from_wire`].
    pub kind: u16,
    /// The client's name for the request, sent back in the reply.
    pub cookie: u64,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn be64(b: &[u8], at: usize) -> u64 {
    (u64::from(be32(b, at)) << 32) | u64::from(be32(b, at + 4))
}

impl Request {
    /// Decodes a header; `None` if it does not begin with the magic number, after which nothing can
    /// be trusted.
    pub fn decode(b: &[u8; REQUEST_LEN]) -> Option<Request> {
        (be32(b, 0) == REQUEST_MAGIC).then(|| Request {
            flags: be16(b, 4),
            kind: be16(b, 6),
            cookie: be64(b, 8),
            offset: be64(b, 16),
            length: be32(b, 24),
        })
    }

    /// Encodes a header, as a client does.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut b = [0; REQUEST_LEN];
        b[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        b[4..6].copy_from_slice(&self.flags.to_be_bytes());
        b[6..8].copy_from_slice(&self.kind.to_be_bytes());
        b[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        b[16..24].copy_from_slice(&self.offset.to_be_bytes());
        b[24..28].copy_from_slice(&self.length.to_be_bytes());
        b
    }
}

/// A simple reply; `error` 0 is success.
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_LEN] {
    let mut b = [0; SIMPLE_REPLY_LEN];
    b[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    b[4..8].copy_from_slice(&error.to_be_bytes());
    b[8..16].copy_from_slice(&cookie.to_be_bytes());
    b
}

/// The header of a structured reply chunk with `length` bytes of payload.
pub fn chunk_header(flags: u16, kind: u16, cookie: u64, length: u32) -> [u8; CHUNK_HEADER_LEN] {
    let mut b = [0; CHUNK_HEADER_LEN];
    b[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    b[4..6].copy_from_slice(&flags.to_be_bytes());
    b[6..8].copy_from_slice(&kind.to_be_bytes());
    b[8..16].copy_from_slice(&cookie.to_be_bytes());
    b[16..20].copy_from_slice(&length.to_be_bytes());
    b
}

/// The head of a reply as a client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply; only the request tells whether data follows.
    Simple {
        /// 0 or an error number.
        error: u32,
        /// The request's cookie.
        cookie: u64,
    },
    /// A chunk of a structured reply, followed by `length` bytes.
    Chunk {
        /// [`chunk::DONE`] or 0.
        flags: u16,
        /// A type of [`chunk`].
        kind: u16,
        /// The request's cookie.
        cookie: u64,
        /// Bytes of payload.
        length: u32,
    },
}

impl ReplyHeader {
    /// Decodes the head of a reply and tells its length; `Ok(None)` wants more bytes, `Err` has
    /// seen a wrong magic.
    pub fn decode(b: &[u8]) -> Result<Option<(ReplyHeader, usize)>, BadMagic> {
        if b.len() < SIMPLE_REPLY_LEN {
            return Ok(None);
        }
        match be32(b, 0) {
            SIMPLE_REPLY_MAGIC => {
                Ok(Some((ReplyHeader::Simple { error: be32(b, 4), cookie: be64(b, 8) }, SIMPLE_REPLY_LEN)))
            }
            STRUCTURED_REPLY_MAGIC if b.len() < CHUNK_HEADER_LEN => Ok(None),
            STRUCTURED_REPLY_MAGIC => {
                let header = ReplyHeader::Chunk {
                    flags: be16(b, 4),
                    kind: be16(b, 6),
                    cookie: be64(b, 8),
                    length: be32(b, 16),
                };
                Ok(Some((header, CHUNK_HEADER_LEN)))
            }
            _ => Err(BadMagic),
        }
    }
}

/// The peer does not speak the protocol, or the stream lost its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadMagic;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_has_the_documented_layout() {
        let request =
            Request { flags: 1, kind: 1, cookie: 0x1122_3344_5566_7788, offset: 0x99, length: 0x1000 };
        let golden = [
            0x25, 0x60, 0x95, 0x13, 0x00, 0x01, 0x00, 0x01, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x99, 0x00, 0x00, 0x10, 0x00,
        ];
        assert_eq!(request.encode(), golden);
        assert_eq!(Request::decode(&golden), Some(request));
    }

    #[test]
    fn replies_have_the_documented_layout() {
        assert_eq!(
            simple_reply(28, 0x0102_0304_0506_0708),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]
        );
        assert_eq!(
            chunk_header(chunk::DONE, chunk::ERROR, 7, 6),
            [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 6]
        );
    }

    #[test]
    fn a_wrong_magic_is_refused() {
        let mut bytes = Request { flags: 0, kind: 0, cookie: 1, offset: 0, length: 512 }.encode();
        bytes[3] ^= 1;
        assert_eq!(Request::decode(&bytes), None);
        assert_eq!(ReplyHeader::decode(&[0; 20]), Err(BadMagic));
    }

    #[test]
    fn commands_are_numbered_as_documented() {
        for (number, command) in Command::ALL.into_iter().enumerate() {
            assert_eq!(command as usize, number);
        }
        assert_eq!(Command::from_wire(8), None);
        assert_eq!(Command::from_wire(u16::MAX), None);
    }

    proptest! {
        #[test]
        fn requests_round_trip(flags: u16, kind: u16, cookie: u64, offset: u64, length: u32) {
            let request = Request { flags, kind, cookie, offset, length };
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }

        #[test]
        fn reply_heads_round_trip(error: u32, flags: u16, kind: u16, cookie: u64, length: u32) {
            let simple = simple_reply(error, cookie);
            let header = ReplyHeader::Simple { error, cookie };
            prop_assert_eq!(ReplyHeader::decode(&simple), Ok(Some((header, SIMPLE_REPLY_LEN))));
            let chunk = chunk_header(flags, kind, cookie, length);
            let header = ReplyHeader::Chunk { flags, kind, cookie, length };
            prop_assert_eq!(ReplyHeader::decode(&chunk), Ok(Some((header, CHUNK_HEADER_LEN))));
            prop_assert_eq!(ReplyHeader::decode(&chunk[..CHUNK_HEADER_LEN - 1]), Ok(None));
        }
    }
}
