//! The messages of the transmission phase: requests, simple replies, structured reply chunks, and
//! error numbers.
//!
//! All numbers are big-endian. The names are those of the NBD protocol document, without the prefix
//! `NBD_`.

use hindcast_engine::device::RequestKind;

/// Magic number at the start of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic number at the start of every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic number at the start of every structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Length of a request header in bytes. The payload of a WRITE follows it.
pub const REQUEST_LEN: usize = 28;
/// Length of a simple reply in bytes. The data of a successful READ follows it.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Length of the header of a structured reply chunk in bytes. The payload of the chunk follows it.
pub const CHUNK_HEADER_LEN: usize = 20;

/// Command flags.
pub mod cmd_flag {
    /// The server replies when the data is on stable storage.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES must not make a hole: space for the range stays allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The server must answer a READ with one content chunk.
    pub const DF: u16 = 1 << 2;
    /// The reply to BLOCK_STATUS must have one extent for each metadata context.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES must fail if it is not faster than a WRITE of zeros.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Transmission flags.
pub mod export_flag {
    /// The flags field is valid. Every server sets this flag.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export is read-only: requests that change it fail with EPERM.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The export supports FLUSH.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The export supports the command flag FUA.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The export supports TRIM.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// The export supports WRITE_ZEROES and the command flag NO_HOLE.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The export supports the command flag DF. The server sets this flag only with structured
    /// replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA on one connection cover the requests of all connections to the export.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The export supports CACHE.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The export supports the command flag FAST_ZERO.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Chunk types of structured replies.
pub mod chunk {
    /// Chunk flag: the chunk is the last one of its reply.
    pub const DONE: u16 = 1;
    /// Chunk type: the chunk has no payload.
    pub const NONE: u16 = 0;
    /// Chunk type: the payload is an offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Chunk type: the payload is an offset and the length of a range of zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Chunk type: the payload is the id of a metadata context and its extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Chunk type: the payload is an error number and a message.
    pub const ERROR: u16 = (1 << 15) | 1;
    /// Chunk type: the payload is an error number, a message, and the offset of the error.
    pub const ERROR_OFFSET: u16 = (1 << 15) | 2;
}

/// The types of requests. The discriminant is the number in the request header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Command {
    /// Reads a range.
    Read = 0,
    /// Writes a range. The data follows the request header.
    Write = 1,
    /// Ends the connection. The server sends no reply.
    Disc = 2,
    /// Makes all acknowledged writes durable.
    Flush = 3,
    /// Discards a range: the server may free its space.
    Trim = 4,
    /// Reads a range into the server's memory.
    Cache = 5,
    /// Writes zeros to a range.
    WriteZeroes = 6,
    /// Reports the extents of a range for each selected metadata context.
    BlockStatus = 7,
}

impl Command {
    /// All commands. The index is the number of the command.
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

    /// Returns the command with the number `kind`. Returns `None` if the protocol has no such
    /// command.
    pub fn from_wire(kind: u16) -> Option<Command> {
        Command::ALL.get(usize::from(kind)).copied()
    }

    /// Returns the kind under which statistics of the device count the command. `None`: it does not
    /// reach the device.
    pub(super) fn request_kind(self) -> Option<RequestKind> {
        match self {
            Command::Read => Some(RequestKind::Read),
            Command::Write | Command::WriteZeroes => Some(RequestKind::Write),
            Command::Flush => Some(RequestKind::Flush),
            Command::Trim | Command::Cache | Command::BlockStatus => Some(RequestKind::Other),
            Command::Disc => None,
        }
    }

    /// Returns the name of the command in metrics.
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

/// The error numbers of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// EPERM: operation not permitted.
    Perm = 1,
    /// EIO: input/output error.
    Io = 5,
    /// EINVAL: invalid argument.
    Inval = 22,
    /// ENOSPC: no space left on the device.
    NoSpc = 28,
    /// EOVERFLOW: value too large. It answers only a READ with the flag DF.
    Overflow = 75,
    /// ENOTSUP: not supported. It answers only a WRITE_ZEROES with the flag FAST_ZERO.
    NotSup = 95,
    /// ESHUTDOWN: the server is shutting down.
    Shutdown = 108,
}

/// A request header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Command flags. See [`cmd_flag`].
    pub flags: u16,
    /// The number of the command, unchecked. See [`Command::from_wire`].
    pub kind: u16,
    /// The client's id of the request. The reply repeats it.
    pub cookie: u64,
    /// Start of the range: offset in the export, in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
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
    /// Decodes a request header. Returns `None` if it does not begin with [`REQUEST_MAGIC`]. The
    /// connection must then end, because the server can't find the next request.
    pub fn decode(b: &[u8; REQUEST_LEN]) -> Option<Request> {
        (be32(b, 0) == REQUEST_MAGIC).then(|| Request {
            flags: be16(b, 4),
            kind: be16(b, 6),
            cookie: be64(b, 8),
            offset: be64(b, 16),
            length: be32(b, 24),
        })
    }

    /// Encodes the request header, as a client does.
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

/// Returns a simple reply. An `error` of 0 means success.
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_LEN] {
    let mut b = [0; SIMPLE_REPLY_LEN];
    b[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    b[4..8].copy_from_slice(&error.to_be_bytes());
    b[8..16].copy_from_slice(&cookie.to_be_bytes());
    b
}

/// Returns the header of a structured reply chunk with a payload of `length` bytes.
pub fn chunk_header(flags: u16, kind: u16, cookie: u64, length: u32) -> [u8; CHUNK_HEADER_LEN] {
    let mut b = [0; CHUNK_HEADER_LEN];
    b[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    b[4..6].copy_from_slice(&flags.to_be_bytes());
    b[6..8].copy_from_slice(&kind.to_be_bytes());
    b[8..16].copy_from_slice(&cookie.to_be_bytes());
    b[16..20].copy_from_slice(&length.to_be_bytes());
    b
}

/// The header of a simple reply or of a structured reply chunk, as a client decodes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply. Data follows it only if the request was a READ that succeeded.
    Simple {
        /// 0 or an error number.
        error: u32,
        /// The cookie of the request.
        cookie: u64,
    },
    /// A structured reply chunk. A payload of `length` bytes follows the header.
    Chunk {
        /// [`chunk::DONE`] or 0.
        flags: u16,
        /// The chunk type. See [`chunk`].
        kind: u16,
        /// The cookie of the request.
        cookie: u64,
        /// Length of the payload in bytes.
        length: u32,
    },
}

impl ReplyHeader {
    /// Decodes the header of a reply. Returns the header and its length in bytes. `Ok(None)` means
    /// that `b` is too short. `Err` means that the reply begins with an unknown magic number.
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

/// A reply does not begin with a known magic number. Either the peer does not speak NBD, or the
/// receiver has lost its place in the stream.
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
