//! The record of a layout: its members, their states, and where they hold its content. The file
//! `layout-NAME` of the data directory has it. Each member has a copy.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `HCLAYOUT` |
//! | 8..12 | CRC32C of the bytes from 12 on |
//! | 12..16 | format version |
//! | 16..20 | number of bytes of the record |
//! | 20..36 | UUID of the layout |
//! | 36..44 | sequence number: each change has the next one |
//! | 44 | width: the number of places of a span (copies of a mirror, columns of a row) |
//! | 45 | number of members; for each: UUID (16), state (1), bytes (8), path, reason, incoming disk |
//! | | number of spans (4); for each: start (8), bytes (8), for each place: member (1), byte (8) |
//! | | version 2 to 4: kind (1; 0 is a mirror, 1 is RAID-5), log2 of a row's unit in bytes (1) |
//! | | version 3 and 4: number of members whose content must have space on the others (1) |
//! | | version 4: number of the list of stale regions (8) |
//!
//! Mirrors have version 1, layouts with a reserve have version 3, and those with stale regions
//! version 4. The state of a member is 0 (out), 1 (in), or 2 (out, and what changed since is
//! listed). Texts have their length (2) before them. An incoming disk is 0 (1), or 1 (1), UUID
//! (16), path, and the number of bytes that are rebuilt (8).

use super::member::CONTENT_START;
use super::replace_file;
use super::spans::{CopiedSpan, CopyPlace, UNIT, is_sound};
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::{Dir, OpenMode, SyncPurpose};
use std::io;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HCLAYOUT";
/// The version of records of mirrors.
const VERSION_MIRROR: u32 = 1;
/// The version of records that name their kind.
const VERSION_KIND: u32 = 2;
/// The version of records that name their reserve, too.
const VERSION_RESERVE: u32 = 3;
/// The version of records that name a list of stale regions, too. Older builds refuse it: they
/// would not keep the list up.
const VERSION_STALE: u32 = 4;
/// The states of members.
const OUT: u8 = 0;
const IN: u8 = 1;
const OUT_LISTED: u8 = 2;
/// The number of the kind mirror.
const KIND_MIRROR: u8 = 0;
/// The number of the kind RAID-5.
const KIND_RAID5: u8 = 1;
/// Largest number of members.
pub(crate) const MAX_MEMBERS: usize = 16;
/// Largest number of copies of a mirror.
pub(crate) const MAX_COPIES: usize = 4;
/// Smallest and largest unit of a row, in bytes.
pub(crate) const MIN_UNIT: u64 = 4096;
pub(crate) const MAX_UNIT: u64 = UNIT;
/// Largest length of a record in bytes. Members keep so much space for their copy.
pub(crate) const MAX_RECORD: usize = 512 << 10;
/// Bytes of a record that its members and all else but the spans need at most.
const MAX_OF_MEMBERS: usize = HEAD + 64 + MAX_MEMBERS * (64 + 2 * 4096 + MAX_REASON);
/// Largest length of a reason in bytes.
const MAX_REASON: usize = 512;
/// Bytes before the UUID.
const HEAD: usize = 20;
/// How the names of files with records begin.
pub(crate) const FILE_PREFIX: &str = "layout-";
/// The beginning of the name of a record that is being written. No layout has such a name.
const NEW_PREFIX: &str = "layout-~";

/// How the members of a layout hold its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayoutKind {
    /// Each byte is on as many members as a span has places.
    Mirror,
    /// Rows of units, of which one is the parity of the others. A unit has so many bytes.
    Raid5 { unit: u64 },
}

impl LayoutKind {
    /// Returns whether a layout of this kind may have so many places in a span.
    pub(crate) fn allows(self, width: usize) -> bool {
        match self {
            LayoutKind::Mirror => (2..=MAX_COPIES).contains(&width),
            LayoutKind::Raid5 { unit } => {
                (3..=MAX_MEMBERS).contains(&width)
                    && (MIN_UNIT..=MAX_UNIT).contains(&unit)
                    && unit.is_power_of_two()
            }
        }
    }

    /// Returns how many places of a span may be missing, of `width` places.
    fn spare(self, width: usize) -> usize {
        match self {
            LayoutKind::Mirror => width.saturating_sub(1),
            LayoutKind::Raid5 { .. } => 1,
        }
    }
}

/// A disk that gets the content of a member, and becomes the member when it has all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Incoming {
    pub(crate) uuid: Uuid,
    pub(crate) path: String,
    /// The layout's content before this byte is on the disk.
    pub(crate) rebuilt: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberRecord {
    pub(crate) uuid: Uuid,
    pub(crate) path: String,
    /// Whether the member has all content. The content of a member that is out is never read.
    pub(crate) is_in: bool,
    /// Whether the member is out, and the disk that it had has all content but what is stale.
    pub(crate) is_listed: bool,
    /// Bytes for content.
    pub(crate) capacity: u64,
    /// Why the member is out, or why its rebuild ended.
    pub(crate) reason: String,
    pub(crate) incoming: Option<Incoming>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayoutRecord {
    pub(crate) uuid: Uuid,
    pub(crate) sequence: u64,
    pub(crate) kind: LayoutKind,
    /// Number of places of each span: copies of a mirror, or columns of a row with its parity.
    pub(crate) width: usize,
    /// Number of members whose content has space on the others, whichever they are.
    pub(crate) reserve: usize,
    /// The number of the list of stale regions that counts. 0: none does.
    pub(crate) stale: u64,
    pub(crate) members: Vec<MemberRecord>,
    pub(crate) spans: Vec<CopiedSpan>,
}

/// Cuts a text to at most `most` bytes.
pub(crate) fn shortened(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

impl MemberRecord {
    /// Returns whether the member is rebuilt onto the disk that it had, which has all content but
    /// what is stale.
    pub(crate) fn returns(&self) -> bool {
        self.is_listed && self.incoming.as_ref().is_some_and(|new| new.uuid == self.uuid)
    }
}

impl LayoutRecord {
    /// Returns the number of bytes of the content.
    pub(crate) fn len(&self) -> u64 {
        self.spans.last().map_or(0, CopiedSpan::end) * self.columns()
    }

    /// Returns the number of bytes of content for each byte of a span.
    pub(crate) fn columns(&self) -> u64 {
        match self.kind {
            LayoutKind::Mirror => 1,
            LayoutKind::Raid5 { .. } => self.width as u64 - 1,
        }
    }

    /// Returns whether the record can be stored with so many spans more.
    pub(crate) fn has_room_for(&self, spans: usize) -> bool {
        let of_span = 16 + 9 * self.width;
        (self.spans.len() + spans) * of_span <= MAX_RECORD - MAX_OF_MEMBERS
    }

    /// Returns the number of bytes of a member's places.
    pub(crate) fn content_of(&self, member: usize) -> u64 {
        let on_it = |span: &&CopiedSpan| span.places.iter().any(|place| place.member == member);
        self.spans.iter().filter(on_it).map(|span| span.len).sum()
    }

    /// Returns whether a member has a part of the content.
    pub(crate) fn is_used(&self, member: usize) -> bool {
        self.spans.iter().any(|span| span.places.iter().any(|place| place.member == member))
    }

    /// Returns whether all members with content are in, and none is replaced.
    pub(crate) fn is_complete(&self) -> bool {
        let mut all = self.members.iter().enumerate();
        all.all(|(number, of)| of.incoming.is_none() && (of.is_in || !self.is_used(number)))
    }

    /// Returns whether members that are in have everything, without those of `without`.
    pub(crate) fn is_whole_without(&self, without: &[usize]) -> bool {
        let is_missing =
            |place: &&CopyPlace| !self.members[place.member].is_in || without.contains(&place.member);
        let missing = |span: &CopiedSpan| span.places.iter().filter(is_missing).count();
        self.spans.iter().all(|span| missing(span) <= self.kind.spare(self.width))
    }

    /// Returns how many members may fail now, whichever they are.
    pub(crate) fn survives(&self) -> usize {
        let missing =
            |span: &CopiedSpan| span.places.iter().filter(|place| !self.members[place.member].is_in).count();
        let most = self.spans.iter().map(missing).max().unwrap_or(usize::MAX);
        self.kind.spare(self.width).saturating_sub(most)
    }

    /// Says what is not there when too many members are missing.
    pub(crate) fn what_is_gone(&self) -> &'static str {
        match self.kind {
            LayoutKind::Mirror => "no copy of a part is left",
            LayoutKind::Raid5 { .. } => "a row can do without one of them only",
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let version = match self.kind {
            _ if self.stale != 0 => VERSION_STALE,
            _ if self.reserve > 0 => VERSION_RESERVE,
            LayoutKind::Mirror => VERSION_MIRROR,
            LayoutKind::Raid5 { .. } => VERSION_KIND,
        };
        w.bytes(MAGIC).u32(0).u32(version).u32(0).uuid(&self.uuid).u64(self.sequence);
        w.u8(self.width as u8).u8(self.members.len() as u8);
        for member in &self.members {
            let state = match (member.is_in, member.is_listed) {
                (true, _) => IN,
                (false, true) => OUT_LISTED,
                (false, false) => OUT,
            };
            w.uuid(&member.uuid).u8(state).u64(member.capacity);
            w.string(&member.path).string(shortened(&member.reason, MAX_REASON));
            match &member.incoming {
                None => w.u8(0),
                Some(Incoming { uuid, path, rebuilt }) => w.u8(1).uuid(uuid).string(path).u64(*rebuilt),
            };
        }
        w.u32(self.spans.len() as u32);
        for span in &self.spans {
            w.u64(span.start).u64(span.len);
            for CopyPlace { member, offset } in &span.places {
                w.u8(*member as u8).u64(*offset);
            }
        }
        match self.kind {
            LayoutKind::Mirror if version == VERSION_MIRROR => {}
            LayoutKind::Mirror => drop(w.u8(KIND_MIRROR).u8(0)),
            LayoutKind::Raid5 { unit } => drop(w.u8(KIND_RAID5).u8(unit.trailing_zeros() as u8)),
        }
        if version >= VERSION_RESERVE {
            w.u8(self.reserve as u8);
        }
        if version == VERSION_STALE {
            w.u64(self.stale);
        }
        let len = w.0.len() as u32;
        w.0[16..HEAD].copy_from_slice(&len.to_le_bytes());
        let crc = crc32c(&w.0[12..]);
        w.0[8..12].copy_from_slice(&crc.to_le_bytes());
        w.0
    }

    /// Decodes a record. Bytes behind it do not matter. `None`: it does not verify, or makes no
    /// sense.
    pub(crate) fn decode(bytes: &[u8]) -> Option<LayoutRecord> {
        let mut head = Reader::new(bytes);
        (head.take(8)? == MAGIC).then_some(())?;
        let (crc, version, len) = (head.u32()?, head.u32()?, head.u32()? as usize);
        let bytes = bytes
            .get(..len)
            .filter(|_| len >= HEAD && (VERSION_MIRROR..=VERSION_STALE).contains(&version))?;
        (crc32c(&bytes[12..]) == crc).then_some(())?;
        let mut r = Reader::new(&bytes[HEAD..]);
        let (uuid, sequence) = (r.uuid()?, r.u64()?);
        let (width, members) = (usize::from(r.u8()?), usize::from(r.u8()?));
        let members = (0..members).map(|_| take_member(&mut r)).collect::<Option<Vec<_>>>()?;
        let spans = r.u32()?;
        let spans = (0..spans).map(|_| take_span(&mut r, width)).collect::<Option<Vec<_>>>()?;
        let kind = match version {
            VERSION_MIRROR => LayoutKind::Mirror,
            _ => take_kind(&mut r)?,
        };
        let reserve = if version >= VERSION_RESERVE { r.u8()?.into() } else { 0 };
        let stale = if version == VERSION_STALE { r.u64()? } else { 0 };
        let record = LayoutRecord { uuid, sequence, kind, width, reserve, stale, members, spans };
        r.end(record).filter(LayoutRecord::is_sound)
    }

    fn is_sound(&self) -> bool {
        let ends: Vec<u64> =
            self.members.iter().map(|member| CONTENT_START.saturating_add(member.capacity)).collect();
        let is_behind_head = |place: &CopyPlace| place.offset >= CONTENT_START;
        self.spans.iter().all(|span| span.places.iter().all(is_behind_head))
            && self.members.iter().all(|member| member.capacity <= i64::MAX as u64)
            && self.kind.allows(self.width)
            && self.members.len() <= MAX_MEMBERS
            && self.reserve + self.width <= self.members.len()
            && is_sound(&self.spans, self.width, &ends)
            && self.is_whole_without(&[])
            && (self.stale != 0) == self.members.iter().any(|member| member.is_listed)
    }

    /// Reads the record of a layout in the data directory.
    pub(crate) fn load(dir: &dyn Dir, name: &str) -> io::Result<LayoutRecord> {
        let file = file_name(name);
        let disk = dir.open(&file, OpenMode::ReadOnly)?;
        let mut bytes = vec![0; disk.len()?.min(MAX_RECORD as u64) as usize];
        disk.read_at(&mut bytes, 0)?;
        Self::decode(&bytes).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{file} does not verify, or is of a newer version"),
            )
        })
    }

    /// Writes the record. When this returns, it survives a power loss.
    pub(crate) fn save(&self, dir: &dyn Dir, name: &str) -> io::Result<()> {
        replace_file(
            dir,
            &file_name(name),
            &format!("{NEW_PREFIX}{name}"),
            &self.encode(),
            SyncPurpose::Layout,
        )
    }
}

fn take_member(r: &mut Reader<'_>) -> Option<MemberRecord> {
    let (uuid, state, capacity) = (r.uuid()?, r.u8()?, r.u64()?);
    let (path, reason) = (r.string()?, r.string()?);
    let incoming = match r.u8()? {
        0 => None,
        1 => Some(Incoming { uuid: r.uuid()?, path: r.string()?, rebuilt: r.u64()? }),
        _ => return None,
    };
    let (is_in, is_listed) = (state == IN, state == OUT_LISTED);
    (state <= OUT_LISTED).then_some(MemberRecord { uuid, path, is_in, is_listed, capacity, reason, incoming })
}

fn take_kind(r: &mut Reader<'_>) -> Option<LayoutKind> {
    match (r.u8()?, r.u8()?) {
        (KIND_MIRROR, 0) => Some(LayoutKind::Mirror),
        (KIND_RAID5, log2) if log2 < 64 => Some(LayoutKind::Raid5 { unit: 1 << log2 }),
        _ => None,
    }
}

fn take_span(r: &mut Reader<'_>, width: usize) -> Option<CopiedSpan> {
    let (start, len) = (r.u64()?, r.u64()?);
    let place = |_| Some(CopyPlace { member: r.u8()?.into(), offset: r.u64()? });
    let places = (0..width).map(place).collect::<Option<Vec<_>>>()?;
    Some(CopiedSpan { start, len, places })
}

/// Returns the name of the file with the record of a layout.
pub(crate) fn file_name(name: &str) -> String {
    format!("{FILE_PREFIX}{name}")
}

#[cfg(test)]
mod tests {
    use super::super::spans::spread;
    use super::*;
    use crate::disk::MemDir;

    fn record() -> LayoutRecord {
        let member = |n: u8, is_in| MemberRecord {
            uuid: Uuid::from_bytes([n; 16]),
            path: format!("/{n}"),
            is_in,
            is_listed: false,
            capacity: 2 * UNIT,
            reason: if is_in { String::new() } else { "gone".into() },
            incoming: (!is_in).then(|| Incoming {
                uuid: Uuid::from_bytes([9; 16]),
                path: "/9".into(),
                rebuilt: 7,
            }),
        };
        LayoutRecord {
            uuid: Uuid::from_bytes([5; 16]),
            sequence: 3,
            kind: LayoutKind::Mirror,
            width: 2,
            reserve: 0,
            stale: 0,
            members: vec![member(1, true), member(2, false)],
            spans: spread(&[2 * UNIT, 2 * UNIT], 2, super::super::member::CONTENT_START),
        }
    }

    #[test]
    fn golden_bytes() {
        let hex: String = record().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        assert_eq!(LayoutRecord::decode(&record().encode()), Some(record()));
    }

    const GOLDEN: &str = concat!(
        "48434c41594f5554986b7e3301000000b4000000050505050505050505050505050505050300000000000000",
        "0202",
        "0101010101010101010101010101010101000020000000000002002f31000000",
        "0202020202020202020202020202020200000020000000000002002f320400676f6e65",
        "010909090909090909090909090909090902002f390700000000000000",
        "01000000000000000000000000002000000000000000001000000000000100001000000000",
        "00",
    );

    fn of_rows() -> LayoutRecord {
        let mut rows = record();
        rows.members.push(MemberRecord { uuid: Uuid::from_bytes([3; 16]), ..rows.members[0].clone() });
        (rows.kind, rows.width) = (LayoutKind::Raid5 { unit: 65536 }, 3);
        rows.spans = spread(&[2 * UNIT; 3], 3, CONTENT_START);
        rows
    }

    #[test]
    fn golden_bytes_of_rows() {
        let bytes = of_rows().encode();
        assert_eq!((bytes[12], &bytes[bytes.len() - 2..]), (2, &[1, 16][..]));
        assert_eq!(LayoutRecord::decode(&bytes), Some(of_rows()));
        assert_eq!((of_rows().len(), of_rows().survives(), record().survives()), (4 * UNIT, 0, 0));
        assert!(of_rows().is_whole_without(&[1]) && !of_rows().is_whole_without(&[0]));
        let bad: [fn(&mut LayoutRecord); 3] = [
            |r| r.kind = LayoutKind::Raid5 { unit: 2048 },
            |r| r.kind = LayoutKind::Raid5 { unit: 2 * UNIT },
            |r| r.members[0].is_in = false,
        ];
        for change in bad {
            let mut record = of_rows();
            change(&mut record);
            assert_eq!(LayoutRecord::decode(&record.encode()), None);
        }
    }

    #[test]
    fn golden_bytes_of_a_reserve() {
        let mut rows = of_rows();
        rows.members.push(MemberRecord { uuid: Uuid::from_bytes([4; 16]), ..rows.members[0].clone() });
        rows.reserve = 1;
        let bytes = rows.encode();
        assert_eq!((bytes[12], &bytes[bytes.len() - 3..]), (3, &[1, 16, 1][..]));
        assert_eq!(LayoutRecord::decode(&bytes), Some(rows.clone()));
        let mirror = LayoutRecord {
            kind: LayoutKind::Mirror,
            width: 2,
            spans: spread(&[2 * UNIT; 3], 2, CONTENT_START),
            ..rows.clone()
        };
        let bytes = mirror.encode();
        assert_eq!((bytes[12], &bytes[bytes.len() - 3..]), (3, &[0, 0, 1][..]));
        assert_eq!(LayoutRecord::decode(&bytes), Some(mirror));
        let too_much = LayoutRecord { reserve: 2, ..rows };
        assert_eq!(LayoutRecord::decode(&too_much.encode()), None);
    }

    #[test]
    fn golden_bytes_of_a_list() {
        let listed = |mut record: LayoutRecord| {
            record.members[1].is_listed = true;
            record.members[1].is_in = false;
            record.stale = 0x0102;
            record
        };
        for (record, tail) in [(record(), [0, 0, 0]), (of_rows(), [1, 16, 0])] {
            let record = listed(record);
            let bytes = record.encode();
            let (state, end) = (46 + 32 + 16, bytes.len() - 11);
            assert_eq!((bytes[12], bytes[state]), (4, 2));
            assert_eq!(bytes[end..], [&tail[..], &[2, 1, 0, 0, 0, 0, 0, 0]].concat());
            assert_eq!(LayoutRecord::decode(&bytes), Some(record.clone()));
            let bad: [fn(&mut LayoutRecord); 2] = [|r| r.stale = 0, |r| r.members[1].is_listed = false];
            for change in bad {
                let mut record = record.clone();
                change(&mut record);
                assert_eq!(LayoutRecord::decode(&record.encode()), None);
            }
        }
    }

    #[test]
    fn damage_is_noticed() {
        let whole = record().encode();
        for byte in 0..whole.len() {
            for bit in [1, 0x80] {
                let mut bad = whole.clone();
                bad[byte] ^= bit;
                assert_eq!(LayoutRecord::decode(&bad), None, "byte {byte}");
            }
            assert_eq!(LayoutRecord::decode(&whole[..byte]), None);
        }
        let behind = [whole, vec![7; 100]].concat();
        assert_eq!(LayoutRecord::decode(&behind), Some(record()));
    }

    #[test]
    fn a_record_that_makes_no_sense_is_none() {
        let changes: [fn(&mut LayoutRecord); 6] = [
            |r| r.members[0].is_in = false,
            |r| r.members[1].capacity = UNIT,
            |r| r.width = 1,
            |r| r.spans[0].places[0].member = 1,
            |r| r.spans[0].start = UNIT,
            |r| r.spans.clear(),
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let mut bad = record();
            change(&mut bad);
            if n == 2 {
                bad.spans[0].places.truncate(1);
            }
            assert_eq!(LayoutRecord::decode(&bad.encode()), None, "{n}");
        }
    }

    #[test]
    fn a_record_is_replaced_whole() {
        let dir = MemDir::new();
        assert_eq!(LayoutRecord::load(&dir, "m").unwrap_err().kind(), io::ErrorKind::NotFound);
        record().save(&dir, "m").unwrap();
        let next = LayoutRecord { sequence: 4, ..record() };
        next.save(&dir, "m").unwrap();
        assert_eq!(LayoutRecord::load(&dir, "m").unwrap(), next);
        assert_eq!(dir.list().unwrap(), ["layout-m"]);
    }

    #[test]
    fn a_text_is_cut_at_a_character() {
        assert_eq!((shortened("a\u{e4}b", 2), shortened("ab", 9), shortened("\u{e4}", 1)), ("a", "ab", ""));
    }
}
