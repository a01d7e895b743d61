//! Finds what can't be read of a volume or a snapshot, by metadata. No data are read, except those
//! of moments that a volume rests on.
//!
//! The walk takes the same path as a read: staging, the map, the base. What it calls readable has a
//! place that a read finds. What it can't determine is lost.

use crate::branch::image::ExternalImage;
use crate::branch::pinned::PinnedMoment;
use crate::branch::{Base, View};
use crate::catalog::page::{MapPage, Slot};
use crate::error::Result;
use crate::ids::Chunk;
use crate::pool::Pool;
use crate::staging::{SectorSource, StagedPlace, Stretch};
use crate::units::{BLOCK, SECTOR};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The reason for which a range can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossReason {
    /// A physical volume is missing, is not the right one, or was cut short: its name, and why.
    PhysicalVolume(Arc<str>),
    /// The part of the catalog that has the range's place can't be read.
    Catalog,
    /// The range could not be read when the pool was in use, and was not written since then.
    KnownDamage,
    /// The range has to be reconstructed, and a part of the history can't be read: which part.
    History(Arc<str>),
    /// The image in which the range lies can't be used: why.
    Image(Arc<str>),
}

impl LossReason {
    /// Returns the reason as a word for programs: `physical-volume`, `catalog`, `known-damage`,
    /// `history` or `image`.
    pub fn code(&self) -> &'static str {
        match self {
            LossReason::PhysicalVolume(_) => "physical-volume",
            LossReason::Catalog => "catalog",
            LossReason::KnownDamage => "known-damage",
            LossReason::History(_) => "history",
            LossReason::Image(_) => "image",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::PhysicalVolume(why) | LossReason::History(why) | LossReason::Image(why) => {
                f.write_str(why)
            }
            LossReason::Catalog => f.write_str("the catalog page with its place can't be read"),
            LossReason::KnownDamage => f.write_str("known damage: it could not be read before"),
        }
    }
}

/// A range that can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Byte offset in the volume.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The reason for which the range can't be read.
    pub reason: LossReason,
}

/// The counts of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of bytes of the volume or snapshot.
    pub size: u64,
    /// Number of bytes that have a place and can be read.
    pub allocated: u64,
    /// Number of bytes that can't be read.
    pub lost: u64,
    /// Number of ranges that can't be read.
    pub ranges: u64,
}

impl Losses {
    /// Returns the number of bytes that can be read, zeros included.
    pub fn readable(&self) -> u64 {
        self.size - self.lost
    }
}

/// The kind of a range.
#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Data,
    Zeros,
    Lost(LossReason),
}

type Sink<'a> = &'a mut dyn FnMut(Range<u64>, Kind);

impl Pool {
    /// Visits the ranges of a volume, or of its snapshot, that can't be read, in order. Neighbours
    /// with the same reason are one range. The memory used does not depend on their number.
    pub fn losses(
        &self,
        volume: &str,
        snapshot: Option<&str>,
        visit: &mut dyn FnMut(Loss),
    ) -> Result<Losses> {
        let state = {
            let names = self.core.names.read();
            let state = names.volume(volume)?;
            match snapshot {
                Some(name) => names.snapshot(state, name)?.state.clone(),
                None => state.clone(),
            }
        };
        let size = state.size.load(Ordering::Acquire);
        let mut merger = Merger { counted: Losses { size, ..Losses::default() }, last: None, visit };
        let _reading = self.core.readers.enter();
        Walk { pool: self }.line(&state.line, 0..size, &mut |range, kind| merger.add(range, kind));
        Ok(merger.end())
    }

    /// Returns all volumes, and the visible snapshots of each, oldest first: (volume, snapshot).
    pub fn devices(&self) -> Vec<(String, Option<String>)> {
        let names = self.core.names.read();
        let mut all = Vec::new();
        for (name, volume) in &names.by_name {
            all.push((name.clone(), None));
            let snapshots = names.snapshots_of(volume.id);
            all.extend(snapshots.iter().map(|s| (name.clone(), Some(s.state.name.read().clone()))));
        }
        all
    }
}

/// Merges neighbouring losses, and counts them.
struct Merger<'a> {
    counted: Losses,
    last: Option<Loss>,
    visit: &'a mut dyn FnMut(Loss),
}

impl Merger<'_> {
    fn add(&mut self, range: Range<u64>, kind: Kind) {
        let length = range.end - range.start;
        let reason = match kind {
            _ if length == 0 => return,
            Kind::Data => {
                self.counted.allocated += length;
                return;
            }
            Kind::Zeros => return,
            Kind::Lost(reason) => reason,
        };
        self.counted.lost += length;
        match &mut self.last {
            Some(last) if last.offset + last.length == range.start && last.reason == reason => {
                last.length += length;
            }
            _ => {
                self.counted.ranges += 1;
                let next = Loss { offset: range.start, length, reason };
                self.last.replace(next).into_iter().for_each(&mut *self.visit);
            }
        }
    }

    fn end(mut self) -> Losses {
        self.last.take().into_iter().for_each(&mut *self.visit);
        self.counted
    }
}

struct Walk<'a> {
    pool: &'a Pool,
}

impl Walk<'_> {
    /// Walks a range of a line, and of what lies under it.
    fn line(&self, line: &View, bytes: Range<u64>, sink: Sink<'_>) {
        if let Some(at) = &line.at {
            return self.moment(at, bytes, sink);
        }
        if line.branch.staging.is_empty() {
            return self.mapped(line, bytes, sink);
        }
        for (range, stretch) in line.branch.staging.outline(bytes, line.epoch) {
            match stretch {
                Stretch::Below => self.mapped(line, range, sink),
                Stretch::Zeros(_) => sink(range, Kind::Zeros),
                Stretch::Written => self.staged(line, range, sink),
            }
        }
    }

    /// Walks blocks in each of which something is staged. What the journal has can be read. What a
    /// reference names is on a physical volume, which may be lost.
    fn staged(&self, line: &View, bytes: Range<u64>, sink: Sink<'_>) {
        let mut start = bytes.start;
        while start < bytes.end {
            let block = start / BLOCK;
            let sources = line.branch.staging.resolve(block, line.epoch);
            let end = bytes.end.min((block + 1) * BLOCK);
            let first = sources[((start % BLOCK) / SECTOR) as usize];
            let same = |at: &u64| *at < end && sources[((*at % BLOCK) / SECTOR) as usize] == first;
            let next = (start..=end).step_by(SECTOR as usize).find(|at| !same(at)).unwrap_or(end).min(end);
            match first {
                SectorSource::Below => self.mapped(line, start..next, sink),
                SectorSource::Zeros(_) => sink(start..next, Kind::Zeros),
                SectorSource::Staged(piece) => match piece.place() {
                    StagedPlace::Journal { .. } => sink(start..next, Kind::Data),
                    // The block is read as a whole, for its sum.
                    StagedPlace::Slot(slot) => {
                        let mut lost = None;
                        self.slot(
                            slot.pv(),
                            slot.offset(),
                            block * BLOCK..(block + 1) * BLOCK,
                            &mut |_, kind| {
                                if let Kind::Lost(reason) = kind {
                                    lost = Some(reason);
                                }
                            },
                        );
                        sink(start..next, lost.map_or(Kind::Data, Kind::Lost));
                    }
                },
            }
            start = next;
        }
    }

    /// Walks what is in place, page by page.
    fn mapped(&self, line: &View, bytes: Range<u64>, sink: Sink<'_>) {
        if bytes.is_empty() {
            return;
        }
        let log2 = line.branch.chunk_log2;
        let start = |page: u64| Chunk::first_of(page).start(log2).clamp(bytes.start, bytes.end);
        let last = Chunk::of(bytes.end - 1, log2).page();
        let mut number = Chunk::of(bytes.start, log2).page();
        let mut gap = Gap { walk: self, line, range: bytes.start..bytes.start };
        while number <= last {
            let next = self.next(line, number, last);
            gap.extend(start(number)..start(next));
            if next > last {
                break;
            }
            let range = start(next)..start(next + 1);
            match self.pool.core.map.load(line, next) {
                Err(_) => {
                    gap.flush(sink);
                    sink(range, Kind::Lost(LossReason::Catalog));
                }
                Ok(page) => self.page(line, &page, range, &mut gap, sink),
            }
            number = next + 1;
        }
        gap.flush(sink);
    }

    /// Returns the next page that may have entries, or that can't be determined. A number behind
    /// `last` means that there is none.
    fn next(&self, line: &View, number: u64, last: u64) -> u64 {
        let map = &self.pool.core.map;
        // Long holes of a line without a base mean the same as no entry.
        let next = if line.branch.has_base() {
            map.next_page(line, number, last)
        } else {
            map.next_content(line, number, last)
        };
        match next {
            Ok(next) => next.map_or(last + 1, |next| next.max(number)),
            Err(_) => number,
        }
    }

    fn page(&self, line: &View, page: &MapPage, bytes: Range<u64>, gap: &mut Gap<'_>, sink: Sink<'_>) {
        let log2 = line.branch.chunk_log2;
        let mut at = bytes.start;
        while at < bytes.end {
            let chunk = Chunk::of(at, log2);
            let end = chunk.next().start(log2).min(bytes.end);
            match page.get(MapPage::locate(chunk).1) {
                None => gap.extend(at..end),
                Some(entry) => {
                    gap.flush(sink);
                    if entry.slot == Slot::HOLE {
                        sink(at..end, Kind::Zeros);
                    } else {
                        let from = entry.slot.offset() + (at - chunk.start(log2));
                        self.slot(entry.slot.pv(), from, at..end, sink);
                    }
                }
            }
            at = end;
        }
    }

    /// Walks bytes that lie on a physical volume from byte `from` on.
    fn slot(&self, pv: u32, from: u64, bytes: Range<u64>, sink: Sink<'_>) {
        let pool = self.pool;
        let place = |at: u64| bytes.start + (at - from);
        let whole = from..from + (bytes.end - bytes.start);
        if pool.core.pvs.get(pv).is_err() {
            let why = format!("physical volume {pv} is unknown: its row of the catalog can't be read");
            return sink(bytes, Kind::Lost(LossReason::PhysicalVolume(why.into())));
        }
        let limit = pool.salvage().and_then(|found| found.limits.get(&pv));
        let end = limit.map_or(whole.end, |(len, _)| (*len).clamp(whole.start, whole.end));
        let mut at = whole.start;
        for part in pool.core.damage.overlaps(pv, whole.start..end) {
            sink(place(at)..place(part.start), Kind::Data);
            sink(place(part.start)..place(part.end), Kind::Lost(LossReason::KnownDamage));
            at = part.end;
        }
        sink(place(at)..place(end), Kind::Data);
        if let Some((_, why)) = limit.filter(|_| end < whole.end) {
            sink(place(end)..bytes.end, Kind::Lost(LossReason::PhysicalVolume(why.clone())));
        }
    }

    /// Walks a moment of a history. Only the attempt shows whether a chunk can be reconstructed.
    fn moment(&self, at: &PinnedMoment, bytes: Range<u64>, sink: Sink<'_>) {
        let log2 = at.line().branch.chunk_log2;
        let mut start = bytes.start;
        while start < bytes.end {
            let chunk = Chunk::of(start, log2);
            let end = chunk.next().start(log2).min(bytes.end);
            let kind = match at.chunk(&self.pool.core, chunk) {
                Ok(_) => Kind::Data,
                Err(e) => Kind::Lost(LossReason::History(e.to_string().into())),
            };
            sink(start..end, kind);
            start = end;
        }
    }
}

/// The last bytes of the walk for which a line itself has nothing. Its base is asked for all of
/// them at once.
struct Gap<'a> {
    walk: &'a Walk<'a>,
    line: &'a View,
    range: Range<u64>,
}

impl Gap<'_> {
    fn extend(&mut self, bytes: Range<u64>) {
        if self.range.is_empty() {
            self.range.start = bytes.start;
        }
        self.range.end = bytes.end;
    }

    fn flush(&mut self, sink: Sink<'_>) {
        let bytes = std::mem::replace(&mut self.range, 0..0);
        match self.line.branch.base() {
            _ if bytes.is_empty() => {}
            Some(Base::View(base)) => self.walk.line(&base, bytes, sink),
            Some(Base::Image(image)) => of_image(&image, bytes, sink),
            None => sink(bytes, Kind::Zeros),
        }
    }
}

/// Walks a range of an image, which can be used as a whole or not at all.
fn of_image(image: &ExternalImage, bytes: Range<u64>, sink: Sink<'_>) {
    let shown = image.record.shown.clamp(bytes.start, bytes.end);
    let kind = match image.check() {
        Ok(()) => Kind::Data,
        Err(e) => Kind::Lost(LossReason::Image(e.to_string().into())),
    };
    if shown > bytes.start {
        sink(bytes.start..shown, kind);
    }
    sink(shown..bytes.end, Kind::Zeros);
}
