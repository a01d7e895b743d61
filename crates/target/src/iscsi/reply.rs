//! Responses to SCSI commands: data, status, sense and residual counts (RFC 7143, 11.4 and 11.7).

use super::pdu::{self, BHS_LEN, Bhs, Digests, FINAL, NO_TAG, data_in_flag, digest, opcode, response};
use crate::net::buffers::ReplyBuf;
use crate::scsi::{Outcome, Status};
use std::time::Instant;

/// The parts of a SCSI command that its response needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) itt: u32,
    /// LUN in the format of the wire.
    pub(super) lun: u64,
    /// Number of bytes that the initiator expects to receive. 0 without the R bit.
    pub(super) expects_in: u32,
    /// Number of bytes that the initiator expects to send. 0 without the W bit.
    pub(super) expects_out: u32,
    /// Whether the command has a place in the command window.
    pub(super) counted: bool,
    /// Number of R2Ts that were sent for the command.
    pub(super) r2ts: u32,
    /// When the command was received, or the last of its data.
    pub(super) arrived: Instant,
}

/// The limits of Data-In PDUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) digests: Digests,
    /// MaxRecvDataSegmentLength of the initiator.
    pub(super) segment: u32,
    /// MaxBurstLength.
    pub(super) burst: u32,
}

/// Returns the residual: the difference between the length that the initiator expects and the
/// length that the command moves (11.4.5). The result is the flags of byte 1 and the count.
pub(super) fn residual(expected: u32, moved: u64) -> (u8, u32) {
    let saturated = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    match u64::from(expected) {
        expected if expected > moved => (data_in_flag::UNDERFLOW, saturated(expected - moved)),
        expected if expected < moved => (data_in_flag::OVERFLOW, saturated(moved - expected)),
        _ => (0, 0),
    }
}

/// Appends a PDU. [`pdu::stamp`] fills in the sequence numbers and the header digest later.
pub(super) fn put(out: &mut ReplyBuf, mut bhs: Bhs, data: &[u8], digests: Digests) {
    bhs.set_data_len(data.len());
    let layout = bhs.layout(digests);
    let space = out.space(layout.total);
    space[..BHS_LEN].copy_from_slice(&bhs.0);
    space[layout.data_at..layout.data_at + data.len()].copy_from_slice(data);
    finish(space, &layout, digests);
    out.commit(layout.total);
}

/// Writes the padding and the data digest.
fn finish(space: &mut [u8], layout: &pdu::Layout, digests: Digests) {
    let data_end = layout.data_at + layout.data_len;
    let padded = layout.data_at + layout.data_len.next_multiple_of(4);
    space[data_end..padded].fill(0);
    if digests.data && layout.data_len > 0 {
        let crc = digest(&space[layout.data_at..padded]);
        space[padded..padded + 4].copy_from_slice(&crc);
    }
}

/// Appends Data-In PDUs for `send` bytes. `fill` writes the data at an offset into a buffer. The
/// PDUs have multiples of `unit` bytes where possible. The last PDU carries GOOD and the residual
/// count for `total` bytes. If `fill` fails or returns `false`, `out` does not change.
pub(super) fn put_data<E>(
    out: &mut ReplyBuf,
    shape: Shape,
    request: &Request,
    (send, total, unit): (u32, u64, u32),
    mut fill: impl FnMut(u32, &mut [u8]) -> Result<bool, E>,
) -> Result<bool, E> {
    let start = out.len();
    let round = |n: u32| if n >= unit { n - n % unit } else { n };
    let (segment, burst) = (round(shape.segment), round(shape.burst));
    let (mut at, mut data_sn, mut burst_left) = (0, 0, burst);
    while at < send {
        let n = segment.min(burst_left).min(send - at);
        burst_left -= n;
        let last = at + n == send;
        let mut flags = 0;
        if last || burst_left == 0 {
            flags |= FINAL;
            burst_left = burst;
        }
        let mut bhs = response(opcode::DATA_IN, flags, request.itt);
        if last {
            let (residual_flag, count) = residual(request.expects_in, total);
            bhs.0[1] |= data_in_flag::STATUS | residual_flag;
            bhs.put_u32(44, count);
        }
        bhs.put_u32(20, NO_TAG).put_u32(36, data_sn).put_u32(40, at).set_data_len(n as usize);
        let layout = bhs.layout(shape.digests);
        let space = out.space(layout.total);
        match fill(at, &mut space[layout.data_at..layout.data_at + n as usize]) {
            Ok(true) => {}
            other => {
                out.truncate(start);
                return other;
            }
        }
        space[..BHS_LEN].copy_from_slice(&bhs.0);
        finish(space, &layout, shape.digests);
        out.commit(layout.total);
        (at, data_sn) = (at + n, data_sn + 1);
    }
    Ok(true)
}

/// Appends the response to a command. `moved_out` is the number of bytes that the command took, or
/// would have taken, from the initiator.
pub(super) fn put_outcome(
    out: &mut ReplyBuf,
    shape: Shape,
    request: &Request,
    outcome: &Outcome,
    moved_out: u64,
) {
    let total = outcome.data_in.len() as u64;
    let send = u32::try_from(total).unwrap_or(u32::MAX).min(request.expects_in);
    if outcome.status == Status::Good && send > 0 && request.expects_out == 0 {
        let fill = |at: u32, space: &mut [u8]| {
            let at = at as usize;
            space.copy_from_slice(&outcome.data_in[at..at + space.len()]);
            Ok::<bool, std::convert::Infallible>(true)
        };
        let Ok(_) = put_data(out, shape, request, (send, total, 1), fill);
        return;
    }
    let mut bhs = response(opcode::SCSI_RESPONSE, FINAL, request.itt);
    bhs.0[3] = outcome.status as u8;
    let ((flag_out, count_out), (flag_in, count_in)) =
        (residual(request.expects_out, moved_out), residual(request.expects_in, total));
    if request.expects_out > 0 || moved_out > 0 {
        bhs.0[1] |= flag_out;
        bhs.put_u32(44, count_out);
        if request.expects_in > 0 {
            // The flags for the read part of a bidirectional command are four times those of the
            // write part.
            bhs.0[1] |= flag_in << 2;
            bhs.put_u32(40, count_in);
        }
    } else {
        bhs.0[1] |= flag_in;
        bhs.put_u32(44, count_in);
    }
    bhs.put_u32(36, request.r2ts); // ExpDataSN: nothing else was sent for it
    match &outcome.sense {
        None => put(out, bhs, &[], shape.digests),
        Some(sense) => {
            let sense = sense.to_bytes();
            let mut data = Vec::with_capacity(2 + sense.len());
            data.extend_from_slice(&u16::try_from(sense.len()).unwrap_or(0).to_be_bytes());
            data.extend_from_slice(&sense);
            put(out, bhs, &data, shape.digests);
        }
    }
}
