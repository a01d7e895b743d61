//! File systems made by their own tools, read through the protocol of readers. `images/make` makes
//! the images.
#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

use hindcast_api::{FileEntry, FileKind, FileList, Partition, name_bytes};
use hindcast_files::{Device, Failure, FailureKind, Place, Reading, Request};
use sha2::{Digest, Sha256};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A disk in memory. Its reads fail while `fails` says so.
struct Disk {
    bytes: Arc<Vec<u8>>,
    fails: Arc<AtomicBool>,
}

impl Device for Disk {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), String> {
        if self.fails.load(Ordering::Relaxed) {
            return Err("the disk is ill".into());
        }
        let offset = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.bytes[offset..offset + out.len()]);
        Ok(())
    }
}

/// A reader of an image, on a thread.
struct Reader {
    reading: Reading<Disk>,
    fails: Arc<AtomicBool>,
}

fn image(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images").join(format!("{name}.img.zst"));
    zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()
}

impl Reader {
    fn of(bytes: Vec<u8>) -> Reader {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || hindcast_files::serve(theirs));
        let fails = Arc::new(AtomicBool::new(false));
        let disk = Disk { bytes: Arc::new(bytes), fails: fails.clone() };
        Reader { reading: Reading::begin(ours, disk).unwrap(), fails }
    }

    fn partitions(&mut self) -> Vec<Partition> {
        self.reading.ask(&Request::Partitions, &mut |_| Ok(())).unwrap()
    }

    fn page(&mut self, place: Place, after: Option<String>, limit: usize) -> Result<FileList, Failure> {
        self.reading.ask(&Request::List { place, after, limit }, &mut |_| Ok(()))
    }

    fn list(&mut self, path: &str) -> FileList {
        self.page(at(path), None, 1000).unwrap()
    }

    fn names(&mut self, path: &str) -> Vec<String> {
        self.list(path).entries.into_iter().map(|entry| entry.name).collect()
    }

    fn read(&mut self, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, Failure> {
        let mut all = Vec::new();
        let mut take = |piece: Vec<u8>| {
            all.extend(piece);
            Ok(())
        };
        self.reading.ask::<()>(&Request::Read { place: at(path), offset, length }, &mut take)?;
        Ok(all)
    }

    fn text(&mut self, path: &str) -> String {
        String::from_utf8(self.read(path, 0, u64::MAX).unwrap()).unwrap()
    }

    /// Checks what all images have.
    fn check_tree(&mut self) {
        assert_eq!(self.names("/etc"), with_link(self.names("/etc"), ["deep", "passwd"]));
        assert_eq!(self.text("/etc/passwd"), "root:x:0:0\n");
        assert_eq!(self.text("//etc/./deep//er/ten"), "ten\n");
        assert_eq!(self.text("empty"), "");
        let numbers: String = (1..=20_000).map(|i| format!("{i}\n")).collect();
        assert_eq!(self.text("/etc/deep/numbers"), numbers);
        let size = numbers.len() as u64;
        for (offset, length) in
            [(0, 1), (1023, 2050), (70_000, 1 << 20), (size - 3, 9), (size, 9), (u64::MAX, 9)]
        {
            let start = usize::try_from(offset.min(size)).unwrap();
            let end = usize::try_from(offset.saturating_add(length).min(size)).unwrap();
            let expected = &numbers.as_bytes()[start..end];
            assert_eq!(self.read("/etc/deep/numbers", offset, length).unwrap(), expected, "{offset}");
        }
        let itself = self.list("/etc/deep/numbers");
        assert_eq!((itself.itself.kind, itself.itself.size), (FileKind::File, size));
        assert!(itself.entries.is_empty());
        let modified = itself.itself.modified.unwrap().as_second();
        assert_eq!(modified, 1_700_000_000);
        self.check_pages();
        self.check_refusals();
    }

    fn check_pages(&mut self) {
        let mut expected: Vec<String> = (1..=300).map(|i| format!("file-{i}")).collect();
        expected.sort();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = self.page(at("/many"), after, 77).unwrap();
            seen.extend(page.entries.into_iter().map(|entry| entry.name));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, expected);
    }

    fn check_refusals(&mut self) {
        for missing in ["/nothing", "/etc/nothing", "/etc/passwd/x", "/nothing/x", "/etc/\u{efff}"] {
            let failure = self.page(at(missing), None, 10).unwrap_err();
            let is_told = matches!(failure.kind, FailureKind::NotFound | FailureKind::Invalid);
            assert!(is_told, "{missing}: {failure:?}");
            assert!(self.read(missing, 0, 1).is_err());
        }
        assert_eq!(self.read("/etc", 0, 1).unwrap_err().kind, FailureKind::Invalid);
        let describe = Request::Describe { place: at("/etc") };
        let described: Result<FileEntry, Failure> = self.reading.ask(&describe, &mut |_| Ok(()));
        assert_eq!(described.unwrap_err().kind, FailureKind::Invalid);
    }

    fn check_linux(&mut self) {
        let root = self.list("/");
        let find = |name: &str| root.entries.iter().find(|entry| entry.name == name).unwrap().clone();
        let bytes = root.entries.iter().map(|entry| name_bytes(&entry.name));
        assert!(bytes.into_iter().any(|name| name == b"caf\xe9"));
        assert_eq!(self.text("/caf\u{efe9}"), "bytes");
        assert_eq!(self.text("/a\tb"), "tab");
        let link = |name: &str| (find(name).kind, find(name).target);
        assert_eq!(link("absolute"), (FileKind::Symlink, Some("/etc/passwd".into())));
        assert_eq!(link("dangling"), (FileKind::Symlink, Some("nowhere".into())));
        assert_eq!(find("pipe").kind, FileKind::Other);
        assert_eq!(find("empty").mode, Some(0o4755));
        let etc = self.list("/etc");
        let passwd = etc.entries.iter().find(|entry| entry.name == "passwd").unwrap();
        assert_eq!((passwd.mode, passwd.uid, passwd.gid), (Some(0o640), Some(1000), Some(1001)));
        // Links are followed, as long as they lead somewhere.
        assert_eq!(self.text("/absolute"), "root:x:0:0\n");
        assert_eq!(self.text("/directory/link"), "root:x:0:0\n");
        assert_eq!(self.text("/etc/../etc/passwd"), "root:x:0:0\n");
        assert_eq!(self.text("/../../etc/passwd"), "root:x:0:0\n");
        assert_eq!(self.list("/directory").itself.kind, FileKind::Directory);
        assert_eq!(self.list("/dangling").itself.kind, FileKind::Symlink);
        assert_eq!(self.list("/loop").itself.kind, FileKind::Symlink);
        assert!(self.read("/loop", 0, 1).is_err() && self.read("/pipe", 0, 1).is_err());
        assert_eq!(find("sparse").size, 3 << 30);
    }
}

/// Returns the names that `/etc` has: file systems of Linux have a link there too.
fn with_link<const N: usize>(found: Vec<String>, names: [&str; N]) -> Vec<String> {
    let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    if found.len() > N {
        names.insert(1, "link".into());
    }
    names
}

fn at(path: &str) -> Place {
    Place { partition: None, path: path.into() }
}

#[test]
fn ext4_is_read() {
    let mut reader = Reader::of(image("ext4"));
    let found = reader.partitions();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].number, found[0].content.as_deref()), (0, Some("ext4")));
    assert_eq!((found[0].label.as_deref(), found[0].readable), (Some("linux-root"), true));
    reader.check_tree();
    reader.check_linux();
    // A hole of 3 GiB before the end.
    assert_eq!(reader.read("/sparse", (3 << 30) - 6, 100).unwrap(), b"\0\0\0end");
}

#[test]
fn ext2_is_read() {
    let mut reader = Reader::of(image("ext2"));
    assert_eq!(reader.partitions()[0].content.as_deref(), Some("ext2"));
    reader.check_tree();
    reader.check_linux();
    assert_eq!(reader.read("/sparse", (3 << 30) - 6, 100).unwrap(), b"\0\0\0end");
}

/// The journal of each was not played back. It has gone around, and names blocks that belong to
/// other files since.
#[test]
fn what_only_the_journal_has_is_read() {
    for name in ["ext4-dirty", "ext4-plain-dirty", "ext3-dirty"] {
        let mut reader = Reader::of(image(name));
        let sums = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/images/{name}.sums"));
        let sums = std::fs::read_to_string(sums).unwrap();
        let expected: Vec<(&str, &str)> = sums.lines().map(|line| line.split_once("  ").unwrap()).collect();
        let mut names = reader.names("/");
        names.retain(|name| name != "lost+found");
        assert_eq!(names, expected.iter().map(|(_, name)| *name).collect::<Vec<_>>(), "{name}");
        for (sum, path) in expected {
            let content = reader.read(path, 0, u64::MAX).unwrap();
            let found: String = Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(found, sum, "{name}: {path}");
        }
    }
}

/// Returns the offset of the commit block of the newest transaction in an image.
fn newest_commit(image: &[u8]) -> usize {
    let heads = image.as_chunks::<1024>().0.iter().enumerate().filter_map(|(number, block)| {
        let is_commit = block[..8] == [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];
        is_commit.then(|| (u32::from_be_bytes([block[8], block[9], block[10], block[11]]), number * 1024))
    });
    heads.max().unwrap().1
}

/// Returns the image with a further incompatible feature of its journal.
fn with_journal_feature(name: &str, feature: u8) -> Vec<u8> {
    let mut bytes = image(name);
    let is_head = |block: &usize| bytes[*block..block + 8] == [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let head = (0..bytes.len() - 1024).step_by(1024).find(is_head).unwrap();
    bytes[head + 43] |= feature;
    bytes
}

/// Fast commits are changes beside the transactions. Without them, files would be older than they
/// were, or not there.
#[test]
fn a_journal_that_is_not_understood_is_refused() {
    for name in ["ext4-dirty", "ext4-plain-dirty"] {
        let mut reader = Reader::of(with_journal_feature(name, 0x20));
        let failure = reader.page(at("/"), None, 10).unwrap_err();
        assert!(failure.message.contains("journal") && failure.message.contains("0x20"), "{failure}");
        assert!(reader.read("/file1", 0, 1).unwrap_err().message.contains("journal"));
    }
    // A file system that was unmounted needs nothing of its journal.
    Reader::of(with_journal_feature("ext4", 0x20)).check_tree();
}

/// A power cut in the middle of a transaction leaves blocks of it without their commit block. That
/// is no damage. The same blocks with a commit block are.
#[test]
fn a_transaction_that_was_cut_never_happened() {
    for name in ["ext4-dirty", "ext4-plain-dirty", "ext3-dirty"] {
        let original = image(name);
        let commit = newest_commit(&original);
        let mut cut = original.clone();
        cut[commit..commit + 1024].fill(0);
        // A copy that did not arrive either.
        cut[commit - 1024..commit].fill(0x77);
        let mut reader = Reader::of(cut);
        let names = reader.names("/");
        assert!(names.iter().any(|name| name.starts_with("file")), "{name}: {names:?}");
        let mut damaged = original.clone();
        damaged[commit - 1024..commit].fill(0x77);
        let found = Reader::of(damaged).page(at("/"), None, 1000);
        if name == "ext4-dirty" {
            // It is the one with checksums.
            assert!(found.unwrap_err().message.contains("checksum"));
        }
    }
}

#[test]
fn what_was_never_written_is_zeros() {
    for (name, size) in [("unwritten", 4 << 20), ("ntfs-unwritten", 1_000_000)] {
        let mut reader = Reader::of(image(name));
        let content = reader.read("/preallocated", 0, u64::MAX).unwrap();
        assert_eq!(content.len(), size, "{name}");
        assert_eq!(&content[..4], b"head");
        let other = content[4..content.len() - 4].iter().filter(|b| **b != 0).count();
        assert_eq!(other, 0, "{name}: bytes of a deleted file");
        let end: &[u8] = if name == "unwritten" { b"tail" } else { &[0; 4] };
        assert_eq!(&content[content.len() - 4..], end);
        assert_eq!(reader.read("/preallocated", size as u64 - 6, 9).unwrap()[2..], *end);
    }
}

#[test]
fn names_that_differ_in_case_only_are_two_files() {
    let mut reader = Reader::of(image("ntfs-unwritten"));
    assert_eq!((reader.text("/Readme"), reader.text("/readme")), ("upper".into(), "lower".into()));
}

/// A disk that had a file system before it was partitioned.
#[test]
fn a_partition_table_counts_more_than_old_marks() {
    let mut bytes = image("mbr");
    let old = image("ext4");
    bytes[1024..2048].copy_from_slice(&old[1024..2048]);
    let numbers: Vec<u32> = Reader::of(bytes).partitions().iter().map(|p| p.number).collect();
    assert_eq!(numbers, [1, 5, 6]);
}

#[test]
fn content_that_can_not_be_read_is_refused() {
    let original = image("ext4");
    let mut seen = 0;
    for (flag, part) in [(0x800_u32, "encrypted"), (0x1000_0000, "in its inode")] {
        let mut bytes = original.clone();
        // Every inode whose size is that of the file.
        let size: u64 = (1..=20_000).map(|i| format!("{i}\n").len() as u64).sum();
        for at in (0..bytes.len() - 256).step_by(128) {
            let is_inode =
                bytes[at..at + 2] == [0xa4, 0x81] && bytes[at + 4..at + 8] == (size as u32).to_le_bytes();
            if is_inode {
                let flags = u32::from_le_bytes(bytes[at + 0x20..at + 0x24].try_into().unwrap()) | flag;
                bytes[at + 0x20..at + 0x24].copy_from_slice(&flags.to_le_bytes());
                seen += 1;
            }
        }
        let failure = Reader::of(bytes).read("/etc/deep/numbers", 0, 10).unwrap_err();
        assert!(failure.message.contains(part), "{failure}");
    }
    assert_eq!(seen, 2);
}

#[test]
fn fat_is_read() {
    let mut reader = Reader::of(image("fat16"));
    let found = reader.partitions();
    assert_eq!((found[0].content.as_deref(), found[0].label.as_deref()), (Some("fat16"), Some("BOOT")));
    reader.check_tree();
    let long = "A rather long name for FAT, käse.txt";
    assert_eq!(reader.text(&format!("/{long}")), "long");
    assert_eq!(reader.text(&format!("/{}", long.to_uppercase())), "long");
    assert!(reader.names("/").contains(&long.to_owned()));
    assert_eq!(reader.list("/").itself.kind, FileKind::Directory);
}

/// Returns the offset of the directory entry of a short name in a FAT image.
fn short_entry(image: &[u8], name: &[u8; 11]) -> usize {
    let is_file = |at: &usize| image[*at..at + 11] == *name && image[at + 11] & 0x18 == 0;
    (0..image.len() - 32).step_by(32).find(is_file).unwrap()
}

/// Systems without long names wrote names in the code page of their country, which the disk does
/// not tell.
#[test]
fn short_names_beyond_ascii_are_told_apart() {
    let mut bytes = image("fat16");
    // The long names of these no longer fit, and are ignored.
    for (number, byte) in [(1, 0x84), (2, 0x94)] {
        let at = short_entry(&bytes, format!("FILE-{number}     ").as_bytes().first_chunk().unwrap());
        bytes[at..at + 11].copy_from_slice(b"K\xffSE    TXT");
        bytes[at + 1] = byte;
    }
    let mut reader = Reader::of(bytes.clone());
    let names = reader.names("/many");
    assert!(names.contains(&"k\u{ef84}se.TXT".to_owned()) && names.contains(&"k\u{ef94}se.TXT".to_owned()));
    for (number, name) in [(1, "k\u{ef84}se.TXT"), (2, "k\u{ef94}se.TXT")] {
        let original = Reader::of(image("fat16")).read(&format!("/many/file-{number}"), 0, 99).unwrap();
        assert_eq!(reader.read(&format!("/many/{name}"), 0, 99).unwrap(), original, "{name}");
    }
    // Two files with one name, as damage leaves them.
    let at = short_entry(&bytes, b"K\x94SE    TXT");
    bytes[at + 1] = 0x84;
    let failure = Reader::of(bytes).read("/many/k\u{ef84}se.TXT", 0, 99).unwrap_err();
    assert!(failure.message.contains("two files"), "{failure}");
}

#[test]
fn ntfs_is_read() {
    let mut reader = Reader::of(image("ntfs"));
    let found = reader.partitions();
    assert_eq!((found[0].content.as_deref(), found[0].label.as_deref()), (Some("ntfs"), Some("WINDOWS")));
    reader.check_tree();
    let long = "A rather long name for NTFS, käse.txt";
    assert_eq!(reader.text(&format!("/{}", long.to_uppercase())), "long");
    assert_eq!(reader.names("/"), [long, "empty", "etc", "many"], "without the file system's own files");
}

/// If a list of attributes describes a file, the record that is found first may have the end of it.
#[test]
fn a_file_of_ntfs_whose_beginning_is_elsewhere_is_refused() {
    let mut bytes = image("ntfs");
    let size: u64 = (1..=20_000).map(|i| format!("{i}\n").len() as u64).sum();
    let mut seen = 0;
    for record in
        (0..bytes.len() - 1024).step_by(1024).filter(|at| image_has(&bytes, *at, b"FILE")).collect::<Vec<_>>()
    {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut at = record + usize::from(bytes[record + 0x14]);
        while at < record + 900 && number(at) != u32::MAX && number(at + 4) > 0 {
            // The content, outside of its record, from its beginning on.
            let is_it = number(at) == 0x80 && bytes[at + 8] == 1 && u64::from(number(at + 0x30)) == size;
            let next = at + number(at + 4) as usize;
            if is_it {
                bytes[at + 0x10] = 5;
                seen += 1;
                break;
            }
            at = next;
        }
    }
    assert_eq!(seen, 1);
    let mut reader = Reader::of(bytes);
    let failure = reader.read("/etc/deep/numbers", 0, 10).unwrap_err();
    assert!(failure.message.contains("too scattered"), "{failure}");
    let listed = reader.list("/etc/deep").entries;
    let numbers = listed.iter().find(|entry| entry.name == "numbers").unwrap();
    assert_eq!((numbers.kind, numbers.size), (FileKind::Other, 0), "not taken for an empty file");
}

fn image_has(image: &[u8], at: usize, what: &[u8]) -> bool {
    image[at..].starts_with(what)
}

#[test]
fn a_gpt_names_its_partitions() {
    let mut reader = Reader::of(image("gpt"));
    let found = reader.partitions();
    let seen: Vec<_> = found.iter().map(|p| (p.number, p.name.as_deref(), p.content.as_deref())).collect();
    let expected =
        [(1, Some("empty"), None), (2, Some("root"), Some("ext4")), (3, Some("EFI"), Some("fat16"))];
    assert_eq!(seen, expected);
    assert!(!found[0].readable && found[1].readable && found[2].readable);
    let failure = reader.page(at("/"), None, 10).unwrap_err();
    assert!(failure.message.contains("2 (ext4), 3 (fat)"), "{failure}");
    for number in [2, 3] {
        let place = Place { partition: Some(number), path: "/etc".into() };
        let list = reader.page(place, None, 10).unwrap();
        assert_eq!(list.partition, number);
        assert!(list.entries.iter().any(|entry| entry.name == "passwd"));
    }
    for (number, kind) in [(1, FailureKind::Unsupported), (9, FailureKind::NotFound)] {
        let place = Place { partition: Some(number), path: "/".into() };
        assert_eq!(reader.page(place, None, 10).unwrap_err().kind, kind);
    }
}

#[test]
fn a_master_boot_record_names_its_partitions() {
    let mut reader = Reader::of(image("mbr"));
    let found = reader.partitions();
    let seen: Vec<_> = found.iter().map(|p| (p.number, p.content.as_deref())).collect();
    assert_eq!(seen, [(1, Some("ntfs")), (5, None), (6, Some("ext2"))]);
}

#[test]
fn a_disk_that_fails_is_told_and_the_reader_goes_on() {
    let mut reader = Reader::of(image("ext4"));
    reader.fails.store(true, Ordering::Relaxed);
    let failure = reader.page(at("/"), None, 10).unwrap_err();
    assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Disk, "the disk is ill"));
    reader.fails.store(false, Ordering::Relaxed);
    assert_eq!(reader.text("/etc/passwd"), "root:x:0:0\n");
}
