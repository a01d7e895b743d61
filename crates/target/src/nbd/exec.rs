//! Execution of one request: its validation, the calls of the device, and the reply.
//!
//! The thread that receives and the workers use the same code. The only difference is whether a
//! READ may wait for a disk.

use super::codec::{self, Command, Errno, Request, chunk, cmd_flag};
use super::meta_context::Context;
use super::options::MAX_STRING;
use crate::net::buffers::ReplyBuf;
use hindcast_engine::device::{BlockDevice, DeviceInfo, StatusRun, WriteOp};
use hindcast_engine::{Error, ErrorKind};
use std::sync::Arc;

/// Minimum length in bytes of a READ that is searched for holes. The client must have negotiated
/// structured replies.
const SPARSE_READ: u32 = 64 << 10;
/// Minimum length in bytes of a hole in the reply to a READ. The zeros of a shorter hole are
/// cheaper to send than to describe.
const MIN_HOLE: u64 = 16 << 10;
/// Maximum number of runs that the server requests from the device to find the holes in a READ.
const MAX_READ_RUNS: usize = 32;
/// Maximum number of extents for each metadata context in the reply to one BLOCK_STATUS: 16 KiB.
const MAX_EXTENTS: usize = 2048;

/// The error reply to a request that the server does not carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) errno: Errno,
    pub(super) message: &'static str,
}

fn refuse(errno: Errno, message: &'static str) -> Result<Command, Refusal> {
    Err(Refusal { errno, message })
}

/// The results of the negotiation that requests are validated against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) structured: bool,
    pub(super) contexts: bool,
    pub(super) max_request: u32,
}

impl Rules {
    /// Validates a request header against the current state of the device. Has no side effects.
    pub(super) fn check(&self, req: &Request, info: &DeviceInfo) -> Result<Command, Refusal> {
        let Some(command) = Command::from_wire(req.kind) else {
            return refuse(Errno::Inval, "unknown command");
        };
        // The protocol allows FUA with every command. FUA has no effect on a command that does not
        // write.
        let allowed = cmd_flag::FUA
            | match command {
                Command::Read if self.structured => cmd_flag::DF,
                Command::WriteZeroes => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
                Command::BlockStatus => cmd_flag::REQ_ONE,
                _ => 0,
            };
        if req.flags & !allowed != 0 {
            return refuse(Errno::Inval, "a flag is unknown or does not go with the command");
        }
        match command {
            Command::Disc => return Ok(command),
            Command::Flush if req.offset != 0 || req.length != 0 => {
                return refuse(Errno::Inval, "FLUSH must have no range");
            }
            Command::Flush => return Ok(command),
            Command::BlockStatus if !self.contexts => {
                return refuse(Errno::Inval, "no metadata context was selected");
            }
            Command::Write | Command::Trim | Command::WriteZeroes if info.read_only => {
                return refuse(Errno::Perm, "the export is read-only");
            }
            _ => {}
        }
        self.check_range(command, req, info)
    }

    fn check_range(&self, command: Command, req: &Request, info: &DeviceInfo) -> Result<Command, Refusal> {
        let length = u64::from(req.length);
        if length == 0 {
            return refuse(Errno::Inval, "the length is zero");
        }
        if req.offset.checked_add(length).is_none_or(|end| end > info.size) {
            return match command {
                Command::Write | Command::WriteZeroes => refuse(Errno::NoSpc, "past the end of the export"),
                _ => refuse(Errno::Inval, "past the end of the export"),
            };
        }
        let block = u64::from(info.block_size);
        if !req.offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return refuse(Errno::Inval, "not aligned to the minimum block size");
        }
        match command {
            Command::Read if req.length > self.max_request && req.flags & cmd_flag::DF != 0 => {
                refuse(Errno::Overflow, "too long to send in one piece")
            }
            Command::Read | Command::Write if req.length > self.max_request => {
                refuse(Errno::Inval, "longer than the maximum block size")
            }
            // A hole is fast to make. The reservation of space is not.
            Command::WriteZeroes
                if req.flags & cmd_flag::FAST_ZERO != 0 && req.flags & cmd_flag::NO_HOLE != 0 =>
            {
                refuse(
                    Errno::NotSup,
                    "FAST_ZERO with NO_HOLE is not supported: it would not be faster than a write",
                )
            }
            _ => Ok(command),
        }
    }
}

/// Returns the protocol's error number for an error of the engine.
fn errno(error: &Error, command: Command) -> Errno {
    match error.kind() {
        ErrorKind::OutOfRange => match command {
            Command::Write | Command::WriteZeroes => Errno::NoSpc,
            _ => Errno::Inval,
        },
        ErrorKind::Invalid | ErrorKind::Unsupported => Errno::Inval,
        ErrorKind::ReadOnly => Errno::Perm,
        ErrorKind::NoSpace => Errno::NoSpc,
        ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::Io
        | ErrorKind::Corrupt
        | ErrorKind::Lost
        | ErrorKind::Poisoned
        | ErrorKind::Busy
        | ErrorKind::Unavailable => Errno::Io,
    }
}

/// Whether a READ may wait for a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    Yes,
}

/// Carries out valid requests on a device and appends the replies to a buffer.
pub(super) struct Executor {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) structured: bool,
    /// The selected metadata contexts, which BLOCK_STATUS reports. Without any, BLOCK_STATUS is
    /// refused.
    pub(super) contexts: Vec<Context>,
}

impl Executor {
    /// Appends a reply for success without data. A simple reply is valid here even if structured
    /// replies were negotiated.
    fn done(&self, cookie: u64, out: &mut ReplyBuf) {
        out.put(&codec::simple_reply(0, cookie));
    }

    /// Appends an error reply. It contains `message` if structured replies were negotiated.
    pub(super) fn fail(&self, cookie: u64, errno: Errno, message: &str, out: &mut ReplyBuf) {
        self.fail_at(cookie, (errno, None), message, out);
    }

    /// Appends an error reply. If structured replies were negotiated, it contains `message` and the
    /// first byte of the export that can't be read, if that is known.
    fn fail_at(&self, cookie: u64, (errno, at): (Errno, Option<u64>), message: &str, out: &mut ReplyBuf) {
        if !self.structured {
            out.put(&codec::simple_reply(errno as u32, cookie));
            return;
        }
        let text = &message.as_bytes()[..message.floor_char_boundary(MAX_STRING)];
        let (kind, offset_len) = match at {
            Some(_) => (chunk::ERROR_OFFSET, 8),
            None => (chunk::ERROR, 0),
        };
        out.put(&codec::chunk_header(chunk::DONE, kind, cookie, wire_len(6 + text.len() + offset_len)));
        out.put(&(errno as u32).to_be_bytes());
        out.put(&u16::try_from(text.len()).unwrap_or(0).to_be_bytes());
        out.put(text);
        if let Some(at) = at {
            out.put(&at.to_be_bytes());
        }
    }

    fn finish(
        &self,
        command: Command,
        cookie: u64,
        result: &hindcast_engine::Result<()>,
        out: &mut ReplyBuf,
    ) -> bool {
        match result {
            Ok(()) => self.done(cookie, out),
            Err(e) => self.fail(cookie, errno(e, command), &e.to_string(), out),
        }
        result.is_ok()
    }

    /// Returns the number of bytes that precede the data in the reply to a READ.
    fn data_head(&self) -> usize {
        if self.structured { codec::CHUNK_HEADER_LEN + 8 } else { codec::SIMPLE_REPLY_LEN }
    }

    /// Returns whether the server asks the device for the holes in a READ before it reads the data.
    pub(super) fn is_sparse(&self, req: &Request) -> bool {
        self.structured && req.length >= SPARSE_READ && req.flags & cmd_flag::DF == 0
    }

    /// Carries out a READ and appends the reply. Returns `None` and leaves `out` unchanged if the
    /// READ would have to wait and `wait` forbids it. Otherwise returns whether the READ succeeded.
    pub(super) fn read(&self, req: &Request, wait: Wait, out: &mut ReplyBuf) -> Option<bool> {
        let at = out.len();
        let result = match self.is_sparse(req) {
            true => self.read_sparse(req, wait, out),
            false => self.read_span(req.cookie, req.offset, req.length, true, wait, out),
        };
        match result {
            Ok(true) => Some(true),
            Ok(false) => {
                out.truncate(at);
                None
            }
            Err(e) => {
                out.truncate(at);
                let end = req.offset + u64::from(req.length);
                let first = e.byte().filter(|byte| (req.offset..end).contains(byte));
                self.fail_at(req.cookie, (errno(&e, Command::Read), first), &e.to_string(), out);
                Some(false)
            }
        }
    }

    /// Reads one range directly into the reply. `last` marks the last chunk of a structured reply.
    /// Returns false if the read would have to wait and `wait` forbids it.
    fn read_span(
        &self,
        cookie: u64,
        offset: u64,
        length: u32,
        last: bool,
        wait: Wait,
        out: &mut ReplyBuf,
    ) -> hindcast_engine::Result<bool> {
        let head = self.data_head();
        let len = head + length as usize;
        let space = out.space(len);
        match wait {
            Wait::Yes => self.device.read(offset, &mut space[head..])?,
            Wait::No if !self.device.try_read(offset, &mut space[head..])? => return Ok(false),
            Wait::No => {}
        }
        if self.structured {
            let flags = if last { chunk::DONE } else { 0 };
            let (header, rest) = space.split_at_mut(codec::CHUNK_HEADER_LEN);
            header.copy_from_slice(&codec::chunk_header(flags, chunk::OFFSET_DATA, cookie, 8 + length));
            rest[..8].copy_from_slice(&offset.to_be_bytes());
        } else {
            space[..head].copy_from_slice(&codec::simple_reply(0, cookie));
        }
        out.commit(len);
        Ok(true)
    }

    /// Reads a range. The reply describes long holes instead of sending their zeros. Returns false
    /// if the read would have to wait and `wait` forbids it.
    fn read_sparse(&self, req: &Request, wait: Wait, out: &mut ReplyBuf) -> hindcast_engine::Result<bool> {
        if wait == Wait::No && self.device.status_may_wait() {
            return Ok(false);
        }
        let runs = self.device.block_status(req.offset, u64::from(req.length), MAX_READ_RUNS)?;
        let spans = spans(&runs, req.length);
        let mut offset = req.offset;
        for (n, &(length, hole)) in spans.iter().enumerate() {
            let last = n + 1 == spans.len();
            if hole {
                let flags = if last { chunk::DONE } else { 0 };
                out.put(&codec::chunk_header(flags, chunk::OFFSET_HOLE, req.cookie, 12));
                out.put(&offset.to_be_bytes());
                out.put(&length.to_be_bytes());
            } else if !self.read_span(req.cookie, offset, length, last, wait, out)? {
                return Ok(false);
            }
            offset += u64::from(length);
        }
        Ok(true)
    }

    /// Writes `ops` with one call of the device and appends the replies. `cookies` has the cookie
    /// of each operation, in the same order. Returns the number of operations that failed.
    pub(super) fn write(&self, ops: &mut [WriteOp], cookies: &[u64], fua: bool, out: &mut ReplyBuf) -> u64 {
        self.device.write(ops, fua);
        let mut failed = 0;
        for (op, cookie) in ops.iter().zip(cookies) {
            if !self.finish(Command::Write, *cookie, &op.result, out) {
                failed += 1;
            }
        }
        failed
    }

    /// Carries out any command but READ, WRITE and DISC, and appends the reply. Returns whether the
    /// command succeeded.
    pub(super) fn control(&self, command: Command, req: &Request, out: &mut ReplyBuf) -> bool {
        let (offset, length) = (req.offset, u64::from(req.length));
        let fua = req.flags & cmd_flag::FUA != 0;
        let result = match command {
            Command::Flush => self.device.flush(),
            Command::Trim => self.device.discard(offset, length, fua),
            Command::WriteZeroes => {
                self.device.write_zeroes(offset, length, req.flags & cmd_flag::NO_HOLE == 0, fua)
            }
            Command::Cache => self.device.cache(offset, length),
            Command::BlockStatus => return self.block_status(req, out),
            Command::Read | Command::Write | Command::Disc => Ok(()),
        };
        self.finish(command, req.cookie, &result, out)
    }

    /// Appends a structured reply with one chunk for each selected metadata context. Returns
    /// whether the device reported the extents.
    fn block_status(&self, req: &Request, out: &mut ReplyBuf) -> bool {
        let max = if req.flags & cmd_flag::REQ_ONE != 0 { 1 } else { MAX_EXTENTS };
        for (n, context) in self.contexts.iter().enumerate() {
            let extents = match context.extents(&*self.device, req.offset, req.length, max) {
                Ok(extents) => extents,
                Err(e) => {
                    self.fail(req.cookie, errno(&e, Command::BlockStatus), &e.to_string(), out);
                    return false;
                }
            };
            let flags = if n + 1 == self.contexts.len() { chunk::DONE } else { 0 };
            let length = wire_len(4 + 8 * extents.len());
            out.put(&codec::chunk_header(flags, chunk::BLOCK_STATUS, req.cookie, length));
            out.put(&context.id().to_be_bytes());
            for (length, flags) in extents {
                out.put(&length.to_be_bytes());
                out.put(&flags.to_be_bytes());
            }
        }
        true
    }
}

/// Converts a length of a reply to its type in the protocol. Constants limit these lengths far
/// below 4 GiB.
fn wire_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Divides a READ of `length` bytes into `(length in bytes, whether it is a hole)`. A zero run is a
/// hole if it has at least [`MIN_HOLE`] bytes. Bytes that `runs` do not cover are data.
fn spans(runs: &[StatusRun], length: u32) -> Vec<(u32, bool)> {
    let mut spans: Vec<(u32, bool)> = Vec::new();
    let mut left = length;
    let tail = StatusRun { length: u64::from(length), allocated: true, zero: false };
    for run in runs.iter().chain([&tail]) {
        let span = u32::try_from(run.length).map_or(left, |l| l.min(left));
        if span == 0 {
            continue;
        }
        left -= span;
        let hole = run.zero && u64::from(span) >= MIN_HOLE;
        match spans.last_mut() {
            Some((last, kind)) if *kind == hole => *last += span,
            _ => spans.push((span, hole)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const INFO: DeviceInfo = DeviceInfo {
        size: 64 << 20,
        block_size: 512,
        preferred_size: 4096,
        read_only: false,
        uuid: Uuid::nil(),
    };
    const RULES: Rules = Rules { structured: true, contexts: true, max_request: 32 << 20 };

    fn check(kind: Command, flags: u16, offset: u64, length: u32) -> Option<Errno> {
        let req = Request { flags, kind: kind as u16, cookie: 1, offset, length };
        RULES.check(&req, &INFO).err().map(|r| r.errno)
    }

    #[test]
    fn ranges_get_the_errors_the_protocol_asks_for() {
        use Command::*;
        let end = INFO.size;
        for (command, past_end) in [
            (Read, Errno::Inval),
            (Write, Errno::NoSpc),
            (Trim, Errno::Inval),
            (WriteZeroes, Errno::NoSpc),
            (Cache, Errno::Inval),
            (BlockStatus, Errno::Inval),
        ] {
            assert_eq!(check(command, 0, end - 512, 512), None, "{command:?}");
            assert_eq!(check(command, 0, end, 512), Some(past_end), "{command:?}");
            assert_eq!(check(command, 0, end - 512, 1024), Some(past_end), "{command:?}");
            assert_eq!(check(command, 0, u64::MAX - 511, 512), Some(past_end), "{command:?}");
            assert_eq!(check(command, 0, u64::MAX, u32::MAX), Some(past_end), "{command:?}");
            assert_eq!(check(command, 0, 0, 0), Some(Errno::Inval), "{command:?}");
            assert_eq!(check(command, 0, 1, 512), Some(Errno::Inval), "{command:?}");
            assert_eq!(check(command, 0, 0, 513), Some(Errno::Inval), "{command:?}");
            assert_eq!(check(command, 1 << 5, 0, 512), Some(Errno::Inval), "{command:?}");
            assert_eq!(check(command, cmd_flag::FUA, 0, 512), None, "{command:?}");
        }
        assert_eq!(check(Flush, 0, 0, 0), None);
        assert_eq!(check(Flush, 0, 512, 0), Some(Errno::Inval));
        assert_eq!(check(Flush, 0, 0, 512), Some(Errno::Inval));
    }

    #[test]
    fn what_carries_data_is_bounded_and_the_rest_is_not() {
        use Command::*;
        let long = (32 << 20) + 512;
        assert_eq!(check(Read, 0, 0, long), Some(Errno::Inval));
        assert_eq!(check(Read, cmd_flag::DF, 0, long), Some(Errno::Overflow));
        assert_eq!(check(Write, 0, 0, long), Some(Errno::Inval));
        for command in [Trim, WriteZeroes, Cache, BlockStatus] {
            assert_eq!(check(command, 0, 0, long), None, "{command:?}");
        }
    }

    #[test]
    fn flags_belong_to_commands() {
        use Command::*;
        use cmd_flag::*;
        for command in [Read, Write, Trim, Cache, WriteZeroes, BlockStatus] {
            for flag in [NO_HOLE, DF, REQ_ONE, FAST_ZERO] {
                let fits = matches!(
                    (command, flag),
                    (Read, DF) | (WriteZeroes, NO_HOLE | FAST_ZERO) | (BlockStatus, REQ_ONE)
                );
                let expected = if fits { None } else { Some(Errno::Inval) };
                assert_eq!(check(command, flag, 0, 4096), expected, "{command:?} {flag}");
            }
        }
        assert_eq!(check(WriteZeroes, NO_HOLE | FAST_ZERO, 0, 4096), Some(Errno::NotSup));
        let simple = Rules { structured: false, contexts: false, ..RULES };
        let df = Request { flags: DF, kind: 0, cookie: 1, offset: 0, length: 512 };
        assert_eq!(simple.check(&df, &INFO).unwrap_err().errno, Errno::Inval);
        let status = Request { flags: 0, kind: 7, cookie: 1, offset: 0, length: 512 };
        assert_eq!(simple.check(&status, &INFO).unwrap_err().errno, Errno::Inval);
    }

    #[test]
    fn a_read_only_export_refuses_writes_and_nothing_else() {
        let info = DeviceInfo { read_only: true, ..INFO };
        for command in Command::ALL {
            let length = if command == Command::Flush { 0 } else { 512 };
            let req = Request { flags: 0, kind: command as u16, cookie: 1, offset: 0, length };
            let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
            let expected = if writes { Some(Errno::Perm) } else { None };
            assert_eq!(RULES.check(&req, &info).err().map(|r| r.errno), expected, "{command:?}");
        }
        let unknown = Request { flags: 0, kind: 8, cookie: 1, offset: 0, length: 512 };
        assert_eq!(RULES.check(&unknown, &info).unwrap_err().errno, Errno::Inval);
    }

    #[test]
    fn engine_errors_become_protocol_errors() {
        let map = |kind, command| errno(&Error::new(kind, "test the mapping"), command);
        assert_eq!(map(ErrorKind::OutOfRange, Command::Write), Errno::NoSpc);
        assert_eq!(map(ErrorKind::OutOfRange, Command::Read), Errno::Inval);
        assert_eq!(map(ErrorKind::NoSpace, Command::Write), Errno::NoSpc);
        assert_eq!(map(ErrorKind::ReadOnly, Command::Trim), Errno::Perm);
        for kind in [ErrorKind::Io, ErrorKind::Corrupt, ErrorKind::Poisoned] {
            assert_eq!(map(kind, Command::Flush), Errno::Io);
        }
    }

    #[test]
    fn only_long_zero_runs_become_holes() {
        let run = |length, zero: bool| StatusRun { length, allocated: !zero, zero };
        assert_eq!(spans(&[], 65536), [(65536, false)]);
        assert_eq!(spans(&[run(4096, true), run(1 << 40, false)], 65536), [(65536, false)]);
        assert_eq!(spans(&[run(32768, true), run(4096, false)], 65536), [(32768, true), (32768, false)]);
        assert_eq!(spans(&[run(1 << 40, true)], 65536), [(65536, true)]);
    }

    /// A device whose block status may wait for a disk.
    struct Slow;

    impl BlockDevice for Slow {
        fn info(&self) -> DeviceInfo {
            INFO
        }
        fn try_read(&self, _: u64, _: &mut [u8]) -> hindcast_engine::Result<bool> {
            Ok(true)
        }
        fn read(&self, _: u64, buf: &mut [u8]) -> hindcast_engine::Result<()> {
            buf.fill(7);
            Ok(())
        }
        fn write(&self, _: &mut [WriteOp], _: bool) {}
        fn flush(&self) -> hindcast_engine::Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64, _: bool) -> hindcast_engine::Result<()> {
            Ok(())
        }
        fn write_zeroes(&self, _: u64, _: u64, _: bool, _: bool) -> hindcast_engine::Result<()> {
            Ok(())
        }
        fn block_status(&self, _: u64, length: u64, _: usize) -> hindcast_engine::Result<Vec<StatusRun>> {
            Ok(vec![StatusRun { length, allocated: false, zero: true }])
        }
        fn status_may_wait(&self) -> bool {
            true
        }
        fn cache(&self, _: u64, _: u64) -> hindcast_engine::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_status_that_may_take_long_is_no_part_of_a_read_that_may_not_wait() {
        let exec = Executor { device: Arc::new(Slow), structured: true, contexts: Vec::new() };
        let mut out = ReplyBuf::default();
        let read = |length, wait, out: &mut ReplyBuf| {
            exec.read(&Request { flags: 0, kind: 0, cookie: 1, offset: 0, length }, wait, out)
        };
        assert_eq!(read(SPARSE_READ, Wait::No, &mut out), None);
        assert_eq!(out.len(), 0);
        assert_eq!(read(SPARSE_READ, Wait::Yes, &mut out), Some(true));
        assert_eq!(out.len(), codec::CHUNK_HEADER_LEN + 12, "a hole");
        assert_eq!(read(4096, Wait::No, &mut out), Some(true), "too short to ask");
    }
}
