//! The scripts that the enumeration cuts at every point. Each is a short sequence of operations
//! that leads through one part of the engine.

mod failures;
mod histories;
mod kept;
mod layouts;
mod placements;
mod references;
mod repair;
mod turns;

use crate::clock::FOR_EVER;
use crate::fate::PowerLoss;
use crate::layouts::Shape;
use crate::oracle::{SnapId, VolId, VolumeModel};
use crate::workload::{ClockMove, Crash, Op};
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Retention};
use hindcast_engine::pool::{Method, Placement};

/// A short history with a name.
pub struct Script {
    /// The name, as in `sim --enumerate NAME`.
    pub name: &'static str,
    /// The atomic unit of the pool in bytes: 512 or 4096.
    pub atomic_unit: u32,
    /// Whether the crash may also come while the pool is being created.
    pub from_creation: bool,
    /// Whether all histories are recorded in shared segments, which the pool soon sorts into
    /// segments of their own.
    pub shared_segments: bool,
    /// Whether large writes go by reference.
    pub references: bool,
    /// Whether the pool has sums.
    pub sums: bool,
    /// The layout that the pool is on.
    pub layout: Option<Shape>,
    /// Whether the layout has a spare disk.
    pub spares: bool,
    /// Whether the layout grows by further disks.
    pub grows: bool,
    /// Whether the layout has a reserve.
    pub reserve: bool,
    /// Whether disks make zeros, so that a RAID-5 gives space back.
    pub makes_zeros: bool,
    /// The operations.
    pub ops: Vec<Op>,
}

impl Script {
    /// Returns the script for a pool on a layout, where the operations on physical volumes are
    /// about members: a member fails, and is rebuilt. Returns none for a script that has its
    /// layout, and for one that begins with the creation, since a pool moves to a layout later.
    pub fn on(self, shape: Shape) -> Option<Script> {
        let moves = self.layout.is_none() && !self.from_creation;
        moves.then_some(Script { layout: Some(shape), sums: true, ..self })
    }
}

fn script(name: &'static str, atomic_unit: u32, ops: Vec<Op>) -> Script {
    Script {
        name,
        atomic_unit,
        from_creation: false,
        shared_segments: false,
        references: false,
        sums: false,
        layout: None,
        spares: false,
        grows: false,
        reserve: false,
        makes_zeros: false,
        ops,
    }
}

fn by_reference(name: &'static str, ops: Vec<Op>) -> Script {
    Script { references: true, ..script(name, 4096, ops) }
}

/// Returns the scripts that always have sums.
fn with_sums() -> [Script; 16] {
    let kept = |name, ops| Script { sums: true, ..by_reference(name, ops) };
    let on = |layout, name, ops| Script { sums: true, layout: Some(layout), ..by_reference(name, ops) };
    let repair = |name, ops| Script { sums: true, ..script(name, 4096, ops) };
    [
        on(Shape::Mirror, "mirror", layouts::failures()),
        on(Shape::Mirror, "mirror-rebuild", layouts::rebuild()),
        on(Shape::RAID5, "raid5", layouts::failures()),
        on(Shape::RAID5, "raid5-rebuild", layouts::rebuild()),
        kept("kept", kept::plain()),
        kept("kept-mixed", kept::mixed()),
        kept("kept-expiry", kept::expiry()),
        repair("repair", repair::moved()),
        repair("repair-in-place", repair::in_place()),
        Script { spares: true, ..on(Shape::Mirror, "mirror-spare", layouts::spares()) },
        Script { spares: true, ..on(Shape::RAID5, "raid5-spare", layouts::spare()) },
        Script { grows: true, ..on(Shape::Mirror, "mirror-grow", layouts::growth()) },
        Script { grows: true, ..on(Shape::RAID5, "raid5-grow", layouts::growth()) },
        Script { reserve: true, ..on(Shape::Mirror, "mirror-reserve", layouts::spare()) },
        Script { reserve: true, ..on(Shape::RAID5, "raid5-reserve", layouts::spare()) },
        Script { makes_zeros: true, ..on(Shape::RAID5, "raid5-punch", layouts::giving_back()) },
    ]
}

/// Returns all scripts. Volumes are numbered in the order of their creation, from 1, and so are
/// snapshots.
pub fn scripts() -> Vec<Script> {
    let mut all = vec![
        Script { from_creation: true, ..script("create", 4096, create()) },
        // This script comes early because only it notices a missing sync at opening. Mutation tests
        // stop at the first script that fails.
        script("reopen", 4096, reopen()),
        // This script notices missing syncs of histories.
        script("history", 4096, histories::one()),
        // This script notices missing syncs of referred data.
        by_reference("reference", references::plain()),
        Script { shared_segments: true, ..script("shared-history", 4096, histories::shared()) },
        script("overwrite", 4096, overwrite(4096, 16 * KIB)),
        script("overwrite-512", 512, overwrite(512, 1024)),
        script("small-chunks", 4096, overwrite(4096, 512)),
        script("volumes", 4096, volumes()),
        script("holes", 4096, holes()),
        script("physical-volumes", 512, physical_volumes()),
        script("segments", 4096, segments()),
        script("snapshot-redirect", 4096, snapshot(Method::Redirect)),
        script("snapshot-copy", 4096, snapshot(Method::Copy)),
        script("clone", 4096, clone()),
        script("rollback", 4096, rollback()),
        script("delete-middle", 512, delete_middle()),
        script("delete-under-clone", 4096, delete_under_clone()),
        script("group", 4096, group()),
        script("shrink-under-snapshot", 4096, shrink_under_snapshot()),
        script("leave-with-versions", 512, leave_with_versions()),
        script("image", 4096, image()),
        script("image-512", 512, image()),
        script("flatten", 4096, flatten()),
        script("policy", 4096, policy()),
        script("streams", 4096, streams()),
        script("stale-imports", 4096, stale_imports()),
        script("history-of-a-group", 512, histories::group()),
        script("kept-moments", 4096, histories::kept_moments()),
        script("clock", 4096, clock()),
        script("bad-sectors", 512, failures::bad_sectors()),
        script("failed-pv", 512, failures::failed_pv()),
        script("rounds", 4096, turns::rounds()),
        script("long-discards", 4096, turns::discards()),
        script("upgrade", 4096, references::upgrade()),
        by_reference("reference-overtaken", references::overtaken()),
        by_reference("reference-part-over-it", references::part_over_it()),
        by_reference("reference-snapshot-between", references::snapshot_between()),
        by_reference("reference-discard", references::discards()),
        by_reference("reference-clone", references::clone()),
        by_reference("reference-rollback", references::rollback()),
        by_reference("reference-dead-branch", references::dead_branch()),
        by_reference("reference-flush-then-inline", references::flush_then_inline()),
        by_reference("reference-drain", references::drain()),
        by_reference("reference-own-size", references::own_size()),
        by_reference("reference-short-holes", references::short_holes()),
        script("share", 4096, placements::share()),
        script("own-placements", 4096, placements::own()),
    ];
    // Each second script has sums. `sim --enumerate --sums` gives them to all.
    all.iter_mut().skip(1).step_by(2).for_each(|script| script.sums = true);
    all.extend(with_sums());
    all
}

const KIB: u64 = 1 << 10;

fn volume(name: &str, size: u64, chunk_size: u64, block_size: u32) -> Op {
    Op::Create(VolumeModel::new(name.into(), size, chunk_size, block_size, false))
}

fn write(offset: u64, len: u64, fua: bool) -> Op {
    Op::Write { vol: 1, parts: vec![(offset, len)], fua }
}

fn discard(offset: u64, len: u64) -> Op {
    Op::Discard { vol: 1, offset, len, fua: false }
}

fn create() -> Vec<Op> {
    vec![volume("a", 64 * KIB, 4 * KIB, 512), write(0, 4 * KIB, true)]
}

/// The clock is a year ahead for a while, then a year behind, and then right.
fn clock() -> Vec<Op> {
    const YEAR: i64 = 365 * 24 * 3600 * 1_000_000_000;
    let retention = Retention { time: Some(FOR_EVER), bytes: None };
    let anchors = AnchorPolicy::Interval(5_000_000_000);
    let mut ops = vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        Op::Cdp(1, Some(CdpSettings { anchors, retention, ..CdpSettings::default() })),
        write(0, 8 * KIB, true),
    ];
    for change in [ClockMove::Set(YEAR), ClockMove::Set(-2 * YEAR), ClockMove::Right] {
        ops.extend([Op::Clock(change), write(1024, 6 * KIB, false), Op::Maintain(2)]);
    }
    ops.extend([Op::Clock(ClockMove::Confirm), Op::Drain, Op::ReadMoment(1, 0), Op::ReadMoment(1, 2)]);
    ops
}

/// Writes to new chunks, then in place.
fn overwrite(atomic_unit: u32, chunk: u64) -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, chunk, 512),
        write(0, 40 * KIB, false),
        write(1024, 512, true),
        Op::Drain,
        // From here on writes go in place. They cover whole chunks and parts of chunks, and must
        // not harm neighbouring data.
        write(512, 1536, false),
        write(chunk, chunk, false),
        write(8 * KIB - 512, 1024, false),
        Op::Flush(1),
        Op::Maintain(2),
        write(512, 512, false),
        Op::Settle,
        write(3 * KIB, 9 * KIB, atomic_unit == 512),
        Op::Drain,
    ]
}

/// Volumes are created, changed and deleted, and new volumes use their names again.
fn volumes() -> Vec<Op> {
    vec![
        volume("a", 128 * KIB, 16 * KIB, 4096),
        write(0, 64 * KIB, false),
        volume("b", 64 * KIB, 4 * KIB, 512),
        Op::Write { vol: 2, parts: vec![(0, 512), (4096, 8192), (512, 1024)], fua: false },
        Op::Rename(1, "c".into()),
        Op::Resize { vol: 1, size: 20 * KIB, force: true },
        Op::Resize { vol: 1, size: 96 * KIB, force: false },
        Op::Maintain(1),
        Op::ReadOnly(2, true),
        Op::LabelVolume(1, "app".into(), Some("shop".into())),
        Op::Trash { vol: 1, force: true },
        write(16 * KIB, 8 * KIB, false),
        Op::Trash { vol: 2, force: true },
        Op::Drain,
        Op::Delete { vol: 1, force: true },
        Op::Settle,
        volume("a", 64 * KIB, 4 * KIB, 512),
        Op::Write { vol: 3, parts: vec![(0, 48 * KIB)], fua: true },
        Op::Settle,
    ]
}

/// Discards and writes of zeroes. The chunks are staged or in place, and covered wholly or in part.
fn holes() -> Vec<Op> {
    vec![
        volume("a", 512 * KIB, 16 * KIB, 512),
        write(0, 300 * KIB, false),
        Op::Drain,
        discard(10 * KIB, 100 * KIB),
        write(40 * KIB, 2 * KIB, false),
        Op::Zeroes { vol: 1, offset: 200 * KIB, len: 50 * KIB, unmap: false, fua: false },
        Op::Flush(1),
        Op::Maintain(1),
        discard(0, 512 * KIB),
        write(100 * KIB, KIB, false),
        Op::Drain,
        Op::Status { vol: 1, offset: 0, len: 512 * KIB, max_runs: 100 },
        // The freed slots are used again.
        write(128 * KIB, 256 * KIB, false),
        Op::Settle,
    ]
}

/// Data moves off a physical volume until the volume can be removed.
fn physical_volumes() -> Vec<Op> {
    vec![
        volume("a", 512 * KIB, 4 * KIB, 512),
        write(0, 200 * KIB, false),
        Op::Drain,
        Op::AddPv { size: (1 << 20) + 30 * 64 * KIB, device: false },
        Op::Placement(Placement::Anywhere),
        Op::DrainPv(0, true),
        write(100 * KIB, 200 * KIB, false),
        Op::Settle,
        Op::Drain,
        Op::Settle,
        Op::RemovePv(0),
        write(0, 100 * KIB, true),
        Op::Drain,
    ]
}

/// Crashes follow one another.
fn reopen() -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, 4 * KIB, 512),
        write(0, 20 * KIB, false),
        Op::Crash(Crash::Kill),
        // The data that the kill left in the page cache must be durable already, or must become
        // durable now.
        Op::Flush(1),
        write(4 * KIB, 512, false),
        Op::Crash(Crash::Power(PowerLoss::LoseAll)),
        write(16 * KIB, 8 * KIB, false),
        Op::Crash(Crash::Kill),
        Op::Drain,
    ]
}

/// The journal goes through its segments, and through reopens.
fn segments() -> Vec<Op> {
    vec![
        volume("a", 1 << 20, 64 * KIB, 4096),
        write(0, 200 * KIB, false),
        write(100 * KIB, 300 * KIB, false),
        Op::Flush(1),
        Op::Maintain(1),
        write(0, 600 * KIB, false),
        write(300 * KIB, 200 * KIB, true),
        Op::Reopen(None),
        write(0, 400 * KIB, false),
        Op::Reopen(Some(PowerLoss::LoseAll)),
        write(500 * KIB, 300 * KIB, false),
        Op::Drain,
    ]
}

fn freeze(vol: VolId, name: &str) -> Op {
    Op::Snapshot(vec![(vol, name.into())])
}

fn look(snap: SnapId, len: u64) -> Op {
    Op::ReadSnapshot { snap, offset: 0, len, try_first: true }
}

fn write_to(vol: VolId, offset: u64, len: u64) -> Op {
    Op::Write { vol, parts: vec![(offset, len)], fua: false }
}

/// Overwrites under a snapshot. The chunks are staged or in place, and overwritten wholly or in
/// part.
fn snapshot(method: Method) -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, 16 * KIB, 512),
        write(0, 60 * KIB, false),
        Op::Drain,
        Op::Method(1, method),
        write(0, 512, false),
        freeze(1, "s"),
        write(4 * KIB, 20 * KIB, false),
        write(100 * KIB, 4 * KIB, false),
        look(1, 128 * KIB),
        Op::Flush(1),
        Op::Maintain(4),
        // These chunks were already written in this epoch, so the write goes in place.
        write(5 * KIB, KIB, false),
        // The commit records that, and nothing else would sync the slots.
        Op::Drain,
        discard(30 * KIB, 20 * KIB),
        freeze(1, "t"),
        write(6 * KIB, 512, true),
        look(2, 128 * KIB),
        Op::Drain,
        look(1, 128 * KIB),
        Op::DeleteSnapshots(vec![1]),
        Op::Settle,
    ]
}

/// Writes go to a clone and to its origin, and the clone is cloned.
fn clone() -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, 16 * KIB, 512),
        write(0, 80 * KIB, false),
        freeze(1, "s"),
        Op::Clone(1, "b".into()),
        write_to(2, 4 * KIB, 24 * KIB),
        write(2 * KIB, 4 * KIB, false),
        Op::Flush(2),
        Op::Maintain(2),
        Op::Discard { vol: 2, offset: 40 * KIB, len: 30 * KIB, fua: false },
        freeze(2, "t"),
        Op::Clone(2, "c".into()),
        write_to(3, 44 * KIB, KIB),
        Op::Drain,
        Op::Status { vol: 3, offset: 0, len: 256 * KIB, max_runs: 100 },
        Op::Read { vol: 3, offset: 0, len: 128 * KIB, try_first: true },
        write(0, 80 * KIB, false),
        Op::Settle,
    ]
}

/// A volume is rolled back to a snapshot, and then back to the state before that.
fn rollback() -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, 16 * KIB, 512),
        write(0, 64 * KIB, false),
        freeze(1, "s"),
        write(8 * KIB, 16 * KIB, false),
        freeze(1, "t"),
        write(0, 4 * KIB, false),
        Op::RollBack { snap: 1, undo: "u".into(), force: true },
        Op::Read { vol: 1, offset: 0, len: 128 * KIB, try_first: false },
        write(20 * KIB, 30 * KIB, false),
        Op::Maintain(3),
        Op::RollBack { snap: 3, undo: "v".into(), force: true },
        write(64 * KIB, 4 * KIB, true),
        Op::Settle,
        look(4, 128 * KIB),
        Op::DeleteSnapshots(vec![1, 2, 4]),
        Op::Settle,
        Op::DeleteSnapshots(vec![3]),
        Op::Settle,
    ]
}

/// The content that the middle snapshot kept is given to the oldest one, or its space is freed.
fn delete_middle() -> Vec<Op> {
    vec![
        volume("a", 64 * KIB, KIB, 512),
        write(0, 16 * KIB, false),
        freeze(1, "one"),
        write(0, 8 * KIB, false),
        freeze(1, "two"),
        write(4 * KIB, 8 * KIB, false),
        freeze(1, "three"),
        write(0, 6 * KIB, false),
        Op::Drain,
        look(2, 32 * KIB),
        Op::DeleteSnapshots(vec![2]),
        Op::ReleaseSnapshots,
        Op::Maintain(1),
        write(KIB, 512, false),
        Op::Maintain(3),
        Op::Settle,
        look(1, 32 * KIB),
        look(3, 32 * KIB),
        Op::DeleteSnapshots(vec![1, 3]),
        Op::Settle,
    ]
}

/// The volume is deleted, and what its clone rests on stays. Then the clone is deleted, too.
fn delete_under_clone() -> Vec<Op> {
    vec![
        volume("a", 128 * KIB, 4 * KIB, 512),
        write(0, 64 * KIB, false),
        freeze(1, "s"),
        write(0, 32 * KIB, false),
        freeze(1, "t"),
        write(16 * KIB, 32 * KIB, false),
        Op::Clone(1, "b".into()),
        write_to(2, 2 * KIB, 4 * KIB),
        Op::Maintain(2),
        Op::Delete { vol: 1, force: true },
        Op::Settle,
        Op::Read { vol: 2, offset: 0, len: 128 * KIB, try_first: false },
        write_to(2, 30 * KIB, 4 * KIB),
        Op::Drain,
        Op::Delete { vol: 2, force: true },
        Op::Settle,
    ]
}

/// Snapshots of two volumes are taken at one instant.
fn group() -> Vec<Op> {
    vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        volume("b", 64 * KIB, 16 * KIB, 512),
        write(0, 16 * KIB, false),
        write_to(2, 0, 16 * KIB),
        Op::Snapshot(vec![(1, "g".into()), (2, "g".into())]),
        write(0, 16 * KIB, false),
        write_to(2, 0, 16 * KIB),
        Op::Flush(1),
        Op::Snapshot(vec![(2, "h".into()), (1, "h".into())]),
        write(2 * KIB, 4 * KIB, false),
        Op::RenameSnapshot(1, "i".into()),
        Op::Maintain(4),
        look(1, 64 * KIB),
        look(2, 64 * KIB),
        Op::DeleteSnapshots(vec![1, 4]),
        Op::Settle,
    ]
}

/// Content that a resize cuts off stays in the snapshot and in the clone. It does not come back in
/// the volume.
fn shrink_under_snapshot() -> Vec<Op> {
    vec![
        volume("a", 128 * KIB, 16 * KIB, 512),
        write(0, 128 * KIB, false),
        freeze(1, "s"),
        Op::Resize { vol: 1, size: 36 * KIB, force: true },
        Op::Clone(1, "b".into()),
        Op::Resize { vol: 1, size: 100 * KIB, force: false },
        Op::Maintain(3),
        write(60 * KIB, 4 * KIB, false),
        Op::Resize { vol: 2, size: 20 * KIB, force: true },
        Op::Resize { vol: 2, size: 128 * KIB, force: true },
        look(1, 128 * KIB),
        Op::Drain,
        Op::Read { vol: 1, offset: 0, len: 100 * KIB, try_first: false },
        Op::Read { vol: 2, offset: 0, len: 128 * KIB, try_first: false },
        Op::RollBack { snap: 1, undo: "u".into(), force: true },
        Op::Settle,
    ]
}

/// Versions move off a physical volume together with the other data.
fn leave_with_versions() -> Vec<Op> {
    vec![
        volume("a", 256 * KIB, 4 * KIB, 512),
        write(0, 100 * KIB, false),
        freeze(1, "s"),
        write(0, 60 * KIB, false),
        Op::Clone(1, "b".into()),
        write_to(2, 50 * KIB, 20 * KIB),
        Op::Drain,
        Op::DrainPv(0, true),
        write(20 * KIB, 60 * KIB, false),
        Op::Settle,
        look(1, 128 * KIB),
        Op::RemovePv(0),
        Op::DeleteSnapshots(vec![1]),
        Op::Settle,
    ]
}

/// A volume over an image is written in parts of chunks, frozen, rolled back, and flattened.
fn image() -> Vec<Op> {
    let model = VolumeModel::new("a".into(), 0, 16 * KIB, 512, false);
    vec![
        Op::CreateOver(model, 150 * KIB + 100),
        write(20 * KIB, 2 * KIB, true),
        freeze(1, "s"),
        write(21 * KIB, 20 * KIB, false),
        Op::LoseImages,
        discard(60 * KIB, 30 * KIB),
        Op::Resize { vol: 1, size: 100 * KIB, force: true },
        Op::Resize { vol: 1, size: 170 * KIB, force: true },
        freeze(1, "t"),
        Op::Maintain(3),
        Op::Status { vol: 1, offset: 0, len: 170 * KIB, max_runs: 100 },
        Op::Flatten(1, true),
        write(6 * KIB, KIB, false),
        Op::Maintain(3),
        write(48 * KIB, 16 * KIB, false),
        Op::RollBack { snap: 1, undo: "u".into(), force: true },
        write(130 * KIB, KIB, false),
        Op::Settle,
        look(1, 128 * KIB),
        Op::LoseImages,
        Op::DeleteSnapshots(vec![1]),
        Op::Settle,
    ]
}

/// A clone with a snapshot of its own and a clone of that snapshot are flattened while they are
/// written.
fn flatten() -> Vec<Op> {
    vec![
        volume("a", 128 * KIB, 4 * KIB, 512),
        write(0, 64 * KIB, false),
        freeze(1, "s"),
        write(0, 32 * KIB, false),
        Op::Clone(1, "b".into()),
        write_to(2, 2 * KIB, 4 * KIB),
        freeze(2, "t"),
        write_to(2, 10 * KIB, 4 * KIB),
        Op::Clone(2, "c".into()),
        Op::Discard { vol: 3, offset: 16 * KIB, len: 8 * KIB, fua: false },
        Op::Flatten(3, true),
        write_to(3, 0, KIB),
        Op::Maintain(4),
        Op::Flatten(2, true),
        Op::DeleteSnapshots(vec![2]),
        write_to(2, 30 * KIB, KIB),
        Op::Settle,
        Op::Delete { vol: 1, force: true },
        Op::Settle,
        Op::Read { vol: 3, offset: 0, len: 128 * KIB, try_first: false },
        Op::Read { vol: 2, offset: 0, len: 128 * KIB, try_first: false },
    ]
}

/// The pool deletes snapshots by policy, but no protected ones.
fn policy() -> Vec<Op> {
    vec![
        volume("a", 64 * KIB, 4 * KIB, 512),
        write(0, 32 * KIB, false),
        freeze(1, "one"),
        Op::Label(1, "why".into(), Some("upgrade".into())),
        Op::Protect(1, true),
        write(0, 16 * KIB, false),
        freeze(1, "two"),
        write(0, 16 * KIB, false),
        freeze(1, "three"),
        write(4 * KIB, 8 * KIB, false),
        Op::Drain,
        Op::Policy(1, 0, true),
        Op::Maintain(3),
        write(16 * KIB, 4 * KIB, true),
        Op::Settle,
        look(1, 64 * KIB),
        Op::ReleaseSnapshots,
        Op::Protect(1, false),
        Op::Settle,
    ]
}

/// A whole stream and a difference arrive in pieces, into a volume that is renamed. Imports that
/// break off are continued.
fn streams() -> Vec<Op> {
    let import = |stream, name: &str| Op::Import { stream, name: name.into() };
    vec![
        volume("a", 128 * KIB, 4 * KIB, 512),
        write(0, 40 * KIB, false),
        write(80 * KIB, 8 * KIB, false),
        freeze(1, "s"),
        Op::Export { snap: 1, from: None, start: 0 },
        import(0, "b"),
        Op::Feed(1),
        Op::KeepImport,
        Op::BreakImport,
        import(0, "b"),
        Op::Feed(1000),
        Op::EndImport,
        // This import continues the one before if a crash cut it short. Otherwise the pool refuses
        // it.
        import(0, "b"),
        Op::Feed(1000),
        Op::EndImport,
        Op::Maintain(2),
        write(8 * KIB, 8 * KIB, false),
        discard(84 * KIB, 30 * KIB),
        Op::Resize { vol: 1, size: 100 * KIB, force: true },
        freeze(1, "t"),
        Op::Export { snap: 4, from: Some(1), start: 0 },
        import(1, "b"),
        Op::Feed(1),
        Op::Rename(2, "c".into()),
        Op::KeepImport,
        Op::Feed(1),
        Op::BreakImport,
        import(1, "c"),
        Op::Feed(1000),
        Op::EndImport,
        look(5, 100 * KIB),
        Op::Settle,
    ]
}

/// A newer import of a stream takes over, and the next difference is imported, while the senders of
/// older imports still send.
fn stale_imports() -> Vec<Op> {
    let import = |stream, name: &str| Op::Import { stream, name: name.into() };
    let stale = |count| (0..count).map(|_| Op::FeedStale(0));
    let mut script = vec![
        volume("a", 128 * KIB, 4 * KIB, 512),
        write(0, 40 * KIB, false),
        write(80 * KIB, 8 * KIB, false),
        freeze(1, "s"),
        Op::Export { snap: 1, from: None, start: 0 },
        write(8 * KIB, 8 * KIB, false),
        discard(84 * KIB, 30 * KIB),
        freeze(1, "t"),
        Op::Export { snap: 2, from: Some(1), start: 0 },
        import(0, "b"),
        Op::Feed(1),
        import(0, "b"),
    ];
    script.extend(stale(1));
    script.extend([Op::Feed(1), import(0, "b")]);
    script.extend([Op::Feed(1000), Op::EndImport, import(1, "b"), Op::Feed(1)]);
    script.extend(stale(2));
    script.extend([Op::Feed(1000), Op::KeepImport, import(1, "b"), Op::CancelImport(2)]);
    script.extend(stale(4));
    script.extend([Op::Settle]);
    script
}
