//! Tests of traced disks and trace files.

use super::*;
use crate::codec::crc32c;
use crate::disk::{Dir, Disk, MemDir, OpenMode, SyncPurpose};
use crate::error::{Error, ErrorKind};
use crate::world::ManualClock;
use proptest::prelude::*;
use std::io::IoSlice;
use std::sync::Arc;
use uuid::Uuid;

fn traced(room: usize) -> (Arc<Tracer>, TracingDir, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(5));
    let tracer = Arc::new(Tracer::with_room(clock.clone(), room));
    (tracer.clone(), TracingDir::over(Arc::new(MemDir::new()), tracer), clock)
}

fn disk(dir: &TracingDir, name: &str) -> Arc<dyn Disk> {
    let disk = dir.open_locked(name, OpenMode::Create).unwrap();
    disk.set_len(1 << 20).unwrap();
    disk
}

fn accesses(part: &TracePart) -> Vec<DiskAccess> {
    part.pages.iter().flatten().map(|bytes| DiskAccess::decode(bytes).unwrap()).collect()
}

#[test]
fn every_access_is_noted_while_a_trace_is_under_way() {
    let (tracer, dir, clock) = traced(64 << 20);
    let (first, second) = (disk(&dir, "a"), disk(&dir, "b"));
    first.write_at(&[1; 512], 0).unwrap();
    assert!(tracer.take().is_empty(), "there is no trace yet");
    assert!(tracer.begin() && !tracer.begin());
    clock.advance(1000);
    let _cause = Cause::Scrub.begin();
    first.read_at(&mut [0; 1024], 512).unwrap();
    second.write_vectored_at(&mut [IoSlice::new(&[2; 512]), IoSlice::new(&[3; 1024])], 4096).unwrap();
    clock.advance(1000);
    second.sync(SyncPurpose::Preserve).unwrap();
    first.punch(0, 8192).unwrap();
    first.read_at(&mut [], 0).unwrap();
    assert!(first.read_at(&mut [0; 512], 1 << 20).is_err());
    let _ = first.try_read_at(&mut [0; 512], 0).unwrap();
    first.read_direct(&mut [0; 4096], 0).unwrap();
    dir.open_locked("catalog.redb", OpenMode::Create).unwrap().write_at(&[1; 512], 0).unwrap();
    dir.open("journal-00000", OpenMode::Create).unwrap().write_at(&[1; 512], 0).unwrap();
    let part = tracer.end();
    first.read_at(&mut [0; 512], 0).unwrap();
    assert!(tracer.end().is_empty() && part.lost == 0);

    let found = accesses(&part);
    let of = |n: usize| (found[n].at, found[n].disk, found[n].op, found[n].offset, found[n].len);
    assert_eq!(of(0), (1000, 0, AccessOp::Read, 512, 1024));
    assert_eq!(of(1), (1000, 1, AccessOp::Write, 4096, 1536));
    assert_eq!(of(2), (2000, 1, AccessOp::Sync, 0, 0));
    assert_eq!(found[2].purpose, Some(SyncPurpose::Preserve));
    assert_eq!(of(3), (2000, 0, AccessOp::Punch, 0, 8192));
    assert_eq!((found[4].failed, found[4].cached, found[4].direct), (true, false, false));
    assert!(found[5].cached && found[6].direct);
    assert_eq!(found.len(), 7, "files that are opened without a lock are not traced");
    assert!(found.iter().all(|access| access.cause == Cause::Scrub && access.depth == 1));
    assert_eq!((tracer.find("a"), tracer.find("b")), (Some((0, 1 << 20)), Some((1, 1 << 20))));
    drop(second);
    assert_eq!(tracer.find("b"), None, "it is closed");
}

#[test]
fn a_sync_without_a_cause_has_that_of_its_purpose() {
    let (tracer, dir, _) = traced(64 << 20);
    let disk = disk(&dir, "a");
    tracer.begin();
    let purposes = [SyncPurpose::Direct, SyncPurpose::Stamp, SyncPurpose::Apply, SyncPurpose::Journal];
    purposes.into_iter().for_each(|purpose| disk.sync(purpose).unwrap());
    let causes: Vec<Cause> = accesses(&tracer.end()).iter().map(|access| access.cause).collect();
    assert_eq!(causes, [Cause::Reference, Cause::Open, Cause::Apply, Cause::Other]);
}

#[test]
fn what_has_no_room_is_lost_and_counted() {
    let (tracer, dir, _) = traced(0);
    let disk = disk(&dir, "a");
    tracer.begin();
    let count = 10_000;
    (0..count).for_each(|_| disk.read_at(&mut [0; 512], 0).unwrap());
    let part = tracer.take();
    assert_eq!((part.len(), part.lost), (8192, count - 8192));
    disk.read_at(&mut [0; 512], 0).unwrap();
    let part = tracer.end();
    assert_eq!((part.len(), part.lost), (1, 0));
}

fn part(accesses: &[DiskAccess], lost: u64) -> TracePart {
    TracePart { pages: vec![accesses.iter().map(DiskAccess::encode).collect()], lost }
}

fn access(at: u64) -> DiskAccess {
    DiskAccess {
        at,
        disk: 1,
        offset: 4096,
        len: 8192,
        micros: 7,
        op: AccessOp::Read,
        cause: Cause::Read,
        failed: false,
        direct: false,
        cached: false,
        purpose: None,
        depth: 1,
    }
}

fn head() -> TraceHead {
    TraceHead { pool: Uuid::from_bytes(std::array::from_fn(|n| n as u8)), started: 0x1122_3344 }
}

fn disks() -> Vec<TraceDisk> {
    vec![TraceDisk { number: 1, pv: 2, size: 1 << 30, path: "/dev/x".into(), pv_path: "mirror:m".into() }]
}

fn file() -> Vec<u8> {
    let (mut out, mut encoder) = (head().encode(), TraceEncoder::default());
    encoder.disks(&disks(), &mut out);
    encoder.accesses(&part(&[access(1), access(2)], 3), u64::MAX, &mut out);
    encoder.accesses(&part(&[access(9)], 4), u64::MAX, &mut out);
    encoder.end(TraceEnd::Time, 77, &mut out);
    assert_eq!(encoder.lost(), 7);
    out
}

/// Reads all of a file: (pieces, lost, whether the end was there).
fn read(bytes: &[u8]) -> Result<(Vec<TracePiece>, u64, bool), Error> {
    let mut reader = TraceReader::open(bytes)?;
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        pieces.push(piece);
    }
    Ok((pieces, reader.lost(), reader.is_whole()))
}

fn pieces() -> Vec<TracePiece> {
    vec![
        TracePiece::Disks(disks()),
        TracePiece::Accesses(vec![access(1), access(2)]),
        TracePiece::Accesses(vec![access(9)]),
        TracePiece::End(TraceEnd::Time, 77),
    ]
}

#[test]
fn a_block_has_no_more_accesses_than_there_is_room_for() {
    let part = part(&[access(1), access(2), access(3)], 1);
    for (room, fit) in [(0, 0), (55, 0), (56, 1), (87, 1), (88, 2), (120, 3), (u64::MAX, 3)] {
        let (mut out, mut encoder) = (Vec::new(), TraceEncoder::default());
        assert_eq!(encoder.accesses(&part, room, &mut out), fit, "{room}");
        assert!(out.len() as u64 <= room && encoder.lost() == 4 - fit as u64);
    }
}

/// Trace files are read by later builds, so these bytes never change.
#[test]
fn golden_bytes() {
    let bytes = file();
    assert_eq!(bytes[..8], *b"HCTRACE\0");
    assert_eq!(bytes[12..16], [1, 0, 0, 0]);
    assert_eq!(
        bytes[16..40],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0]
    );
    let block = [
        1, 0, 0, 0, 34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 64, 0,
        0, 0, 0, 6, 0,
    ];
    assert_eq!(bytes[68..68 + block.len()], block);
    assert_eq!((bytes.len(), crc32c(&bytes)), (299, 1_564_841_402));
}

#[test]
fn a_file_is_read_back() {
    let bytes = file();
    assert_eq!(TraceReader::open(&bytes[..]).unwrap().head(), head());
    assert_eq!(read(&bytes).unwrap(), (pieces(), 7, true));
    let more = [&bytes[..], b"anything"].concat();
    assert_eq!(read(&more).unwrap().0.len(), 4, "nothing is read behind the end");
}

#[test]
fn a_file_that_was_cut_off_gives_what_is_there() {
    let bytes = file();
    for len in 0..bytes.len() {
        match read(&bytes[..len]) {
            Ok((found, _, is_whole)) => {
                assert!(len >= 64 && !is_whole && found[..] == pieces()[..found.len()], "{len}");
            }
            Err(error) => assert!(len < 64 && error.to_string().contains("trace"), "{len}: {error}"),
        }
    }
    let zeros = [&bytes[..64], &[0; 4096]].concat();
    assert_eq!(read(&zeros).unwrap(), (Vec::new(), 0, false));
}

#[test]
fn foreign_newer_and_damaged_files_are_refused() {
    let kind = |bytes: &[u8]| read(bytes).map(drop).unwrap_err().kind();
    assert_eq!(kind(&[b'x'; 4096]), ErrorKind::Invalid);
    assert_eq!(kind(b""), ErrorKind::Invalid);
    assert_eq!(kind(&file()[..20]), ErrorKind::Corrupt);
    let mut newer = file();
    newer[12] = 2;
    let crc = crc32c(&newer[12..64]);
    newer[8..12].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(kind(&newer), ErrorKind::Unsupported);
    let mut swapped = head().encode();
    TraceEncoder::default().disks(&[], &mut swapped);
    TraceEncoder::default().disks(&[], &mut swapped);
    let error = read(&swapped).map(drop).unwrap_err().to_string();
    assert!(error.contains("byte 90") && error.contains("follow"), "{error}");
}

proptest! {
    /// Whatever the bytes are, the reader ends, and returns nothing that was not written.
    #[test]
    fn changed_bytes_are_damage_or_a_cut(at in 0..299usize, change in 1..=255u8) {
        let mut bytes = file();
        bytes[at] ^= change;
        if let Ok((found, _, is_whole)) = read(&bytes) {
            prop_assert!(!is_whole && found[..] == pieces()[..found.len()]);
        }
    }

    /// Blocks with right sums and any content are read, or are damage.
    #[test]
    fn any_content_is_decoded_or_refused(kind in 0..5u16, content in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut block = [0; 24].to_vec();
        block[4..6].copy_from_slice(&kind.to_le_bytes());
        block[8..12].copy_from_slice(&(content.len() as u32).to_le_bytes());
        block.extend(&content);
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        let bytes = [head().encode(), block].concat();
        match read(&bytes) {
            Ok((found, _, _)) => prop_assert!(found.len() <= 1),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }
}
