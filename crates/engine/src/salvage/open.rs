//! Opens what is left of a pool.

use super::{journal, names, pvs, source};
use crate::area::Area;
use crate::branch::namespace::{Lines, Namespace};
use crate::catalog::{Catalog, KnownStamps, Positions, StampRecord, Superblock};
use crate::cdp::log::flushes::Flushes;
use crate::cdp::log::record::{SHARED, SegmentHead};
use crate::cdp::log::shared::SharedLog;
use crate::cdp::write::load::load_segments;
use crate::clock::PoolClock;
use crate::damage::Damage;
use crate::destage::state::BackgroundState;
use crate::disk::layout::LayoutOptions;
use crate::disk::{CountingDir, Dir, OpenFiles, OpenMode, OverlayDir};
use crate::error::Result;
use crate::fault::Fault;
use crate::ids::Stamp;
use crate::info::{CatalogSource, Salvage};
use crate::journal::{Accepted, Journal, ScanStart, Scanned};
use crate::map::Map;
use crate::pool::Pool;
use crate::pool::open::{Parts, journal_config};
use crate::settings::PoolOptions;
use crate::space::allocator::Allocator;
use crate::space::catalog_room::CatalogRoom;
use crate::space::lock::{LOCK_FILE, locked};
use crate::space::pv::PvTable;
use crate::space::reservations::Space;
use crate::space::stamping::Stamping;
use crate::world::World;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The options of an opening for salvage.
#[derive(Debug, Clone, Default)]
pub struct SalvageOptions {
    /// Options as for any opening. Damage of the journal is accepted in any case.
    pub pool: PoolOptions,
    /// Makes the catalog from the backup in this file, or on this physical volume, whatever the
    /// state of the pool's own catalog.
    pub from: Option<String>,
    /// Files of backups. The newest one is used if the catalog does not open.
    pub backups: Vec<String>,
    /// The present paths of physical volumes, by their paths in the catalog.
    pub moved: BTreeMap<String, String>,
}

impl Pool {
    /// Opens what is left of the pool in `dir`, whatever is missing or damaged, without writing to
    /// any part of it. It recovers in memory, and is read-only from the start. [`Pool::salvage`]
    /// reports what was found, and [`Pool::losses`] what can't be read.
    ///
    /// Returns an error if another process has a part of the pool open
    /// ([`crate::ErrorKind::Busy`]), or if neither the catalog opens nor a backup of it is found.
    pub fn open_salvage(dir: Arc<dyn Dir>, world: World, options: SalvageOptions) -> Result<Arc<Pool>> {
        let mut found = Salvage::default();
        let lock = lock(&*dir, &mut found)?;
        let overlay = OverlayDir::new(dir);
        let source = source::open(&overlay, &options, &mut found)?;
        let opening = Opening {
            dir: Arc::new(CountingDir::new(Arc::new(overlay), &world, LayoutOptions::default())),
            catalog: Arc::new(source.catalog),
            superblock: source.superblock,
            positions: source.positions,
            journal: source.journal,
            options,
            found,
        };
        opening.run(world, lock)
    }
}

/// Locks the pool, as far as that is possible without writing. If the lock's file is missing, the
/// shared locks of the catalog and of physical volumes that are files exclude other processes.
fn lock(dir: &dyn Dir, found: &mut Salvage) -> Result<Box<dyn Send + Sync>> {
    match dir.lock_existing(LOCK_FILE) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Box::new(())),
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => {
            let text = format!("{e}: the data is right only if no other process has the pool open");
            found.find("unlocked", LOCK_FILE, text);
            Ok(Box::new(()))
        }
        taken => locked(taken),
    }
}

/// An opening for salvage under way.
struct Opening {
    /// The data directory. Writes to it stay in memory.
    dir: Arc<CountingDir>,
    catalog: Arc<Catalog>,
    superblock: Superblock,
    positions: Positions,
    /// Whether the journal has a segment of this pool, as in [`source::SalvageSource::journal`].
    journal: bool,
    options: SalvageOptions,
    found: Salvage,
}

/// The state that catalog and journal give.
struct Recovered {
    names: Namespace,
    lines: Lines,
    journal: journal::Recovered,
}

impl Opening {
    fn run(mut self, world: World, lock: Box<dyn Send + Sync>) -> Result<Arc<Pool>> {
        if self.superblock.is_reidentified() {
            let text = "`hindcast pool reidentify` was interrupted: targets and schedules may have the old identities of volumes";
            self.found.find("catalog", "identities", text);
        }
        let known = self.stamps();
        let mut recovered = self.recover(known.as_ref());
        let table = PvTable::new();
        let undated = pvs::open(
            &*self.dir,
            &mut recovered.names,
            &self.superblock,
            &self.options,
            (known.as_ref(), &table),
            &mut self.found,
        )?;
        self.doubt_backup(recovered.names.pvs.keys().any(|pv| self.is_dated(*pv, &undated)));
        let histories = self.histories(&recovered.names);
        let damage = self.damage();
        self.tell_end(&recovered.journal.scanned);
        let loss = recovered.journal.loss.take();
        let unrecorded = recovered.journal.unrecorded;
        let parts = self.parts(world, lock, recovered, (table, undated), (histories, damage));
        let pool = Arc::new(parts.assemble()?);
        self.conclude(&pool, loss, unrecorded);
        Ok(pool)
    }

    /// Loads names and staging from catalog and journal. A journal that can't be scanned at all is
    /// left out.
    fn recover(&mut self, known: Option<&KnownStamps>) -> Recovered {
        let record = self.catalog.journal().unwrap_or_else(|e| {
            self.found.find(
                "catalog-row",
                "journal",
                format!("how many journal files there were is unknown: {e}"),
            );
            None
        });
        let start = ScanStart::new(&self.superblock, &self.positions, record, true);
        let load = |found: &mut Salvage| {
            let dir: Arc<dyn Dir> = self.dir.clone();
            names::load(dir, &self.catalog, &self.superblock, found)
        };
        let (mut names, lines) = load(&mut self.found);
        let judged = self.judged(&names, known);
        let mut recovered = match journal::recover(&*self.dir, start, &self.positions, &judged, &mut names) {
            Ok(journal) => Recovered { names, lines, journal },
            Err(error) => {
                // The names are loaded again, without what was applied so far. Lost rows were
                // reported already.
                let (names, lines) = load(&mut Salvage::default());
                Recovered { names, lines, journal: journal::none(&start, &error) }
            }
        };
        names::take_out_of_trash(&mut recovered.names, &mut self.found);
        recovered
    }

    /// Returns the physical volumes on which the salvage verifies the slots of references. With a
    /// catalog of an earlier time there are none, because later writes may have replaced what a
    /// reference wrote.
    fn judged(&self, names: &Namespace, known: Option<&KnownStamps>) -> pvs::Judged {
        match (&self.found.source, known) {
            (CatalogSource::Own | CatalogSource::Backup { exact: true, .. }, Some(known)) => {
                pvs::Judged::open(&*self.dir, names, &self.superblock, &self.options, known)
            }
            _ => pvs::Judged::none(),
        }
    }

    /// Reports records that are not shown because the log ends before a reference without its data.
    fn tell_end(&mut self, scanned: &Scanned) {
        let Some(cut) = &scanned.cut else { return };
        let text = format!(
            "the log ends before LSN {}, because the slots of that record lack its data: {} records are not shown;              nothing shows that a flush covered them, and an ordinary opening drops them, too",
            cut.lsn, cut.dropped
        );
        self.found.find("journal-end", "journal", text);
    }

    fn stamps(&mut self) -> Option<KnownStamps> {
        let stamps = self.catalog.stamps();
        stamps.inspect_err(|e| self.found.find("catalog-row", "stamps", e.to_string())).ok()
    }

    /// Returns whether the stamp of a physical volume shows when it was last written.
    fn is_dated(&self, pv: u32, undated: &BTreeMap<u32, String>) -> bool {
        !undated.contains_key(&pv) && self.found.limits.get(&pv).is_none_or(|(len, _)| *len > 0)
    }

    /// Notes a doubt about a backup of an orderly stop. It equals the catalog if the pool was not
    /// opened after it was made. The journal and the physical volumes show that. If neither can be
    /// read, it is unknown.
    fn doubt_backup(&mut self, dated: bool) {
        let CatalogSource::Backup { exact, sequence, .. } = &mut self.found.source else { return };
        if !*exact || self.journal || dated {
            return;
        }
        *exact = false;
        let text = format!(
            "backup {sequence} was made at an orderly stop, but neither the journal nor the stamp of a physical volume \
             can be read: whether the pool was opened after that, and its volumes changed, is unknown"
        );
        self.found.doubts.push(text);
    }

    /// Loads the segments of histories. Moments that need a missing or damaged segment fail.
    fn histories(&mut self, names: &Namespace) -> (OpenFiles, SharedLog) {
        let files = OpenFiles::new(self.dir.clone(), self.options.pool.open_files);
        let (shared, pool) = (SharedLog::default(), self.superblock.pool);
        let there = self.dir.list().unwrap_or_default();
        let own = self.catalog.segments_left().rows.into_iter().map(|((branch, seq), record)| {
            (SegmentHead { pool, branch, seq, edition: record.edition }, record.end)
        });
        // The run that ends last shows how long a shared segment was.
        let runs =
            self.catalog.runs_left().rows.into_iter().map(|((seq, _), run)| {
                (SegmentHead { pool, branch: SHARED, seq, edition: 0 }, run.record.end)
            });
        let runs: BTreeMap<String, (SegmentHead, u64)> =
            runs.fold(BTreeMap::new(), |mut all, (head, end)| {
                let known = all.entry(head.file_name()).or_insert((head, end));
                known.1 = known.1.max(end);
                all
            });
        for (head, end) in own.chain(runs.into_values()) {
            let name = head.file_name();
            let why = if !there.contains(&name) {
                "it is missing".to_owned()
            } else {
                match self.dir.open(&name, OpenMode::ReadOnly).and_then(|disk| disk.len()) {
                    Ok(len) if len < end => format!("it was truncated: it has {len} of {end} bytes"),
                    Ok(_) => continue,
                    Err(e) => e.to_string(),
                }
            };
            let text = format!(
                "{why}: moments that need it can't be shown; the present content of volumes does not need it"
            );
            self.found.find("history", name, text);
        }
        let of = |id| names.branches.get(&id).cloned();
        if let Err(e) = load_segments((&*self.dir, &files, &shared), &self.catalog, pool, of) {
            self.found.find("history", "histories", format!("no moment of the past can be shown: {e}"));
            self.found.distrust_histories(e.to_string());
        }
        (files, shared)
    }

    fn damage(&mut self) -> Damage {
        let (rows, whole) = self.catalog.damage_left();
        if !whole {
            let text = "rows about unreadable data can't be read themselves: where such data was replaced, zeros may be read in its place";
            self.found.find("damage-unknown", "damage", text);
            self.found.doubts.push(text.to_owned());
            self.found.distrust_histories(text);
        }
        Damage::of(rows)
    }

    fn parts(
        &mut self,
        world: World,
        lock: Box<dyn Send + Sync>,
        recovered: Recovered,
        (pvs, undated): (PvTable, BTreeMap<u32, String>),
        ((files, shared), damage): ((OpenFiles, SharedLog), Damage),
    ) -> Parts {
        let Recovered { names, lines, journal: journal::Recovered { scanned, .. } } = recovered;
        let (superblock, positions) = (self.superblock.clone(), self.positions);
        let mut options = self.options.pool.clone();
        options.fit(&superblock.config());
        let space = Space::new(superblock.extent_size);
        let allocator = self.allocator(&names, &pvs, &space);
        // If the clock's rows can't be read, the state is as after a boot.
        let (stored, stretches) = self.catalog.clock().unwrap_or_default();
        let last = Stamp { lsn: scanned.tail_lsn, time: positions.time.max(scanned.max_time) };
        let clock = Arc::new(PoolClock::new(world.clock.clone(), stored, stretches, last));
        let fault = Arc::new(Fault::default());
        let config = journal_config(&superblock, positions.incarnation);
        let maintenance = BackgroundState::new(allocator, scanned.cursor, positions);
        let journal = Journal::new(config, self.dir.clone(), clock.clone(), fault.clone(), scanned);
        let catalog = self.catalog.clone();
        Parts {
            map: Map::new(catalog.clone(), options.map_cache_policy, options.map_cache_bytes, fault.clone()),
            // Going back to a flush is a convenience: without these rows, it finds no flush.
            flushes: Flushes::load(&catalog).unwrap_or_default(),
            stamping: Stamping::new(StampRecord::default(), world.clock.now(), (&[], false), undated),
            superblock,
            options,
            dir: self.dir.clone(),
            files,
            shared,
            world,
            clock,
            catalog,
            journal,
            fault,
            damage,
            room: CatalogRoom::default(),
            space,
            pvs,
            names,
            maintenance,
            lines,
            lock,
        }
    }

    /// Makes the allocator. No space is given out any more; it is counted if that is possible.
    fn allocator(&self, names: &Namespace, pvs: &PvTable, space: &Space) -> Allocator {
        let of = &self.superblock;
        let mut allocator = Allocator::new(of.extent_size, of.placement, self.catalog.clone());
        for (id, record) in &names.pvs {
            let Some(pv) = pvs.held(*id) else { continue };
            let change = allocator.add_pv(pv, record.extents, record.draining);
            let total = if record.draining { 0 } else { record.extents as i64 };
            space.change_capacity((allocator.area(*id), total), &change, true);
        }
        if let Ok(change) = allocator.load() {
            space.change_capacity((Area::Common, 0), &change, true);
        }
        allocator
    }

    /// Reports what was found, and makes the pool read-only.
    fn conclude(mut self, pool: &Pool, loss: Option<Accepted>, unrecorded: Option<u64>) {
        let Positions { preserved_lsn, destaged_lsn, .. } = self.positions;
        pool.core.positions.committed(preserved_lsn, destaged_lsn);
        let interrupted = preserved_lsn > destaged_lsn;
        // A write to a physical volume that is not whole would give it a length, and zeros, that it
        // does not have.
        let whole = self.found.doubts.is_empty() && self.found.limits.is_empty();
        if loss.is_none() && whole && interrupted {
            // Moments are reconstructed from what is in place, and a part of the batch may be
            // there.
            if let Err(e) = pool.destager.finish_interrupted_batch() {
                let text = format!("a batch of writes that was interrupted can't be completed: {e}");
                self.found.find(
                    "history",
                    "histories",
                    format!("{text}: no moment of the past can be shown"),
                );
                self.found.distrust_histories(text);
            }
        } else if interrupted {
            self.found.distrust_histories("a batch of writes was interrupted, and can't be completed");
        }
        if interrupted && loss.as_ref().is_some_and(|loss| loss.recovered_lsn < preserved_lsn) {
            let text = "a batch of writes was interrupted while it was destaged, and the journal lacks a part of it: its blocks may be old, new, or torn";
            self.found.doubts.push(text.to_owned());
        }
        if self.found.histories.is_none() {
            // Moments up to this LSN can be shown. Later ones are in the journal only.
            pool.core.positions.settled.store(preserved_lsn.0, Ordering::Release);
            pool.core.positions.settled_time.store(unrecorded.unwrap_or(u64::MAX), Ordering::Release);
        }
        if let Some(loss) = loss {
            pool.note_journal_loss(loss);
            if let Some(loss) = pool.journal_loss() {
                self.found.find("journal", "journal", loss.to_string());
            }
        }
        pool.show_only(reason(&self.found));
        let _ = pool.core.salvage.set(self.found);
    }
}

/// Returns the error of every request that would change something.
fn reason(found: &Salvage) -> String {
    let mut reason = "it was opened for salvage, read-only".to_owned();
    if matches!(found.source, CatalogSource::Backup { exact: false, .. }) {
        reason += ", with a catalog of an earlier time";
    }
    let count = found.findings.len() + found.lost.len();
    if count > 0 {
        reason += &format!("; {count} findings: `hindcast salvage` lists them");
    }
    for doubt in &found.doubts {
        reason = format!("{reason}; {doubt}");
    }
    reason
}
