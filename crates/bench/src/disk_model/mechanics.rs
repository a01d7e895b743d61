//! A disk that turns: what an access takes, from the state that the accesses before it left.
//!
//! Times are in milliseconds since an arbitrary beginning, at which sector 0 of the outermost track
//! is under the head. An access begins when it arrives, or when the access before it has ended. The
//! time that it waits for that is no part of its price.

use super::cache::{FillingSegment, SegmentCache};
use super::drives::Drive;

/// The milliseconds that an access takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Price {
    /// The arm moves, or the drive switches heads. For a write, the settling of the head is
    /// included.
    pub(super) seek: f64,
    /// The first sector comes under the head.
    pub(super) rotation: f64,
    /// The sectors pass the head or the interface. The time of the command is included, and that
    /// of switches between the tracks of the access.
    pub(super) transfer: f64,
    /// Whether the drive had the data in its cache, or was about to read it ahead.
    pub(super) from_cache: bool,
}

impl Price {
    pub(super) fn total(&self) -> f64 {
        self.seek + self.rotation + self.transfer
    }
}

/// Sectors `from..to`. There is at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SectorRange {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// A disk with its head and its cache.
pub(super) struct SpinningDisk<'a> {
    drive: &'a Drive,
    /// When the last access ended.
    free: f64,
    /// The sector that passed the head last, if the head does not read ahead.
    head: u64,
    cache: SegmentCache,
}

impl SpinningDisk<'_> {
    pub(super) fn new(drive: &Drive) -> SpinningDisk<'_> {
        let cache = SegmentCache::new(drive.segments, drive.segment, drive.read_ahead);
        SpinningDisk { drive, free: 0.0, head: 0, cache }
    }

    /// Returns when the last access ended.
    #[cfg(test)]
    pub(super) fn free(&self) -> f64 {
        self.free
    }

    /// Reads sectors for a host that asks at time `at`.
    pub(super) fn read(&mut self, at: f64, range: SectorRange) -> Price {
        let now = at.max(self.free);
        let price = match self.read_ahead(now, range) {
            Some(price) => price,
            None if self.cache.serves(range.from, range.to) => self.answered(range),
            None => {
                self.stop(now);
                self.read_medium(now, range.from, range)
            }
        };
        self.free = now + price.total();
        price
    }

    /// Writes sectors to the medium for a host that asks at time `at`.
    pub(super) fn write(&mut self, at: f64, range: SectorRange) -> Price {
        let now = at.max(self.free);
        self.stop(now);
        self.cache.forget(range.from, range.to);
        let command = self.drive.command;
        let (seek, rotation) = self.position(now + command, range.from, self.drive.write_settle);
        let transfer = command + self.drive.geometry.passing(range.from, range.to);
        let price = Price { seek, rotation, transfer, from_cache: false };
        self.head = range.to - 1;
        self.free = now + price.total();
        price
    }

    /// Writes requests that a host issues together at time `at`, in C-LOOK order: upwards from the
    /// head, then from the lowest one upwards. A request that touches the one before it goes with
    /// it, as one command. Sectors that both have are written once. Returns the prices in the order
    /// of `requests`.
    pub(super) fn write_together(&mut self, at: f64, requests: &[SectorRange]) -> Vec<Price> {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|n| requests[*n]);
        self.stop(at.max(self.free));
        let behind = order.partition_point(|n| requests[*n].from < self.head);
        order.rotate_left(behind);
        let mut prices = vec![Price::default(); requests.len()];
        // Sectors that the command has so far.
        let mut run: Option<SectorRange> = None;
        for n in order {
            let request = requests[n];
            match &mut run {
                Some(run) if (run.from..=run.to).contains(&request.from) => {
                    let more = self.drive.geometry.continuing(run.to, request.to);
                    prices[n].transfer = more;
                    self.cache.forget(request.from, request.to);
                    run.to = run.to.max(request.to);
                    self.head = run.to - 1;
                    self.free += more;
                }
                run => {
                    prices[n] = self.write(at, request);
                    *run = Some(request);
                }
            }
        }
        prices
    }

    /// Reads from the segment that the head reads into. `None` if that segment does not lead to the
    /// range.
    fn read_ahead(&mut self, now: f64, range: SectorRange) -> Option<Price> {
        let geometry = &self.drive.geometry;
        let filling = self.cache.filling()?;
        if !(filling.from..=filling.limit).contains(&range.from) {
            return None;
        }
        let reached = geometry.reached(filling.next, now - filling.since, filling.limit);
        if range.from < reached.saturating_sub(self.cache.length()) {
            return None;
        }
        if range.to <= reached {
            self.read_on(now, range, &filling, reached);
            return Some(self.answered(range));
        }
        if reached == filling.limit {
            // The head waits at the end of the read-ahead. The sectors before it are in the cache.
            self.head = reached.saturating_sub(1);
            return Some(self.read_medium(now, filling.from, SectorRange { from: reached, ..range }));
        }
        Some(self.follow(now, range, &filling))
    }

    /// Makes room for more read-ahead, since the host takes the range. A head that waited at the
    /// end of the read-ahead goes on when its place comes by.
    fn read_on(&mut self, now: f64, range: SectorRange, filling: &FillingSegment, reached: u64) {
        let geometry = &self.drive.geometry;
        let (mut next, mut since) = (filling.next, filling.since);
        let may_go_on = range.to.saturating_add(self.drive.read_ahead) > reached;
        if reached == filling.limit && reached > 0 && may_go_on {
            let last = geometry.locate(reached - 1);
            (next, since) = (reached, now + geometry.turn_to_end(now, &last));
        }
        self.cache.extend(range.to, next, since, geometry.sectors());
    }

    /// Lets the head, which is reading ahead, read on to the end of the range.
    fn follow(&mut self, now: f64, range: SectorRange, filling: &FillingSegment) -> Price {
        let geometry = &self.drive.geometry;
        let read = |sector: u64| filling.since + geometry.continuing(filling.next, sector);
        let rotation = (read(range.from) - now).max(0.0);
        let end_on_medium = read(range.to);
        let end = end_on_medium.max(now + self.answered(range).transfer);
        self.cache.fill(filling.from, range.to, end_on_medium, geometry.sectors());
        Price { seek: 0.0, rotation, transfer: end - now - rotation, from_cache: true }
    }

    /// Reads the range from the medium. The segment of the read begins at `segment`.
    fn read_medium(&mut self, now: f64, segment: u64, range: SectorRange) -> Price {
        let Drive { geometry, command, .. } = self.drive;
        let (seek, rotation) = self.position(now + command, range.from, 0.0);
        let transfer = command + geometry.passing(range.from, range.to);
        let price = Price { seek, rotation, transfer, from_cache: false };
        self.head = range.to - 1;
        self.cache.fill(segment, range.to, now + price.total(), geometry.sectors());
        price
    }

    /// Returns the price of a read that only needs the interface.
    fn answered(&self, range: SectorRange) -> Price {
        let on_interface = (range.to - range.from) as f64 * self.drive.sector_on_interface;
        Price { transfer: self.drive.command + on_interface, from_cache: true, ..Price::default() }
    }

    /// Returns the times until the head is on the track of a sector, and from then until the sector
    /// is under the head. `settle` is added if the arm moves.
    fn position(&self, at: f64, sector: u64, settle: f64) -> (f64, f64) {
        let Drive { geometry, seek, .. } = self.drive;
        let (here, there) = (geometry.locate(self.head), geometry.locate(sector));
        let switch = if here.surface == there.surface { 0.0 } else { geometry.head_switch() };
        let time = match here.cylinder.abs_diff(there.cylinder) {
            0 => switch,
            distance => seek.milliseconds(distance).max(switch) + settle,
        };
        (time, geometry.turn_to(at + time, &there))
    }

    /// Ends the read-ahead at time `now`. The head stays where it is.
    fn stop(&mut self, now: f64) {
        if let Some(filling) = self.cache.filling() {
            let reached = self.drive.geometry.reached(filling.next, now - filling.since, filling.limit);
            self.head = reached.saturating_sub(1);
            self.cache.stop(reached);
        }
    }
}
