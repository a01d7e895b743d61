//! Tests of the oracle: the recovered pools and the answers that it accepts, and those that it
//! rejects.

use super::*;

fn write(sector: u64, count: u64, stamp: u64) -> Effect {
    Effect::Write { vol: 1, sector, count, stamp }
}

/// Returns what the run finds when the volume has these (sector, stamp) and zeros in its other
/// sectors.
fn found(sectors: &[(u64, u64)]) -> FoundState {
    let mut volume = FoundVolume::new(1, "a".into(), 1 << 20, 4096, 512, false);
    let mut data = vec![0; 16 * SECTOR as usize];
    for (sector, stamp) in sectors {
        fill_sector(&mut data[(sector * SECTOR) as usize..][..SECTOR as usize], 1, *sector, *stamp);
    }
    volume.add(0, &data);
    FoundState { volumes: vec![volume], snapshots: Vec::new() }
}

fn oracle() -> Oracle {
    let mut oracle = Oracle::default();
    let model = VolumeModel::new("a".into(), 1 << 20, 4096, 512, false);
    let steps = [Effect::Create(1, model), write(0, 2, 10), write(1, 2, 11), write(0, 1, 12)];
    for (lsn, effect) in steps.into_iter().enumerate() {
        oracle.attempt(std::slice::from_ref(&effect));
        oracle.acknowledge(&[effect], lsn as u64 + 1).unwrap();
    }
    oracle.durable(2);
    oracle.attempt(&[write(3, 1, 13), write(4, 1, 13)]);
    oracle
}

#[test]
fn every_prefix_that_keeps_the_promise_is_taken() {
    type Case = (&'static [(u64, u64)], Result<usize, ()>, Result<usize, ()>);
    let prefixes: [Case; 8] = [
        (&[(0, 10), (1, 10)], Ok(2), Err(())),
        (&[(0, 10), (1, 11), (2, 11)], Ok(1), Err(())),
        (&[(0, 12), (1, 11), (2, 11)], Ok(0), Ok(0)),
        (&[(0, 12), (1, 11), (2, 11), (3, 13)], Ok(0), Ok(0)),
        (&[(0, 12), (1, 11), (2, 11), (3, 13), (4, 13)], Ok(0), Ok(0)),
        (&[(0, 12), (1, 10)], Err(()), Err(())),
        (&[(0, 12), (1, 11), (2, 11), (4, 13)], Err(()), Err(())),
        (&[], Err(()), Err(())),
    ];
    for (sectors, after_power_loss, after_kill) in prefixes {
        let recover =
            |promise| oracle().recover(&found(sectors), promise, 9).map(|(lost, _)| lost).map_err(drop);
        assert_eq!(recover(Promise::Durable), after_power_loss, "{sectors:?}");
        assert_eq!(recover(Promise::Acknowledged), after_kill, "{sectors:?}");
    }
    assert!(oracle().recover(&FoundState::default(), Promise::Durable, 9).is_err());
}

#[test]
fn shapes_count() {
    let sectors: &[(u64, u64)] = &[(0, 12), (1, 11), (2, 11)];
    for change in [
        |v: &mut FoundVolume| v.name = "b".into(),
        |v: &mut FoundVolume| v.size += 512,
        |v: &mut FoundVolume| v.read_only = true,
        |v: &mut FoundVolume| v.id = 2,
    ] {
        let mut volumes = found(sectors);
        change(&mut volumes.volumes[0]);
        assert!(oracle().recover(&volumes, Promise::Durable, 9).is_err());
    }
    let mut resized = oracle();
    resized.in_flight = vec![Effect::Resize(1, 512)];
    let mut volumes = found(sectors);
    volumes.volumes[0].size = 512;
    volumes.volumes[0].content = Found::default();
    assert_eq!(resized.recover(&volumes, Promise::Acknowledged, 9), Ok((0, None)));
    assert_eq!(resized.state().volumes[&1].content.first(1, 1 << 20), None);
}

#[test]
fn reads_are_compared_sector_by_sector() {
    let oracle = oracle();
    let mut data = vec![0; 5 * SECTOR as usize];
    let mut put = |sector: u64, stamp| {
        let part = &mut data[(sector * SECTOR) as usize..][..SECTOR as usize];
        if stamp == 0 {
            part.fill(0)
        } else {
            fill_sector(part, 1, sector, stamp)
        }
        oracle.check_read(View::Volume(1), 0, &data)
    };
    assert!(put(0, 12).is_err());
    assert!(put(1, 11).is_err());
    put(2, 11).unwrap();
    put(3, 13).unwrap();
    put(4, 14).unwrap_err();
    put(4, 0).unwrap();
    data[700] ^= 1;
    assert!(oracle.check_read(View::Volume(1), 0, &data).unwrap_err().contains("sector 1"));
}

#[test]
fn a_surprising_lsn_is_an_error() {
    let mut oracle = oracle();
    assert!(oracle.acknowledge(&[write(0, 1, 20)], 5).is_err(), "something older is open");
    oracle.forget(2);
    oracle.attempt(&[write(0, 1, 20)]);
    assert!(oracle.acknowledge(&[write(0, 1, 20)], 6).is_err());
    assert!(oracle.retract(1, 5).is_err());
    assert!(oracle.acknowledge(&[write(0, 1, 20)], 3).is_err());
    oracle.acknowledge(&[write(0, 1, 20)], 5).unwrap();
}

#[test]
fn snapshots_count() {
    let lose = |from: &[(u64, u64)]| {
        let mut data = vec![0; 16 * SECTOR as usize];
        for (sector, stamp) in from {
            fill_sector(&mut data[(sector * SECTOR) as usize..][..SECTOR as usize], 1, *sector, *stamp);
        }
        data
    };
    let mut oracle = oracle();
    oracle.in_flight = vec![
        Effect::CreateSnapshots(vec![(1, 1, "s".into())]),
        write(0, 1, 20),
        Effect::Clone(2, 1, "b".into()),
        Effect::RollBack(1, 1, 2, "undo".into()),
        Effect::DeleteSnapshots(vec![1]),
    ];
    let old = [(0, 12), (1, 11), (2, 11)];
    let new = [(0, 20), (1, 11), (2, 11)];
    type Named<'a> = (SnapId, &'a str, &'a [(u64, u64)]);
    let with = |volume: &[(u64, u64)], snapshots: &[Named<'_>]| {
        let mut state = found(volume);
        for (id, name, sectors) in snapshots {
            let mut snapshot = FoundSnapshot::new(*id, 1, (*name).into(), 1 << 20);
            snapshot.add(0, &lose(sectors));
            state.snapshots.push(snapshot);
        }
        state
    };
    let fits = |state: &FoundState| oracle.clone().recover(state, Promise::Acknowledged, 9).is_ok();
    assert!(fits(&with(&old, &[])));
    assert!(fits(&with(&old, &[(1, "s", &old)])));
    assert!(fits(&with(&new, &[(1, "s", &old)])));
    assert!(!fits(&with(&new, &[])), "the snapshot came before the write");
    assert!(!fits(&with(&new, &[(1, "s", &new)])), "a later byte in a snapshot");
    assert!(!fits(&with(&old, &[(1, "t", &old)])), "another name");
    assert!(!fits(&with(&old, &[(1, "s", &old), (2, "undo", &new)])), "without the clone");
    let mut cloned = with(&old, &[(1, "s", &old), (2, "undo", &new)]);
    let mut clone = FoundVolume::new(2, "b".into(), 1 << 20, 4096, 512, false);
    clone.add(0, &lose(&old));
    cloned.volumes.push(clone);
    assert!(fits(&cloned), "rolled back");
    let mut done = oracle.clone();
    cloned.snapshots.remove(0);
    done.recover(&cloned, Promise::Acknowledged, 9).unwrap();
    assert_eq!(done.state().snapshots.keys().collect::<Vec<_>>(), [&2]);
    let rests = |vol| done.state().lines.depth(done.state().volumes[&vol].line) > 1;
    assert!(rests(1) && rests(2));
    // The old line has two slots of 4 KiB for its one chunk (stamps 12 and 20). The new lines own
    // nothing.
    assert_eq!(done.state().lines.total_bytes(512, true, false), 2 * 4096);
}
