//! Loads volumes, snapshots and branches from the rows that are left.

use crate::branch::namespace::{Lines, Namespace, check_name};
use crate::catalog::{Catalog, LeftIds, LineRecord, SnapshotRecord, Superblock, VolumeRecord};
use crate::disk::Dir;
use crate::error::corrupt;
use crate::ids::{SnapshotId, Stamp, VolumeId};
use crate::info::{LostDevice, Salvage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The reason for which no moment is shown if rows of histories are missing.
const ROWS_MISSING: &str = "rows of the catalog that belong to histories can't be read";

/// Reports rows that can't be read.
fn note<K, V>(found: &mut Salvage, object: &str, left: &LeftIds<K, V>, what: &str) {
    for range in &left.lost {
        let (first, last) = (range.start(), range.end());
        let text = format!("rows with numbers {first} to {last} can't be read: {what}");
        found.find("catalog-row", object, text);
    }
}

/// Loads the names of the rows that are left, and the lines of the volumes.
pub(super) fn load(
    dir: Arc<dyn Dir>,
    catalog: &Catalog,
    superblock: &Superblock,
    found: &mut Salvage,
) -> (Namespace, Lines) {
    let mut names = Namespace::new(dir, superblock);
    let next = superblock.next_id;
    load_branches(&mut names, catalog, next, found);
    let volumes = catalog.volumes_left(next);
    note(found, "volumes", &volumes, "each row of a volume is a lost volume, with its name");
    let snapshots = catalog.snapshots_left(next);
    note(found, "snapshots", &snapshots, "each row of a snapshot is a lost snapshot, with its name");
    if !snapshots.lost.is_empty() {
        found.distrust_histories(ROWS_MISSING);
    }
    let of: BTreeMap<VolumeId, String> =
        volumes.rows.iter().map(|(id, record)| (*id, record.name.clone())).collect();
    for (id, record) in volumes.rows {
        load_volume(&mut names, id, record, found);
    }
    for (id, record) in snapshots.rows {
        load_snapshot(&mut names, id, &record, &of, found);
    }
    let pvs = catalog.pvs_left(superblock.next_pv);
    note(found, "physical volumes", &pvs, "the data on each such physical volume is lost");
    names.pvs = pvs.rows;
    let lines = load_histories(&mut names, catalog, found);
    (names, lines)
}

fn load_branches(names: &mut Namespace, catalog: &Catalog, next: u64, found: &mut Salvage) {
    let branches = catalog.branches_left(next);
    note(found, "branches", &branches, "volumes and snapshots that depend on one of them are lost");
    if !branches.lost.is_empty() {
        found.distrust_histories(ROWS_MISSING);
    }
    for (id, record) in branches.rows {
        let loaded = if (9..=30).contains(&record.chunk_log2) {
            names.load_branch(id, &record).map(drop)
        } else {
            Err(corrupt("its chunk size is invalid"))
        };
        if let Err(e) = loaded {
            found.find("catalog-row", format!("branch {id}"), e.to_string());
        }
    }
}

/// Takes all volumes out of the trash, so that they can be shown. Another volume may have the name
/// of such a volume, so the name gets an ending with a part of the UUID.
pub(super) fn take_out_of_trash(names: &mut Namespace, found: &mut Salvage) {
    let trashed: Vec<_> = names.trashed().into_iter().cloned().collect();
    for volume in trashed {
        let start: String = volume.name.read().chars().take(100).collect();
        let name = format!("{start}.trash-{:08x}", volume.uuid.as_fields().0);
        let taken = match names.by_name.contains_key(&name) {
            true => Err(corrupt("two volumes have that name")),
            false => names.restore(volume.id, &name),
        };
        if let Err(e) = taken {
            let size = volume.size.load(Ordering::Relaxed);
            found.lost.push(LostDevice { volume: name, snapshot: None, size, why: e.to_string() });
        }
    }
}

fn load_volume(names: &mut Namespace, id: VolumeId, record: VolumeRecord, found: &mut Salvage) {
    let is_named = record.trashed == 0;
    let (name, size) = (record.name.clone(), record.size);
    let taken = || corrupt("two volumes have that name");
    let fits = check_name(&name).and_then(|()| match is_named && names.by_name.contains_key(&name) {
        true => Err(taken()),
        false => Ok(()),
    });
    if let Err(e) = fits.and_then(|()| names.load_volume(id, record)) {
        found.lost.push(LostDevice { volume: name, snapshot: None, size, why: e.to_string() });
    }
}

fn load_snapshot(
    names: &mut Namespace,
    id: SnapshotId,
    record: &SnapshotRecord,
    volumes: &BTreeMap<VolumeId, String>,
    found: &mut Salvage,
) {
    let owner = volumes.get(&record.volume).cloned();
    let fits = check_name(&record.name).and_then(|()| match names.volume_by_id(record.volume) {
        // A snapshot is addressed by its volume's name.
        None if !record.deleted => Err(corrupt(format!("find volume {}: it is missing", record.volume))),
        _ => Ok(()),
    });
    if let Err(e) = fits.and_then(|()| names.load_snapshot(id, record))
        && !record.deleted
    {
        let volume = owner.unwrap_or_else(|| format!("volume {}", record.volume));
        let (snapshot, size) = (Some(record.name.clone()), record.size);
        found.lost.push(LostDevice { volume, snapshot, size, why: e.to_string() });
    }
}

/// Loads the events of histories and the lines of volumes. A missing row would lead a
/// reconstruction past records. So with one missing row, no moment is shown.
fn load_histories(names: &mut Namespace, catalog: &Catalog, found: &mut Salvage) -> Lines {
    let (events, lines) = (catalog.events_left(), catalog.lines_left());
    let (segments, groups, runs) = (catalog.segments_left(), catalog.groups_left(), catalog.runs_left());
    if ![events.whole, lines.whole, segments.whole, groups.whole, runs.whole].iter().all(|whole| *whole) {
        found.find("history", "histories", format!("{ROWS_MISSING}: no moment of the past can be shown"));
        found.distrust_histories(ROWS_MISSING);
    }
    for ((branch, lsn), event) in events.rows {
        if let Some(branch) = names.branches.get(&branch) {
            branch.cdp.load_event(lsn, event);
        }
    }
    let mut of_volumes = Lines::new();
    for ((volume, lsn), line) in lines.rows {
        if let LineRecord::Mark { name, time } = &line {
            names.marks.add(volume, name, Stamp { lsn, time: *time });
        }
        of_volumes.entry(volume).or_default().insert(lsn, line);
    }
    of_volumes
}
