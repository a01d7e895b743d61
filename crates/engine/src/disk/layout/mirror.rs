//! A mirror: a disk whose content is on several members, each byte on as many as there are copies.
//!
//! The engine sees one disk. What makes that safe (decision 76):
//!
//! - **A write** goes to all copies, and to the disk that a member is rebuilt onto. A member whose
//!   write or sync fails is *out*. The record of the mirror says so durably before the write or the
//!   sync returns. From then on nothing reads that member, until it was rebuilt.
//! - **After a crash** copies can differ only where the engine wrote and had not synced. The engine
//!   never relies on such content: it writes it again, from the journal, or forgets it. So there is
//!   no resync.
//! - **A copy that is wrong**, by its sum or because it can't be read, is written again from one
//!   that is right, while no write to that place is under way.

use super::record::LayoutRecord;
use super::spans::{CopiedSpan, CopyPlace};
use super::{member, record};
use crate::disk::{Dir, Disk, OpenMode, SyncPurpose, is_unreadable};
use crate::error::is_shortage;
use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Bytes that one of the locks below covers. No write to a disk is larger than two of them.
pub(super) const REGION: u64 = 1 << 20;
/// Number of locks. Each covers every such region.
pub(super) const REGIONS: u64 = 64;
/// Bytes that are mended at once: the unit of sums, and of what a medium loses.
pub(super) const BLOCK: u64 = 4096;
/// Number of failed reads after which a member is out, although its disk still answers.
pub(super) const MAX_READ_ERRORS: u32 = 256;

/// The disk of a member.
pub(super) struct Opened(pub(super) Arc<dyn Disk>);

#[derive(Default)]
pub(super) struct Member {
    /// The disk, if the member is in.
    pub(super) disk: ArcSwapOption<Opened>,
    /// The disk that the member is rebuilt onto.
    pub(super) incoming: ArcSwapOption<Opened>,
    /// Number of reads that failed since the mirror was opened or the member was rebuilt.
    pub(super) read_errors: AtomicU32,
}

/// A disk that a write reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Member,
    Incoming,
}

/// A part of a request that lies in one span.
pub(super) struct Piece<'m> {
    pub(super) places: &'m [CopyPlace],
    /// Byte of the span.
    pub(super) within: u64,
    /// Byte of the mirror.
    pub(super) at: u64,
    /// Bytes of the request.
    pub(super) range: Range<usize>,
}

/// Writes a part of a request: (disk, byte of it, bytes of the request).
pub(super) type WriteCopy<'a> = &'a dyn Fn(&dyn Disk, u64, Range<usize>) -> io::Result<()>;
/// Reads a part of a request: (disk, the part, byte of the disk).
pub(super) type ReadCopy<'a> = &'a dyn Fn(&dyn Disk, &mut [u8], u64) -> io::Result<()>;

/// A mirror as a disk.
pub struct Mirror {
    pub(super) dir: Arc<dyn Dir>,
    pub(super) name: String,
    spans: Vec<CopiedSpan>,
    pub(super) len: u64,
    pub(super) members: Vec<Member>,
    /// The record, as memory has it.
    pub(super) record: Mutex<LayoutRecord>,
    /// Whether the file has an older record.
    unsaved: AtomicBool,
    /// Number of rebuilds that began. What was copied before the last of them is not on its disk.
    pub(super) begun: AtomicU64,
    /// Ranges that a member could not read and another one could.
    pub(super) unreadable: Mutex<Vec<Range<u64>>>,
    /// Held shared by writes, and alone by what makes copies equal.
    regions: [RwLock<()>; REGIONS as usize],
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
    io::Error::new(io::ErrorKind::NotConnected, "no member with a copy is there")
}

/// Returns whether an error says that a disk is not there, or is another one.
fn is_gone(error: &io::Error) -> bool {
    /// The error numbers ENXIO, ENODEV and ENOMEDIUM.
    const CODES: [i32; 3] = [6, 19, 123];
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
        || is_unreadable(error)
        || error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

impl Mirror {
    /// Opens a mirror. Members that are missing are out from then on, as long as a copy of
    /// everything is left. Disks that can't be opened for another reason refuse the opening.
    pub(super) fn open(
        dir: &Arc<dyn Dir>,
        name: &str,
        mode: OpenMode,
        parallel: bool,
        open: &dyn Fn(&str) -> io::Result<Arc<dyn Disk>>,
    ) -> io::Result<Mirror> {
        let record = LayoutRecord::load(&**dir, name)?;
        let members: Vec<Member> = record.members.iter().map(|_| Member::default()).collect();
        let mut lost = Vec::new();
        let opened = |path: &str, uuid, capacity| {
            let disk = open(path)?;
            member::check(&*disk, &record.uuid, uuid, capacity)?;
            // The file is always written before the copies on the members.
            match member::read_record(&*disk).filter(|known| known.uuid == record.uuid) {
                Some(known) if known.sequence > record.sequence => {
                    let text = "it has a newer record of the mirror than the data directory, which was restored or copied";
                    Err(io::Error::other(text))
                }
                _ => Ok(Some(Arc::new(Opened(disk)))),
            }
        };
        for (number, (of, member)) in record.members.iter().zip(&members).enumerate() {
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
        let out: Vec<usize> =
            lost.iter().filter(|(_, role, _)| *role == Role::Member).map(|(number, ..)| *number).collect();
        if !record.is_whole_without(&out) {
            let told = lost.iter().map(|(n, _, error)| format!("{}: {error}", record.members[*n].path));
            let were_out =
                record.members.iter().filter(|of| !of.is_in).map(|of| format!("{} was out", of.path));
            let told = told.chain(were_out).collect::<Vec<_>>().join("; ");
            let text = format!("members are missing, and no copy of a part is left: {told}");
            return Err(io::Error::other(text));
        }
        let (spans, len) = (record.spans.clone(), record.len());
        let mirror = Mirror {
            dir: dir.clone(),
            name: name.to_owned(),
            spans,
            len,
            members,
            record: Mutex::new(record),
            unsaved: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            unreadable: Mutex::default(),
            regions: std::array::from_fn(|_| RwLock::new(())),
            parallel,
            writable: mode != OpenMode::ReadOnly,
        };
        for (number, role, error) in lost {
            mirror.leave_out(number, role, &error);
        }
        Ok(mirror)
    }

    /// Returns the record.
    pub(crate) fn record(&self) -> LayoutRecord {
        self.record.lock().clone()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Puts a member out, or ends its rebuild, because a disk of it failed. When this returns, the
    /// record says so durably. The error is that of the disk if no copy would be left.
    pub(super) fn lose(&self, number: usize, disk: &Arc<Opened>, why: &io::Error) -> io::Result<()> {
        let record = &mut *self.record.lock();
        let member = &self.members[number];
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
        let (of, member) = (&mut record.members[number], &self.members[number]);
        let mirror = &self.name;
        if role == Role::Member && !is_whole {
            return Err(like(why));
        }
        // A sync that no longer reaches the disk must not return before the record says why.
        self.unsaved.store(true, Ordering::SeqCst);
        match role {
            Role::Member => {
                tracing::error!(mirror, member = of.path, error = %why, "a member of a mirror is out");
                (of.is_in, of.reason) = (false, why.to_string());
                member.disk.store(None);
            }
            Role::Incoming => {
                if let Some(new) = of.incoming.take() {
                    tracing::error!(mirror, disk = new.path, error = %why, "the rebuild of a member has ended");
                    of.reason = format!("the rebuild onto {} ended: {why}", new.path);
                }
                member.incoming.store(None);
            }
        }
        self.save(record)
    }

    /// Notes that a disk was not there when the mirror was opened. The first sync stores that: if
    /// the pool does not open, nothing has changed.
    fn leave_out(&self, number: usize, role: Role, why: &io::Error) {
        let record = &mut *self.record.lock();
        let of = &mut record.members[number];
        let mirror = &self.name;
        self.unsaved.store(true, Ordering::SeqCst);
        match (role, of.incoming.take()) {
            (Role::Member, incoming) => {
                tracing::error!(mirror, member = of.path, error = %why, "a member of a mirror is missing, and out");
                (of.is_in, of.reason, of.incoming) = (false, why.to_string(), incoming);
            }
            (Role::Incoming, Some(new)) => {
                tracing::error!(mirror, disk = new.path, error = %why, "the rebuild of a member has ended");
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
        record.save(&*self.dir, &self.name)?;
        self.unsaved.store(false, Ordering::SeqCst);
        // The copies on the members help where the data directory is lost. Nothing relies on them.
        for disk in self.active().iter().map(|(_, _, disk)| disk) {
            let _ = member::write_record(&*disk.0, record);
        }
        Ok(())
    }

    /// Returns the disks that writes go to.
    pub(super) fn active(&self) -> Vec<(usize, Role, Arc<Opened>)> {
        let of = |(number, member): (usize, &Member)| {
            // In this order: a disk that becomes the member is in one of the two at any time.
            let incoming = (Role::Incoming, member.incoming.load_full());
            let disks = [incoming, (Role::Member, member.disk.load_full())];
            disks.into_iter().filter_map(move |(role, disk)| Some((number, role, disk?)))
        };
        self.members.iter().enumerate().flat_map(of).collect()
    }

    /// Splits a request into parts of one span each.
    pub(super) fn pieces(&self, at: u64, len: usize) -> io::Result<impl Iterator<Item = Piece<'_>>> {
        let end = at.checked_add(len as u64).filter(|end| *end <= self.len);
        let end =
            end.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "past the end of the mirror"))?;
        let first = self.spans.partition_point(|span| span.end() <= at);
        let inside = self.spans[first..].iter().take_while(move |span| span.start < end);
        Ok(inside.map(move |span| {
            let (from, to) = (at.max(span.start), end.min(span.end()));
            Piece {
                places: &span.places,
                within: from - span.start,
                at: from,
                range: (from - at) as usize..(to - at) as usize,
            }
        }))
    }

    /// Splits a read into parts that lie in one span and in one region. So a byte is read from one
    /// copy, whatever the request is: no content is in the page cache twice, and what was verified
    /// once is what the next read finds.
    fn pieces_to_read(&self, at: u64, len: usize) -> io::Result<impl Iterator<Item = Piece<'_>>> {
        Ok(self.pieces(at, len)?.flat_map(|piece| {
            let end = piece.at + piece.range.len() as u64;
            (piece.at / REGION..end.div_ceil(REGION)).map(move |region| {
                let (from, to) = ((region * REGION).max(piece.at), ((region + 1) * REGION).min(end));
                let first = piece.range.start + (from - piece.at) as usize;
                Piece {
                    places: piece.places,
                    within: piece.within + from - piece.at,
                    at: from,
                    range: first..first + (to - from) as usize,
                }
            })
        }))
    }

    /// Returns the places of a piece in the order in which they are read.
    pub(super) fn in_order<'p>(&self, piece: &Piece<'p>) -> impl Iterator<Item = &'p CopyPlace> {
        let first = (piece.at / REGION) as usize % piece.places.len().max(1);
        piece.places.iter().cycle().skip(first).take(piece.places.len())
    }

    fn locks(at: u64, len: u64) -> Vec<usize> {
        let regions = at / REGION..at.saturating_add(len.max(1)).div_ceil(REGION);
        if regions.end - regions.start >= REGIONS {
            return (0..REGIONS as usize).collect();
        }
        let mut locks: Vec<usize> = regions.map(|region| (region % REGIONS) as usize).collect();
        locks.sort_unstable();
        locks
    }

    fn shared(&self, at: u64, len: u64) -> Vec<RwLockReadGuard<'_, ()>> {
        Self::locks(at, len).into_iter().map(|lock| self.regions[lock].read()).collect()
    }

    pub(super) fn alone(&self, at: u64, len: u64) -> Vec<RwLockWriteGuard<'_, ()>> {
        Self::locks(at, len).into_iter().map(|lock| self.regions[lock].write()).collect()
    }

    /// Carries out a write on all copies. `write` gets a disk, a byte of it, and the bytes of the
    /// request that go there.
    pub(super) fn write_each(&self, at: u64, len: usize, write: WriteCopy<'_>) -> io::Result<()> {
        let _shared = self.shared(at, len as u64);
        for piece in self.pieces(at, len)? {
            let (mut is_written, mut failed) = (false, Vec::new());
            for place in piece.places {
                let member = &self.members[place.member];
                for (role, slot) in [(Role::Member, &member.disk), (Role::Incoming, &member.incoming)] {
                    let Some(disk) = slot.load_full() else { continue };
                    match write(&*disk.0, place.offset + piece.within, piece.range.clone()) {
                        Ok(()) => is_written |= role == Role::Member,
                        // The copies may differ now. The engine relies on none of them.
                        Err(error) if is_shortage(&error) && role == Role::Member => return Err(error),
                        Err(error) => failed.push((place.member, disk, error)),
                    }
                }
            }
            if !is_written {
                return Err(failed.pop().map_or_else(no_copy, |(_, _, error)| error));
            }
            failed.iter().try_for_each(|(number, disk, error)| self.lose(*number, disk, error))?;
        }
        Ok(())
    }

    /// Changes the space of a range on all copies. A disk that can't do that has not failed. One
    /// that is not there has.
    pub(super) fn on_each(
        &self,
        at: u64,
        len: u64,
        change: &dyn Fn(&dyn Disk, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let _shared = self.shared(at, len);
        for piece in self.pieces(at, len as usize)? {
            let (mut is_done, mut failed) = (false, Vec::new());
            for place in piece.places {
                let member = &self.members[place.member];
                let (at, len) = (place.offset + piece.within, piece.range.len() as u64);
                if let Some(disk) = member.disk.load_full() {
                    match change(&*disk.0, at, len) {
                        Ok(()) => is_done = true,
                        Err(error) if is_gone(&error) => failed.push((place.member, disk, error)),
                        Err(error) => return Err(error),
                    }
                }
                if let Some(new) = member.incoming.load_full() {
                    // A write that fails there ends the rebuild.
                    let _ = change(&*new.0, at, len);
                }
            }
            if !is_done {
                return Err(failed.pop().map_or_else(no_copy, |(_, _, error)| error));
            }
            failed.iter().try_for_each(|(number, disk, error)| self.lose(*number, disk, error))?;
        }
        Ok(())
    }

    /// Carries out a read on one copy of each piece, or on another one if that fails.
    pub(super) fn read_each(&self, buf: &mut [u8], at: u64, read: ReadCopy<'_>) -> io::Result<()> {
        for piece in self.pieces_to_read(at, buf.len())? {
            let mut failed = Vec::new();
            let is_read = self.in_order(&piece).any(|place| {
                let Some(disk) = self.members[place.member].disk.load_full() else { return false };
                let done = read(&*disk.0, &mut buf[piece.range.clone()], place.offset + piece.within);
                done.map_err(|error| failed.push((*place, disk, error))).is_ok()
            });
            if !is_read {
                return Err(failed.into_iter().next().map_or_else(no_copy, |(_, _, error)| error));
            }
            for (place, disk, error) in failed {
                self.look_after(&piece, place, &disk, &error);
            }
        }
        Ok(())
    }

    /// Puts a member out because the operator wants that. The error says that no copy would be
    /// left.
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
            return Ok(()); // that of a younger mirror with the same name
        }
        self.dir.remove(&record::file_name(&self.name))?;
        self.dir.sync(SyncPurpose::Layout)
    }

    fn sync_disk(&self, disk: &Opened, purpose: SyncPurpose) -> io::Result<()> {
        disk.0.sync(purpose)
    }

    /// Syncs all disks that writes go to. Returns their results.
    pub(super) fn sync_all(&self, purpose: SyncPurpose) -> io::Result<()> {
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
        // A member can have left since the list was made. The record says so before anything relies
        // on this sync.
        if self.unsaved.load(Ordering::SeqCst) {
            self.save(&mut self.record.lock())?;
        }
        Ok(())
    }

    /// Reads from the first copy without waiting. Any failure is left to a read that may wait.
    pub(super) fn try_read(&self, buf: &mut [u8], at: u64) -> io::Result<bool> {
        for piece in self.pieces_to_read(at, buf.len())? {
            let place = self.in_order(&piece).find(|place| self.members[place.member].disk.load().is_some());
            let Some(place) = place else { return Ok(false) };
            let Some(disk) = self.members[place.member].disk.load_full() else { return Ok(false) };
            let read = disk.0.try_read_at(&mut buf[piece.range.clone()], place.offset + piece.within);
            if !read.unwrap_or(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Calls `visit` for the first copy of each part of a range.
    pub(super) fn visit_first(&self, at: u64, len: u64, visit: &dyn Fn(&dyn Disk, u64, u64)) {
        let len = len.min(self.len.saturating_sub(at)) as usize;
        for piece in self.pieces_to_read(at, len).into_iter().flatten() {
            let disk = self
                .in_order(&piece)
                .find_map(|place| Some((place, self.members[place.member].disk.load_full()?)));
            if let Some((place, disk)) = disk {
                visit(&*disk.0, place.offset + piece.within, piece.range.len() as u64);
            }
        }
    }

    /// Calls `visit` for all copies of each part of a range.
    pub(super) fn visit_copies(&self, at: u64, len: u64, visit: &dyn Fn(&dyn Disk, u64, u64)) {
        let len = len.min(self.len.saturating_sub(at)) as usize;
        for piece in self.pieces(at, len).into_iter().flatten() {
            for place in piece.places {
                if let Some(disk) = self.members[place.member].disk.load_full() {
                    visit(&*disk.0, place.offset + piece.within, piece.range.len() as u64);
                }
            }
        }
    }

    /// Returns where the hole or the data at a byte ends, and whether it is data.
    pub(super) fn run(&self, at: u64) -> io::Result<(u64, bool)> {
        let Some(piece) = (at < self.len).then(|| self.pieces(at, 1)).transpose()?.and_then(|mut p| p.next())
        else {
            return Ok((at, true));
        };
        let end = self.spans.iter().map(CopiedSpan::end).find(|end| *end > at).unwrap_or(self.len);
        for place in self.in_order(&piece) {
            let Some(disk) = self.members[place.member].disk.load_full() else { continue };
            let from = place.offset + piece.within;
            if let Ok((to, is_data)) = disk.0.run_at(from) {
                return Ok((end.min(at + to.saturating_sub(from).max(1)), is_data));
            }
        }
        Ok((end, true))
    }

    /// Checks that a copy of everything answers. Members that do not answer are out.
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

    pub(super) fn content_len(&self) -> u64 {
        self.len
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
}
