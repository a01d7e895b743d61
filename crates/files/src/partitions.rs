//! Partition tables: GPT (UEFI specification, section 5) and MBR with logical partitions.

use crate::disk::Section;
use crate::ext::Ext;
use crate::failure::{Failure, Result};
use crate::fat::Fat;
use crate::file_system::FileSystem;
use crate::ntfs_volume::NtfsVolume;
use crate::recognize::{Content, recognize};
use gpt::GptConfig;
use gpt::disk::LogicalBlockSize;
use hindcast_api::Partition;

/// Unit of addresses in a master boot record, in bytes.
const SECTOR: u64 = 512;
/// Largest number of partitions that are listed.
const MAX_PARTITIONS: usize = 256;
/// Types of partitions of a master boot record: an extended partition holds logical ones, and the
/// protective one says that the disk has a GPT.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const PROTECTIVE: u8 = 0xee;
/// Number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;

/// A partition, or the whole disk.
struct Slot {
    number: u32,
    name: Option<String>,
    start: u64,
    size: u64,
}

/// Returns the partitions of a disk. A disk without a partition table is one partition with the
/// number 0.
fn slots(disk: &Section) -> Result<Vec<Slot>> {
    let whole = Slot { number: 0, name: None, start: 0, size: disk.size() };
    let Some(record) = disk.bytes_at::<512>(0)? else { return Ok(vec![whole]) };
    // The boot sector of FAT and NTFS looks like a master boot record. Marks of other formats may
    // be left from before the disk was partitioned, so a table counts more than they do.
    if matches!(recognize(disk)?, Some(Content::Fat | Content::Ntfs)) {
        return Ok(vec![whole]);
    }
    let entries = entries(&record);
    if entries.iter().any(|entry| entry.kind == PROTECTIVE)
        && let Some(found) = from_gpt(disk)
    {
        return Ok(found);
    }
    let found = from_mbr(disk, &entries)?;
    Ok(if found.is_empty() { vec![whole] } else { found })
}

/// Returns the partitions of a GPT, or `None` if the disk has no valid one.
fn from_gpt(disk: &Section) -> Option<Vec<Slot>> {
    for size in [LogicalBlockSize::Lb512, LogicalBlockSize::Lb4096] {
        let config = GptConfig::new().writable(false).logical_block_size(size);
        let Ok(table) = config.open_from_device(Box::new(disk.part(0, disk.size()))) else { continue };
        let used = table.partitions().iter().filter(|(_, partition)| partition.is_used());
        let slot = |(number, partition): (&u32, &gpt::partition::Partition)| {
            let start = partition.bytes_start(size).ok()?;
            let size = partition.bytes_len(size).ok()?;
            let name = Some(partition.name.clone()).filter(|name| !name.is_empty());
            Some(Slot { number: *number, name, start, size })
        };
        return Some(used.filter_map(slot).take(MAX_PARTITIONS).collect());
    }
    None
}

/// An entry of a master boot record or of an extended one.
struct Entry {
    kind: u8,
    first: u64,
    sectors: u64,
}

/// Returns the four entries of a boot record, if it is one.
fn entries(record: &[u8; 512]) -> Vec<Entry> {
    if record[510..] != [0x55, 0xaa] {
        return Vec::new();
    }
    let entry = |entry: &[u8]| {
        let word = |at: usize| u64::from(u32::from_le_bytes([0, 1, 2, 3].map(|i| entry[at + i])));
        Entry { kind: entry[4], first: word(8), sectors: word(12) }
    };
    record[446..510].chunks(16).map(entry).collect()
}

/// Returns the primary and logical partitions of a master boot record. A record whose entries are
/// impossible is none: its sector is the boot code of something else.
fn from_mbr(disk: &Section, primary: &[Entry]) -> Result<Vec<Slot>> {
    let mut found = Vec::new();
    let slot = |number, first: u64, sectors: u64| Slot {
        number,
        name: None,
        start: first * SECTOR,
        size: sectors * SECTOR,
    };
    let is_possible = |entry: &Entry| entry.first > 0 && entry.first * SECTOR < disk.size();
    for (number, entry) in (1..).zip(primary) {
        if entry.kind == 0 || entry.sectors == 0 {
            continue;
        }
        if !is_possible(entry) {
            return Ok(Vec::new());
        }
        if !EXTENDED.contains(&entry.kind) {
            found.push(slot(number, entry.first, entry.sectors));
        }
    }
    for extended in primary.iter().filter(|entry| EXTENDED.contains(&entry.kind)) {
        let (mut at, mut number) = (0, FIRST_LOGICAL);
        // A chain that comes back to its start ends with the limit.
        while found.len() < MAX_PARTITIONS && number < FIRST_LOGICAL + MAX_PARTITIONS as u32 {
            let Some(record) = disk.bytes_at::<512>((extended.first + at) * SECTOR)? else { break };
            let chain = entries(&record);
            if let Some(logical) = chain.first().filter(|e| e.kind != 0 && e.sectors > 0) {
                found.push(slot(number, extended.first + at + logical.first, logical.sectors));
            }
            number += 1;
            match chain.get(1).filter(|e| EXTENDED.contains(&e.kind) && e.first > 0) {
                Some(next) => at = next.first,
                None => break,
            }
        }
    }
    Ok(found)
}

/// Opens the file system of a section.
fn open(section: &Section, content: Content) -> Result<Box<dyn FileSystem>> {
    Ok(match content {
        Content::Ext(_) => Box::new(Ext::open(section)?),
        Content::Fat => Box::new(Fat::open(section)?),
        Content::Ntfs => Box::new(NtfsVolume::open(section)?),
        Content::Other(name) => {
            let how = "attach a view of the moment to a machine that knows it (hindcast view create)";
            return Err(Failure::unsupported(format!("files of {name} can't be read here: {how}")));
        }
    })
}

/// Returns the name of a content, as far as it is known without a look into it.
fn name(content: Option<Content>) -> &'static str {
    match content {
        None => "unknown",
        Some(Content::Ext(name) | Content::Other(name)) => name,
        Some(Content::Fat) => "fat",
        Some(Content::Ntfs) => "ntfs",
    }
}

/// Describes a partition.
fn described(disk: &Section, slot: Slot) -> Result<Partition> {
    let section = disk.part(slot.start, slot.size);
    let content = recognize(&section)?;
    let opened = match content {
        Some(content) => open(&section, content).map(Some),
        None => Ok(None),
    };
    let fs = opened.as_ref().ok().and_then(Option::as_ref);
    let label = fs.and_then(|fs| fs.label());
    // Which FAT it is shows in the file system only.
    let exact = fs.filter(|_| content == Some(Content::Fat)).map(|fs| fs.name());
    let content = content.map(|content| exact.unwrap_or(name(Some(content))).to_owned());
    let problem = match opened {
        Ok(Some(_)) => None,
        Ok(None) => Some("it has no file system that is known here".to_owned()),
        Err(failure) if failure.kind == crate::FailureKind::Disk => return Err(failure),
        Err(failure) => Some(failure.message),
    };
    let Slot { number, name, start, size } = slot;
    let readable = problem.is_none();
    Ok(Partition { number, name, start, size, content, label, readable, problem })
}

/// Returns the partitions of a disk, in the order of their numbers.
pub(crate) fn list(disk: &Section) -> Result<Vec<Partition>> {
    let mut all: Vec<Partition> =
        slots(disk)?.into_iter().map(|slot| described(disk, slot)).collect::<Result<_>>()?;
    all.sort_by_key(|partition| partition.number);
    Ok(all)
}

/// Opens the file system of a partition. `None`: the only partition that can be read. Returns the
/// number of the partition too.
pub(crate) fn choose(disk: &Section, wanted: Option<u32>) -> Result<(u32, Box<dyn FileSystem>)> {
    let mut all = Vec::new();
    for slot in slots(disk)? {
        let section = disk.part(slot.start, slot.size);
        all.push((slot.number, recognize(&section)?, section));
    }
    let is_known = |content: &Option<Content>| !matches!(content, None | Some(Content::Other(_)));
    let names = |only_known: bool| {
        let named = all.iter().filter(|(_, content, _)| !only_known || is_known(content));
        named
            .map(|(number, content, _)| format!("{number} ({})", name(*content)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let known: Vec<_> = all.iter().filter(|(_, content, _)| is_known(content)).collect();
    let (number, content, section) = match (wanted, known.as_slice(), all.as_slice()) {
        (Some(number), _, all) => all.iter().find(|(n, _, _)| *n == number).ok_or_else(|| {
            Failure::not_found(format!("find partition {number}: the disk has {}", names(false)))
        })?,
        (None, [only], _) => only,
        (None, [], [only]) => only,
        (None, [], _) => {
            let text = "read files: no partition has a file system that is known here";
            return Err(Failure::unsupported(format!("{text}: {}", names(false))));
        }
        (None, _, _) => {
            let text = "read files: several partitions have some, name one of them";
            return Err(Failure::invalid(format!("{text}: {}", names(true))));
        }
    };
    let opened = match content {
        Some(content) => open(section, *content),
        None => Err(Failure::unsupported("it has no file system that is known here")),
    };
    let opened = opened.map_err(|failure| {
        Failure::new(failure.kind, format!("read files of partition {number}: {}", failure.message))
    })?;
    Ok((*number, opened))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::disk;

    fn put(record: &mut [u8], index: usize, kind: u8, first: u32, sectors: u32) {
        let at = 446 + 16 * index;
        record[at + 4] = kind;
        record[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
        record[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
        record[510..512].copy_from_slice(&[0x55, 0xaa]);
    }

    fn numbers(bytes: Vec<u8>) -> Vec<(u32, u64, u64)> {
        slots(&disk(bytes)).unwrap().iter().map(|s| (s.number, s.start / SECTOR, s.size / SECTOR)).collect()
    }

    #[test]
    fn a_disk_without_a_table_is_one_partition() {
        assert_eq!(numbers(vec![0; 1 << 20]), [(0, 0, 2048)]);
        assert_eq!(numbers(vec![7; 100]), [(0, 0, 0)]);
        // Boot code with impossible entries.
        let mut bytes = vec![0xff; 1 << 20];
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(numbers(bytes), [(0, 0, 2048)]);
    }

    #[test]
    fn primary_and_logical_partitions_are_found() {
        let mut bytes = vec![0; 1 << 20];
        put(&mut bytes, 0, 0x83, 64, 100);
        put(&mut bytes, 2, 0x05, 512, 1000);
        put(&mut bytes[512 * 512..], 0, 0x83, 8, 50);
        put(&mut bytes[512 * 512..], 1, 0x05, 200, 300);
        put(&mut bytes[712 * 512..], 0, 0x83, 8, 60);
        assert_eq!(numbers(bytes), [(1, 64, 100), (5, 520, 50), (6, 720, 60)]);
    }

    #[test]
    fn a_chain_of_logical_partitions_that_never_ends_is_cut() {
        let mut bytes = vec![0; 1 << 20];
        put(&mut bytes, 0, 0x05, 512, 1000);
        put(&mut bytes[512 * 512..], 0, 0x83, 8, 50);
        put(&mut bytes[512 * 512..], 1, 0x05, 200, 300);
        put(&mut bytes[712 * 512..], 1, 0x05, 200, 300);
        assert!(numbers(bytes).len() <= MAX_PARTITIONS);
    }

    #[test]
    fn a_partition_that_can_not_be_read_is_named_with_its_reason() {
        let mut bytes = vec![0; 1 << 20];
        bytes[..4].copy_from_slice(b"XFSB");
        let found = list(&disk(bytes.clone())).unwrap();
        assert_eq!(
            (found[0].number, found[0].content.as_deref(), found[0].readable),
            (0, Some("xfs"), false)
        );
        let failure = choose(&disk(bytes.clone()), None).map(|_| ()).unwrap_err();
        assert!(failure.message.contains("xfs") && failure.message.contains("view create"), "{failure}");
        let failure = choose(&disk(bytes), Some(3)).map(|_| ()).unwrap_err();
        assert_eq!(failure.kind, crate::FailureKind::NotFound);
    }
}
