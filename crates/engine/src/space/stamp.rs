//! Stamps of physical volumes: how far the pool had come when the stamp was written. They reveal an
//! older data directory, or an older physical volume, that does not belong to the rest.
//!
//! Two copies lie behind the label, at bytes 4096 and 8192. A new stamp replaces the older copy, so
//! one copy is whole when the writing of the other is interrupted.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `HINDSTMP` |
//! | 8..12 | CRC32C of bytes 12..4096 |
//! | 12..16 | format version |
//! | 16..32 | pool UUID |
//! | 32..48 | PV UUID |
//! | 48..56 | sequence: counts the stamps of the pool |
//! | 56..64 | incarnation of the pool |
//! | 64..80 | life: drawn at random when the pool was opened |
//!
//! Two facts hold at every instant, whatever is cut short:
//!
//! - The catalog *issues* a stamp in a commit before any physical volume bears it. So a physical
//!   volume never bears a later stamp than the catalog has issued.
//! - The catalog notes that a stamp is *durable* on a physical volume after the sync there. So a
//!   physical volume never bears an earlier stamp than noted.
//!
//! A contradiction means that one side was copied, restored or replaced while the other side was in
//! use.

use super::label::LABEL_LEN;
use crate::catalog::StampRecord;
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::{Cause, Disk, SyncPurpose};
use crate::error::{Error, Result, conflict};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HINDSTMP";
const VERSION: u32 = 1;
/// Bytes of one copy.
const STAMP_LEN: usize = 4096;
/// Byte offsets of the two copies.
const PLACES: [u64; 2] = [LABEL_LEN as u64, 2 * LABEL_LEN as u64];
/// Bytes of label and stamps together.
pub(crate) const HEAD_LEN: usize = 3 * LABEL_LEN;

/// The physical volume that bears a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) pool: Uuid,
    pub(crate) pv_uuid: Uuid,
}

/// The content of one place for a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StampCopy {
    /// No stamp of this physical volume.
    None,
    /// Neither a valid stamp nor zeros, or the place can't be read.
    Damaged,
    Stamp(StampRecord),
}

/// The stamps of a physical volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamped([StampCopy; 2]);

/// The age of a physical volume in comparison with the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// They belong together.
    Same,
    /// A stamp is damaged, so the age is unknown.
    Unknown,
    /// The catalog is of an earlier time: by this number of openings and of stamps.
    DirectoryOlder(u64, u64),
    /// The physical volume is of an earlier time: by this number of openings and of stamps.
    PvOlder(u64, u64),
    /// Both have a common past, and each was used without the other since then.
    Parted,
}

fn encode(bearer: &Bearer, stamp: &StampRecord) -> Vec<u8> {
    let mut w = Writer::default();
    w.bytes(MAGIC).u32(0).u32(VERSION).uuid(&bearer.pool).uuid(&bearer.pv_uuid);
    w.u64(stamp.sequence).u64(stamp.incarnation).uuid(&stamp.life);
    w.0.resize(STAMP_LEN, 0);
    let crc = crc32c(&w.0[12..]);
    w.0[8..12].copy_from_slice(&crc.to_le_bytes());
    w.0
}

fn decode(block: &[u8], bearer: &Bearer) -> StampCopy {
    if block.iter().all(|b| *b == 0) {
        return StampCopy::None;
    }
    match decode_fields(block) {
        None => StampCopy::Damaged,
        Some((found, _)) if found != *bearer => StampCopy::None,
        Some((_, stamp)) => StampCopy::Stamp(stamp),
    }
}

fn decode_fields(block: &[u8]) -> Option<(Bearer, StampRecord)> {
    let block = block.get(..STAMP_LEN)?;
    let mut r = Reader::new(block);
    if r.array::<8>()? != *MAGIC || r.u32()? != crc32c(&block[12..]) || r.u32()? != VERSION {
        return None;
    }
    let bearer = Bearer { pool: r.uuid()?, pv_uuid: r.uuid()? };
    Some((bearer, StampRecord { sequence: r.u64()?, incarnation: r.u64()?, life: r.uuid()? }))
}

impl Stamped {
    /// Reads both copies. A copy that can't be read counts as damaged: the other one may be enough.
    pub(crate) fn read(disk: &dyn Disk, bearer: &Bearer) -> Stamped {
        let _cause = Cause::Open.begin();
        let mut block = vec![0u8; STAMP_LEN];
        Stamped(PLACES.map(|place| match disk.read_at(&mut block, place) {
            Ok(()) => decode(&block, bearer),
            Err(_) => StampCopy::Damaged,
        }))
    }

    /// Returns the later one of the stamps.
    pub(crate) fn latest(&self) -> Option<StampRecord> {
        let stamps = self.0.iter().filter_map(|copy| match copy {
            StampCopy::Stamp(stamp) => Some(*stamp),
            _ => None,
        });
        stamps.max_by_key(|stamp| stamp.sequence)
    }

    /// Compares the stamps with the last stamp that the catalog issued, and with the last one that
    /// it knows to be durable here.
    pub(crate) fn age(&self, issued: &StampRecord, durable: Option<&StampRecord>) -> Age {
        let found = self.latest().unwrap_or_default();
        let ahead = |of: &StampRecord, than: &StampRecord| {
            (of.incarnation.saturating_sub(than.incarnation), of.sequence.saturating_sub(than.sequence))
        };
        if found.sequence > issued.sequence {
            let (openings, stamps) = ahead(&found, issued);
            return Age::DirectoryOlder(openings, stamps);
        }
        if let Some(durable) = durable.filter(|durable| durable.sequence > found.sequence) {
            if self.0.contains(&StampCopy::Damaged) {
                return Age::Unknown;
            }
            let (openings, stamps) = ahead(durable, &found);
            return Age::PvOlder(openings, stamps);
        }
        let parted = |known: &StampRecord| known.sequence == found.sequence && known.life != found.life;
        if parted(issued) || durable.is_some_and(parted) { Age::Parted } else { Age::Same }
    }

    /// Writes `stamp` in place of the older copy, or of a missing one. It is not durable before
    /// [`sync`].
    pub(crate) fn replace(
        &self,
        disk: &dyn Disk,
        path: &str,
        bearer: &Bearer,
        stamp: &StampRecord,
    ) -> Result<()> {
        let order = |copy: StampCopy| match copy {
            StampCopy::Stamp(stamp) => stamp.sequence,
            StampCopy::None | StampCopy::Damaged => 0,
        };
        let _cause = Cause::Open.begin();
        let place = if order(self.0[0]) <= order(self.0[1]) { PLACES[0] } else { PLACES[1] };
        disk.write_at(&encode(bearer, stamp), place)
            .map_err(|e| Error::io(format!("write the stamp of {path}"), e))
    }
}

/// Makes a written stamp durable.
pub(crate) fn sync(disk: &dyn Disk, path: &str) -> Result<()> {
    disk.sync(SyncPurpose::Stamp).map_err(|e| Error::io(format!("write the stamp of {path}"), e))
}

/// Returns the two copies for a disk that becomes a physical volume: the stamp, and zeros.
pub(crate) fn first(bearer: &Bearer, stamp: &StampRecord) -> Vec<u8> {
    let mut both = encode(bearer, stamp);
    both.resize(2 * STAMP_LEN, 0);
    both
}

impl Age {
    /// Returns an error if the physical volume and the catalog do not belong together.
    pub(crate) fn check(self, path: &str) -> Result<()> {
        match self.describe(path) {
            Some(text) if self != Age::Unknown => Err(conflict(text)),
            _ => Ok(()),
        }
    }

    /// Describes what is wrong, if anything is.
    pub(crate) fn describe(self, path: &str) -> Option<String> {
        let by = |openings, stamps| match openings {
            0 => format!("{stamps} stamps within one run of the server"),
            1 => "1 start of the server".to_owned(),
            n => format!("{n} starts of the server"),
        };
        match self {
            Age::Same => None,
            Age::Unknown => {
                Some(format!("the stamp of physical volume {path} is damaged, so its age is unknown"))
            }
            Age::DirectoryOlder(openings, stamps) => Some(format!(
                "this data directory is older than its physical volumes: physical volume {path} was used without it, for {}; \
                 its records of their content are wrong. Restore the data directory that was last in use, or open the \
                 pool read-only with --force-stale",
                by(openings, stamps)
            )),
            Age::PvOlder(openings, stamps) => Some(format!(
                "physical volume {path} is older than this data directory, by {}: it was restored or replaced. Restore the one \
                 that was last in use, or open the pool read-only with --force-stale",
                by(openings, stamps)
            )),
            Age::Parted => Some(format!(
                "physical volume {path} and this data directory come from two copies of the pool that were used apart. Use the \
                 ones that were last in use together, or open the pool read-only with --force-stale"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Dir, MemDir, OpenMode};

    const BEARER: Bearer = Bearer { pool: Uuid::from_bytes([1; 16]), pv_uuid: Uuid::from_bytes([2; 16]) };

    fn stamp(sequence: u64, incarnation: u64, life: u8) -> StampRecord {
        StampRecord { sequence, incarnation, life: Uuid::from_bytes([life; 16]) }
    }

    #[test]
    fn golden_bytes_and_damage() {
        let block = encode(&BEARER, &stamp(5, 4, 3));
        let hex: String = block[..80].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "48494e4453544d50a65410870100000001010101010101010101010101010101020202020202020202020202020202020500000000000000040000000000000003030303030303030303030303030303"
        );
        assert_eq!(decode(&block, &BEARER), StampCopy::Stamp(stamp(5, 4, 3)));
        for byte in 0..STAMP_LEN {
            let mut bad = block.clone();
            bad[byte] ^= 4;
            assert_eq!(decode(&bad, &BEARER), StampCopy::Damaged, "byte {byte}");
        }
        assert_eq!(decode(&[0; STAMP_LEN], &BEARER), StampCopy::None);
        let other = Bearer { pool: Uuid::from_bytes([7; 16]), ..BEARER };
        assert_eq!(decode(&block, &other), StampCopy::None, "a stamp of another pool, left there");
    }

    #[test]
    fn the_older_copy_is_replaced() {
        let disk = MemDir::new().open("pv", OpenMode::CreateNew).unwrap();
        disk.set_len(1 << 20).unwrap();
        for n in 1..=5 {
            let before = Stamped::read(&*disk, &BEARER);
            before.replace(&*disk, "pv", &BEARER, &stamp(n, 1, 1)).unwrap();
            let now = Stamped::read(&*disk, &BEARER);
            assert_eq!(now.latest(), Some(stamp(n, 1, 1)));
            // The new stamp is torn in the middle, and the one before is still there.
            for place in PLACES {
                let mut block = vec![0; STAMP_LEN];
                disk.read_at(&mut block, place).unwrap();
                if decode(&block, &BEARER) == StampCopy::Stamp(stamp(n, 1, 1)) {
                    disk.write_at(&[0xEE; 512], place + 512).unwrap();
                    assert_eq!(Stamped::read(&*disk, &BEARER).latest(), before.latest());
                    disk.write_at(&block, place).unwrap();
                }
            }
        }
    }

    #[test]
    fn ages() {
        let issued = stamp(10, 4, 1);
        let durable = stamp(8, 3, 2);
        let age = |copies| Stamped(copies).age(&issued, Some(&durable));
        let (none, damaged) = (StampCopy::None, StampCopy::Damaged);
        let copy = |sequence, incarnation, life| StampCopy::Stamp(stamp(sequence, incarnation, life));
        assert_eq!(age([copy(10, 4, 1), copy(9, 4, 1)]), Age::Same);
        assert_eq!(age([copy(8, 3, 2), none]), Age::Same);
        // The crash came after the commit, before the stamp or in its middle.
        assert_eq!(age([damaged, copy(8, 3, 2)]), Age::Same);
        assert_eq!(age([copy(9, 4, 5), copy(8, 3, 2)]), Age::Same);
        assert_eq!(age([copy(11, 5, 1), copy(10, 4, 1)]), Age::DirectoryOlder(1, 1));
        assert_eq!(age([copy(11, 5, 1), damaged]), Age::DirectoryOlder(1, 1));
        assert_eq!(age([copy(7, 3, 2), copy(6, 3, 2)]), Age::PvOlder(0, 1));
        assert_eq!(age([none, none]), Age::PvOlder(3, 8));
        assert_eq!(age([copy(7, 3, 2), damaged]), Age::Unknown);
        assert_eq!(age([copy(10, 4, 9), copy(9, 4, 1)]), Age::Parted);
        assert_eq!(age([copy(8, 3, 9), none]), Age::Parted);
        // Pools of earlier builds have no stamps.
        let old = Stamped([none, none]);
        assert_eq!(old.age(&StampRecord::default(), None), Age::Same);
        assert_eq!(Stamped([damaged, none]).age(&StampRecord::default(), None), Age::Same);
        for wrong in [Age::DirectoryOlder(1, 1), Age::PvOlder(0, 2), Age::Parted] {
            assert!(wrong.check("pv-0.img").unwrap_err().to_string().contains("pv-0.img"));
        }
        assert!(Age::Unknown.check("x").is_ok() && Age::Same.describe("x").is_none());
    }
}
