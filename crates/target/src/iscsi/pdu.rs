//! Protocol data units (RFC 7143, 11): the basic header segment ([`Bhs`]), decoding of requests,
//! and encoding of responses.
//!
//! The module does no input or output: it turns bytes into bytes. Numbers on the wire are
//! big-endian. A response leaves StatSN, ExpCmdSN and MaxCmdSN open. [`stamp`] fills them in when
//! the response is sent, because its place among the other responses is known only then.

/// Length in bytes of the basic header segment (11.2.1).
pub const BHS_LEN: usize = 48;
/// Tag with the meaning "no tag".
pub const NO_TAG: u32 = 0xffff_ffff;
/// Maximum length in bytes of a data segment that a header can express.
pub const MAX_DATA_SEGMENT: u32 = 0x00ff_ffff;

/// Operation codes (11.2.1.2).
pub mod opcode {
    #![allow(missing_docs)] // the names are the standard's
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const TEXT: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC_MESSAGE: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// The final bit of byte 1. In login PDUs it is the transit bit.
pub const FINAL: u8 = 0x80;
/// The continue bit of byte 1 of text and login PDUs.
pub const CONTINUE: u8 = 0x40;

/// Reasons of a Reject PDU (11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the standard's
pub enum RejectReason {
    DataDigestError = 0x02,
    SnackReject = 0x03,
    ProtocolError = 0x04,
    CommandNotSupported = 0x05,
    TooManyImmediate = 0x06,
    TaskInProgress = 0x07,
    InvalidDataAck = 0x08,
    InvalidPduField = 0x09,
    OutOfResources = 0x0a,
    WaitingForLogout = 0x0c,
}

/// A basic header segment in the format of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bhs(pub [u8; BHS_LEN]);

impl Bhs {
    /// Makes a header with an opcode and byte 1. All other bytes are zero.
    pub fn new(opcode: u8, flags: u8) -> Bhs {
        let mut bhs = [0; BHS_LEN];
        bhs[0] = opcode;
        bhs[1] = flags;
        Bhs(bhs)
    }

    /// Returns the header at the front of `bytes`, if it is complete.
    pub fn parse(bytes: &[u8]) -> Option<Bhs> {
        bytes.first_chunk().copied().map(Bhs)
    }

    /// Returns the byte at `at`.
    pub fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    /// Returns the 16-bit number at `at`.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    /// Returns the 32-bit number at `at`.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// Stores a 16-bit number at `at`.
    pub fn put_u16(&mut self, at: usize, value: u16) -> &mut Bhs {
        self.0[at..at + 2].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// Stores a 32-bit number at `at`.
    pub fn put_u32(&mut self, at: usize, value: u32) -> &mut Bhs {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// Stores bytes at `at`.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Bhs {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Returns the operation code (11.2.1.2).
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// Returns whether the request is for immediate delivery (11.2.1.1).
    pub fn immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// Returns the final bit (11.2.1.3).
    pub fn is_final(&self) -> bool {
        self.0[1] & FINAL != 0
    }

    /// Returns the length in bytes of the additional header segments (11.2.1.4).
    pub fn ahs_len(&self) -> usize {
        usize::from(self.0[4]) * 4
    }

    /// Returns the length in bytes of the data segment, without padding (11.2.1.5).
    pub fn data_len(&self) -> usize {
        (usize::from(self.0[5]) << 16) | (usize::from(self.0[6]) << 8) | usize::from(self.0[7])
    }

    /// Sets the length in bytes of the data segment. The caller must not pass more than
    /// [`MAX_DATA_SEGMENT`].
    pub fn set_data_len(&mut self, len: usize) -> &mut Bhs {
        debug_assert!(len <= MAX_DATA_SEGMENT as usize);
        self.0[5] = (len >> 16) as u8;
        self.0[6] = (len >> 8) as u8;
        self.0[7] = len as u8;
        self
    }

    /// Returns the logical unit number, as the eight bytes of SAM (11.2.1.6).
    pub fn lun(&self) -> [u8; 8] {
        let mut lun = [0; 8];
        lun.copy_from_slice(&self.0[8..16]);
        lun
    }

    /// Returns the initiator task tag (11.2.1.8).
    pub fn itt(&self) -> u32 {
        self.u32(16)
    }

    /// Returns the target transfer tag of a PDU that has one.
    pub fn ttt(&self) -> u32 {
        self.u32(20)
    }

    /// Returns CmdSN of a request.
    pub fn cmd_sn(&self) -> u32 {
        self.u32(24)
    }

    /// Returns ExpStatSN of a request.
    pub fn exp_stat_sn(&self) -> u32 {
        self.u32(28)
    }

    /// Returns the places and sizes of the parts of the PDU that begins with this header.
    pub fn layout(&self, digests: Digests) -> Layout {
        let header = BHS_LEN + self.ahs_len();
        let data_at = header + if digests.header { 4 } else { 0 };
        let data_len = self.data_len();
        let padded = data_at + data_len.next_multiple_of(4);
        let total = padded + if digests.data && data_len > 0 { 4 } else { 0 };
        Layout { header, data_at, data_len, total }
    }
}

/// The digests that a connection uses (13.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digests {
    /// Whether CRC32C follows every header.
    pub header: bool,
    /// Whether CRC32C follows every data segment that is not empty.
    pub data: bool,
}

/// Places of the parts of a PDU, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Length of the header with the additional header segments. The header digest follows it, if
    /// the connection uses header digests.
    pub header: usize,
    /// Start of the data segment.
    pub data_at: usize,
    /// Length of the data segment without padding.
    pub data_len: usize,
    /// Length of the whole PDU.
    pub total: usize,
}

/// Returns CRC32C in the byte order of the wire: the least significant byte first (13.1).
pub fn digest(bytes: &[u8]) -> [u8; 4] {
    // The algorithm has its name from the polynomial of iSCSI. The result fits into 32 bits.
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

impl Layout {
    /// Returns whether the header digest is right. Returns true if there is no header digest.
    pub fn header_ok(&self, pdu: &[u8], digests: Digests) -> bool {
        !digests.header || pdu[self.header..self.header + 4] == digest(&pdu[..self.header])
    }

    /// Returns whether the data digest, which includes the padding, is right. Returns true if there
    /// is no data digest.
    pub fn data_ok(&self, pdu: &[u8], digests: Digests) -> bool {
        if !digests.data || self.data_len == 0 {
            return true;
        }
        let end = self.total - 4;
        pdu[end..self.total] == digest(&pdu[self.data_at..end])
    }
}

/// Returns the additional header segments of one PDU, each as type and content (11.2.2). The
/// iterator returns `Err` for the first malformed segment, and then ends.
pub fn additional_headers(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u8, &[u8]), ()>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        // The length counts the bytes after the type byte, without padding.
        let Some((head, rest)) = bytes.split_first_chunk::<3>() else {
            bytes = &[];
            return Some(Err(()));
        };
        let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
        let (Some(body), true) = (rest.get(..len), len > 0) else {
            bytes = &[];
            return Some(Err(()));
        };
        bytes = bytes.get((head.len() + len).next_multiple_of(4)..).unwrap_or(&[]);
        Some(Ok((head[2], body)))
    })
}

/// The sequence numbers that the responses of a connection carry. See [`stamp`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    /// StatSN of the next response.
    pub stat_sn: u32,
    /// ExpCmdSN: the next CmdSN that the session expects.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN: the last CmdSN that the session accepts.
    pub max_cmd_sn: u32,
}

/// Returns whether a response advances StatSN.
fn takes_stat_sn(bhs: &[u8]) -> bool {
    match bhs[0] & 0x3f {
        opcode::DATA_IN => bhs[1] & data_in_flag::STATUS != 0,
        opcode::R2T => false,
        opcode::NOP_IN => bhs[16..20] != [0xff; 4],
        _ => true,
    }
}

/// Fills in the sequence numbers and the header digests of the PDUs in `bytes`. The caller sends
/// `bytes` next.
pub fn stamp(bytes: &mut [u8], numbers: &mut Numbers, digests: Digests) {
    let mut rest = bytes;
    while let Some(bhs) = Bhs::parse(rest) {
        let layout = bhs.layout(digests);
        let (pdu, tail) = rest.split_at_mut(layout.total);
        let takes = takes_stat_sn(pdu);
        if takes || bhs.opcode() != opcode::DATA_IN {
            pdu[24..28].copy_from_slice(&numbers.stat_sn.to_be_bytes());
        }
        numbers.stat_sn = numbers.stat_sn.wrapping_add(u32::from(takes));
        pdu[28..32].copy_from_slice(&numbers.exp_cmd_sn.to_be_bytes());
        pdu[32..36].copy_from_slice(&numbers.max_cmd_sn.to_be_bytes());
        if digests.header {
            let crc = digest(&pdu[..layout.header]);
            pdu[layout.header..layout.header + 4].copy_from_slice(&crc);
        }
        rest = tail;
    }
}

/// Returns whether sequence number `a` comes before `b` (RFC 1982, as 4.2.2.1 demands).
pub fn sn_before(a: u32, b: u32) -> bool {
    (1..1 << 31).contains(&b.wrapping_sub(a))
}

/// Flags in byte 1 of a SCSI Command (11.3.1).
pub mod command_flag {
    /// The command reads: data comes from the target.
    pub const READ: u8 = 0x40;
    /// The command writes: data goes to the target.
    pub const WRITE: u8 = 0x20;
    /// The task attribute.
    pub const ATTR: u8 = 0x07;
}

/// Flags in byte 1 of a SCSI Data-In (11.7.1) and a SCSI Response (11.4.1).
pub mod data_in_flag {
    /// The status in this Data-In is valid.
    pub const STATUS: u8 = 0x01;
    /// The residual count is the number of bytes that were expected and not transferred.
    pub const UNDERFLOW: u8 = 0x02;
    /// The residual count is the number of bytes that the initiator did not expect.
    pub const OVERFLOW: u8 = 0x04;
    /// UNDERFLOW for the read part of a bidirectional command.
    pub const BIDI_UNDERFLOW: u8 = 0x08;
    /// OVERFLOW for the read part of a bidirectional command.
    pub const BIDI_OVERFLOW: u8 = 0x10;
    /// The target asks for an acknowledgement. Error recovery level 0 does not use it.
    pub const ACKNOWLEDGE: u8 = 0x40;
}

/// Functions of a Task Management Function Request (11.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the standard's
pub enum TaskFunction {
    AbortTask,
    AbortTaskSet,
    ClearAca,
    ClearTaskSet,
    LunReset,
    TargetWarmReset,
    TargetColdReset,
    TaskReassign,
}

impl TaskFunction {
    /// Returns the function for the low seven bits of byte 1. Returns `None` for an unknown
    /// function.
    pub fn from_wire(flags: u8) -> Option<TaskFunction> {
        use TaskFunction::*;
        Some(match flags & 0x7f {
            1 => AbortTask,
            2 => AbortTaskSet,
            3 => ClearAca,
            4 => ClearTaskSet,
            5 => LunReset,
            6 => TargetWarmReset,
            7 => TargetColdReset,
            8 => TaskReassign,
            _ => return None,
        })
    }
}

/// Responses to a Task Management Function Request (11.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the standard's
pub enum TaskResponse {
    Complete = 0,
    NoTask = 1,
    NoLun = 2,
    TaskStillAllegiant = 3,
    ReassignmentNotSupported = 4,
    NotSupported = 5,
    AuthorizationFailed = 6,
    Rejected = 255,
}

/// Events of an Asynchronous Message (11.9.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the standard's
pub enum AsyncEvent {
    Scsi = 0,
    RequestLogout = 1,
    DropsConnection = 2,
    DropsAllConnections = 3,
}

/// Makes a response header of `opcode` for the task with tag `itt`.
pub fn response(opcode: u8, flags: u8, itt: u32) -> Bhs {
    let mut bhs = Bhs::new(opcode, flags);
    bhs.put_u32(16, itt);
    bhs
}

/// Makes the header of a Reject (11.17). Its data segment is the rejected header.
pub fn reject(reason: RejectReason) -> Bhs {
    let mut bhs = response(opcode::REJECT, FINAL, NO_TAG);
    bhs.0[2] = reason as u8;
    bhs
}

/// Makes a Ready To Transfer (11.8).
pub fn r2t(lun: [u8; 8], itt: u32, ttt: u32, r2t_sn: u32, offset: u32, length: u32) -> Bhs {
    let mut bhs = response(opcode::R2T, FINAL, itt);
    bhs.put(8, &lun).put_u32(20, ttt).put_u32(36, r2t_sn).put_u32(40, offset).put_u32(44, length);
    bhs
}

/// Makes a NOP-In (11.19). It answers the NOP-Out with tag `itt`. If `itt` is [`NO_TAG`], it is a
/// ping with `ttt`.
pub fn nop_in(lun: [u8; 8], itt: u32, ttt: u32) -> Bhs {
    let mut bhs = response(opcode::NOP_IN, FINAL, itt);
    bhs.put(8, &lun).put_u32(20, ttt);
    bhs
}

/// Makes an Asynchronous Message (11.9) without data.
pub fn async_message(event: AsyncEvent, lun: [u8; 8], parameters: [u16; 3]) -> Bhs {
    let mut bhs = response(opcode::ASYNC_MESSAGE, FINAL, NO_TAG);
    bhs.put(8, &lun);
    bhs.0[36] = event as u8;
    for (n, parameter) in parameters.into_iter().enumerate() {
        bhs.put_u16(38 + 2 * n, parameter);
    }
    bhs
}
