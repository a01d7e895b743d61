//! Making a stream of a snapshot.

use super::codec::{Kind, MAX_DATA, RecordHeader, StreamHeader, StreamState, Total};
use crate::codec::crc32c;
use crate::device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::{Pool, SnapshotInfo};
use crate::volume::{Difference, Volume};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a piece: about this many, at most two records more.
const PIECE: usize = 1 << 20;

/// A snapshot being exported. Holds the snapshots that it needs; reads only what is asked for.
pub struct Export {
    to: Arc<Volume>,
    /// From the older snapshot.
    difference: Option<Difference>,
    header: StreamHeader,
    /// Where the search for what differs goes on.
    scanned: u64,
    /// What is to be sent next.
    ranges: VecDeque<Range<u64>>,
    total: Total,
    ended: bool,
}

impl Pool {
    /// Exports a snapshot: all of it, or what differs from the snapshot `from`. `start` is a byte of the volume, a multiple of
    /// the block size: a transfer that was cut short goes on there.
    pub fn export(
        self: &Arc<Self>,
        volume: &str,
        snapshot: &str,
        from: Option<&str>,
        start: u64,
    ) -> Result<Export> {
        let to = self.open_snapshot(volume, snapshot)?;
        let info = self.snapshot(volume, snapshot)?;
        if info.uuid != to.info().uuid {
            let text = format!("export {volume}@{snapshot}: it is being renamed; try again");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let state =
            |s: &SnapshotInfo| StreamState { content: s.content, name: s.name.clone(), created: s.created };
        let difference = from.map(|from| self.difference(volume, from, Some(snapshot))).transpose()?;
        let from = from.map(|from| self.snapshot(volume, from)).transpose()?;
        let device = to.info();
        if start > device.size || !start.is_multiple_of(device.block_size as u64) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("export from byte {start}: not in the snapshot, or no multiple of its block size"),
            ));
        }
        let header = StreamHeader {
            volume: volume.to_owned(),
            size: device.size,
            block_size: device.block_size,
            chunk_size: to.chunk_size(),
            start,
            to: state(&info),
            from: from.as_ref().map(state),
        };
        Ok(Export {
            to,
            difference,
            header,
            scanned: start,
            ranges: VecDeque::new(),
            total: Total::new(),
            ended: false,
        })
    }
}

impl Export {
    /// What the stream says of itself.
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// The byte of the volume up to which everything was handed out.
    pub fn position(&self) -> u64 {
        self.ranges.front().map_or(self.scanned, |range| range.start)
    }

    /// The next piece of the stream; `None` after the last one.
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>> {
        if self.ended {
            return Ok(None);
        }
        let mut piece = Vec::new();
        if self.total.bytes == 0 {
            piece = self.header.encode();
            self.total.add(&piece);
        }
        while piece.len() < PIECE && !self.ended {
            let before = piece.len();
            match self.next_range()? {
                Some(range) => self.put_run(range, &mut piece)?,
                None => {
                    piece.extend(self.total.trailer(self.header.size).encode());
                    self.ended = true;
                    break;
                }
            }
            self.total.add(&piece[before..]);
        }
        Ok(Some(piece))
    }

    /// What is to be sent next.
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

    /// Sends the start of `range`, the first in the queue, as far as it is of one kind.
    fn put_run(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let runs = self.to.block_status(range.start, range.end - range.start, 1)?;
        let zero = runs.first().is_some_and(|run| run.zero);
        let length = runs.first().map_or(range.end - range.start, |run| run.length);
        let length = if zero { length } else { length.min(MAX_DATA) };
        let mut record = RecordHeader { kind: Kind::Zeros, crc: 0, offset: range.start, length };
        if !zero {
            let mut data = vec![0; length as usize];
            self.to.read(range.start, &mut data)?;
            record = RecordHeader { kind: Kind::Data, crc: crc32c(&data), ..record };
            out.extend(record.encode());
            out.extend(data);
        } else if self.difference.is_some() {
            out.extend(record.encode());
        }
        match self.ranges.front_mut() {
            Some(front) if range.start + length < range.end => front.start = range.start + length,
            _ => drop(self.ranges.pop_front()),
        }
        Ok(())
    }
}
