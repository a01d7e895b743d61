//! The members of a layout: which of them have their content, and the record that says so.
//!
//! A member whose write or sync fails is *out*. The record says so durably before the write or the
//! sync returns. From then on nothing reads that member, until it was rebuilt.

use super::growth::PlaceMove;
use super::progress::RebuildSteps;
use super::record::{Incoming, LayoutKind, LayoutRecord, MAX_MEMBERS};
use super::returning::{drop_unused_list, forget_stale};
use super::stale::{self, StaleRegions};
use super::{LayoutOptions, member, raid5, record};
use crate::disk::{Backing, Dir, Disk, OpenMode, SyncPurpose, is_unreadable};
use crate::error::is_shortage;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Number of failed reads within about an hour after which a member is out, although its disk still
/// answers. A scratch makes dozens of sectors unreadable, which are written again from the other
/// disks; a disk with hundreds of them is about to fail.
pub(super) const MAX_READ_ERRORS: u32 = 256;
/// Number of ranges that wait to be mended. Reads find further ones again.
const MAX_UNREADABLE: usize = 1024;

/// The disk of a member.
pub(super) struct Opened(pub(super) Arc<dyn Disk>);

#[derive(Default)]
pub(super) struct Member {
    /// The disk, if the member is in.
    pub(super) disk: ArcSwapOption<Opened>,
    /// The disk that the member is rebuilt onto.
    pub(super) incoming: ArcSwapOption<Opened>,
    /// Number of reads that failed since [`Members::forget_read_errors`], or since the layout was
    /// opened or the member was rebuilt.
    pub(super) read_errors: AtomicU32,
    /// Whether some of these reads failed although the disk answers. The disk has a bad medium, and
    /// needs all its content again.
    pub(super) is_bad: AtomicBool,
}

/// A disk that a write reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Member,
    Incoming,
}

/// The members of a layout.
pub(crate) struct Members {
    pub(super) dir: Arc<dyn Dir>,
    pub(super) name: String,
    /// Those of the record come first. The others are members that the layout may get.
    pub(super) all: [Member; MAX_MEMBERS],
    /// The record, as memory has it.
    pub(super) record: Mutex<LayoutRecord>,
    /// Whether the file has an older record.
    unsaved: AtomicBool,
    /// Number of rebuilds and moves of places that began, and of lists of stale regions that were
    /// forgotten. What was copied before the last of them is not on its disk.
    pub(super) begun: AtomicU64,
    pub(super) steps: RebuildSteps,
    /// Whether the members take over what one had that is out.
    pub(super) takes_over: AtomicBool,
    /// Sequence number of the last record that had nothing to gain.
    pub(super) grown: AtomicU64,
    /// The move that is under way, and the number of those that had begun with it.
    pub(super) moving: Mutex<Option<(u64, PlaceMove)>>,
    /// Bytes per second of a rebuild at most; 0 means no limit, and `u64::MAX` that the options of
    /// the pool say it.
    rate: AtomicU64,
    /// What changed while a member is out.
    pub(super) stale: StaleRegions,
    /// Ranges of the content that a member could not read, and that were read without it.
    unreadable: Mutex<Vec<Range<u64>>>,
    /// Whether members are synced side by side.
    parallel: bool,
    pub(super) writable: bool,
}

/// Returns an error like another one, which can't be cloned.
pub(super) fn like(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

pub(super) fn no_copy() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "no member that has it is there")
}

/// Returns whether an error says that a disk is not there, or is another one.
pub(super) fn is_gone(error: &io::Error) -> bool {
    /// The error numbers ENXIO, ENODEV and ENOMEDIUM.
    const CODES: [i32; 3] = [6, 19, 123];
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
        || is_unreadable(error)
        || error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

/// Refuses an opening without these disks: (member, role, why). The others must have everything.
fn check_lost(
    record: &LayoutRecord,
    lost: &[(usize, Role, io::Error)],
    options: LayoutOptions,
) -> io::Result<()> {
    let missing = || lost.iter().filter(|(_, role, _)| *role == Role::Member);
    let out: Vec<usize> = missing().map(|(number, ..)| *number).collect();
    if !record.is_whole_without(&out) {
        let told = lost.iter().map(|(n, _, error)| format!("{}: {error}", record.members[*n].path));
        let were_out = record.members.iter().filter(|of| !of.is_in).map(|of| format!("{} was out", of.path));
        let told = told.chain(were_out).collect::<Vec<_>>().join("; ");
        let text = format!("members are missing, and {}: {told}", record.what_is_gone());
        return Err(io::Error::other(text));
    }
    match missing().next() {
        Some((number, _, error)) if options.requires_all => {
            let path = &record.members[*number].path;
            Err(io::Error::other(format!("member {path} is missing, and all are required: {error}")))
        }
        _ => Ok(()),
    }
}

impl Members {
    /// Opens the members of a layout. Members that are missing are out from then on, as long as
    /// those that are left have everything. Disks that can't be opened for another reason refuse
    /// the opening.
    pub(super) fn open(
        dir: &Arc<dyn Dir>,
        name: &str,
        mode: OpenMode,
        options: LayoutOptions,
        open: &dyn Fn(&str) -> io::Result<Arc<dyn Disk>>,
    ) -> io::Result<Members> {
        let mut record = LayoutRecord::load(&**dir, name)?;
        let all: [Member; MAX_MEMBERS] = std::array::from_fn(|_| Member::default());
        let mut lost = Vec::new();
        let opened = |path: &str, uuid, capacity| {
            let disk = open(path)?;
            member::check(&*disk, &record.uuid, uuid, capacity)?;
            // The file is always written before the copies on the members.
            match member::read_record(&*disk).filter(|known| known.uuid == record.uuid) {
                Some(known) if known.sequence > record.sequence => {
                    let text = "it has a newer record of the layout than the data directory, which was restored or copied";
                    Err(io::Error::other(text))
                }
                _ => Ok(Some(Arc::new(Opened(disk)))),
            }
        };
        for (number, (of, member)) in record.members.iter().zip(&all).enumerate() {
            let wanted = [
                (Role::Member, of.is_in.then_some((&of.path, &of.uuid)), &member.disk),
                (Role::Incoming, of.incoming.as_ref().map(|new| (&new.path, &new.uuid)), &member.incoming),
            ];
            for (role, disk, slot) in wanted {
                let Some((path, uuid)) = disk else { continue };
                match opened(path, uuid, of.capacity) {
                    Ok(disk) => slot.store(disk),
                    Err(error) if is_gone(&error) => lost.push((number, role, error)),
                    Err(error) => {
                        return Err(io::Error::new(error.kind(), format!("member {path}: {error}")));
                    }
                }
            }
        }
        check_lost(&record, &lost, options)?;
        let has_list = record.stale != 0;
        let (stale, is_known) = StaleRegions::load(&**dir, name, &record);
        if !is_known {
            forget_stale(&mut record);
        }
        let members = Members {
            dir: dir.clone(),
            name: name.to_owned(),
            all,
            record: Mutex::new(record),
            // A list that one opening has added to is no longer that of the record before it.
            unsaved: AtomicBool::new(!is_known || has_list),
            begun: AtomicU64::new(0),
            steps: RebuildSteps::default(),
            takes_over: AtomicBool::new(false),
            grown: AtomicU64::new(0),
            moving: Mutex::default(),
            rate: AtomicU64::new(u64::MAX),
            stale,
            unreadable: Mutex::default(),
            parallel: options.parallel,
            writable: mode != OpenMode::ReadOnly,
        };
        for (number, role, error) in lost {
            members.leave_out(number, role, &error);
        }
        Ok(members)
    }

    /// Returns the record.
    pub(crate) fn record(&self) -> LayoutRecord {
        self.record.lock().clone()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Puts a member out, or ends its rebuild, because a disk of it failed. When this returns, the
    /// record says so durably. The error is that of the disk if
    /// those that are left would not have everything.
    pub(super) fn lose(&self, number: usize, disk: &Arc<Opened>, why: &io::Error) -> io::Result<()> {
        let record = &mut *self.record.lock();
        let member = &self.all[number];
        // The disk may have become the member since the write to it began.
        let is =
            |slot: &ArcSwapOption<Opened>| slot.load().as_ref().is_some_and(|held| Arc::ptr_eq(held, disk));
        match (is(&member.disk), is(&member.incoming)) {
            (true, _) => self.lose_role(record, number, Role::Member, why),
            (_, true) => self.lose_role(record, number, Role::Incoming, why),
            _ => Ok(()),
        }
    }

    fn lose_role(
        &self,
        record: &mut LayoutRecord,
        number: usize,
        role: Role,
        why: &io::Error,
    ) -> io::Result<()> {
        let is_whole = record.is_whole_without(&[number]);
        if role == Role::Member && is_whole {
            // What was copied from a disk that fails may be older than what it was sent.
            record.members.iter_mut().flat_map(|of| of.incoming.as_mut()).for_each(|new| new.rebuilt = 0);
            self.begun.fetch_add(1, Ordering::SeqCst);
        }
        let (of, member) = (&mut record.members[number], &self.all[number]);
        let layout = &self.name;
        if role == Role::Member && !is_whole {
            return Err(like(why));
        }
        // A sync that no longer reaches the disk must not return before the record says why.
        self.unsaved.store(true, Ordering::SeqCst);
        match role {
            Role::Member => {
                tracing::error!(layout, member = of.path, error = %why, "a member of a layout is out");
                // A disk with a bad medium gets all content, also what did not change.
                of.is_listed = !member.is_bad.load(Ordering::SeqCst);
                (of.is_in, of.reason) = (false, why.to_string());
                if of.is_listed {
                    self.stale.begin();
                    record.stale = stale::number_in(record);
                }
                member.disk.store(None);
            }
            Role::Incoming => {
                if let Some(new) = of.incoming.take() {
                    tracing::error!(layout, disk = new.path, error = %why, "the rebuild of a member has ended");
                    of.reason = format!("the rebuild onto {} ended: {why}", new.path);
                }
                member.incoming.store(None);
            }
        }
        self.save(record)
    }

    /// Notes that a disk was not there when the layout was opened. The first sync stores that: if
    /// the pool does not open, nothing has changed.
    fn leave_out(&self, number: usize, role: Role, why: &io::Error) {
        let record = &mut *self.record.lock();
        let of = &mut record.members[number];
        let layout = &self.name;
        self.unsaved.store(true, Ordering::SeqCst);
        match (role, of.incoming.take()) {
            (Role::Member, incoming) => {
                tracing::error!(layout, member = of.path, error = %why, "a member of a layout is missing, and out");
                self.stale.begin();
                (of.is_in, of.is_listed, of.reason) = (false, true, why.to_string());
                of.incoming = incoming;
                record.stale = stale::number_in(record);
            }
            (Role::Incoming, Some(new)) => {
                tracing::error!(layout, disk = new.path, error = %why, "the rebuild of a member has ended");
                of.reason = format!("the rebuild onto {} ended: {why}", new.path);
            }
            (Role::Incoming, None) => {}
        }
    }

    /// Makes a changed record durable.
    pub(super) fn save(&self, record: &mut LayoutRecord) -> io::Result<()> {
        record.sequence += 1;
        self.unsaved.store(true, Ordering::SeqCst);
        if !self.writable {
            return Ok(());
        }
        // The list is there before a record names it.
        self.save_stale(record);
        record.save(&*self.dir, &self.name)?;
        self.unsaved.store(false, Ordering::SeqCst);
        // The copies on the members help where the data directory is lost. Nothing relies on them.
        for disk in self.active().iter().map(|(_, _, disk)| disk) {
            let _ = member::write_record(&*disk.0, record);
        }
        Ok(())
    }

    /// Makes a change of the record durable on which nothing relies yet. If that fails, the record
    /// is what it was. Syncs of data do not have to store it then, unless the file has the change.
    pub(super) fn save_or_undo(&self, record: &mut LayoutRecord, before: LayoutRecord) -> io::Result<()> {
        let was_unsaved = self.unsaved.load(Ordering::SeqCst);
        let Err(error) = self.save(record) else { return Ok(()) };
        let is_as_before = LayoutRecord::load(&*self.dir, &self.name).is_ok_and(|held| held == before);
        let sequence = record.sequence;
        *record = before;
        if is_as_before {
            self.unsaved.store(was_unsaved, Ordering::SeqCst);
        } else {
            // The file may have the change, with this number.
            record.sequence = sequence;
        }
        if record.stale != 0 && !self.stale.is_listing() {
            // The list could not be stored either.
            forget_stale(record);
            self.unsaved.store(true, Ordering::SeqCst);
        }
        Err(error)
    }

    /// Makes the record durable if it has changed.
    pub(super) fn store(&self) -> io::Result<()> {
        let record = &mut *self.record.lock();
        let must_be_saved = self.writable && self.save_stale(record);
        match must_be_saved || self.unsaved.load(Ordering::SeqCst) {
            true => self.save(record),
            false => Ok(()),
        }
    }

    /// Returns the disks that writes go to.
    pub(super) fn active(&self) -> Vec<(usize, Role, Arc<Opened>)> {
        let of = |(number, member): (usize, &Member)| {
            // In this order: a disk that becomes the member is in one of the two at any time.
            let incoming = (Role::Incoming, member.incoming.load_full());
            let disks = [incoming, (Role::Member, member.disk.load_full())];
            disks.into_iter().filter_map(move |(role, disk)| Some((number, role, disk?)))
        };
        self.all.iter().enumerate().flat_map(of).collect()
    }

    /// Puts a member out because the operator wants that. It is an error if
    /// those that are left would not have everything.
    pub(crate) fn put_out(&self, number: usize, why: &str) -> io::Result<()> {
        let record = &mut *self.record.lock();
        let of = &record.members[number];
        let role = if of.incoming.is_some() { Role::Incoming } else { Role::Member };
        if role == Role::Member && !of.is_in {
            return Ok(());
        }
        self.lose_role(record, number, role, &io::Error::other(why.to_owned()))
    }

    /// Removes the headers of all members, and the record.
    pub(crate) fn dissolve(&self) -> io::Result<()> {
        for (_, _, disk) in self.active() {
            member::wipe(&*disk.0)?;
        }
        let stored = LayoutRecord::load(&*self.dir, &self.name);
        if stored.is_ok_and(|stored| stored.uuid != self.record.lock().uuid) {
            return Ok(()); // that of a younger layout with the same name
        }
        let is_raid = self.record.lock().kind != LayoutKind::Mirror;
        stale::remove(&*self.dir, &self.name)?;
        self.dir.remove(&record::file_name(&self.name))?;
        if is_raid {
            raid5::remove(&*self.dir, &self.name)?;
        }
        self.dir.sync(SyncPurpose::Layout)
    }

    fn sync_disk(&self, disk: &Opened, purpose: SyncPurpose) -> io::Result<()> {
        disk.0.sync(purpose)
    }

    /// Syncs all disks that writes go to. A member whose sync fails is out.
    pub(super) fn sync_all(&self, purpose: SyncPurpose) -> io::Result<()> {
        let number = self.stale.begin_sync();
        let done = self.sync_active(purpose);
        self.stale.end_sync(number, done.is_ok());
        done?;
        // A member can have left since the sync began. The record says so before anything relies
        // on the sync, and so does the list of stale regions.
        self.store()
    }

    /// Syncs all disks that writes go to. The regions that were written still count as written, and
    /// a change of the record is not stored.
    pub(super) fn sync_active(&self, purpose: SyncPurpose) -> io::Result<()> {
        let active = self.active();
        let results: Vec<io::Result<()>> = if self.parallel && active.len() > 1 {
            std::thread::scope(|scope| {
                let begin = |(_, _, disk): &(usize, Role, Arc<Opened>)| {
                    let disk = disk.clone();
                    let sync = move || disk.0.sync(purpose);
                    std::thread::Builder::new().spawn_scoped(scope, sync)
                };
                let others: Vec<_> = active[1..].iter().map(begin).collect();
                let mut results = vec![self.sync_disk(&active[0].2, purpose)];
                for (thread, (_, _, disk)) in others.into_iter().zip(&active[1..]) {
                    results.push(match thread.map(std::thread::ScopedJoinHandle::join) {
                        Ok(Ok(result)) => result,
                        Ok(Err(_)) => Err(io::Error::other("the thread of a sync panicked")),
                        Err(_) => self.sync_disk(disk, purpose),
                    });
                }
                results
            })
        } else {
            active.iter().map(|(_, _, disk)| self.sync_disk(disk, purpose)).collect()
        };
        for ((number, _, disk), result) in active.iter().zip(results) {
            if let Err(error) = result {
                self.lose(*number, disk, &error)?;
            }
        }
        Ok(())
    }

    /// Checks that the members answer. Those that do not are out, as long as the others have
    /// everything.
    pub(super) fn check_answers(&self) -> io::Result<()> {
        for (number, role, disk) in self.active() {
            if role == Role::Member
                && let Err(error) = disk.0.answers()
                && !is_shortage(&error)
            {
                self.lose(number, &disk, &error)?;
            }
        }
        Ok(())
    }

    /// Calls `look` for the disk of each member that is in.
    pub(super) fn each_member<T>(&self, look: impl Fn(&dyn Disk) -> T) -> Vec<T> {
        let active = self.active();
        active
            .iter()
            .filter(|(_, role, _)| *role == Role::Member)
            .map(|(_, _, disk)| look(&*disk.0))
            .collect()
    }

    /// Calls `look` for the disk of each member that is in or is rebuilt.
    pub(super) fn each_disk<T>(&self, look: impl Fn(&dyn Disk) -> T) -> Vec<T> {
        self.active().iter().map(|(_, _, disk)| look(&*disk.0)).collect()
    }

    /// Returns the disk of a member that is in.
    pub(super) fn disk(&self, number: usize) -> Option<Arc<Opened>> {
        self.all[number].disk.load_full()
    }

    /// Returns the disk that a member is rebuilt onto.
    pub(super) fn incoming(&self, number: usize) -> Option<Arc<Opened>> {
        self.all[number].incoming.load_full()
    }

    /// Returns the disks that writes to a member go to.
    pub(super) fn written(&self, number: usize) -> impl Iterator<Item = (Role, Arc<Opened>)> {
        // In this order: a disk that becomes the member is in one of the two at any time.
        let incoming = (Role::Incoming, self.incoming(number));
        [incoming, (Role::Member, self.disk(number))]
            .into_iter()
            .filter_map(|(role, disk)| Some((role, disk?)))
    }

    /// Notes what a member could not read, and what was read without it. Background work mends it:
    /// only the sums above tell what is right. `at` and `len` are of the content.
    pub(super) fn look_after(&self, at: u64, len: u64, number: usize, disk: &Arc<Opened>, error: &io::Error) {
        let layout = &self.name;
        tracing::warn!(layout, member = number, at, %error, "a member of a layout could not be read; the others were");
        if is_shortage(error) || !self.writable {
            return;
        }
        let member = &self.all[number];
        let errors = member.read_errors.fetch_add(1, Ordering::Relaxed) + 1;
        let is_bad = is_unreadable(error) && disk.0.answers().is_ok();
        if is_bad {
            member.is_bad.store(true, Ordering::SeqCst);
        }
        if is_bad && errors < MAX_READ_ERRORS {
            let mut unreadable = self.unreadable.lock();
            if unreadable.len() < MAX_UNREADABLE {
                unreadable.push(at..at + len);
            }
            return;
        }
        // If nothing would be left, the member stays.
        let _ = self.lose(number, disk, error);
    }

    /// Returns the ranges that a member could not read since the last call.
    pub(crate) fn take_unreadable(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.unreadable.lock())
    }

    /// Returns the members that are out and not rebuilt, and their bytes for content.
    pub(crate) fn out(&self) -> Vec<(usize, u64)> {
        let record = self.record.lock();
        let all = record.members.iter().enumerate();
        all.filter(|(_, of)| !of.is_in && of.incoming.is_none())
            .map(|(number, of)| (number, of.capacity))
            .collect()
    }

    /// Limits rebuilds to so many bytes a second (0: no limit, `None`: as the pool's options say).
    pub(super) fn set_rate(&self, rate: Option<u64>) {
        self.rate.store(rate.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the largest number of bytes a second of a rebuild, if it was begun with one since
    /// the opening.
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate != u64::MAX)
    }

    /// Returns whether all members are in that have content.
    pub(crate) fn are_in(&self) -> bool {
        let record = self.record.lock();
        let mut all = record.members.iter().enumerate();
        all.all(|(number, of)| of.is_in || !record.is_used(number))
    }

    /// Returns how many further failures of members the layout survives.
    pub(crate) fn survives(&self) -> usize {
        self.record.lock().survives()
    }

    /// Returns how many rebuilds began, and up to where the content is on all disks that members
    /// are rebuilt onto. `None`: no member is rebuilt.
    pub(crate) fn rebuilt(&self) -> Option<(u64, u64)> {
        let record = self.record.lock();
        let rebuilt =
            record.members.iter().filter_map(|of| of.incoming.as_ref()).map(|new| new.rebuilt).min()?;
        Some((self.begun.load(Ordering::SeqCst), rebuilt))
    }

    /// Forgets the reads that failed, so that only those of a limited time count together.
    pub(crate) fn forget_read_errors(&self) {
        self.all.iter().for_each(|member| member.read_errors.store(0, Ordering::Relaxed));
    }

    /// Syncs the disks that members are rebuilt onto.
    pub(super) fn sync_incoming(&self) -> io::Result<()> {
        for (number, role, disk) in self.active() {
            if role == Role::Incoming
                && let Err(error) = disk.0.sync(SyncPurpose::Layout)
            {
                self.lose(number, &disk, &error)?;
            }
        }
        Ok(())
    }

    /// Notes that the content before `to` is durable on the disks that members are rebuilt onto. It
    /// was copied since so many rebuilds had begun. With `to` at the end, the disks are members
    /// from then on, and the result is true. If another rebuild began meanwhile, this does nothing.
    /// The caller excludes writes.
    pub(super) fn note_rebuilt(&self, begun: u64, to: u64) -> io::Result<bool> {
        let record = &mut *self.record.lock();
        if self.begun.load(Ordering::SeqCst) != begun {
            return Ok(false);
        }
        let before = record.clone();
        let is_end = to >= record.len();
        if is_end {
            // What is copied from here on is of another rebuild or move.
            self.begun.fetch_add(1, Ordering::SeqCst);
        }
        for (of, member) in record.members.iter_mut().zip(&self.all) {
            let Some(new) = &mut of.incoming else { continue };
            new.rebuilt = new.rebuilt.max(to);
            if !is_end {
                continue;
            }
            let (layout, disk) = (&self.name, &new.path);
            tracing::info!(event = "member.rebuilt", layout, disk, "a member of a layout was rebuilt");
            (of.uuid, of.path) = (new.uuid, std::mem::take(&mut new.path));
            (of.is_in, of.is_listed, of.reason, of.incoming) = (true, false, String::new(), None);
            member.read_errors.store(0, Ordering::Relaxed);
            member.is_bad.store(false, Ordering::SeqCst);
        }
        drop_unused_list(record);
        self.save_or_undo(record, before)?;
        self.end_unused_list(record);
        // Reads find the new disks only now that the record has them.
        for (of, member) in record.members.iter().zip(&self.all).filter(|(of, _)| of.incoming.is_none()) {
            // A sync that looks at both slots, this one first, finds the disk in one of them.
            let Some(rebuilt) = member.incoming.load_full().filter(|_| of.is_in) else { continue };
            let replaced = member.disk.swap(Some(rebuilt));
            member.incoming.store(None);
            // The old disk must not be taken for a member later.
            let _ = replaced.map(|old| member::wipe(&*old.0));
        }
        Ok(is_end)
    }

    /// Begins to rebuild a member onto a disk, whose header is written. The caller excludes writes:
    /// those that are under way do not reach the disk.
    pub(super) fn begin_rebuild(&self, number: usize, new: Incoming, disk: Arc<dyn Disk>) -> io::Result<()> {
        let record = &mut *self.record.lock();
        if record.members[number].incoming.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the member is being rebuilt"));
        }
        let before = record.clone();
        record.members[number].incoming = Some(new);
        self.save_or_undo(record, before)?;
        self.all[number].incoming.store(Some(Arc::new(Opened(disk))));
        self.begun.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Announces that access will be random, on all disks.
    pub(super) fn advise_random(&self) {
        self.each_disk(|disk| disk.advise_random());
    }

    /// Returns whether a disk overwrites data at a new place.
    pub(super) fn overwrites_elsewhere(&self) -> bool {
        self.each_disk(|disk| disk.overwrites_elsewhere().unwrap_or(false)).contains(&true)
    }

    /// Returns whether all disks are block devices.
    pub(super) fn are_block_devices(&self) -> bool {
        self.each_disk(|disk| disk.is_block_device()).into_iter().all(|is_device| is_device)
    }

    /// Returns the largest block that a disk writes as a whole.
    pub(super) fn physical_block(&self) -> io::Result<Option<u64>> {
        let all = self.each_disk(|disk| disk.physical_block());
        Ok(all.into_iter().collect::<io::Result<Vec<_>>>()?.into_iter().flatten().max())
    }

    /// Returns the least space that a member can still get. Members on one file system share its
    /// space. `None`: all members are block devices.
    pub(super) fn least_backing(&self) -> io::Result<Option<Backing>> {
        let all = self.each_member(|disk| disk.backing_available());
        let known: Vec<Backing> =
            all.into_iter().collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect();
        let share = |of: &Backing| {
            let same = known.iter().filter(|other| other.file_system == of.file_system).count() as u64;
            Backing { available: of.available / same.max(1), ..*of }
        };
        Ok(known.iter().map(share).min_by_key(|of| of.available))
    }
}
