//! Exports and imports between two pools.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::NewVolume;
use hindcast_engine::stream::{Import, StreamFile, StreamPart, UnfinishedImport};
use hindcast_engine::testing::{KIB, MIB, Site, assert_bytes, content, kind, try_write, write};
use hindcast_engine::world::{Rng, SplitMix};

/// Returns the content of a volume or a snapshot.
fn shown(site: &Site, volume: &str, snapshot: Option<&str>) -> Vec<u8> {
    let volume = match snapshot {
        Some(snapshot) => site.snapshot(volume, snapshot),
        None => site.pool.open_volume(volume, true).unwrap(),
    };
    content(&volume)
}

/// Makes a pool with identities of its own.
fn site(seed: u64) -> Site {
    Site::seeded(64, seed)
}

/// Makes a volume with three snapshots, and writes to it after them.
fn origin() -> Site {
    let a = site(1);
    let v = a.volume("v", 4 * MIB, 16 * KIB);
    write(&v, 0, 1, 3 * MIB);
    a.snap("v", "one");
    write(&v, 100 * KIB, 2, 5 * KIB);
    v.discard(MIB, MIB, false).unwrap();
    a.idle();
    a.snap("v", "two");
    drop(v);
    a.pool.resize_volume("v", 5 * MIB, false).unwrap();
    let v = a.pool.open_volume("v", false).unwrap();
    write(&v, 4 * MIB + 512, 3, 512);
    write(&v, MIB, 4, 512);
    a.snap("v", "three");
    write(&v, 0, 5, MIB);
    a
}

#[test]
fn a_chain_of_differences_arrives() {
    let (a, b) = (origin(), site(2));
    let one = a.export("v", "one", None, 0);
    let two = a.export("v", "two", Some("one"), 0);
    assert!(one.len() > 3 << 20 && two.len() < 40 << 10, "{} and {} bytes", one.len(), two.len());
    let info = b.import(Some("w"), &one).unwrap();
    let source = a.pool.snapshot("v", "one").unwrap();
    assert_eq!((info.name.as_str(), info.content, info.created), ("one", source.uuid, source.created));
    assert_ne!(info.uuid, source.uuid);
    b.import(Some("w"), &two).unwrap();
    b.import(Some("w"), &a.export("v", "three", Some("two"), 0)).unwrap();
    let b = b.reopen();
    for name in ["one", "two", "three"] {
        assert!(shown(&a, "v", Some(name)) == shown(&b, "w", Some(name)), "{name}");
        assert_eq!(b.pool.snapshot("w", name).unwrap().content, a.pool.snapshot("v", name).unwrap().uuid);
    }
    assert_eq!(b.pool.volume("w").unwrap().size, 5 * MIB);
    // The stream also continues: content from there goes back as a difference, or to a third pool.
    let w = b.pool.open_volume("w", false).unwrap();
    write(&w, 64 * KIB, 9, 512);
    b.snap("w", "four");
    let (four, c) = (b.export("w", "four", Some("three"), 0), site(3));
    drop(w);
    c.import(None, &b.export("w", "three", None, 0)).unwrap();
    c.import(None, &four).unwrap();
    assert!(shown(&c, "w", None) == shown(&b, "w", None));
    a.pool.roll_back("v", "three", "before", true).unwrap();
    a.import(Some("v"), &four).unwrap();
    assert!(shown(&a, "v", Some("four")) == shown(&b, "w", None));
}

#[test]
fn a_skip_of_snapshots_and_a_shrunk_volume_arrive() {
    let (a, b) = (origin(), site(2));
    b.import(None, &a.export("v", "one", None, 0)).unwrap();
    b.import(None, &a.export("v", "three", Some("one"), 0)).unwrap();
    assert!(shown(&a, "v", Some("three")) == shown(&b, "v", None));
    a.pool.resize_volume("v", 2 * MIB + 512, true).unwrap();
    a.snap("v", "small");
    b.import(None, &a.export("v", "small", Some("three"), 0)).unwrap();
    assert!(shown(&a, "v", Some("small")) == shown(&b, "v", None));
    assert_eq!(shown(&b, "v", Some("three")).len() as u64, 5 * MIB);
}

#[test]
fn an_import_that_was_cut_short_goes_on() {
    for with_start in [false, true] {
        let (a, b) = (origin(), site(2));
        let one = a.export("v", "one", None, 0);
        let mut import = b.pool.import(None);
        import.push(&one[..2 << 20]).unwrap();
        let came_to = import.position();
        assert!((MIB..2 * MIB).contains(&came_to), "{came_to}");
        import.keep().unwrap();
        import.push(&one[2 << 20..5 << 19]).unwrap();
        drop(import);
        let b = b.reopen();
        let to = a.pool.snapshot("v", "one").unwrap().uuid;
        let unfinished = Some(UnfinishedImport { from: None, to, position: came_to, running: false });
        assert_eq!(b.pool.unfinished_import("v").unwrap(), unfinished);
        let v = b.pool.open_volume("v", false).unwrap();
        assert_eq!(try_write(&v, 0, 9, 512), Err(ErrorKind::ReadOnly));
        assert_eq!(
            kind(b.import(None, &a.export("v", "three", None, 0))),
            ErrorKind::Conflict,
            "another stream"
        );
        assert_eq!(kind(b.import(None, &a.export("v", "one", None, 2 * MIB))), ErrorKind::Conflict, "a gap");
        let rest = if with_start { a.export("v", "one", None, came_to) } else { one };
        b.import(None, &rest).unwrap();
        assert!(shown(&a, "v", Some("one")) == shown(&b, "v", Some("one")));
        assert_eq!(b.pool.unfinished_import("v").unwrap(), None);
        write(&v, 0, 9, 512);
    }
}

/// A file is cut anywhere, with garbage behind the cut. It ends up equal to the uninterrupted
/// stream.
#[test]
fn a_file_that_was_cut_short_goes_on() {
    let a = origin();
    let streams = [("one", None), ("three", Some("one")), ("three", Some("two"))];
    for (to, from) in streams {
        let whole = a.export("v", to, from, 0);
        let len = whole.len();
        let cuts = (0..400).chain((400..len).step_by(9973)).chain(len - 40..=len);
        for (cut, garbage) in cuts.flat_map(|cut| [(cut, 0), (cut, 700)]) {
            let mut file = [&whole[..cut], &vec![0xA5; garbage][..]].concat();
            let part = match StreamPart::read(&mut &file[..]) {
                Ok(part) => part,
                Err(e) => {
                    // There is garbage in place of the header: this never was a stream.
                    assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{e}");
                    assert!(garbage > 0 && cut < 200, "{e}");
                    continue;
                }
            };
            let start = part.as_ref().map_or(0, StreamPart::position);
            file.truncate(part.as_ref().map_or(0, StreamPart::bytes) as usize);
            let mut out = StreamFile::new(file, part);
            a.export("v", to, from, start).chunks(70_001).try_for_each(|piece| out.push(piece)).unwrap();
            let (file, bytes) = out.finish().unwrap();
            assert!(bytes == len as u64 && file == whole, "{to} upon {from:?}, cut at {cut}");
        }
    }
}

#[test]
fn a_file_takes_nothing_that_does_not_go_on() {
    let a = origin();
    let whole = a.export("v", "two", None, 0);
    let half = |len: usize| StreamPart::read(&mut &whole[..len]).unwrap();
    let into = |part, stream: &[u8]| {
        let mut out = StreamFile::new(Vec::new(), part);
        out.push(stream)?;
        out.finish()
    };
    let position = half(2 << 20).unwrap().position();
    assert_eq!(kind(into(half(2 << 20), &a.export("v", "one", None, position))), ErrorKind::Conflict);
    assert_eq!(kind(into(half(2 << 20), &a.export("v", "two", Some("one"), position))), ErrorKind::Conflict);
    assert_eq!(kind(into(half(2 << 20), &whole)), ErrorKind::Invalid);
    let rest = a.export("v", "two", None, position);
    assert_eq!(kind(into(half(2 << 20), &rest[..rest.len() - 1])), ErrorKind::Corrupt);
    let mut damaged = rest.clone();
    damaged[5000] ^= 1;
    assert_eq!(kind(into(half(2 << 20), &damaged)), ErrorKind::Corrupt);
    assert_eq!(kind(StreamPart::read(&mut &b"notes of a meeting"[..])), ErrorKind::Corrupt);
    assert!(half(20).is_none(), "no header yet");
    assert!(StreamPart::read(&mut &[0; 5000][..]).unwrap().is_none(), "what a power cut may leave");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (a, b) = (origin(), site(2));
    let (one, two) = (a.export("v", "one", None, 0), a.export("v", "two", Some("one"), 0));
    assert_eq!(kind(b.import(None, &two)), ErrorKind::NotFound, "no volume");
    let v = b.volume("v", 4 * MIB, 4 * KIB);
    assert_eq!(kind(b.import(None, &two)), ErrorKind::NotFound, "no base");
    write(&v, MIB, 1, 512);
    assert_eq!(kind(b.import(None, &one)), ErrorKind::Conflict, "not empty");
    v.discard(0, 4 * MIB, false).unwrap();
    b.idle();
    b.import(None, &one).unwrap();
    assert_eq!(kind(b.import(None, &one)), ErrorKind::Conflict, "there already");
    write(&v, 2 * MIB, 1, 512);
    assert_eq!(kind(b.import(None, &two)), ErrorKind::Conflict, "changed, though not in content");
    assert!(!b.pool.volume("v").unwrap().importing);
    drop(v);
    b.pool.roll_back("v", "one", "changed", false).unwrap();
    b.import(None, &two).unwrap();
    assert!(shown(&a, "v", Some("two")) == shown(&b, "v", None));
}

#[test]
fn an_incomplete_or_damaged_stream_leaves_no_snapshot() {
    let (a, b) = (origin(), site(2));
    let one = a.export("v", "one", None, 0);
    b.import(None, &one).unwrap();
    let two = a.export("v", "two", Some("one"), 0);
    assert_eq!(kind(b.import(None, &two[..two.len() - 1])), ErrorKind::Corrupt);
    let rng = SplitMix::new(3);
    for _ in 0..200 {
        let mut bad = two.clone();
        let at = 200 + rng.next() as usize % (bad.len() - 200);
        bad[at] ^= 1 << (rng.next() % 8);
        assert_eq!(kind(b.import(None, &bad)), ErrorKind::Corrupt, "byte {at}");
    }
    assert_eq!(b.pool.snapshots("v").unwrap().len(), 1);
    b.import(None, &two).unwrap();
    assert!(shown(&a, "v", Some("two")) == shown(&b, "v", None));
}

#[test]
fn cancelling_gives_the_volume_back() {
    let (a, b) = (origin(), site(2));
    b.import(None, &a.export("v", "one", None, 0)).unwrap();
    assert_eq!(kind(b.pool.cancel_import("v")), ErrorKind::Conflict);
    let two = a.export("v", "two", Some("one"), 0);
    let mut import: Import = b.pool.import(None);
    // These bytes are the header and a part of the first record.
    import.push(&two[..1000]).unwrap();
    b.pool.cancel_import("v").unwrap();
    assert_eq!(kind(import.keep()), ErrorKind::Conflict);
    assert_eq!(kind(import.push(&two[1000..])), ErrorKind::Conflict);
    drop(import);
    let mut import = b.pool.import(None);
    import.push(&two[..two.len() - 32]).unwrap();
    b.pool.cancel_import("v").unwrap();
    import.push(&two[two.len() - 32..]).unwrap();
    assert_eq!(kind(import.finish()), ErrorKind::Conflict);
    assert_eq!(kind(b.import(None, &two)), ErrorKind::Conflict, "changed since");
    b.pool.roll_back("v", "one", "part", true).unwrap();
    b.import(None, &two).unwrap();
}

#[test]
fn a_renamed_volume_goes_on_being_filled() {
    let (a, b) = (origin(), site(2));
    let one = a.export("v", "one", None, 0);
    let mut import = b.pool.import(Some("w"));
    import.push(&one[..2 << 20]).unwrap();
    b.pool.rename_volume("w", "x").unwrap();
    // The stream is not for another volume with the old name.
    b.volume("w", MIB, 4 * KIB);
    import.keep().unwrap();
    import.push(&one[2 << 20..]).unwrap();
    b.pool.rename_volume("x", "y").unwrap();
    let info = import.finish().unwrap();
    assert_eq!((info.volume.as_str(), info.name.as_str()), ("y", "one"));
    assert!(shown(&a, "v", Some("one")) == shown(&b, "y", Some("one")));
    assert!(shown(&b, "w", None).iter().all(|byte| *byte == 0));
    assert_eq!(b.pool.unfinished_import("y").unwrap(), None);
    // A volume that is deleted meanwhile ends its import.
    let mut import = b.pool.import(Some("z"));
    import.push(&one[..2 << 20]).unwrap();
    b.pool.delete_volume("z", true).unwrap();
    assert_eq!(kind(import.keep()), ErrorKind::NotFound);
    assert_eq!(kind(import.push(&one[2 << 20..])), ErrorKind::NotFound);
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let (a, b) = (origin(), site(2));
    let rest = a.export("v", "one", None, MIB);
    assert_eq!(kind(b.import(Some("w"), &rest)), ErrorKind::Conflict, "the beginning is missing");
    assert_eq!(kind(b.pool.volume("w")), ErrorKind::NotFound);
    let new = |name: &str| NewVolume {
        name: name.into(),
        size: 4 * MIB,
        chunk_size: 4 * KIB,
        block_size: 4096,
        read_only: false,
    };
    b.pool.create_volume(&new("w")).unwrap();
    assert_eq!(kind(b.import(Some("w"), &rest)), ErrorKind::Conflict);
    assert_eq!(kind(b.import(Some("w"), &a.export("v", "one", None, 0))), ErrorKind::Invalid, "its blocks");
    assert!(!b.pool.volume("w").unwrap().importing);
}

#[test]
fn the_stream_says_how_long_the_volume_is() {
    let (a, b) = (origin(), site(2));
    let one = a.export("v", "one", None, 0);
    let mut import = b.pool.import(None);
    import.push(&one[..2 << 20]).unwrap();
    for size in [MIB, 8 * MIB] {
        assert_eq!(kind(b.pool.resize_volume("v", size, true)), ErrorKind::Conflict);
    }
    import.push(&one[2 << 20..]).unwrap();
    import.finish().unwrap();
    b.pool.resize_volume("v", 8 * MIB, false).unwrap();
    assert!(shown(&a, "v", Some("one")) == shown(&b, "v", Some("one")));
}

/// A stalled import of an older stream writes while the next difference is imported.
#[test]
fn what_a_stale_import_still_writes_is_refused() {
    let (a, b) = (origin(), site(2));
    let (one, two) = (a.export("v", "one", None, 0), a.export("v", "two", Some("one"), 0));
    let mut stalled = b.pool.import(Some("w"));
    stalled.push(&one[..MIB as usize]).unwrap();
    b.import(Some("w"), &one).unwrap();
    let mut next = b.pool.import(Some("w"));
    next.push(&two).unwrap();
    let late = stalled.push(&one[MIB as usize..]);
    let info = next.finish().unwrap();
    assert!(
        shown(&a, "v", Some("two")) == shown(&b, "w", Some(&info.name)),
        "the stale import wrote into it"
    );
    assert_eq!(kind(late), ErrorKind::Conflict);
}

#[test]
fn a_newer_import_of_the_same_stream_takes_over() {
    let (a, b) = (origin(), site(2));
    let one = a.export("v", "one", None, 0);
    let running = |b: &Site| b.pool.unfinished_import("w").unwrap().is_some_and(|i| i.running);
    let mut older = b.pool.import(Some("w"));
    older.push(&one[..MIB as usize]).unwrap();
    older.keep().unwrap();
    assert!(running(&b));
    let mut newer = b.pool.import(Some("w"));
    newer.push(&one[..1 << 19]).unwrap();
    // The stale import is refused at its next write, and in everything else.
    assert_eq!(kind(older.keep()), ErrorKind::Conflict);
    assert_eq!(kind(older.push(&one[MIB as usize..])), ErrorKind::Conflict);
    drop(older);
    assert!(running(&b), "what was refused ends nothing");
    newer.push(&one[1 << 19..]).unwrap();
    // An import that has the whole stream already is refused, too.
    let mut complete = b.pool.import(Some("w"));
    complete.push(&one).unwrap();
    newer.keep().unwrap_err();
    let mut last = b.pool.import(Some("w"));
    last.push(&one[..1 << 19]).unwrap();
    assert_eq!(kind(complete.finish()), ErrorKind::Conflict);
    assert!(b.pool.snapshots("w").unwrap().is_empty());
    last.push(&one[1 << 19..]).unwrap();
    last.finish().unwrap();
    assert!(shown(&a, "v", Some("one")) == shown(&b, "w", Some("one")));
    assert!(!running(&b));
}

/// Any operation may come between the header of a stale import and its next bytes.
#[test]
fn a_lease_does_not_outlive_what_it_was_given_for() {
    let (a, b) = (origin(), site(2));
    let (one, two) = (a.export("v", "one", None, 0), a.export("v", "two", Some("one"), 0));
    b.import(Some("w"), &one).unwrap();
    type Between = fn(&Site, &[u8]);
    let betweens: [Between; 4] = [
        |b, _| b.pool.cancel_import("w").unwrap(),
        |b, two| {
            // The import is cancelled, and another client begins it again.
            b.pool.cancel_import("w").unwrap();
            b.pool.roll_back("w", "one", "u1", true).unwrap();
            let mut other = b.pool.import(Some("w"));
            other.push(&two[..1000]).unwrap();
        },
        |b, _| drop(b.pool.roll_back("w", "one", "u2", true).unwrap()),
        |b, _| b.pool.delete_volume("w", true).unwrap(),
    ];
    for (n, between) in betweens.iter().enumerate() {
        if b.pool.unfinished_import("w").unwrap().is_some() {
            b.pool.cancel_import("w").unwrap();
        }
        if n > 0 {
            b.pool.roll_back("w", "one", &format!("clean{n}"), true).unwrap();
        }
        let mut import = b.pool.import(Some("w"));
        import.push(&two[..1000]).unwrap();
        between(&b, &two);
        let before = b.pool.volumes().iter().map(|v| shown(&b, &v.name, None)).collect::<Vec<_>>();
        let late = kind(import.push(&two[1000..]));
        assert!(matches!(late, ErrorKind::Conflict | ErrorKind::NotFound), "{n}: {late:?}");
        assert!(matches!(kind(import.keep()), ErrorKind::Conflict | ErrorKind::NotFound), "{n}");
        assert!(matches!(
            kind(import.finish()),
            ErrorKind::Conflict | ErrorKind::NotFound | ErrorKind::Corrupt
        ));
        let after = b.pool.volumes().iter().map(|v| shown(&b, &v.name, None)).collect::<Vec<_>>();
        assert!(before == after, "{n}: the stale import wrote");
    }
}

/// An import that is refused leaves the volume as it was, even for its writers in the meantime.
#[test]
fn a_refused_import_does_not_fence_writers_off() {
    let (a, b) = (origin(), site(2));
    b.import(Some("w"), &a.export("v", "one", None, 0)).unwrap();
    let w = b.pool.open_volume("w", false).unwrap();
    write(&w, 0, 7, 512);
    assert_eq!(kind(b.import(Some("w"), &a.export("v", "two", Some("one"), 0))), ErrorKind::Conflict);
    write(&w, 0, 8, 512);
    assert!(!b.pool.volume("w").unwrap().importing);
    assert_eq!(kind(b.pool.cancel_import("w")), ErrorKind::Conflict);
}

/// Moments are exported like snapshots, and a stream of a later moment builds upon an earlier one.
#[test]
fn moments_are_exported_and_build_upon_each_other() {
    let a = Site::new(32).having("v", MIB, 16 * KIB);
    a.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    let first = a.put(0, 1, 64 * KIB);
    let second = a.put(32 * KIB, 2, 64 * KIB);
    a.put(0, 3, MIB);
    let stream = |lsn, name: &str, from: Option<hindcast_engine::stream::PastState>| {
        let to = a.pool.past_moment("v", &Moment::Lsn(lsn), name).unwrap();
        let mut export = a.pool.export_past("v", to, from, 0).unwrap();
        let mut all = Vec::new();
        while let Some(piece) = export.next_piece().unwrap() {
            all.extend(piece);
        }
        all
    };
    let whole = stream(first, "one", None);
    let base = a.pool.past_moment("v", &Moment::Lsn(first), "one").unwrap();
    let since = stream(second, "two", Some(base));
    assert!(since.len() < whole.len() + 64 * KIB as usize, "only the difference");

    let b = Site::new(32);
    b.import(Some("w"), &whole).unwrap();
    b.import(Some("w"), &since).unwrap();
    assert_bytes(&b.snapshot("w", "one"), 0, 1, 64 * KIB);
    assert_bytes(&b.snapshot("w", "one"), 64 * KIB, 0, MIB - 64 * KIB);
    assert_bytes(&b.snapshot("w", "two"), 0, 1, 32 * KIB);
    assert_bytes(&b.snapshot("w", "two"), 32 * KIB, 2, 64 * KIB);
    assert_eq!(kind(a.pool.past_moment("v", &Moment::Lsn(first), "-")), ErrorKind::Invalid);
}
