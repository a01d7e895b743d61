//! Exports and imports: streams of snapshots. They are compared with the oracle, cut short, and
//! continued.

use crate::generate::Transfers;
use crate::oracle::{Content, Effect, ImportModel, SECTOR, SnapId, State, VolId, VolumeModel, stamp_of};
use crate::perform::Answer;
use crate::run::{Outcome, Run, cut};
use crate::survive;
use hindcast_engine::stream::Import;
use hindcast_engine::{Error, ErrorKind};
use std::sync::Arc;
use uuid::Uuid;

/// Maximum number of streams that a run keeps.
const MAX_STREAMS: usize = 5;
/// Maximum number of replaced imports that a run keeps.
const MAX_STALE: usize = 3;
/// Maximum number of chunks of a snapshot that a run exports. An export finds holes chunk by chunk.
const MAX_CHUNKS: u64 = 1 << 20;
/// Bytes of the header of a record. `PREFIX` is the number of bytes before the body of the stream's
/// header.
const RECORD: usize = 32;
const PREFIX: usize = 14;

/// A stream, as the client that fetched it stores it.
pub(crate) struct Stream {
    pub(crate) from: Option<SnapId>,
    pub(crate) to: SnapId,
    name: String,
    start: u64,
    size: u64,
    chunk_size: u64,
    block_size: u32,
    content: Content,
    header: Vec<u8>,
    records: Vec<Record>,
}

struct Record {
    bytes: Vec<u8>,
    does: Does,
}

#[derive(Clone)]
enum Does {
    Data { offset: u64, stamps: Arc<[u64]> },
    Zeros { offset: u64, length: u64 },
    End,
}

impl Does {
    fn end(&self) -> u64 {
        match self {
            Does::Data { offset, stamps } => offset + stamps.len() as u64 * SECTOR,
            Does::Zeros { offset, length } => offset + length,
            Does::End => 0,
        }
    }
}

/// An import of a stream that is under way.
pub(crate) struct Arriving {
    import: Import,
    stream: Arc<Stream>,
    next: usize,
    vol: VolId,
    /// The line that the import writes to.
    line: u32,
    /// A number that no other import has.
    lease: u64,
    position: u64,
}

fn integer(bytes: &[u8], at: usize, len: usize) -> Outcome<u64> {
    let part = bytes.get(at..at + len).ok_or("a stream that ends in the middle of a record")?;
    Ok(part.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Splits a stream into its header and its records, as FORMAT.md defines them.
fn records(bytes: &[u8]) -> Outcome<(Vec<u8>, Vec<Record>)> {
    let header = PREFIX + integer(bytes, PREFIX - 4, 4)? as usize + 4;
    let (header, mut rest) = bytes.split_at_checked(header).ok_or("a stream without a header")?;
    let mut records = Vec::new();
    while !rest.is_empty() {
        let (offset, length) = (integer(rest, 8, 8)?, integer(rest, 16, 8)?);
        let data = if integer(rest, 0, 4)? == 1 { length as usize } else { 0 };
        let (record, after) = rest.split_at_checked(RECORD + data).ok_or("a stream that ends in a record")?;
        let stamps = || {
            let sectors = (offset / SECTOR..).zip(record[RECORD..].chunks_exact(SECTOR as usize));
            sectors.map(|(sector, bytes)| stamp_of(bytes, sector)).collect()
        };
        let does = match integer(rest, 0, 4)? {
            1 => Does::Data { offset, stamps: stamps() },
            2 => Does::Zeros { offset, length },
            3 => Does::End,
            kind => return Err(format!("a record of kind {kind}")),
        };
        records.push(Record { bytes: record.to_vec(), does });
        rest = after;
    }
    Ok((header.to_vec(), records))
}

impl Run {
    /// Returns what the generator needs to know of streams and imports.
    pub(crate) fn transfers(&self) -> Transfers {
        let streams = self.streams.iter().map(|s| (s.from, s.to)).collect();
        let complete = |a: &Arriving| a.next == a.stream.records.len();
        let stale = self.stale.len() as u64;
        Transfers { streams, arriving: self.arriving.as_ref().map(complete), stale }
    }

    /// Returns the unfinished import into a volume, as the pool reports it.
    pub(crate) fn found_import(&self, volume: &str) -> Outcome<Option<ImportModel>> {
        let found = self.pool()?.unfinished_import(volume).map_err(|e| format!("{e:?}"))?;
        let number = |content: Uuid| {
            let known = self.snapshot_ids.get(&content).copied();
            known.ok_or_else(|| format!("an import into {volume} of what nobody exported"))
        };
        let model = |f: hindcast_engine::stream::UnfinishedImport| {
            let from = f.from.map(number).transpose()?;
            Ok(ImportModel { from, to: number(f.to)?, position: f.position })
        };
        found.map(model).transpose()
    }

    pub(crate) fn export(&mut self, snap: SnapId, from: Option<SnapId>, start: u64) -> Outcome<()> {
        let of = self.snapshot_model(snap)?.clone();
        if of.size / of.chunk_size > MAX_CHUNKS {
            return Ok(());
        }
        let base = from.map(|from| self.snapshot_model(from).cloned()).transpose()?;
        if base.as_ref().is_some_and(|b| b.volume != of.volume) {
            return Ok(());
        }
        let volume = self.volume_name(of.volume)?;
        let base_name = base.as_ref().map(|b| b.name.as_str());
        let pool = self.pool()?;
        let fetch = || -> Result<Vec<u8>, Error> {
            let mut export = pool.export(&volume, &of.name, base_name, start)?;
            let mut all = Vec::new();
            while let Some(piece) = export.next_piece()? {
                all.extend(piece);
            }
            Ok(all)
        };
        let bytes = match survive(fetch) {
            Ok(bytes) => bytes,
            Err(e) => return self.sort(Err(e), &[]).map(drop),
        };
        let (header, records) = records(&bytes)?;
        let content = base.as_ref().map(|b| b.content.clone()).unwrap_or_default();
        check_stream(&records, start, content, &of.content, of.size)
            .map_err(|e| format!("the stream of {volume}@{} from {base_name:?}: {e}", of.name))?;
        self.say(|| format!("  stream of {} bytes, {} records", bytes.len(), records.len()));
        if self.streams.len() == MAX_STREAMS {
            self.streams.remove(0);
        }
        self.streams.push(Arc::new(Stream {
            from: base.map(|b| b.origin),
            to: of.origin,
            name: of.name,
            start,
            size: of.size,
            chunk_size: of.chunk_size,
            block_size: of.block_size,
            content: of.content,
            header,
            records,
        }));
        Ok(())
    }

    /// Returns what the beginning of a stream does to a volume of that name: (volume, position,
    /// effects). `Err` means that the pool must refuse the stream. `new` is the number of a volume
    /// that it creates.
    fn arrival(&self, stream: &Stream, name: &str, new: VolId) -> Result<(VolId, u64, Vec<Effect>), ()> {
        let state = self.oracle.state();
        let begun = ImportModel { from: stream.from, to: stream.to, position: 0 };
        let volume = state.volumes.iter().find(|(_, v)| v.name == name);
        let unfinished = volume.and_then(|(_, v)| v.import);
        let position = unfinished.map_or(0, |import| import.position);
        let other = unfinished.is_some_and(|import| ImportModel { position: 0, ..import } != begun);
        if other || stream.start > position {
            return Err(());
        }
        let Some((vol, volume)) = volume else {
            let chunk_size = stream.chunk_size.min(self.plan.config.extent_size);
            let model = VolumeModel::new(name.into(), stream.size, chunk_size, stream.block_size, false);
            let effects = vec![Effect::Create(new, model), Effect::Import(new, Some(begun))];
            return if stream.from.is_none() { Ok((new, 0, effects)) } else { Err(()) };
        };
        if unfinished.is_none() && !fits(state, *vol, volume, stream) {
            return Err(());
        }
        let begins = unfinished.is_none().then_some(Effect::Import(*vol, Some(begun)));
        let resizes = (volume.size != stream.size).then_some(Effect::Resize(*vol, stream.size));
        Ok((*vol, position, begins.into_iter().chain(resizes).collect()))
    }

    pub(crate) fn begin_import(&mut self, stream: u64, name: &str) -> Outcome<()> {
        // The sender of the import before may not know of this import.
        self.stale.extend(self.arriving.take());
        if self.stale.len() > MAX_STALE {
            self.stale.remove(0);
        }
        let new = self.next_vol;
        self.next_vol += 1;
        let Some(stream) = self.streams.get((stream % self.streams.len().max(1) as u64) as usize).cloned()
        else {
            return Ok(());
        };
        self.make_room(16 << 10)?;
        let expected = self.arrival(&stream, name, new);
        let (vol, position, effects) = expected.clone().unwrap_or((new, 0, Vec::new()));
        let mut import = self.pool()?.import(Some(name));
        // The pool adds an anchor before a volume becomes smaller.
        self.may_anchor(vol);
        self.oracle.attempt(&effects);
        let before = self.pool()?.stats().journal_records;
        let result = survive(|| import.push(&stream.header));
        let may_refuse = [ErrorKind::Conflict, ErrorKind::NotFound, ErrorKind::Invalid, ErrorKind::NoSpace];
        let answer = self.sort(result, &may_refuse)?;
        let begins = effects.first().is_some_and(|e| matches!(e, Effect::Create(..)));
        if let Answer::Refused(_) = answer {
            if self.pool()?.unfinished_import(name).is_ok_and(|i| i.is_some_and(|i| !i.running)) {
                // The refused import had already taken over the lease.
                self.leases.remove(&vol);
            }
            // Records before the refusal stay.
            let records = self.pool()?.stats().journal_records - before;
            let kept = (records as usize).min(effects.len());
            self.oracle.forget(effects.len() - kept);
            self.settle_with_oracle(&Answer::Done, &effects[..kept], kept > 0)?;
        } else {
            self.settle_with_oracle(&answer, &effects, !effects.is_empty())?;
        }
        if let (Ok(info), true) = (self.pool()?.volume(name), begins) {
            match answer {
                Answer::Unknown => self.unborn = Some(new),
                _ => drop(self.ids.insert(info.uuid, new)),
            }
        } else if let (Answer::Unknown, true) = (&answer, begins) {
            self.unborn = Some(new);
        }
        match (answer, expected) {
            (Answer::Done, Err(())) => Err(format!("a stream that does not fit {name} was taken")),
            (Answer::Done, Ok(_)) => {
                let line = self.model(vol)?.line;
                let lease = self.summary.ops;
                self.leases.insert(vol, lease);
                self.arriving = Some(Arriving { import, stream, next: 0, vol, line, lease, position });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a handle of the volume in its present line is open.
    pub(crate) fn in_use(&self, vol: VolId) -> bool {
        let line = self.oracle.state().volumes.get(&vol).map(|v| v.line);
        let mut arriving = self.arriving.iter().chain(&self.stale);
        arriving.any(|a| a.vol == vol && Some(a.line) == line) || self.handles.contains_key(&vol)
    }

    /// Returns whether an import may still fill its volume.
    fn is_current(&self, arriving: &Arriving) -> bool {
        let volume = self.oracle.state().volumes.get(&arriving.vol);
        let (from, to) = (arriving.stream.from, arriving.stream.to);
        let holds = self.leases.get(&arriving.vol) == Some(&arriving.lease);
        volume.is_some_and(|v| {
            holds && v.line == arriving.line && v.import.is_some_and(|i| (i.from, i.to) == (from, to))
        })
    }

    pub(crate) fn feed(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let Some(mut arriving) = self.arriving.take_if(|a| a.next < a.stream.records.len()) else {
                return Ok(());
            };
            if self.feed_record(&mut arriving)? {
                self.arriving = Some(arriving);
            }
        }
        Ok(())
    }

    /// Lets the sender of a replaced import send the next record, or the end after the last record.
    pub(crate) fn feed_stale(&mut self, which: u64) -> Outcome<()> {
        if self.stale.is_empty() {
            self.next_snapshot += 1;
            return Ok(());
        }
        let mut arriving = self.stale.remove(which as usize % self.stale.len());
        if arriving.next == arriving.stream.records.len() {
            return self.end(arriving);
        }
        self.next_snapshot += 1;
        if self.feed_record(&mut arriving)? {
            self.stale.push(arriving);
        }
        Ok(())
    }

    /// Sends the next record to the pool. Returns false if the import accepts no more records.
    fn feed_record(&mut self, arriving: &mut Arriving) -> Outcome<bool> {
        let stream = arriving.stream.clone();
        let Some(record) = stream.records.get(arriving.next) else { return Ok(false) };
        self.make_room(record.bytes.len() as u64 + (64 << 10))?;
        let (vol, most) = (arriving.vol, self.pool()?.max_record_bytes());
        let current = self.is_current(arriving);
        let effects: Vec<Effect> = match &record.does {
            does if does.end() <= arriving.position => Vec::new(),
            Does::Data { offset, stamps } => cut(*offset, stamps.len() as u64 * SECTOR, most)
                .map(|(at, len)| {
                    let from = ((at - offset) / SECTOR) as usize;
                    let stamps = stamps[from..from + (len / SECTOR) as usize].into();
                    Effect::Arrive { vol, sector: at / SECTOR, stamps }
                })
                .collect(),
            Does::Zeros { offset, length } => {
                let (sector, count) = (offset / SECTOR, length / SECTOR);
                vec![Effect::Zero { vol, sector, count, unmap: true }]
            }
            Does::End => Vec::new(),
        };
        let watch = self.watch_policies()?;
        self.may_anchor(vol);
        if self.may_stay_open(&effects) {
            return Ok(true);
        }
        arriving.next += 1;
        self.oracle.attempt(&effects);
        let result = survive(|| arriving.import.push(&record.bytes));
        let may_refuse: &[ErrorKind] = match current {
            true => &[ErrorKind::NoSpace],
            false => &[ErrorKind::Conflict, ErrorKind::NotFound],
        };
        let answer = self.sort(result, may_refuse)?;
        if !current && !effects.is_empty() && matches!(answer, Answer::Done) {
            return Err("an import that is over goes on writing".into());
        }
        self.oracle.forget(effects.len());
        let deleted = self.deleted_for_space(watch.as_ref())?;
        match self.done_in_part(&answer, &effects, deleted.len())? {
            Some(taken) => self.attempt_and_settle(&Answer::Done, deleted, taken, false)?,
            None => self.attempt_and_settle(&answer, deleted, &effects, false)?,
        }
        arriving.position = arriving.position.max(record.does.end());
        Ok(matches!(answer, Answer::Done))
    }

    pub(crate) fn keep_import(&mut self) -> Outcome<()> {
        let Some(mut arriving) = self.arriving.take() else { return Ok(()) };
        let (from, to, position) = (arriving.stream.from, arriving.stream.to, arriving.position);
        let current = self.is_current(&arriving);
        let effect = Effect::Import(arriving.vol, Some(ImportModel { from, to, position }));
        let refusals: &[ErrorKind] = if current { &[] } else { &[ErrorKind::Conflict, ErrorKind::NotFound] };
        let answer = self.control(effect, refusals, |_| arriving.import.keep())?;
        match answer {
            Answer::Done if !current => return Err("an import that is over keeps a position".into()),
            Answer::Done => self.arriving = Some(arriving),
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn end_import(&mut self) -> Outcome<()> {
        match self.arriving.take() {
            Some(arriving) => self.end(arriving),
            None => {
                self.next_snapshot += 1;
                Ok(())
            }
        }
    }

    fn end(&mut self, arriving: Arriving) -> Outcome<()> {
        let id = self.next_snapshot;
        self.next_snapshot += 1;
        let current = self.is_current(&arriving);
        let Arriving { import, stream, next, vol, .. } = arriving;
        if next < stream.records.len() {
            // The stream is incomplete, and the import stays at its position.
            let refused = survive(|| import.finish().map(drop));
            return match self.around(refused, &[ErrorKind::Corrupt])? {
                Answer::Done => Err("a stream that is not complete has made a snapshot".into()),
                _ => Ok(()),
            };
        }
        let state = self.oracle.state();
        let taken = state.has_snapshot(vol, &stream.name);
        let refusals: &[ErrorKind] =
            if current && !taken { &[] } else { &[ErrorKind::Conflict, ErrorKind::NotFound] };
        let effect = Effect::Imported(id, vol, stream.name.clone(), stream.to);
        let mut made = None;
        let answer = self.control(effect, refusals, |_| {
            made = Some(import.finish()?);
            Ok(())
        })?;
        match (answer, made) {
            (Answer::Done, Some(info)) if current && !taken => {
                self.made(&info, id)?;
                self.summary.imports += 1;
                if self.snapshot_ids.get(&info.content) != Some(&stream.to) {
                    return Err(format!("the content of {info:?} should be that of snapshot {}", stream.to));
                }
                let content = &self.snapshot_model(id)?.content;
                match difference(content, &stream.content, stream.size) {
                    None => Ok(()),
                    Some(sector) => Err(format!("sector {sector} differs from what was exported")),
                }
            }
            (Answer::Done, _) => Err("an import that is over ends with a snapshot".into()),
            (Answer::Unknown, _) => {
                self.unborn_snapshots = vec![(vol, stream.name.clone(), id)];
                Ok(())
            }
            (Answer::Refused(_), _) => Ok(()),
        }
    }

    pub(crate) fn cancel_import(&mut self, vol: VolId) -> Outcome<()> {
        let (name, there) = (self.volume_name(vol)?, self.model(vol)?.import.is_some());
        let refusals: &[ErrorKind] = if there { &[] } else { &[ErrorKind::Conflict] };
        match self.control(Effect::Import(vol, None), refusals, |pool| pool.cancel_import(&name))? {
            Answer::Done if !there => Err("an import that there was not is cancelled".into()),
            _ => Ok(()),
        }
    }
}

/// Returns whether a stream that begins may fill the volume. The pool may still refuse it: empty
/// content may hold space, and content that was written again unchanged is reported as changed.
fn fits(state: &State, vol: VolId, volume: &VolumeModel, stream: &Stream) -> bool {
    if !u64::from(stream.block_size).is_multiple_of(u64::from(volume.block_size)) {
        return false;
    }
    let mut snapshots = state.snapshots_of(vol);
    match stream.from {
        None => {
            volume.size == stream.size
                && snapshots.next().is_none()
                && volume.content.first(0, volume.size / SECTOR).is_none()
        }
        Some(from) => {
            let there = state.snapshots_of(vol).any(|(_, s)| s.origin == stream.to);
            let base = snapshots.find(|(_, s)| s.origin == from);
            !there
                && base.is_some_and(|(_, base)| {
                    base.size == volume.size
                        && difference(&base.content, &volume.content, volume.size).is_none()
                })
        }
    }
}

/// Returns the first sector below `size` in which two contents differ.
fn difference(one: &Content, other: &Content, size: u64) -> Option<u64> {
    let of = |content: &Content, against: &Content| {
        content.zones().find_map(|(number, zone)| {
            let first = number * zone.len() as u64;
            let sectors = (first..).zip(zone.iter()).filter(|(sector, _)| sector * SECTOR < size);
            sectors.filter(|(sector, stamp)| against.get(*sector) != **stamp).map(|(sector, _)| sector).next()
        })
    };
    of(one, other).or_else(|| of(other, one))
}

/// Checks that the records, applied to the content that they build upon, give the snapshot.
fn check_stream(
    records: &[Record],
    start: u64,
    mut content: Content,
    wanted: &Content,
    size: u64,
) -> Outcome<()> {
    for record in records {
        match &record.does {
            Does::Data { offset, stamps } => {
                for (sector, stamp) in (offset / SECTOR..).zip(stamps.iter()) {
                    content.set(sector, sector + 1, *stamp);
                }
            }
            Does::Zeros { offset, length } => content.set(offset / SECTOR, (offset + length) / SECTOR, 0),
            Does::End => {}
        }
    }
    if !records.last().is_some_and(|r| matches!(r.does, Does::End)) {
        return Err("it has no end".into());
    }
    // An earlier stream has transferred what comes before the start.
    let before = |content: &mut Content| content.set(0, start / SECTOR, 0);
    let mut wanted = wanted.clone();
    before(&mut content);
    before(&mut wanted);
    match difference(&content, &wanted, size) {
        None => Ok(()),
        Some(sector) => Err(format!("sector {sector} comes out wrong")),
    }
}
