//! Makes a stream from a snapshot or a moment.

use super::codec::{ItemKind, MAX_DATA, RecordHeader, StreamHeader, StreamState, Total};
use super::zeros::{least, runs};
use crate::branch::namespace::check_name;
use crate::cdp::Moment;
use crate::codec::crc32c;
use crate::device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::Pool;
use crate::volume::{Difference, Volume};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Size in bytes at which a piece ends. It may have up to two records more.
const PIECE: usize = 1 << 20;

/// Number of runs for one piece; `READ_PER_PIECE` is the number of bytes read for it. A piece that
/// finds only zeros sends a record of zeros, though that is not required. So the receiver sees
/// progress, and a transfer that is cut short need not read the zeros again.
const RUNS_PER_PIECE: usize = 256;
const READ_PER_PIECE: u64 = 16 << 20;

/// A snapshot or moment that is being exported. It holds the states that it needs, and reads only
/// what is requested.
pub struct Export {
    to: Arc<Volume>,
    /// The difference from the older snapshot, if there is one.
    difference: Option<Difference>,
    header: StreamHeader,
    /// The byte at which the search for differences continues.
    scanned: u64,
    /// The ranges that are to be sent next.
    ranges: VecDeque<Range<u64>>,
    /// A range for which it is known whether it is zeros, and whether it is. The exported content
    /// does not change.
    known: (Range<u64>, bool),
    /// Number of bytes read so far.
    read: u64,
    total: Total,
    ended: bool,
}

/// A past state of a volume that a stream can have. It keeps the state from going.
pub struct PastState {
    device: Arc<Volume>,
    state: StreamState,
}

impl Pool {
    /// Returns a snapshot, for an export.
    pub fn past_snapshot(self: &Arc<Self>, volume: &str, snapshot: &str) -> Result<PastState> {
        let device = self.open_snapshot(volume, snapshot)?;
        let info = self.snapshot(volume, snapshot)?;
        if info.uuid != device.info().uuid {
            let text = format!("export {volume}@{snapshot}: it is being renamed; try again");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let state = StreamState { content: info.content, name: info.name, created: info.created };
        Ok(PastState { device, state })
    }

    /// Returns a moment, for an export. The snapshot that an import makes of it has the name
    /// `name`. Its identity is that of the volume at the moment's LSN, so a later export can build
    /// upon it.
    pub fn past_moment(self: &Arc<Self>, volume: &str, moment: &Moment, name: &str) -> Result<PastState> {
        check_name(name)?;
        let point = self.resolve(volume, moment)?;
        let device = self.open_moment(volume, &Moment::Lsn(point.lsn))?;
        let info = device.info();
        let state = StreamState { content: info.uuid, name: name.to_owned(), created: point.time };
        Ok(PastState { device, state })
    }

    /// Exports a snapshot: all of it, or what differs from the snapshot `from`. `start` is as in
    /// [`Pool::export_past`].
    pub fn export(
        self: &Arc<Self>,
        volume: &str,
        snapshot: &str,
        from: Option<&str>,
        start: u64,
    ) -> Result<Export> {
        let from = from.map(|from| self.past_snapshot(volume, from)).transpose()?;
        self.export_past(volume, self.past_snapshot(volume, snapshot)?, from, start)
    }

    /// Exports a past state of a volume: all of it, or what differs from the older state `from`.
    /// `start` is a byte of the volume, a multiple of the block size. A transfer that was cut short
    /// continues there.
    pub fn export_past(
        self: &Arc<Self>,
        volume: &str,
        to: PastState,
        from: Option<PastState>,
        start: u64,
    ) -> Result<Export> {
        let PastState { device: to, state } = to;
        let earlier = from.as_ref().map(|from| from.state.clone());
        let difference = from.map(|from| Difference::new(from.device, to.clone())).transpose()?;
        let device = to.info();
        if start > device.size || !start.is_multiple_of(device.block_size as u64) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "export from byte {start}: it is past the end of the snapshot, or not a multiple of its block size"
                ),
            ));
        }
        let header = StreamHeader {
            volume: volume.to_owned(),
            size: device.size,
            block_size: device.block_size,
            chunk_size: to.chunk_size(),
            start,
            to: state,
            from: earlier,
        };
        Ok(Export {
            to,
            difference,
            header,
            scanned: start,
            ranges: VecDeque::new(),
            known: (0..0, false),
            read: 0,
            total: Total::new(),
            ended: false,
        })
    }
}

impl Export {
    /// Returns the header of the stream.
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Returns the byte of the volume up to which everything was returned in pieces.
    pub fn position(&self) -> u64 {
        self.ranges.front().map_or(self.scanned, |range| range.start)
    }

    /// Returns the next piece of the stream; `None` after the last one.
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>> {
        if self.ended {
            return Ok(None);
        }
        let mut piece = Vec::new();
        if self.total.bytes == 0 {
            piece = self.header.encode();
            self.total.add(&piece);
        }
        let (mut last, read) = (0..0, self.read);
        for _ in 0..RUNS_PER_PIECE {
            if piece.len() >= PIECE || self.read - read >= READ_PER_PIECE || self.ended {
                break;
            }
            let before = piece.len();
            match self.next_range()? {
                Some(range) => last = self.put_run(range, &mut piece)?,
                None => {
                    piece.extend(self.total.trailer(self.header.size).encode());
                    self.ended = true;
                    break;
                }
            }
            self.total.add(&piece[before..]);
        }
        if piece.is_empty() {
            put_zeros(last, &mut piece);
            self.total.add(&piece);
        }
        Ok(Some(piece))
    }

    /// Returns the range that is to be sent next.
    fn next_range(&mut self) -> Result<Option<Range<u64>>> {
        while self.ranges.is_empty() && self.scanned < self.header.size {
            let left = self.header.size - self.scanned;
            match &self.difference {
                Some(difference) => {
                    let (ranges, end) = difference.step(self.scanned, left)?;
                    self.ranges.extend(ranges);
                    self.scanned = end;
                }
                None => {
                    self.ranges.push_back(self.scanned..self.header.size);
                    self.scanned = self.header.size;
                }
            }
        }
        Ok(self.ranges.front().cloned())
    }

    /// Sends the start of `range`, which is the first in the queue, as far as it is of one kind.
    /// Returns the range that was sent.
    fn put_run(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Result<Range<u64>> {
        let mut end = range.end;
        if !self.known.0.contains(&range.start) {
            let runs = self.to.block_status(range.start, range.end - range.start, 1)?;
            let run = runs.first().map_or((range.end - range.start, false), |run| (run.length, run.zero));
            self.known = (range.start..range.start + run.0, run.1);
        }
        end = end.min(self.known.0.end);
        if self.known.1 {
            self.skip_zeros(range.start..end, out);
        } else {
            end = end.min(range.start + MAX_DATA);
            self.put_data(range.start..end, out)?;
            self.read += end - range.start;
        }
        match self.ranges.front_mut() {
            Some(front) if end < range.end => front.start = end,
            _ => drop(self.ranges.pop_front()),
        }
        Ok(range.start..end)
    }

    /// Sends at most [`MAX_DATA`] bytes. Allocated content may still be zeros. Such zeros are left
    /// out, so that they take no space in the importing pool.
    fn put_data(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let mut all = vec![0; (range.end - range.start) as usize];
        self.to.read(range.start, &mut all)?;
        for (part, zero) in runs(&all, range.start, least(self.header.chunk_size)) {
            let (offset, data) = (range.start + part.start as u64, &all[part]);
            let length = data.len() as u64;
            if zero {
                self.skip_zeros(offset..offset + length, out);
            } else {
                out.extend(RecordHeader { kind: ItemKind::Data, crc: crc32c(data), offset, length }.encode());
                out.extend(data);
            }
        }
        Ok(())
    }

    /// Sends zeros, if the stream is a difference. In a whole stream, what has no record is zeros
    /// in the volume that it fills.
    fn skip_zeros(&self, range: Range<u64>, out: &mut Vec<u8>) {
        if self.difference.is_some() {
            put_zeros(range, out);
        }
    }
}

fn put_zeros(range: Range<u64>, out: &mut Vec<u8>) {
    let length = range.end - range.start;
    out.extend(RecordHeader { kind: ItemKind::Zeros, crc: 0, offset: range.start, length }.encode());
}
