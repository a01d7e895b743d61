//! Creates, opens and recovers a pool.

use super::feature::of_new_pool;
use super::referred::{Referred, stage_found};
use super::{Pool, reidentify};
use crate::area::Area;
use crate::branch::namespace::{Lines, Namespace, check_name};
use crate::catalog::UsageKey;
use crate::catalog::progress::{DataScrub, Scrub};
use crate::catalog::{
    self, CURRENT, Catalog, KnownStamps, LineRecord, Positions, PvRecord, SnapshotRecord, StampRecord,
    Superblock,
};
use crate::cdp::log::flushes::Flushes;
use crate::cdp::log::{profile::Profiles, shared::SharedLog};
use crate::cdp::write::load::load_segments;
use crate::clock::PoolClock;
use crate::control::decode_control;
use crate::core::Core;
use crate::core::{SharedPositions, Work};
use crate::damage::Damage;
use crate::destage::Destager;
use crate::destage::state::{BackgroundState, FlattenJob, Rebalancing};
use crate::disk::{CountingDir, Dir, OpenFiles, OpenMode, OverlayDir};
use crate::error::{Error, ErrorKind, Result, conflict, corrupt, invalid};
use crate::fault::{AlarmedMutex, AlarmedRwLock, Fault};
use crate::grace::Readers;
use crate::ids::{Epoch, Lsn, SnapshotId, Stamp, VolumeId};
use crate::journal::cursor::JournalRecord;
use crate::journal::{
    Accepted, Cursor, Journal, JournalConfig, Located, ScanStart, Scanned, Turns, keep_tail_room,
    make_durable, place::JournalPosition, record::Kind, restore_tail, scan,
};
use crate::map::Map;
use crate::pace::Pace;
use crate::repairs::Repairs;
use crate::settings::{Placement, PoolConfig, PoolOptions, PvSpec, check_config};
use crate::shortage::Shortages;
use crate::space::allocator::Allocator;
use crate::space::catalog_room::{CatalogRoom, growth};
use crate::space::label::{Label, LabelFound};
use crate::space::lock::lock;
use crate::space::pv::{Pv, PvTable, open_known, open_new};
use crate::space::reservations::Space;
use crate::space::stamp::Age;
use crate::space::stamping::{Stamping, age_of, stamp_all};
use crate::sums::UnitSums;
use crate::throttle::Neighbours;
use crate::world::{World, uuid};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

impl Pool {
    /// Returns whether there is a pool in `dir`.
    pub fn exists(dir: &dyn Dir) -> Result<bool> {
        let names = dir.list().map_err(|e| Error::io("list the data directory", e))?;
        Ok(names.iter().any(|n| n == catalog::FILE))
    }

    /// Creates an empty pool: writes its catalog, labels its physical volumes, then gives the
    /// catalog its name. Returns [`ErrorKind::Conflict`] if there is a pool already, or if a
    /// physical volume belongs to another pool.
    pub fn create(
        dir: Arc<dyn Dir>,
        world: &World,
        config: &PoolConfig,
        placement: Placement,
        pvs: &[PvSpec],
    ) -> Result<()> {
        Self::create_with_features(dir, world, config, placement, pvs, None)
    }

    /// Creates a pool like [`Pool::create`]. Of the features that an upgrade can enable it has
    /// those with these names. `None` stands for all that are stable. Returns
    /// [`ErrorKind::Invalid`] if a name can't be enabled.
    pub fn create_with_features(
        dir: Arc<dyn Dir>,
        world: &World,
        config: &PoolConfig,
        placement: Placement,
        pvs: &[PvSpec],
        features: Option<&[String]>,
    ) -> Result<()> {
        let features = of_new_pool(features, placement)?;
        check_config(config)?;
        if pvs.is_empty() {
            return Err(invalid("create a pool: it needs a physical volume"));
        }
        let _lock = lock(&*dir)?;
        if Self::exists(&*dir)? {
            return Err(conflict("create a pool: the directory already holds one"));
        }
        // A creation that was cut short here is continued: its labels are this pool's.
        let pool = Catalog::unfinished(&*dir)?.unwrap_or_else(|| uuid(&*world.rng));
        let mut records: Vec<(u32, PvRecord)> = Vec::new();
        let mut disks = Vec::new();
        for (id, spec) in pvs.iter().enumerate() {
            let extent_size = config.extent_size;
            if pvs[..id].iter().any(|earlier| earlier.path == spec.path) {
                return Err(conflict(format!("create a pool: {} was named twice", spec.path)));
            }
            let (disk, extents) = open_new(&*dir, spec, pool, (extent_size, config.atomic_unit), &|_| false)?;
            let record = PvRecord::new(uuid(&*world.rng), spec.path.clone(), extents);
            let label = Label { pool, pv_uuid: record.uuid, pv: id as u32, extents, extent_size };
            records.push((id as u32, record));
            disks.push((disk, label));
        }
        let stamp = StampRecord { sequence: 1, incarnation: 0, life: uuid(&*world.rng) };
        let superblock = Superblock {
            pool,
            extent_size: config.extent_size,
            journal_size: config.journal_size,
            segment_size: config.segment_size,
            atomic_unit: config.atomic_unit,
            placement,
            next_id: 1,
            next_pv: pvs.len() as u32,
            features: catalog::features::CATALOG_SUMS | features,
        };
        Catalog::create(&*dir, &superblock, &records, &stamp)?;
        for ((disk, label), spec) in disks.iter().zip(pvs) {
            label.write(&**disk, &spec.path, &stamp)?;
        }
        for ((disk, label), spec) in disks.iter().zip(pvs) {
            if Label::read(&**disk, &spec.path)? != LabelFound::Label(label.clone()) {
                return Err(conflict(format!("create a pool: {} was named twice", spec.path)));
            }
        }
        Catalog::finish(&*dir)
    }

    /// Locks, recovers and opens the pool in `dir`. Returns [`ErrorKind::Busy`] if another process
    /// has it open.
    ///
    /// The journal's records beyond the catalog are made durable, and then found again through
    /// staging. A batch that was being applied is applied again (I5).
    ///
    /// Returns [`ErrorKind::Conflict`] if the data directory and a physical volume are not of the
    /// same time: one of them was restored, or copied and used elsewhere. Nothing is written then.
    pub fn open(dir: Arc<dyn Dir>, world: World, options: PoolOptions) -> Result<Arc<Pool>> {
        let lock = lock(&*dir)?;
        Self::open_in(dir, lock, world, options, &|pv, age| age.check(&pv.path))
    }

    /// Opens a pool read-only after a disaster, without writing to any of its parts and whatever
    /// their ages. The pool recovers in memory and is poisoned from the start. If its parts are of
    /// different times, reads may return wrong data.
    pub fn open_read_only(dir: Arc<dyn Dir>, world: World, options: PoolOptions) -> Result<Arc<Pool>> {
        let lock = lock(&*dir)?;
        let found = Mutex::new(Vec::new());
        let overlay = Arc::new(OverlayDir::new(dir));
        let pool = Self::open_in(overlay, lock, world, options, &|pv, age| {
            found.lock().extend(age.describe(&pv.path));
            Ok(())
        })?;
        let mut reason = "it was opened read-only, by force".to_owned();
        for text in found.into_inner() {
            reason = format!("{reason}; {text}");
        }
        pool.show_only(reason);
        Ok(pool)
    }

    /// Opens the pool as [`Pool::open`] would, and leaves everything on disk as it is: recovery,
    /// and what is done to the pool, stay in memory.
    pub fn open_in_memory(dir: Arc<dyn Dir>, world: World, options: PoolOptions) -> Result<Arc<Pool>> {
        let lock = lock(&*dir)?;
        let overlay = Arc::new(OverlayDir::new(dir));
        Self::open_in(overlay, lock, world, options, &|pv, age| age.check(&pv.path))
    }

    /// Makes the pool read-only from here on. `reason` is the error of every other request.
    pub(crate) fn show_only(&self, reason: String) {
        self.core.fault.withdraw(reason);
        self.core.only_shown.store(true, Ordering::Release);
        // Parts of different times do not match. What is left is to be seen nevertheless.
        self.core.sums.turn_off();
    }

    fn open_in(
        dir: Arc<dyn Dir>,
        lock: Box<dyn Send + Sync>,
        world: World,
        mut options: PoolOptions,
        judge: &dyn Fn(&Pv, Age) -> Result<()>,
    ) -> Result<Arc<Pool>> {
        let dir = Arc::new(CountingDir::new(dir, &world, (&options).into()));
        let (catalog, superblock) = open_catalog(&*dir, &options)?;
        let mut committed = catalog.positions()?;
        let start = ScanStart::new(&superblock, &committed, catalog.journal()?, options.accept_journal_loss);
        options.fit(&superblock.config());
        let mut names = load_names(dir.clone(), &catalog, &superblock)?;
        let (pvs, space, room) = (PvTable::new(), Space::new(superblock.extent_size), CatalogRoom::default());
        let mut allocator = Allocator::new(superblock.extent_size, superblock.placement, catalog.clone());
        load_pvs(&*dir, &names, &superblock, &pvs, &mut allocator, &space)?;
        let known = catalog.stamps()?;
        let mut undated = check_ages(&held(&names, &pvs), &superblock, &known, judge)?;
        restore_tail(&*dir, &start.owner, &|pv| Some(pvs.held(pv)?.disk.clone()))?;
        let promises = (&space, &room, options.batch_bytes);
        let slots = (&pvs, &mut allocator);
        let (mut scanned, referred) =
            recover_journal(&*dir, start, committed.preserved_lsn, &mut names, slots, promises)?;
        let added = &open_added(&*dir, &names, &superblock, &pvs)?;
        undated.extend(check_ages(added, &superblock, &known, judge)?);
        make_durable(&*dir, &start.owner, &scanned)?;
        let issued = begin_incarnation(&catalog, &mut committed, &scanned, &world)?;
        let of = (superblock.pool, options.destage_threads > 1);
        let stamping = stamp_opened(&held(&names, &pvs), of, issued, (&known, undated), world.clock.now())?;
        allocator.leave_failed(&space);
        let (cursor, accepted) = (scanned.cursor, scanned.accepted.take());
        let clock = resume_clock(&world, &catalog, &committed, accepted.as_ref(), &mut scanned)?;
        let fault = Arc::new(Fault::default());
        let of_journal = journal_config(&superblock, committed.incarnation);
        let journal = Journal::new(of_journal, dir.clone(), clock.clone(), fault.clone(), scanned);
        let map = Map::new(catalog.clone(), options.map_cache_policy, options.map_cache_bytes, fault.clone());
        let (files, shared) =
            load_histories(&dir, options.open_files, &catalog, &superblock, (&names, &space))?;
        withdraw_leaving(&names, &mut allocator, &space);
        let damage = load_damage(&catalog, &mut allocator, &names)?;
        referred.note_damage(&damage, &pvs)?;
        let mut maintenance = BackgroundState::new(allocator, cursor, committed);
        let lines = note_unfinished(&mut maintenance, &catalog, &names)?;
        let flushes = Flushes::load(&catalog)?;
        let parts = Parts {
            superblock,
            options,
            dir,
            files,
            shared,
            world,
            clock,
            catalog,
            journal,
            fault,
            damage,
            room,
            space,
            map,
            pvs,
            names,
            maintenance,
            lines,
            flushes,
            stamping,
            lock,
        };
        let pool = Arc::new(parts.assemble()?);
        pool.finish_opening(accepted, referred.bytes).map(|()| pool)
    }

    fn finish_opening(&self, accepted: Option<Accepted>, referred: u64) -> Result<()> {
        self.core.positions.referred.store(referred, Ordering::Relaxed);
        self.core.positions.note_found(self.core.journal.last().lsn);
        self.core.tidy_sums()?;
        self.open_spares();
        keep_tail_room(&*self.core.dir, self.core.config.segment_size)?;
        if accepted.is_some() {
            self.core.drop_sums()?;
        }
        self.destager.finish_interrupted_batch()?;
        accepted.map_or(Ok(()), |accepted| self.give_up(accepted))?;
        let destaged = self.destager.state.lock().destaged;
        self.core.positions.settled.fetch_max(destaged.0, Ordering::AcqRel);
        self.destager.make_up_anchors()?;
        self.store_clock()?;
        // Reads that are under way are served nevertheless.
        self.core.catalog.check_writable()?;
        self.core.catalog.set_in_use();
        let (positions, names) = (&self.core.positions, self.core.names.read());
        tracing::info!(
            volumes = names.by_name.len(),
            branches = names.branches.len(),
            last_lsn = self.core.journal.last().lsn.0,
            destaged_lsn = positions.destaged().0,
            "the pool is open"
        );
        Ok(())
    }
}

/// The parts of a pool, once an opening has all of them.
pub(crate) struct Parts {
    pub(crate) superblock: Superblock,
    pub(crate) options: PoolOptions,
    pub(crate) dir: Arc<CountingDir>,
    pub(crate) files: OpenFiles,
    pub(crate) shared: SharedLog,
    pub(crate) world: World,
    pub(crate) clock: Arc<PoolClock>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) journal: Journal,
    pub(crate) fault: Arc<Fault>,
    pub(crate) damage: Damage,
    pub(crate) room: CatalogRoom,
    pub(crate) space: Space,
    pub(crate) map: Map,
    pub(crate) pvs: PvTable,
    pub(crate) names: Namespace,
    pub(crate) maintenance: BackgroundState,
    pub(crate) lines: Lines,
    pub(crate) flushes: Flushes,
    pub(crate) stamping: Stamping,
    pub(crate) lock: Box<dyn Send + Sync>,
}

impl Parts {
    /// Makes the pool of these parts. Nothing has happened in it yet.
    pub(crate) fn assemble(self) -> Result<Pool> {
        let fault = self.fault;
        let has_sums = self.superblock.features & catalog::features::SUMS != 0;
        let core = Arc::new(Core {
            lines: RwLock::new(self.lines),
            flushes: self.flushes,
            scrub: Scrub::load(&self.catalog)?,
            data_scrub: DataScrub::load(&self.catalog)?,
            stamping: self.stamping,
            spares: Default::default(),
            damage: self.damage,
            repairs: Repairs::new(self.options.repairs),
            sums: UnitSums::new(self.dir.clone(), self.options.sum_cache_bytes, has_sums),
            uuid: self.superblock.pool,
            config: self.superblock.config(),
            features: AtomicU64::new(self.superblock.features),
            options: self.options,
            dir: self.dir,
            files: self.files,
            shared: self.shared,
            profiles: Profiles::default(),
            world: self.world,
            clock: self.clock,
            catalog: self.catalog,
            journal: self.journal,
            shortages: Shortages::default(),
            pace: Pace::default(),
            neighbours: Neighbours::default(),
            catalog_room: self.room,
            lent: Arc::default(),
            readers: Readers::default(),
            space: self.space,
            map: self.map,
            pvs: self.pvs,
            names: AlarmedRwLock::new(fault.clone(), "a control operation was applied", self.names),
            positions: SharedPositions::default(),
            deletions: Mutex::default(),
            pv_operations: AlarmedMutex::new(fault.clone(), "a physical volume was added or removed", ()),
            work: Work::default(),
            fault: fault.clone(),
            journal_loss: OnceLock::new(),
            salvage: OnceLock::new(),
            only_shown: AtomicBool::new(false),
            _lock: self.lock,
        });
        core.lend_sums();
        core.repairs.bad_bytes.store(self.maintenance.allocator.bad_bytes(), Ordering::Relaxed);
        let state = AlarmedMutex::new(fault, "background work was under way", self.maintenance);
        Ok(Pool {
            destager: Arc::new(Destager {
                core: core.clone(),
                state,
                repair: |destager| _ = destager.repair_wanted(),
            }),
            core,
        })
    }
}

/// Makes the pool's clock, which continues from where it was stored, or from the last record.
fn resume_clock(
    world: &World,
    catalog: &Catalog,
    committed: &Positions,
    accepted: Option<&Accepted>,
    scanned: &mut Scanned,
) -> Result<Arc<PoolClock>> {
    scanned.max_time = committed.time;
    scanned.tail_lsn = accepted.map_or(scanned.tail_lsn, |accepted| accepted.last_lsn);
    let (stored, stretches) = catalog.clock()?;
    let last = Stamp { lsn: scanned.tail_lsn, time: scanned.max_time };
    Ok(Arc::new(PoolClock::new(world.clock.clone(), stored, stretches, last)))
}

/// Notes the background work that the catalog knows of. Returns the lines of all volumes'
/// histories.
fn note_unfinished(state: &mut BackgroundState, catalog: &Catalog, names: &Namespace) -> Result<Lines> {
    let branches = catalog.branches()?;
    let anchors: BTreeSet<SnapshotId> =
        names.branches.values().flat_map(|b| b.cdp.log.read().anchors().collect::<Vec<_>>()).collect();
    let gone = |(id, s): &(SnapshotId, SnapshotRecord)| s.deleted && !anchors.contains(id);
    state.rebalancing = Rebalancing::of(catalog.rebalance()?);
    state.orphan_branches = branches.iter().filter(|(_, b)| b.dead).map(|(id, _)| (*id, 0)).collect();
    state.filling = branches.iter().filter_map(|(id, b)| Some((*id, FlattenJob::of(b.fill?)))).collect();
    state.deleted = catalog.snapshots()?.into_iter().filter(gone).map(|(id, _)| id).collect();
    for line in state.deleted.iter().filter_map(|id| Some(&names.snapshots.get(id)?.state.line)) {
        if !names.has_children(line.frozen()) {
            // The snapshot may be partly dissolved. Since then, writes were promised no room to
            // preserve content for it.
            line.branch.frozen.write().remove(&line.epoch);
        }
    }
    state.unconfirmed_anchors =
        names.branches.values().filter_map(|b| Some((b.cdp.log.read().begun()?, b.id))).collect();
    let (lines, ended) = load_lines(catalog)?;
    state.deleted_with_history = ended;
    Ok(lines)
}

fn load_names(dir: Arc<dyn Dir>, catalog: &Catalog, superblock: &Superblock) -> Result<Namespace> {
    let mut names = Namespace::new(dir, superblock);
    for (id, record) in catalog.branches()? {
        if !(9..=30).contains(&record.chunk_log2) {
            return Err(corrupt(format!("load branch {id}: its chunk size is invalid")));
        }
        names.load_branch(id, &record)?;
    }
    for ((branch, lsn), event) in catalog.cdp_events()? {
        if let Some(branch) = names.branches.get(&branch) {
            branch.cdp.load_event(lsn, event);
        }
    }
    for ((volume, lsn), line) in catalog.cdp_lines()? {
        if let LineRecord::Mark { name, time } = line {
            names.marks.add(volume, &name, Stamp { lsn, time });
        }
    }
    for (id, record) in catalog.volumes()? {
        check_name(&record.name).map_err(|e| corrupt(format!("load volume {id}: {e}")))?;
        names.load_volume(id, record)?;
    }
    for (id, record) in catalog.snapshots()? {
        check_name(&record.name).map_err(|e| corrupt(format!("load snapshot {id}: {e}")))?;
        names.load_snapshot(id, &record)?;
    }
    catalog.visit_usage(UsageKey::ALL, &mut |UsageKey { branch, last, .. }, slots| {
        if let Some(branch) = names.branches.get(&branch).filter(|_| last != CURRENT) {
            branch.kept.fetch_add(slots, Ordering::Relaxed);
        }
    })?;
    names.pvs = catalog.pvs()?.into_iter().collect();
    Ok(names)
}

fn load_pvs(
    dir: &dyn Dir,
    names: &Namespace,
    superblock: &Superblock,
    table: &PvTable,
    allocator: &mut Allocator,
    space: &Space,
) -> Result<()> {
    for (id, record) in &names.pvs {
        let pv = open_known(dir, superblock.pool, superblock.extent_size, *id, record, OpenMode::Existing)?;
        table.insert(pv.clone());
        let change = allocator.add_pv(pv, record.extents, record.draining);
        let total = if record.draining { 0 } else { record.extents as i64 };
        space.change_capacity((allocator.area(*id), total), &change, true);
    }
    space.change_capacity((Area::Common, 0), &allocator.load()?, true);
    Ok(())
}

/// Opens the physical volumes whose addition is still in the journal. A missing one is reported
/// now, not when its record is carried out.
fn open_added(
    dir: &dyn Dir,
    names: &Namespace,
    superblock: &Superblock,
    table: &PvTable,
) -> Result<Vec<Arc<Pv>>> {
    let mut added = Vec::new();
    for (id, record) in names.pvs.iter().filter(|(id, _)| table.held(**id).is_none()) {
        let (pool, extent_size) = (superblock.pool, superblock.extent_size);
        let pv = open_known(dir, pool, extent_size, *id, record, OpenMode::Existing)?;
        table.insert(pv.clone());
        added.push(pv);
    }
    Ok(added)
}

fn open_catalog(dir: &dyn Dir, options: &PoolOptions) -> Result<(Arc<Catalog>, Superblock)> {
    if !Pool::exists(dir)? {
        return Err(crate::error::not_found("open the pool: this directory holds none"));
    }
    let catalog = Arc::new(Catalog::open_for_use(dir, options.catalog_cache_bytes, options.ballast())?);
    let superblock = catalog.superblock()?;
    check_config(&superblock.config())
        .map_err(|e| corrupt(format!("open the pool: its superblock is invalid: {e}")))?;
    reidentify::check_ended(&catalog)?;
    Ok((catalog, superblock))
}

/// Opens the segments of all histories, and promises the space that closing them takes.
fn load_histories(
    dir: &Arc<CountingDir>,
    open_files: usize,
    catalog: &Catalog,
    superblock: &Superblock,
    (names, space): (&Namespace, &Space),
) -> Result<(OpenFiles, SharedLog)> {
    let (files, shared) = (OpenFiles::new(dir.clone(), open_files), SharedLog::default());
    let of = |id| names.branches.get(&id).cloned();
    load_segments((&**dir, &files, &shared), catalog, superblock.pool, of)?;
    let closing: u64 = names.branches.values().map(|b| b.cdp.log.read().closing_room()).sum();
    space.adjust_log(closing as i64);
    Ok((files, shared))
}

/// Writes the stamp of this opening to all physical volumes. From here on, a catalog that is older
/// than the commit that issued the stamp is detected. A physical volume that takes no writes has
/// failed, unless it is the only one: then it is read, and keeps its older stamp, which is still
/// true. A physical volume without space for the stamp is waited for ([`Stamping::check`]).
fn stamp_opened(
    pvs: &[Arc<Pv>],
    (pool, beside): (Uuid, bool),
    issued: StampRecord,
    (known, undated): (&KnownStamps, BTreeMap<u32, String>),
    now: u64,
) -> Result<Stamping> {
    let stamped = stamp_all(pvs, pool, &issued, &known.durable, beside, &|_, _| Ok(()));
    let mut bearers = Vec::with_capacity(pvs.len());
    let (mut failed, mut waits) = (None, false);
    for (pv, outcome) in pvs.iter().zip(stamped) {
        match outcome {
            Ok(()) => bearers.push(pv.clone()),
            Err(error) if error.is_shortage() => waits = true,
            Err(error) if error.kind() == ErrorKind::Io => failed = Some(pv.fail(error)),
            Err(error) => return Err(error),
        }
    }
    match failed {
        Some(error) if bearers.is_empty() && !waits => Err(error),
        _ => Ok(Stamping::new(issued, now, (&bearers, waits), undated)),
    }
}

/// Loads the damage that the catalog knows. Damage in bad slots, in slots that the last life freed,
/// and in branches that are gone, is dropped.
fn load_damage(catalog: &Catalog, allocator: &mut Allocator, names: &Namespace) -> Result<Damage> {
    let damage = Damage::load(catalog)?;
    damage.retain(
        |pv, at| {
            let (used, end) = allocator.is_used(pv, at).unwrap_or((true, u64::MAX));
            (used && !allocator.is_bad(pv, at), end)
        },
        |id| names.branches.contains_key(&id),
    );
    Ok(damage)
}

/// Returns the physical volumes that are known and open.
fn held(names: &Namespace, table: &PvTable) -> Vec<Arc<Pv>> {
    names.pvs.keys().filter_map(|id| table.held(*id)).collect()
}

/// Passes the age of each physical volume to `judge`. Returns the physical volumes whose age is
/// unknown, and why.
fn check_ages(
    pvs: &[Arc<Pv>],
    superblock: &Superblock,
    known: &KnownStamps,
    judge: &dyn Fn(&Pv, Age) -> Result<()>,
) -> Result<BTreeMap<u32, String>> {
    let mut undated = BTreeMap::new();
    for pv in pvs {
        let age = age_of(pv, superblock.pool, known);
        judge(pv, age)?;
        if let (Age::Unknown, Some(text)) = (age, age.describe(&pv.path)) {
            undated.insert(pv.id, text);
        }
    }
    Ok(undated)
}

/// Stops placing anything on physical volumes that a journaled operation drains or removes, as when
/// it was sequenced. The catalog follows later, and records in between must not be placed on them.
fn withdraw_leaving(names: &Namespace, allocator: &mut Allocator, space: &Space) {
    for pv in allocator.pv_ids() {
        let stays = names.pvs.get(&pv).is_some_and(|record| !record.draining);
        if !stays && !allocator.is_draining(pv) {
            if allocator.gives(pv) {
                let (extents, change) = allocator.contribution(pv);
                space.change_capacity((allocator.area(pv), -(extents as i64)), &change, true);
            }
            allocator.set_draining(pv, true);
        }
    }
}

/// Returns the lines of all volumes, and the volumes with lines that are gone.
fn load_lines(catalog: &Catalog) -> Result<(Lines, BTreeSet<VolumeId>)> {
    let mut lines = Lines::new();
    for ((volume, lsn), line) in catalog.cdp_lines()? {
        lines.entry(volume).or_default().insert(lsn, line);
    }
    let volumes: BTreeSet<VolumeId> = catalog.volumes()?.into_iter().map(|(id, _)| id).collect();
    let ended = lines.keys().filter(|id| !volumes.contains(id)).copied().collect();
    Ok((lines, ended))
}

/// Scans the journal into staging and names, and makes the promises of what is staged again. The
/// last parameter has `space`, the catalog's room, and the size of a batch in bytes.
fn recover_journal(
    dir: &dyn Dir,
    start: ScanStart,
    preserved: Lsn,
    names: &mut Namespace,
    (pvs, allocator): (&PvTable, &mut Allocator),
    (space, catalog_room, batch): (&Space, &CatalogRoom, u64),
) -> Result<(Scanned, Referred)> {
    let mut referred = Referred::default();
    // No batch extends across this LSN.
    let mut cut = preserved;
    let mut turns = Turns::default();
    let mut visit = |located: &Located, data: &[u8]| -> Result<()> {
        let header = &located.header;
        let reference = referred.take(header, data, preserved, (&mut *allocator, space))?;
        if header.lsn <= preserved {
            // It is staged until it is applied again.
            if let Some(branch) = names.branches.get(&header.branch) {
                stage_found(located, data, reference.as_ref(), &branch.staging);
            }
            return Ok(());
        }
        let place = JournalPosition {
            segment: located.file.into(),
            at: located.data_at,
            after: header.lsn.prev(),
            cut: if matches!(header.kind, Kind::Control | Kind::Discard) {
                std::mem::replace(&mut cut, header.lsn)
            } else {
                cut
            },
        };
        if header.kind == Kind::Control {
            let control = decode_control(header.lsn, data)?;
            turns.note(header.lsn, header.slots > 0 || !control.shares_commit(), None, Epoch::NONE);
            if let Some(branch) = names.branches.get(&header.branch) {
                space.adjust_reserved(branch.kind(), header.slots.into());
            }
            return control.apply(names, header.lsn, header.time);
        }
        // A record of a branch that is gone is skipped.
        if let Some(branch) = names.branches.get(&header.branch) {
            let alone = header.kind == Kind::Discard
                && branch.discards_alone(header.offset, header.length, branch.cdp.is_on());
            turns.note(header.lsn, alone, Some(&branch.staging), header.epoch);
            stage_found(located, data, reference.as_ref(), &branch.staging);
            space.adjust_reserved(branch.kind(), header.slots.into());
            catalog_room.promised_before(growth(branch, header.kind, header.offset, header.length));
            catalog_room.mark(header.lsn);
            let record = (header.kind, header.offset, header.length);
            let room = crate::cdp::write::reserve::promised(branch, record, &place, batch);
            space.adjust_log(room as i64);
            space.assign_log(header.lsn, room, 0);
        }
        Ok(())
    };
    let mut scanned = scan(dir, start, true, pvs, &mut visit)?;
    scanned.turns = turns;
    referred.unreadable = scanned.unreadable();
    Ok((scanned, referred))
}

/// Commits, before anything is appended, that the scanned records are durable and that a new
/// incarnation writes now. The commit issues the next stamp.
fn begin_incarnation(
    catalog: &Catalog,
    committed: &mut Positions,
    scanned: &Scanned,
    world: &World,
) -> Result<StampRecord> {
    committed.incarnation = committed.incarnation.max(scanned.max_incarnation) + 1;
    committed.synced_lsn = committed.synced_lsn.max(scanned.tail_lsn);
    committed.time = committed.time.max(scanned.max_time);
    let mut txn = catalog.begin()?;
    txn.put_positions(committed)?;
    // If the log was found to begin in a later segment, the named one holds nothing any more.
    let at = if scanned.cursor.seq == committed.journal_seq { scanned.cursor.at } else { 0 };
    txn.put_journal(&JournalRecord {
        files: scanned.files,
        destaged_lsn: committed.destaged_lsn,
        start: Cursor { seq: committed.journal_seq, at, lsn: scanned.cursor.lsn },
    })?;
    let (sequence, incarnation) = (catalog.stamps()?.issued.sequence + 1, committed.incarnation);
    let stamp = StampRecord { sequence, incarnation, life: uuid(&*world.rng) };
    txn.put_issued_stamp(&stamp)?;
    txn.commit()?;
    Ok(stamp)
}

pub(crate) fn journal_config(superblock: &Superblock, incarnation: u64) -> JournalConfig {
    JournalConfig {
        pool: superblock.pool,
        segment_size: superblock.segment_size,
        max_files: (superblock.journal_size / superblock.segment_size) as u32,
        incarnation,
    }
}
