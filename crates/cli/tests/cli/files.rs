//! Files of a moment: commands, and the process that reads them.

use super::server::{Server, program};
use hindcast_api::FileList;
use hindcast_files::{Device, FailureKind, Place, Reading, Request};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns an image of the tests of the crate that reads files.
fn image(name: &str) -> Vec<u8> {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../files/tests/images");
    zstd::decode_all(fs::File::open(images.join(format!("{name}.img.zst"))).unwrap()).unwrap()
}

/// A server with a volume `db` that has a history.
struct Site {
    dir: tempfile::TempDir,
    server: Server,
}

impl Site {
    fn new() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start_with(&dir.path().join("pool"), &["--nbd", "127.0.0.1:0"]);
        server.ok(&["volume", "create", "db", "--size", "20M"]);
        server.ok(&["volume", "set", "db", "--cdp", "parity"]);
        Site { dir, server }
    }

    /// Writes an image over NBD, and marks the moment.
    fn write(&self, content: &[u8], mark: &str) {
        let file = self.dir.path().join("image");
        let mut whole = vec![0; 20 << 20];
        whole[..content.len()].copy_from_slice(content);
        fs::write(&file, whole).unwrap();
        let address = self.server.json(&["status"])["listeners"]["nbd"][0].as_str().unwrap().to_owned();
        // It writes zeros too: the volume may have other bytes there.
        let copied = Command::new("nbdcopy")
            .args(["--flush", "--allocated"])
            .arg(&file)
            .arg(format!("nbd://{address}/db"))
            .output();
        let copied = copied.expect("nbdcopy (Debian package libnbd-bin)");
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        self.server.ok(&["mark", "db", mark]);
    }

    fn names(&self, args: &[&str], field: &str) -> BTreeSet<String> {
        let found = self.server.json(args);
        found.as_array().unwrap().iter().map(|e| e[field].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn files_of_a_moment_come_back_after_the_disk_was_overwritten() {
    let site = Site::new();
    let server = &site.server;
    site.write(&image("ext4"), "before");
    site.write(&vec![0x5a; 20 << 20], "after");
    assert_eq!(server.ok(&["files", "cat", "db@before:/etc/passwd"]), "root:x:0:0\n");
    let listed = server.json(&["files", "ls", "db@before:/etc"]);
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["deep", "link", "passwd"]);
    assert!(server.ok(&["files", "ls", "db@before:/etc/passwd"]).contains("-rw-r-----"));
    let out = site.dir.path().join("out");
    let to = out.to_str().unwrap();
    let copied = server.run(&["files", "cp", "-r", "db@before:/", to]);
    let said = String::from_utf8(copied.stderr).unwrap();
    assert_eq!(copied.status.code(), Some(1), "{said}");
    assert!(said.contains("hindcast: /pipe: it is no file"), "{said}");
    assert!(said.contains("copied 312 files") && said.contains("1 could not be copied"), "{said}");
    assert_eq!(fs::read_to_string(out.join("etc/deep/er/ten")).unwrap(), "ten\n");
    assert_eq!(fs::read_link(out.join("absolute")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fs::read(out.join(std::ffi::OsStr::from_bytes(b"caf\xe9"))).unwrap(), b"bytes");
    assert_eq!(fs::read_dir(out.join("many")).unwrap().count(), 300);
    let (passwd, empty) = (out.join("etc/passwd").metadata().unwrap(), out.join("empty").metadata().unwrap());
    assert_eq!((passwd.mode() & 0o7777, passwd.mtime()), (0o640, 1_700_000_000));
    assert_eq!(empty.mode() & 0o7777, 0o755, "not set-user-ID");
    let sparse = out.join("sparse").metadata().unwrap();
    assert_eq!(sparse.len(), 3 << 30);
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes: {} blocks", sparse.blocks());
}

#[test]
fn copies_replace_nothing_and_follow_no_link() {
    let site = Site::new();
    let server = &site.server;
    site.write(&image("ext4"), "then");
    let out = site.dir.path().join("passwd");
    let to = out.to_str().unwrap();
    server.ok(&["files", "cp", "db@then:/etc/passwd", to]);
    let (code, message) = server.fails(&["files", "cp", "db@then:/etc/deep/numbers", to]);
    assert!(code == 1 && message.contains("--force"), "{message}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "root:x:0:0\n");
    // A copy that fails leaves what was there.
    let (code, _) = server.fails(&["files", "cp", "--force", "db@then:/etc/nothing", to]);
    assert_eq!((code, fs::read_to_string(&out).unwrap().as_str()), (3, "root:x:0:0\n"));
    // A link at the place of the file: its target stays as it is.
    let precious = site.dir.path().join("precious");
    fs::write(&precious, "mine").unwrap();
    fs::remove_file(&out).unwrap();
    std::os::unix::fs::symlink(&precious, &out).unwrap();
    server.fails(&["files", "cp", "db@then:/etc/passwd", to]);
    server.ok(&["files", "cp", "--force", "db@then:/etc/passwd", to]);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    assert!(out.symlink_metadata().unwrap().is_file());
    let left: Vec<_> = fs::read_dir(site.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".part")), "{left:?}");
    for (args, code, part) in [
        (&["files", "cp", "db@then:/etc", to][..], 2, "--recursive"),
        (&["files", "cp", "db@then:/pipe", to], 2, "only files"),
        (&["files", "cat", "db@then:/etc"], 2, "directory"),
        (&["files", "cat", "db@then:/nothing"], 3, "not found"),
        (&["files", "ls", "db:/etc"], 2, "VOLUME@MOMENT:/PATH"),
        (&["files", "ls", "db@never:/etc"], 3, "no snapshot and no mark"),
        (&["files", "ls", "db@then", "--partition", "3"], 3, "partition 3"),
    ] {
        let (found, message) = server.fails(args);
        assert!(found == code && message.contains(part), "{args:?}: {found} {message}");
    }
    assert_eq!(server.json(&["view", "list"]), Value::Array(Vec::new()), "each command ends its view");
}

/// A directory that is in itself.
#[test]
fn a_circle_of_directories_ends() {
    let site = Site::new();
    let mut content = image("ext4");
    site.write(&content, "straight");
    let root = site.server.json(&["files", "ls", "db@straight"]);
    let etc = root.as_array().unwrap().iter().find(|entry| entry["name"] == "etc").unwrap();
    let number = u32::try_from(etc["id"].as_u64().unwrap()).unwrap();
    // The entry: inode, length of the entry, length of the name, a directory, the name.
    let at = content.windows(6).position(|bytes| bytes == b"\x04\x02deep").unwrap() - 6;
    content[at..at + 4].copy_from_slice(&number.to_le_bytes());
    site.write(&content, "circle");
    let out = site.dir.path().join("out");
    let copied = site.server.run(&["files", "cp", "-r", "db@circle:/", out.to_str().unwrap()]);
    let said = String::from_utf8(copied.stderr).unwrap();
    assert!(
        copied.status.code() == Some(1) && said.contains("/etc/deep: the directories form a circle"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(out.join("etc/passwd")).unwrap(), "root:x:0:0\n", "the rest is copied");
    let (code, message) = site.server.fails(&["files", "diff", "db@circle", "db@circle"]);
    assert!(code == 1 && message.contains("no end"), "{message}");
}

/// A client that stops reading must not keep the others out, and an ended view shows nothing more.
#[test]
fn content_that_nobody_takes_holds_no_question_up() {
    let site = Site::new();
    site.write(&image("ext4"), "then");
    let view = site.server.json(&["view", "create", "db@then"]);
    let id = view["id"].as_str().unwrap();
    let slow: Vec<UnixStream> = (0..4)
        .map(|_| {
            let mut stream = UnixStream::connect(site.server.socket()).unwrap();
            let request = format!("GET /api/v1/views/{id}/file?path=/sparse HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut begin = [0; 12];
            stream.read_exact(&mut begin).unwrap();
            assert_eq!(&begin, b"HTTP/1.1 200");
            stream
        })
        .collect();
    let file = format!("/api/v1/views/{id}/file?path=/etc/passwd");
    assert_eq!(site.server.http("GET", &file, "").0, 409, "the places for content are taken");
    let (status, body) = site.server.http("GET", &format!("/api/v1/views/{id}/files?path=/etc"), "");
    assert_eq!(status, 200, "{body}");
    site.server.ok(&["view", "delete", id]);
    for mut stream in slow {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let taken = std::io::copy(&mut stream, &mut std::io::sink());
        assert!(taken.as_ref().is_ok_and(|bytes| *bytes < 1 << 30), "not with its view: {taken:?}");
    }
}

#[test]
fn what_can_not_be_read_is_an_error_and_no_broken_answer() {
    let site = Site::new();
    let mut content = image("ext4");
    let size: u64 = (1..=20_000).map(|i| format!("{i}\n").len() as u64).sum();
    for at in (0..content.len() - 256).step_by(128) {
        let is_inode = content[at..at + 2] == [0xa4, 0x81];
        if is_inode && content[at + 4..at + 8] == u32::try_from(size).unwrap().to_le_bytes() {
            content[at + 0x21] |= 0x8; // encrypted
        }
    }
    site.write(&content, "then");
    let (code, message) = site.server.fails(&["files", "cat", "db@then:/etc/deep/numbers"]);
    assert!(code == 1 && message.contains("encrypted"), "{message}");
    let view = site.server.json(&["view", "create", "db@then"]);
    let path = format!("/api/v1/views/{}/file?path=/etc/passwd", view["id"].as_str().unwrap());
    let (status, body) = site.server.http("HEAD", &path, "");
    assert_eq!((status, body.as_str()), (200, ""));
    let (status, body) = site.server.http("GET", &format!("{path}&offset=5&length=2"), "");
    assert_eq!((status, body.as_str()), (200, "x:"));
}

#[test]
fn a_comparison_names_the_files_that_differ() {
    let site = Site::new();
    let original = image("ext4");
    site.write(&original, "one");
    // The content changes, and neither the size nor the time.
    let mut changed = original.clone();
    let at = changed.windows(11).position(|bytes| bytes == b"root:x:0:0\n").unwrap();
    changed[at..at + 4].copy_from_slice(b"toor");
    site.write(&changed, "two");
    site.write(&image("fat16"), "fat");
    let none = site.names(&["files", "diff", "db@one", "db@two"], "path");
    assert_eq!(none, BTreeSet::new());
    let content = site.names(&["files", "diff", "db@one:/etc", "db@two:/etc", "--content"], "path");
    assert_eq!(content, BTreeSet::from(["passwd".into()]));
    let differ = site.server.json(&["files", "diff", "db@one", "db@fat"]);
    let has = |change: &str, path: &str| {
        let all = differ.as_array().unwrap();
        assert!(all.iter().any(|d| d["change"] == change && d["path"] == path), "{change} {path}: {differ}");
    };
    has("removed", "dangling");
    has("removed", "etc/link");
    has("added", "A rather long name for FAT, käse.txt");
    has("changed", "etc/passwd"); // FAT has no owners
    let partitions = site.server.json(&["files", "partitions", "db@one"]);
    assert_eq!((&partitions[0]["content"], &partitions[0]["number"]), (&"ext4".into(), &0.into()));
}

/// Returns the processes that the server has started, by their command lines.
fn readers(server: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.unwrap().file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent: u32 = status.rsplit_once(')')?.1.split(' ').nth(2)?.parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_reader = command.split(|b| *b == 0).any(|word| word == b"file-reader");
        (parent == server && is_reader).then_some(pid)
    });
    all.collect()
}

#[test]
fn the_process_that_reads_has_no_other_rights_and_ends_with_the_view() {
    let site = Site::new();
    site.write(&image("ext4"), "then");
    let server = &site.server;
    let pid = u32::try_from(server.json(&["status"])["pid"].as_u64().unwrap()).unwrap();
    let view = server.json(&["view", "create", "db@then"]);
    let id = view["id"].as_str().unwrap();
    assert!(readers(pid).is_empty());
    for _ in 0..3 {
        let (status, body) = server.http("GET", &format!("/api/v1/views/{id}/files?path=/etc"), "");
        assert_eq!(status, 200, "{body}");
    }
    let [reader] = readers(pid)[..] else { panic!("one process serves all requests: {:?}", readers(pid)) };
    let status = fs::read_to_string(format!("/proc/{reader}/status")).unwrap();
    for line in [
        "Seccomp:\t2",
        "NoNewPrivs:\t1",
        "Threads:\t1",
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let limits = fs::read_to_string(format!("/proc/{reader}/limits")).unwrap();
    let has_limit = |name: &str, value: u64| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains(&format!(" {value} ")), "{line}");
    };
    has_limit("Max address space", 256 << 20);
    has_limit("Max file size", 0);
    has_limit("Max core file size", 0);
    let descriptors: BTreeSet<String> = fs::read_dir(format!("/proc/{reader}/fd"))
        .unwrap()
        .map(|entry| fs::read_link(entry.unwrap().path()).unwrap().to_string_lossy().into_owned())
        .collect();
    let others = descriptors.iter().filter(|of| !of.starts_with("socket:") && *of != "/dev/null").count();
    assert!(others == 0 && descriptors.len() == 2, "{descriptors:?}");
    server.ok(&["view", "delete", id]);
    let end = Instant::now() + Duration::from_secs(10);
    while !readers(pid).is_empty() {
        assert!(Instant::now() < end, "the process outlives its view");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (status, _) = server.http("GET", &format!("/api/v1/views/{id}/files?path=/etc"), "");
    assert_eq!(status, 404);
}

/// A disk in memory.
struct InMemory(Vec<u8>);

impl Device for InMemory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), String> {
        let offset = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.0[offset..offset + out.len()]);
        Ok(())
    }
}

/// Starts a reader's process, as the server does.
fn reader(content: Vec<u8>) -> (Child, Reading<InMemory>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = program()
        .arg("file-reader")
        .env_clear()
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (child, Reading::begin(ours, InMemory(content)).unwrap())
}

/// Damaged file systems are refused or read, and a process that breaks takes nothing with it.
#[test]
fn damage_stays_in_the_process_that_reads() {
    let (mut state, mut broken, mut answered) = (1_u64, 0, 0);
    for name in ["ext4", "ext2", "fat16", "ntfs", "gpt", "mbr"] {
        let original = image(name);
        for _ in 0..10 {
            let mut bytes = original.clone();
            for _ in 0..200 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Metadata is at the beginning of every part.
                let range = if state & (1 << 40) == 0 { 64 << 10 } else { bytes.len() as u64 };
                let at = usize::try_from((state >> 16) % range).unwrap();
                bytes[at] ^= (state >> 48) as u8 | 1;
            }
            let (mut child, mut reading) = reader(bytes);
            for (partition, path) in [(None, "/"), (None, "/etc"), (Some(2), "/many"), (Some(6), "/many")] {
                let place = Place { partition, path: path.into() };
                let list = Request::List { place, after: None, limit: 1000 };
                match reading.ask::<FileList>(&list, &mut |_| Ok(())) {
                    Ok(_) => answered += 1,
                    Err(failure) if failure.kind == FailureKind::Reader => broken += 1,
                    Err(failure) => assert!(!failure.message.is_empty()),
                }
            }
            let place = Place { partition: None, path: "/etc/deep/numbers".into() };
            let read = Request::Read { place, offset: 0, length: 1 << 20 };
            let _ = reading.ask::<()>(&read, &mut |_| Ok(()));
            drop(reading);
            child.wait().unwrap();
        }
    }
    assert!(answered > 0, "none of them was readable: {broken} broke");
}
