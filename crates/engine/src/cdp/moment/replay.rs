//! The way from an anchor to a moment: the steps that changed one chunk between the two, in either
//! direction.
//!
//! Memory does not grow with the number of steps. When the index has many records of a chunk, they
//! are looked up segment by segment: once to count them, and once more to apply them.

use crate::catalog::SegmentRecord;
use crate::cdp::log::BranchCdp;
use crate::cdp::log::codec::{crc_of_zeros, lost};
use crate::cdp::log::record::{IndexEntry, Replaced};
use crate::cdp::log::segment::{LogFile, Sealed};
use crate::codec::crc32c;
use crate::error::{Error, Result};
use crate::ids::{Chunk, Lsn};
use std::borrow::Cow;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The number of entries that are kept after they are counted.
const KEPT: usize = 16 << 10;

/// The records of a chunk in one segment.
struct Part {
    file: LogFile,
    /// The entries, or `None` if there were too many. They are then looked up again.
    entries: Option<Vec<IndexEntry>>,
    /// The segment, or `None` if records were appended to it at that time. Its entries are then
    /// kept.
    sealed: Option<Arc<Sealed>>,
}

/// All records of a chunk with LSNs in a range. The segments of a log have the records of one chunk
/// in order, because they were appended in order.
struct Records {
    chunk: Chunk,
    lsns: RangeInclusive<Lsn>,
    parts: Vec<Part>,
}

/// A way from a start to a moment, over records and events.
pub(super) struct Replay {
    forward: bool,
    records: Records,
    /// The LSNs at which bytes of the chunk became zeros, and these bytes, in the order of the way.
    emptied: Vec<(Lsn, Range<usize>)>,
    /// The number of all steps.
    pub(super) len: usize,
    /// The chunk's sum at the moment, if the step nearest to the moment has it.
    pub(super) sum: Option<u32>,
    /// The first step that does not lead in the direction of the way.
    obstacle: Option<String>,
}

impl Replay {
    /// Makes the way over the records of `chunk` in `lsns`, and over the events that `emptied`
    /// parts of it, oldest first.
    pub(super) fn new(
        cdp: &BranchCdp,
        chunk: (Chunk, u64),
        lsns: RangeInclusive<Lsn>,
        mut emptied: Vec<(Lsn, Range<usize>)>,
        forward: bool,
    ) -> Result<Replay> {
        let (chunk, chunk_size) = chunk;
        let mut obstacle = None;
        let mut nearest: Option<IndexEntry> = None;
        let mut count = 0;
        let records = Records::find(cdp, chunk, lsns, |entries| {
            if let Some(entry) = entries.iter().find(|e| obstacle.is_none() && !e.leads(forward)) {
                obstacle = Some(format!("the record with LSN {}", entry.lsn));
            }
            nearest = if forward {
                entries.last().copied().or(nearest)
            } else {
                nearest.or(entries.first().copied())
            };
            count += entries.len();
        })?;
        if !forward && !emptied.is_empty() {
            obstacle.get_or_insert_with(|| "a discard".to_owned());
        }
        // Backward nothing is known of what was emptied, and forward only if that was the whole
        // chunk.
        let last = if forward { emptied.last() } else { emptied.first() };
        let is_nearer = |at: Lsn| nearest.is_none_or(|record| (at > record.lsn) == forward);
        let sum = match last.filter(|(at, _)| is_nearer(*at)) {
            Some((_, range)) => {
                (forward && range.len() as u64 == chunk_size).then(|| crc_of_zeros(chunk_size))
            }
            None => nearest.and_then(|record| record.sum(forward)),
        };
        if !forward {
            emptied.reverse();
        }
        Ok(Replay { forward, records, len: count + emptied.len(), emptied, sum, obstacle })
    }

    /// Fails if a step on the way does not lead in its direction.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let direction = if self.forward { "forward" } else { "backward" };
        let blocked =
            |what: &String| Err(format!("{what} does not lead {direction}, and the other direction is lost"));
        self.obstacle.as_ref().map_or(Ok(()), blocked)
    }

    /// Turns the chunk's content at the start into its content at the moment.
    pub(super) fn go(&self, content: &mut [u8]) -> Result<()> {
        let mut emptied = self.emptied.iter().peekable();
        // The sum of what the last step led to.
        let mut known = None;
        for part in 0..self.records.parts.len() {
            let part =
                &self.records.parts[if self.forward { part } else { self.records.parts.len() - 1 - part }];
            let entries = self.records.entries(part)?;
            for n in 0..entries.len() {
                let entry = &entries[if self.forward { n } else { entries.len() - 1 - n }];
                while let Some(discard) = emptied.next_if(|(at, _)| (*at < entry.lsn) == self.forward) {
                    self.empty(content, discard, &mut known)?;
                }
                let changed = content.get_mut(entry.bytes());
                let changed = changed.ok_or_else(|| {
                    let (lsn, chunk) = (entry.lsn, entry.chunk);
                    lost(format!("apply the CDP record with LSN {lsn}: it does not fit chunk {chunk}"))
                })?;
                match entry.replaced {
                    Replaced::Payload => entry.encoding.apply(changed, &part.file.payload(entry)?),
                    Replaced::Zeros => changed.fill(0),
                    Replaced::Anchor => return Err(lost("a record without a payload leads nowhere")),
                }
                known = entry.sum(self.forward);
            }
        }
        emptied.try_for_each(|discard| self.empty(content, discard, &mut known))
    }

    /// Sets a part of the chunk to zeros. The content is verified before, because its sum is not
    /// known afterwards.
    fn empty(
        &self,
        content: &mut [u8],
        (lsn, range): &(Lsn, Range<usize>),
        known: &mut Option<u32>,
    ) -> Result<()> {
        if known.is_some_and(|sum| crc32c(content) != sum) {
            let chunk = self.records.chunk;
            return Err(lost(format!(
                "apply the discard with LSN {lsn} to chunk {chunk}: the content before it does not verify"
            )));
        }
        content[range.clone()].fill(0);
        *known = (range.len() == content.len()).then(|| crc_of_zeros(content.len() as u64));
        Ok(())
    }
}

impl Records {
    /// Looks up the records, and passes those of each segment to `look`, in order.
    fn find(
        cdp: &BranchCdp,
        chunk: Chunk,
        lsns: RangeInclusive<Lsn>,
        mut look: impl FnMut(&[IndexEntry]),
    ) -> Result<Records> {
        let mut records = Records { chunk, lsns, parts: Vec::new() };
        let lsns = records.lsns.clone();
        if lsns.is_empty() {
            return Ok(records);
        }
        let touches = |r: &SegmentRecord| {
            r.lsns.0 <= *lsns.end() && r.lsns.1 >= *lsns.start() && (r.chunks.0..=r.chunks.1).contains(&chunk)
        };
        let (sealed, mut open) = {
            let log = cdp.log.read();
            let sealed: Vec<(u64, Arc<Sealed>)> =
                log.sealed.iter().filter(|(_, s)| touches(&s.record)).map(|(n, s)| (*n, s.clone())).collect();
            let open = log.open.as_ref().filter(|o| touches(&o.record));
            let open =
                open.map(|o| Ok::<_, Error>((o.file.clone(), o.find(chunk, lsns.clone())?))).transpose()?;
            (sealed, open)
        };
        let mut kept = 0;
        let mut put_open = |records: &mut Records, look: &mut dyn FnMut(&[IndexEntry]), before: u64| {
            if let Some((file, entries)) = open.take_if(|(file, _)| file.head.seq < before) {
                look(&entries);
                records.parts.push(Part { file, entries: Some(entries), sealed: None });
            }
        };
        for (seq, segment) in sealed {
            put_open(&mut records, &mut look, seq);
            let entries = segment.find(chunk, lsns.clone())?;
            look(&entries);
            if entries.is_empty() {
                continue;
            }
            kept += entries.len();
            records.parts.push(Part {
                file: segment.file.clone(),
                entries: (kept <= KEPT).then_some(entries),
                sealed: Some(segment),
            });
        }
        put_open(&mut records, &mut look, u64::MAX);
        Ok(records)
    }

    fn entries<'a>(&self, part: &'a Part) -> Result<Cow<'a, [IndexEntry]>> {
        match (&part.entries, &part.sealed) {
            (Some(entries), _) => Ok(Cow::Borrowed(entries)),
            (None, Some(sealed)) => sealed.find(self.chunk, self.lsns.clone()).map(Cow::Owned),
            (None, None) => Ok(Cow::Borrowed(&[])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{BlockDevice, WriteOp};
    use crate::info::history::Moment;
    use crate::settings::{AnchorPolicy, CdpSettings, Encoding};
    use crate::testing::Site;
    use bytes::Bytes;

    /// Few records of a chunk are held in memory, however often it was written to.
    #[test]
    fn many_records_of_one_chunk() {
        for encoding in [Encoding::Parity, Encoding::Redo] {
            let site = Site::new(63).having("v", 1 << 20, 4096);
            let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
            site.pool.set_cdp("v", Some(settings)).unwrap();
            let volume = site.pool.open_volume("v", false).unwrap();
            let first = site.pool.stats().sequenced_lsn.next();
            let written = |n: u64| Bytes::from(n.to_le_bytes().repeat(64));
            let place = |n: u64| n % 8 * 512;
            let count = 3 * KEPT as u64 + 100;
            for n in 0..count {
                let mut op = [WriteOp::new(place(n), written(n))];
                volume.write(&mut op, false);
                op[0].result.clone().unwrap();
            }
            site.pool.drain().unwrap();
            let branch = site.pool.core.names.read().volume("v").unwrap().line.branch.clone();
            let way = Replay::new(&branch.cdp, (Chunk::FIRST, 4096), Lsn::ZERO..=Lsn::MAX, Vec::new(), true)
                .unwrap();
            assert_eq!(way.len as u64, count);
            let held = way.records.parts.iter().filter(|part| part.sealed.is_some());
            let held: usize = held.filter_map(|part| part.entries.as_ref()).map(Vec::len).sum();
            assert!(held <= KEPT && way.records.parts.iter().any(|part| part.entries.is_none()), "{held}");
            // From the first anchor, and from now (with parities).
            for n in [8, 9, 1000, count / 2 - 1, count / 2 + 1, count - 10, count - 1] {
                let view = site.pool.open_moment("v", &Moment::Lsn(Lsn(first.0 + n))).unwrap();
                let mut found = vec![0; 4096];
                view.read(0, &mut found).unwrap();
                let expected = |sector: u64| written(n - (n + 8 - sector) % 8);
                let wrong = (0..8).find(|s| found[*s as usize * 512..][..512] != expected(*s));
                assert_eq!(wrong, None, "after write {n}");
            }
        }
    }
}
