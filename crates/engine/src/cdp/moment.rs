//! Moments: which LSN somebody means, what a volume was then, and read-only devices that show it.

use super::record::Entry;
use super::{Moment, Point};
use crate::catalog::{Event, LineRecord, SegmentRecord};
use crate::error::{Result, invalid, not_found};
use crate::map::page::CHUNKS;
use crate::pool::line::{Base, Branch, HEAD, Line, VolumeState};
use crate::pool::{Origin, Pool};
use crate::volume::Volume;
use crate::world::derived_uuid;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of chunks that a reader of a moment keeps, so that reading on does not reconstruct them again.
const CACHED_BYTES: usize = 1 << 20;

/// The identity of the device that shows a volume at an LSN: the same whenever it is opened.
pub fn moment_uuid(volume: &[u8; 16], lsn: u64) -> [u8; 16] {
    derived_uuid("hindcast moment", &[volume, &lsn.to_be_bytes()])
}

/// A moment of a branch that something rests on: nothing of it expires before this is dropped.
pub(crate) struct At {
    branch: Arc<Branch>,
    lsn: u64,
    /// It was pinned in time.
    kept: bool,
    /// Chunks read lately, oldest first.
    cache: Mutex<Vec<(u64, Arc<[u8]>)>>,
}

impl At {
    pub(crate) fn new(branch: &Arc<Branch>, lsn: u64) -> Arc<At> {
        let kept = branch.cdp.pin(lsn);
        Arc::new(At { branch: branch.clone(), lsn, kept, cache: Mutex::default() })
    }

    /// The branch, and the LSN.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.branch.id, self.lsn)
    }

    pub(super) fn branch(&self) -> &Arc<Branch> {
        &self.branch
    }

    /// What the branch is now.
    pub(crate) fn line(&self) -> Line {
        Line { branch: self.branch.clone(), epoch: HEAD, at: None }
    }

    /// The size of the volume then, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.branch.cdp.log.read().size_at(self.lsn)
    }

    /// Fills `out` from byte `offset`. False where something has to be reconstructed, and that may not be.
    pub(crate) fn read(&self, pool: &Pool, out: &mut [u8], offset: u64, may_block: bool) -> Result<bool> {
        let size = self.branch.chunk_size();
        let mut done = 0;
        while done < out.len() {
            let place = offset + done as u64;
            let inside = (place % size) as usize;
            let len = (size as usize - inside).min(out.len() - done);
            let content = match self.cached(place / size) {
                Some(content) => content,
                None if may_block => self.chunk(pool, place / size)?,
                None => return Ok(false),
            };
            out[done..done + len].copy_from_slice(&content[inside..inside + len]);
            done += len;
        }
        Ok(true)
    }

    /// A chunk as it was, from the cache or reconstructed.
    pub(crate) fn chunk(&self, pool: &Pool, chunk: u64) -> Result<Arc<[u8]>> {
        if let Some(content) = self.cached(chunk) {
            return Ok(content);
        }
        let content: Arc<[u8]> = pool.chunk_at(&self.branch, chunk, self.lsn)?.into();
        let mut cache = self.cache.lock();
        if cache.len() >= (CACHED_BYTES / content.len()).max(1) {
            cache.remove(0);
        }
        cache.push((chunk, content.clone()));
        Ok(content)
    }

    pub(crate) fn cached(&self, chunk: u64) -> Option<Arc<[u8]>> {
        self.cache.lock().iter().find(|(of, _)| *of == chunk).map(|(_, content)| content.clone())
    }
}

impl Drop for At {
    fn drop(&mut self) {
        self.branch.cdp.unpin(self.lsn);
    }
}

fn yet_to_come(of: std::fmt::Arguments<'_>) -> crate::Error {
    invalid(format!("go to a moment{of}: it is yet to come"))
}

/// How a moment is looked for: a time is pool time.
#[derive(Clone, Copy)]
enum By {
    Lsn(u64),
    Time(u64),
}

impl By {
    fn reaches(self, lsn: u64, time: u64) -> bool {
        match self {
            By::Lsn(most) => lsn <= most,
            By::Time(most) => time <= most,
        }
    }
}

impl Pool {
    /// Finds a moment of a volume's past: see [`Moment`]. One after now is [`crate::ErrorKind::Invalid`], one that was not
    /// recorded, or has expired, [`crate::ErrorKind::NotFound`].
    pub fn resolve(&self, volume: &str, moment: &Moment) -> Result<Point> {
        self.check_histories()?;
        let id = self.names.read().volume(volume)?.id;
        let by = self.wanted(volume, id, moment)?;
        // What was sequenced by then is carried out first: it is recorded there.
        match by {
            By::Lsn(lsn) => self.record_until(lsn)?,
            By::Time(time) => self.record_until_time(time)?,
        }
        let (branch, found, time) = self.look_up(volume, id, by)?;
        let lsn = if let By::Lsn(lsn) = by { lsn } else { found };
        let log = branch.cdp.log.read();
        if lsn < log.floor() {
            return Err(not_found(format!(
                "go back to LSN {lsn} of volume {volume}: its history begins at LSN {} now",
                log.floor()
            )));
        }
        if log.recording_since(lsn).is_none() {
            return Err(not_found(format!("go back to LSN {lsn} of volume {volume}: CDP was not on then")));
        }
        Ok(Point { lsn, time: self.clock.wall(time), branch: branch.id, size: log.size_at(lsn) })
    }

    /// The first map page in `first..=last` in which a moment may show anything.
    pub(crate) fn next_page_at(&self, at: &At, first: u64, last: u64) -> Result<Option<u64>> {
        let branch = &at.branch;
        let placed = self.catalog.next_mapped(branch.id, first, last)?;
        let kept = self.catalog.next_version(branch.id, first * CHUNKS)?.map(|chunk| chunk / CHUNKS);
        let known = placed.into_iter().chain(kept).min().filter(|page| *page <= last);
        // Only what comes before that is looked for in the log.
        let recorded = branch.cdp.next_page(first..known.unwrap_or(last.saturating_add(1)))?;
        Ok(recorded.or(known))
    }

    fn wanted(&self, volume: &str, id: u64, moment: &Moment) -> Result<By> {
        let by = match moment {
            Moment::Lsn(lsn) | Moment::FlushUpTo(lsn) => By::Lsn(*lsn),
            Moment::PoolTime(time) | Moment::FlushBeforePoolTime(time) => By::Time(*time),
            Moment::Time(wall) | Moment::FlushBefore(wall) => {
                let time = self.pool_time(*wall);
                By::Time(time.ok_or_else(|| yet_to_come(format_args!(" of volume {volume}")))?)
            }
            Moment::Mark(name) => {
                let lsn = self.names.read().marks.get(&(id, name.clone())).copied();
                By::Lsn(lsn.ok_or_else(|| {
                    not_found(format!("find the mark {name:?} of volume {volume}: there is none"))
                })?)
            }
        };
        let future = match by {
            By::Lsn(lsn) => lsn > self.journal.last().0,
            By::Time(time) => time > self.now(),
        };
        if future {
            return Err(yet_to_come(format_args!(" of volume {volume}")));
        }
        match moment {
            Moment::FlushBefore(_) | Moment::FlushUpTo(_) | Moment::FlushBeforePoolTime(_) => {
                let flush = self.last_flush(id, |(lsn, time)| by.reaches(*lsn, *time))?;
                Ok(By::Lsn(flush.map(|(lsn, _)| lsn).ok_or_else(|| {
                    not_found(format!("find a flush of volume {volume} by that moment: none is known"))
                })?))
            }
            _ => Ok(by),
        }
    }

    /// A moment as it is, but a time on the wall as pool time.
    pub(super) fn by_pool_time(&self, moment: &Moment) -> Result<Moment> {
        let find = |wall| self.pool_time(wall).ok_or_else(|| yet_to_come(format_args!("")));
        Ok(match moment {
            Moment::Time(wall) => Moment::PoolTime(find(*wall)?),
            Moment::FlushBefore(wall) => Moment::FlushBeforePoolTime(find(*wall)?),
            moment => moment.clone(),
        })
    }

    /// The moment of a snapshot, as LSN. [`crate::ErrorKind::NotFound`] where the volume's history does not have it: CDP was
    /// off when it was taken, or that part of the history was forgotten.
    pub fn moment_of_snapshot(&self, volume: &str, snapshot: &str) -> Result<u64> {
        let (id, state) = {
            let names = self.names.read();
            let volume = names.volume(volume)?;
            (volume.id, names.snapshot(volume, snapshot)?.state.clone())
        };
        let branch = &state.line.branch;
        let anchor = || branch.cdp.log.read().anchor(state.id);
        let mut found = anchor();
        if found.is_none() {
            // It may not be carried out yet.
            self.record_until(self.journal.last().0)?;
            found = anchor();
        }
        let lsn = found.ok_or_else(|| {
            not_found(format!(
                "go back to the moment of snapshot {volume}@{snapshot}: the volume's history does not have it"
            ))
        })?;
        // A rollback keeps what was before it. From its place in the order on the volume has another content.
        let lines = self.lines.read();
        let line = lines.get(&id).and_then(|of_volume| of_volume.get(&lsn));
        let left = matches!(line, Some(LineRecord::Branch { branch: to, .. }) if *to != branch.id);
        Ok(if left { lsn - 1 } else { lsn })
    }

    /// The branch that a volume wrote to at a moment, and the last thing recorded there by then: (LSN, time).
    fn look_up(&self, volume: &str, id: u64, by: By) -> Result<(Arc<Branch>, u64, u64)> {
        let line = {
            let lines = self.lines.read();
            let of_volume = lines.get(&id).into_iter().flatten();
            let spans = of_volume.filter_map(|(lsn, line)| match line {
                LineRecord::Branch { branch, time } => Some((*branch, *lsn, *time)),
                LineRecord::Mark { .. } => None,
            });
            spans.filter(|(_, lsn, time)| by.reaches(*lsn, *time)).max_by_key(|(_, lsn, _)| *lsn)
        };
        let unknown = || not_found(format!("go back in volume {volume}: CDP was not on then"));
        let (branch, lsn, time) = line.ok_or_else(unknown)?;
        let branch = self.names.read().branches.get(&branch).cloned().ok_or_else(unknown)?;
        let (lsn, time) =
            branch.last_recorded(by)?.into_iter().chain([(lsn, time)]).max().unwrap_or((lsn, time));
        Ok((branch, lsn, time))
    }

    /// A moment that something rests on, as users know it.
    pub(crate) fn moment_origin(&self, at: &At) -> Origin {
        let (branch, lsn) = at.place();
        let began = {
            let lines = self.lines.read();
            let all = lines.iter().flat_map(|(volume, lines)| lines.iter().map(move |line| (*volume, line)));
            let of_branch = all.filter_map(|(volume, (from, line))| match line {
                LineRecord::Branch { branch: of, time } if *of == branch && *from <= lsn => {
                    Some((*from, *time, volume))
                }
                _ => None,
            });
            of_branch.max()
        };
        let name = |id| Some(self.names.read().volume_by_id(id)?.name.read().clone());
        let volume = began.and_then(|(.., volume)| name(volume)).unwrap_or_default();
        let recorded = at.branch.last_recorded(By::Lsn(lsn));
        let time = recorded.ok().map(|found| found.max(began.map(|(from, time, _)| (from, time))));
        Origin::Moment { volume, lsn, time: time.flatten().map(|(_, time)| self.clock.wall(time)) }
    }

    /// The branches that rest on a moment, with the name of the volume whose history it is, as far as that is there still,
    /// and the LSN: of volumes that were recovered, or taken back.
    pub fn moment_bases(&self) -> BTreeMap<u64, (Option<String>, u64)> {
        let owners: BTreeMap<u64, u64> = {
            let lines = self.lines.read();
            let all =
                lines.iter().flat_map(|(volume, lines)| lines.values().map(move |line| (line, *volume)));
            let of_branch = all.filter_map(|(line, volume)| match line {
                LineRecord::Branch { branch, .. } => Some((*branch, volume)),
                LineRecord::Mark { .. } => None,
            });
            of_branch.collect()
        };
        let names = self.names.read();
        let base = |(id, branch): (&u64, &Arc<Branch>)| {
            let Some(Base::Line(line)) = branch.base() else { return None };
            let (of, lsn) = line.at?.place();
            let volume = owners.get(&of).and_then(|volume| names.volume_by_id(*volume));
            Some((*id, (volume.map(|v| v.name.read().clone()), lsn)))
        };
        names.branches.iter().filter_map(base).collect()
    }

    /// A read-only device that shows a volume as it was at a moment. While it is held, nothing of that moment expires.
    pub fn open_moment(self: &Arc<Self>, volume: &str, moment: &Moment) -> Result<Arc<Volume>> {
        let (state, line, point) = self.hold(volume, moment)?;
        let of = (moment_uuid(&state.uuid, point.lsn), state.block_size, point.time);
        let view = VolumeState::frozen(0, of, line, format!("{volume}@lsn-{}", point.lsn), point.size);
        Ok(Arc::new(Volume::new(self.clone(), Arc::new(view), true, false)))
    }

    /// Finds a moment and keeps it from expiring.
    pub(crate) fn hold(&self, volume: &str, moment: &Moment) -> Result<(Arc<VolumeState>, Line, Point)> {
        let state = self.names.read().volume(volume)?.clone();
        let point = self.resolve(volume, moment)?;
        let branch = self.names.read().branches.get(&point.branch).cloned();
        let branch = branch.ok_or_else(|| not_found("go back to a moment: it has just expired"))?;
        let at = At::new(&branch, point.lsn);
        if !at.kept || branch.cdp.log.read().floor() > point.lsn {
            return Err(not_found("go back to a moment: it has just expired"));
        }
        Ok((state, Line { branch, epoch: 0, at: Some(at) }, point))
    }
}

impl Branch {
    /// The last record or event of the branch up to a moment: (LSN, time).
    fn last_recorded(&self, by: By) -> Result<Option<(u64, u64)>> {
        // Segments that lie before the moment as a whole need not be read, nor those that can't
        // have anything later.
        let whole = |r: &SegmentRecord| by.reaches(r.lsns.1, r.times.1);
        let (mut best, sealed, open) = {
            let log = self.cdp.log.read();
            // The first moment that there is may have neither a record nor another event any more.
            let events = log.events.iter().map(|(lsn, event)| match event {
                Event::Floor { lsn, time } => (*lsn, *time),
                _ => (*lsn, event.time()),
            });
            let event = events.filter(|(lsn, time)| by.reaches(*lsn, *time)).max();
            let straddles = |r: &SegmentRecord| by.reaches(r.lsns.0, r.times.0);
            let sealed: Vec<_> = log.sealed.values().filter(|s| straddles(&s.record)).cloned().collect();
            let open = log.open.as_ref().filter(|open| straddles(&open.record));
            let open = open.map(|open| match whole(&open.record) {
                true => Ok(Some((open.record.lsns.1, open.record.times.1))),
                false => open.check().map(|()| latest(open.entries.values(), by)),
            });
            (event, sealed, open.transpose()?.flatten())
        };
        best = best.max(open);
        let ends = sealed.iter().filter(|s| whole(&s.record)).map(|s| (s.record.lsns.1, s.record.times.1));
        best = best.max(ends.max());
        for segment in sealed.iter().filter(|s| !whole(&s.record)) {
            best = best.max(latest(segment.all_entries()?.iter(), by));
        }
        Ok(best)
    }
}

fn latest<'a>(entries: impl Iterator<Item = &'a Entry>, by: By) -> Option<(u64, u64)> {
    entries.filter(|e| by.reaches(e.lsn, e.time)).map(|e| (e.lsn, e.time)).max()
}
