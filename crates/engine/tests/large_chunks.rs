//! Volumes that rest on a moment, with chunks that are longer than a journal record.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Moment};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, OpenMode};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::Progress;
use hindcast_engine::testing::{KIB, MIB, Site, content, write};
use std::collections::BTreeMap;

const SIZE: u64 = 2 * MIB;
const CHUNK: u64 = 512 * KIB;

/// Makes a pool with a volume `v` that has a history.
fn site(encoding: Encoding) -> Site {
    let site = Site::builder(64).seed(3).time(3).extents(CHUNK).journal(4 * MIB, 256 * KIB).build();
    assert!(site.pool.max_record_bytes() < CHUNK);
    drop(site.volume("v", SIZE, CHUNK));
    let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
    site.pool.set_cdp("v", Some(settings)).unwrap();
    site
}

/// Changes a volume and its model; `n` varies the change.
fn change(site: &Site, volume: &str, n: u8, model: &mut [u8]) {
    let volume = site.pool.open_volume(volume, false).unwrap();
    let mut put = |at: u64, byte: u8, len: u64| {
        write(&volume, at, byte, len);
        model[at as usize..(at + len) as usize].fill(byte);
    };
    put(512 * u64::from(n), n, 1024);
    put(CHUNK, n, CHUNK);
    put(CHUNK + 4 * KIB, n ^ 0x80, 8 * KIB);
    let end = SIZE - 512 * u64::from(n);
    put(end - 700 * KIB, n, 300 * KIB);
    volume.discard(end - 16 * KIB, 16 * KIB, false).unwrap();
    model[(end - 16 * KIB) as usize..end as usize].fill(0);
}

fn moments(site: &Site, model: &mut [u8]) -> BTreeMap<Lsn, Vec<u8>> {
    let mut moments = BTreeMap::new();
    for n in 1..6 {
        change(site, "v", n, model);
        moments.insert(site.pool.stats().sequenced_lsn, model.to_vec());
    }
    moments
}

#[test]
fn a_recovered_volume_is_written_to_at_once() {
    for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
        let mut site = site(encoding);
        let moments = moments(&site, &mut vec![0; SIZE as usize]);
        let mut recovered = Vec::new();
        for (n, (lsn, model)) in (10..).zip(&moments) {
            let name = format!("then-{n}");
            site.pool.recover_volume("v", &Moment::Lsn(*lsn), &name).unwrap();
            let mut model = model.clone();
            // With a history of its own, the old content is recorded, too.
            let kept = (n % 2 == 0).then(|| {
                site.pool.set_cdp(&name, Some(CdpSettings::default())).unwrap();
                (site.pool.stats().sequenced_lsn, model.clone())
            });
            change(&site, &name, n, &mut model);
            recovered.push((name, model, kept));
        }
        for step in 0..3 {
            for (name, model, kept) in &recovered {
                assert!(content(&site.pool.open_volume(name, false).unwrap()) == *model, "{name}, {step}");
                if let Some((lsn, before)) = kept {
                    let view = site.pool.open_moment(name, &Moment::Lsn(*lsn)).unwrap();
                    assert!(content(&view) == *before, "{name} before, {step}");
                }
            }
            match step {
                0 => site = site.reopen(),
                _ => {
                    for (name, ..) in &recovered {
                        site.pool.flatten_volume(name, 0).ok();
                    }
                    site.idle();
                }
            }
        }
        let independent = |(name, ..): &(String, _, _)| site.pool.origin(name).unwrap().is_none();
        assert!(recovered.iter().all(independent));
        drop(site.reopen());
    }
}

#[test]
fn a_volume_goes_back_and_on() {
    let mut site = site(Encoding::Parity);
    let mut model = vec![0; SIZE as usize];
    let mut moments = moments(&site, &mut model);
    let (lsn, then) = moments.iter().nth(2).map(|(lsn, then)| (*lsn, then.clone())).unwrap();
    site.pool.roll_back_to(&[("v", "undo")], &Moment::Lsn(lsn), false).unwrap();
    model = then;
    moments.insert(site.pool.stats().sequenced_lsn, model.clone());
    for n in 20..24 {
        change(&site, "v", n, &mut model);
        moments.insert(site.pool.stats().sequenced_lsn, model.clone());
        site.snap("v", &format!("s{n}"));
    }
    for _ in 0..3 {
        for (lsn, then) in &moments {
            let view = site.pool.open_moment("v", &Moment::Lsn(*lsn)).unwrap();
            assert!(content(&view) == *then, "LSN {lsn}");
        }
        assert!(content(&site.pool.open_volume("v", false).unwrap()) == model);
        site.idle();
        site = site.reopen();
    }
    site.pool.roll_back("v", "undo", "again", false).unwrap();
    let before = moments.range(..=lsn.next()).count();
    let before = moments.values().nth(before + 1).unwrap();
    assert!(content(&site.pool.open_volume("v", false).unwrap()) == *before, "the fifth change was the last");
}

/// A write to lost content gets the error, and the pool continues.
#[test]
fn damage_is_told_to_the_writer() {
    let site = site(Encoding::Redo);
    let moments = moments(&site, &mut vec![0; SIZE as usize]);
    let lsn = *moments.keys().next().unwrap();
    site.pool.recover_volume("v", &Moment::Lsn(lsn), "then").unwrap();
    while site.pool.destage_step().unwrap() == Progress::Worked {}
    for name in site.dir.list().unwrap().iter().filter(|name| name.starts_with("cdp-")) {
        let disk = site.dir.open(name, OpenMode::Existing).unwrap();
        let end = disk.len().unwrap();
        disk.write_at(&vec![0x5A; (end - 4096) as usize], 4096).unwrap();
    }
    let then = site.pool.open_volume("then", false).unwrap();
    let mut op = [WriteOp::new(512, vec![1; 512].into())];
    then.write(&mut op, false);
    assert_eq!(op[0].result.as_ref().unwrap_err().kind(), ErrorKind::Lost);
    // Content that was discarded as a whole is not needed.
    then.discard(0, CHUNK, false).unwrap();
    write(&then, 512, 1, 512);
    site.idle();
    let mut found = [0; 1024];
    then.read(0, &mut found).unwrap();
    assert!(found[..512] == [0; 512] && found[512..] == [1; 512]);
}
