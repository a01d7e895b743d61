//! The data of a reference record: the slots that hold a large write, and the sums of its content.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | log2 of the slot size, which is the chunk size |
//! | 1 | zero |
//! | 2..4 | number of runs |
//! | 4.. | runs of 12 bytes each: the first slot (as in map pages), and the number of slots |
//! | then | CRC-32/MEF of each 4 KiB of the write, in order of the volume, 4 bytes each |
//! | then | zeros up to a multiple of 8 bytes |
//!
//! A reference covers whole chunks. The slots are in the order of the chunks: the first slot of the
//! first run holds the first chunk. A writer writes the data to the slots before it sequences the
//! reference (decision 63).

use super::record::{Header, Kind, MAX_DATA, RECORD_ALIGN};
use crate::codec::{Reader, Writer, align_up, outer_sum};
use crate::ids::Slot;
use crate::staging::SLOTS_END;
use crate::units::BLOCK;
use bytes::Bytes;

/// The largest range of one reference, in bytes, unless a chunk is longer.
pub(crate) const MAX_REFERENCE: u64 = 1 << 20;
/// log2 of the smallest and the largest chunk that a reference can cover.
pub(crate) const CHUNK_LOG2: std::ops::RangeInclusive<u8> = 12..=24;
/// The numbers of the physical volumes in a reference are below this number.
const MAX_PVS: u32 = 4096;
/// The size of the encoded fields before the runs, in bytes.
const HEAD: u64 = 4;
const RUN: u64 = 12;

// A record has room for one chunk of the largest size, and for 256 chunks of 4 KiB in a run each.
const _: () = assert!(HEAD + RUN + (1 << 24) / BLOCK * 4 <= MAX_DATA);
const _: () = assert!(HEAD + (RUN + 4) * (MAX_REFERENCE / BLOCK) <= MAX_DATA);

/// Slots in a row on one physical volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotRun {
    pub(crate) first: Slot,
    /// Number of slots.
    pub(crate) count: u32,
}

impl SlotRun {
    /// Returns the slot at `index` in the run.
    pub(crate) fn slot(&self, index: u32, slot_log2: u8) -> Slot {
        self.first.advanced(u64::from(index) << slot_log2)
    }

    /// Returns the slots of the run, in order.
    pub(crate) fn slots(self, slot_log2: u8) -> impl Iterator<Item = Slot> {
        (0..self.count).map(move |index| self.slot(index, slot_log2))
    }
}

/// The content of a reference's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    /// log2 of the slot size.
    pub(crate) slot_log2: u8,
    pub(crate) runs: Vec<SlotRun>,
    /// The CRC-32/MEF of each 4 KiB, in order of the volume.
    pub(crate) sums: Vec<u32>,
}

impl Reference {
    /// Returns the bytes that follow the record's header.
    pub(crate) fn encode(&self) -> Bytes {
        let mut w = Writer::default();
        w.u8(self.slot_log2).u8(0).u16(self.runs.len() as u16);
        for run in &self.runs {
            w.u64(run.first.0).u32(run.count);
        }
        for sum in &self.sums {
            w.u32(*sum);
        }
        w.0.resize(align_up(w.0.len() as u64, RECORD_ALIGN) as usize, 0);
        w.0.into()
    }

    /// Decodes `data`, the data of the record with this `header`. Returns `None` unless every field
    /// is valid.
    pub(crate) fn decode(header: &Header, data: &[u8]) -> Option<Reference> {
        let is_reference = header.kind == Kind::Reference;
        is_reference.then(|| Reference::of_range(header.offset, header.length, data)).flatten()
    }

    /// Decodes `data`, the data of a reference to `length` bytes of the volume from `offset` on.
    /// Returns `None` unless every field is valid.
    pub(crate) fn of_range(offset: u64, length: u64, data: &[u8]) -> Option<Reference> {
        let mut r = Reader::new(data);
        let slot_log2 = r.u8().filter(|log2| CHUNK_LOG2.contains(log2))?;
        let size = 1u64 << slot_log2;
        if r.u8()? != 0 || !is_whole(offset, length, size) {
            return None;
        }
        let count = usize::from(r.u16()?);
        let mut runs = Vec::with_capacity(count.min(data.len() / RUN as usize));
        let mut slots = 0u64;
        for _ in 0..count {
            let run = SlotRun { first: Slot(r.u64()?), count: r.u32()? };
            slots += u64::from(run.count);
            let end = run.first.offset().checked_add(u64::from(run.count) << slot_log2)?;
            let fits = run.count > 0 && run.first.pv() < MAX_PVS && end <= SLOTS_END;
            if !fits || run.first == Slot::HOLE || !run.first.offset().is_multiple_of(BLOCK) {
                return None;
            }
            runs.push(run);
        }
        let blocks = (length / BLOCK) as usize;
        if slots != length >> slot_log2 || overlap(&runs, slot_log2) {
            return None;
        }
        let mut sums = Vec::with_capacity(blocks.min(data.len() / 4));
        for _ in 0..blocks {
            sums.push(r.u32()?);
        }
        let padding = data.len() as u64 - HEAD - RUN * runs.len() as u64 - 4 * sums.len() as u64;
        let zeros = r.take(padding as usize)?.iter().all(|b| *b == 0);
        let aligned = (data.len() as u64).is_multiple_of(RECORD_ALIGN);
        (aligned && padding < RECORD_ALIGN && zeros).then_some(Reference { slot_log2, runs, sums })
    }

    /// Returns the slots in order of the volume.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.runs.iter().flat_map(|run| run.slots(self.slot_log2))
    }

    /// Returns the place and the sum of each 4 KiB, in order of the volume.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (Slot, u32)> {
        let places = self.slots().flat_map(|slot| {
            (0..1u64 << self.slot_log2).step_by(BLOCK as usize).map(move |at| slot.advanced(at))
        });
        places.zip(self.sums.iter().copied())
    }

    /// Returns whether `data` has the sums of the reference. `data` is the content of all its
    /// slots.
    pub(crate) fn verifies(&self, data: &[u8]) -> bool {
        data.len() == self.sums.len() * BLOCK as usize
            && data.chunks_exact(BLOCK as usize).zip(&self.sums).all(|(block, sum)| outer_sum(block) == *sum)
    }
}

/// Returns the sums of the 4 KiB blocks of `data`, which must be whole blocks.
pub(crate) fn sums_of(data: &[u8]) -> Vec<u32> {
    data.chunks_exact(BLOCK as usize).map(outer_sum).collect()
}

fn is_whole(offset: u64, length: u64, size: u64) -> bool {
    length > 0
        && length <= MAX_REFERENCE.max(size)
        && offset.is_multiple_of(size)
        && length.is_multiple_of(size)
}

/// Returns whether two of the runs have a slot in common.
fn overlap(runs: &[SlotRun], slot_log2: u8) -> bool {
    let mut sorted: Vec<&SlotRun> = runs.iter().collect();
    sorted.sort_unstable_by_key(|run| run.first);
    sorted.windows(2).any(|pair| {
        let end = pair[0].first.0 + (u64::from(pair[0].count) << slot_log2) / 512;
        end > pair[1].first.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BranchId, Epoch, Lsn};
    use crate::journal::record::{PieceCrcs, REFERENCE_VERSION};

    fn header(offset: u64, length: u64) -> Header {
        Header {
            incarnation: 1,
            lsn: Lsn(5),
            synced_lsn: Lsn(4),
            time: 9,
            branch: BranchId(2),
            offset,
            length,
            epoch: Epoch(1),
            data_len: 0,
            data_crc: 0,
            kind: Kind::Reference,
            slots: 0,
            version: REFERENCE_VERSION,
        }
    }

    fn sample() -> Reference {
        let run = |offset, count| SlotRun { first: Slot::new(3, offset), count };
        Reference { slot_log2: 13, runs: vec![run(1 << 20, 2), run(3 << 20, 1)], sums: (1..=6).collect() }
    }

    #[test]
    fn golden_bytes() {
        let hex: String = sample().encode().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "0d0002000008000000000300020000000018000000000300010000000100000002000000030000000400000005000000\
             0600000000000000"
        );
        let header = header(8192, 3 * 8192);
        assert_eq!(Reference::decode(&header, &sample().encode()), Some(sample()));
        let places: Vec<u64> = sample().blocks().map(|(place, _)| place.offset() >> 12).collect();
        assert_eq!(places, [256, 257, 258, 259, 768, 769]);
    }

    #[test]
    fn a_header_of_a_reference_round_trips() {
        let data = sample().encode();
        let (data_len, data_crc) = (data.len() as u32, PieceCrcs::of(0, &data).total());
        let header = Header { data_len, data_crc, ..header(8192, 3 * 8192) };
        let mut out = Vec::new();
        header.encode(7, &mut out);
        assert_eq!(Header::decode(&out, 7), Some(header));
        assert!(header.verifies(&data) && !header.verifies(&data[1..]));
        for wrong in [
            Header { version: 2, ..header },
            Header { kind: Kind::Write, length: header.data_len.into(), ..header },
            Header { offset: 512, ..header },
            Header { length: 3 * 8192 + 512, ..header },
        ] {
            let mut out = Vec::new();
            wrong.encode(7, &mut out);
            assert_eq!(Header::decode(&out, 7), None, "{wrong:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let good = sample();
        let whole = header(8192, 3 * 8192);
        assert!(Reference::decode(&whole, &good.encode()).is_some());
        for other in [header(4096, 3 * 8192), header(8192, 4 * 8192), header(0, 2 * 8192)] {
            assert_eq!(Reference::decode(&other, &good.encode()), None, "{other:?}");
        }
        let run = |pv, offset, count| SlotRun { first: Slot::new(pv, offset), count };
        for runs in [
            vec![run(3, 1 << 20, 2), run(3, (1 << 20) + 8192, 1)],
            vec![run(3, 1 << 20, 3), run(3, 3 << 20, 0)],
            vec![run(4096, 1 << 20, 3)],
            vec![run(3, (1 << 20) + 512, 3)],
            vec![run(3, SLOTS_END - 8192, 3)],
            vec![SlotRun { first: Slot::HOLE, count: 3 }],
        ] {
            let bad = Reference { runs, ..good.clone() };
            assert_eq!(Reference::decode(&whole, &bad.encode()), None, "{bad:?}");
        }
        let bytes = good.encode();
        for len in 0..bytes.len() - 4 {
            assert_eq!(Reference::decode(&whole, &bytes[..len]), None);
        }
        assert_eq!(Reference::decode(&whole, &[&bytes[..], &[0; 4]].concat()), None);
        assert_eq!(Reference::decode(&whole, &[&bytes[..bytes.len() - 1], &[1]].concat()), None);
        assert_eq!(Reference::decode(&whole, &[&[25], &bytes[1..]].concat()), None);
    }
}
