//! Entry points for the fuzz targets: decoders of everything that is read from disks. The feature
//! `fuzzing` enables them.

use crate::catalog::page::MapPage;
use crate::catalog::{
    BitmapPage, BranchRecord, ExtentRecord, PageKey, Positions, PvRecord, SnapshotRecord, Superblock, Value,
    VolumeRecord,
};
use crate::control::Control;
use crate::ids::BranchId;
use crate::journal::record::{HEADER_LEN, Header, PieceCrcs};
use crate::journal::{SegmentHeader, SegmentReader};
use crate::space::label::{Label, LabelFound};
use crate::stream::{Decoder, StreamItem};

/// Decodes a record header and its data, and a segment as the scan reads it.
pub fn journal(data: &[u8]) {
    if let Some(header) = Header::decode(data, 0) {
        let mut out = Vec::new();
        header.encode(0, &mut out);
        assert_eq!(out, data[..HEADER_LEN]);
        PieceCrcs::of(
            header.offset,
            &data[HEADER_LEN..data.len().min(HEADER_LEN + header.data_len as usize)],
        );
    }
    // The sum of a record is checked first. Without it, the fuzzer gets to what a reference says.
    for (offset, length) in [(0, 16 << 10), (1 << 20, 128 << 10), (0, 1 << 20), (1 << 24, 1 << 24)] {
        let header = crate::journal::record::Header {
            incarnation: 1,
            lsn: crate::ids::Lsn(2),
            synced_lsn: crate::ids::Lsn(1),
            time: 0,
            branch: BranchId(1),
            offset,
            length,
            epoch: crate::ids::Epoch(1),
            data_len: data.len() as u32,
            data_crc: 0,
            kind: crate::journal::record::Kind::Reference,
            slots: 0,
            version: crate::journal::record::REFERENCE_VERSION,
        };
        if let Some(reference) = crate::journal::reference::Reference::decode(&header, data) {
            assert_eq!(reference.encode(), data);
            assert_eq!(reference.blocks().count() as u64 * 4096, length);
        }
    }
    if let Some(header) = SegmentHeader::decode(data) {
        let _ = header.salt();
    }
    let dir = crate::disk::MemDir::new();
    if let Ok(disk) = crate::disk::Dir::open(&dir, "journal-00000", crate::disk::OpenMode::CreateNew) {
        let _ = disk.write_at(data, 0);
        let mut reader = SegmentReader::new(&*disk, 0, data.len() as u64);
        let mut at = 0;
        while let Ok(Some(found)) = reader.next_record(at, |_| true) {
            assert!(found.next > at);
            at = found.next;
        }
    }
}

/// Decodes a CDP record, a block of an index, the head of a segment, and payloads of every
/// compression. Sums are corrected, so that the fuzzer gets past them.
pub fn cdp(data: &[u8]) {
    use crate::cdp::log::record::{SegmentHead, decode_block, decode_record, put_index, thing_at};
    use crate::settings::Compression;
    let mut fixed = data.to_vec();
    if fixed.len() >= 64 {
        let stored = u32::from_le_bytes([fixed[52], fixed[53], fixed[54], fixed[55]]) as usize;
        let end = 64usize.saturating_add(stored).min(fixed.len());
        let crc = crate::codec::crc32c(&fixed[8..end]).to_le_bytes();
        fixed[4..8].copy_from_slice(&crc);
    }
    for bytes in [data, &fixed] {
        let _ = thing_at(bytes);
        if let Some(decoded) = decode_record(bytes, 0, 0) {
            let entry = decoded.entry;
            let raw = crate::cdp::log::codec::unpack(entry.compression, decoded.payload, entry.raw_len());
            assert!(raw.is_none_or(|raw| raw.len() == entry.raw_len()));
        }
        let _ = SegmentHead::decode(bytes);
    }
    let mut block = data.to_vec();
    block.resize(4096, 0);
    block[..4].copy_from_slice(b"HCDI");
    let crc = crate::codec::crc32c(&block[8..]).to_le_bytes();
    block[4..8].copy_from_slice(&crc);
    if let Some(entries) = decode_block(&block, 0).filter(|entries| !entries.is_empty()) {
        let mut out = Vec::new();
        put_index(&entries, 0, &mut out);
        assert_eq!(out, block);
    }
    for compression in [Compression::None, Compression::ZeroRun, Compression::Lz4, Compression::Zstd] {
        let raw = crate::cdp::log::codec::unpack(compression, data, 4096);
        assert!(raw.is_none_or(|raw| raw.len() == 4096));
    }
}

/// Decodes a map page.
pub fn map_page(data: &[u8]) {
    // The sum is checked first. It is corrected, so that the fuzzer gets past it.
    let mut fixed = data.to_vec();
    MapPage::fix_checksum(PageKey::new(BranchId(1), 2), &mut fixed);
    for bytes in [data, &fixed] {
        if let Some(page) = MapPage::decode(PageKey::new(BranchId(1), 2), bytes) {
            assert_eq!(page.encode(PageKey::new(BranchId(1), 2)), bytes);
            assert_eq!(page.iter().count(), page.iter().filter(|(i, e)| page.get(*i) == Some(*e)).count());
        }
    }
}

/// Decodes a label of a physical volume.
pub fn label(data: &[u8]) {
    let mut block = data.to_vec();
    block.resize(crate::space::label::LABEL_LEN, 0);
    let _ = Label::decode(data);
    if block.len() >= 12 {
        block[..8].copy_from_slice(b"HINDCAST");
        let crc = crate::codec::crc32c(&block[12..]).to_le_bytes();
        block[8..12].copy_from_slice(&crc);
    }
    if let LabelFound::Label(label) = Label::decode(&block) {
        assert_eq!(Label::decode(&label.encode()), LabelFound::Label(label));
    }
}

/// Decodes a stream, in one piece and in pieces, with equal results. The fuzzer can't make sums. So
/// `data` is also used as a list of records whose headers and sums are made here.
pub fn stream(data: &[u8]) {
    fn items(data: &[u8], piece: usize) -> (Vec<StreamItem>, Option<String>) {
        let (mut decoder, mut items) = (Decoder::new(), Vec::new());
        for piece in data.chunks(piece) {
            decoder.push(piece);
            loop {
                match decoder.next() {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break,
                    Err(error) => return (items, Some(error.to_string())),
                }
            }
        }
        assert_eq!(decoder.is_complete(), items.last() == Some(&StreamItem::End));
        (items, None)
    }
    let piece = data.first().map_or(1, |b| *b as usize + 1);
    for bytes in [data.to_vec(), crate::stream::fuzzed(data)] {
        assert_eq!(items(&bytes, piece), items(&bytes, usize::MAX));
    }
}

/// Reads a trace file. The fuzzer can't make sums. So `data` is also used as blocks whose sums and
/// numbers are made here.
pub fn trace(data: &[u8]) {
    use crate::disk::{TraceHead, TraceReader};
    let head = TraceHead { pool: uuid::Uuid::nil(), started: 0 }.encode();
    let mut blocks = head.clone();
    for (number, content) in data.chunks(90).enumerate() {
        let start = blocks.len();
        let kind = u16::from(content[0] % 5);
        blocks.extend([0; 4]);
        blocks.extend(kind.to_le_bytes());
        blocks.extend([0; 2]);
        blocks.extend((content.len() as u32).to_le_bytes());
        blocks.extend((number as u32).to_le_bytes());
        blocks.extend([0; 8]);
        blocks.extend(content);
        let crc = crate::codec::crc32c(&blocks[start + 4..]).to_le_bytes();
        blocks[start..start + 4].copy_from_slice(&crc);
    }
    for bytes in [data.to_vec(), [&head[..], data].concat(), blocks] {
        let Ok(mut reader) = TraceReader::open(&bytes[..]) else { continue };
        let mut pieces = 0;
        while let Ok(Some(_)) = reader.next_piece() {
            pieces += 1;
        }
        assert!(pieces <= bytes.len() / 24);
    }
}

/// Decodes values of the catalog, and control records.
pub fn catalog(data: &[u8]) {
    fn round_trip<V: Value>(data: &[u8]) {
        let mut sealed = data.to_vec();
        let crc = crate::codec::crc32c(data).to_le_bytes();
        sealed.extend_from_slice(&crc);
        for bytes in [data, &sealed] {
            if let Some(value) = V::decode(bytes) {
                assert!(V::decode(&value.encode()).is_some());
            }
        }
    }
    round_trip::<Superblock>(data);
    round_trip::<Positions>(data);
    round_trip::<PvRecord>(data);
    round_trip::<VolumeRecord>(data);
    round_trip::<BranchRecord>(data);
    round_trip::<SnapshotRecord>(data);
    round_trip::<ExtentRecord>(data);
    round_trip::<BitmapPage>(data);
    if let Some(control) = Control::decode(data) {
        assert_eq!(Control::decode(&control.encode()), Some(control));
    }
}
