//! Imports a stream into a volume.

use super::codec::{Decoder, StreamHeader, StreamItem};
use super::lease::Lease;
use super::zeros::{least, runs};
use crate::branch::VolumeState;
use crate::catalog::{ImportRecord, SnapshotRecord};
use crate::control::{CreateSnapshots, SetImport};
use crate::device::{BlockDevice, WriteOp};
use crate::error::{Error, ErrorKind, Result, conflict, corrupt, invalid, not_found};
use crate::ids::SnapshotId;
use crate::info::SnapshotInfo;
use crate::pool::Pool;
use crate::pool::control::resized;
use crate::pool::snapshots::{info, record};
use crate::settings::NewVolume;
use crate::volume::{Difference, Volume};
use crate::world::uuid;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uuid::Uuid;

/// A check whether a volume may have a name.
type NameCheck = Box<dyn Fn(&str) -> Result<()> + Send>;

/// Number of imported bytes after which the position is stored.
const KEPT_EVERY: u64 = 64 << 20;

/// An import that has begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfinishedImport {
    /// The identity of the content that it builds upon; `None`: nothing.
    pub from: Option<Uuid>,
    /// The identity of the content that it produces.
    pub to: Uuid,
    /// The byte of the volume at which an export that continues it has to begin.
    pub position: u64,
    /// Whether an import holds the volume now. A new import would take over.
    pub running: bool,
}

/// A stream that is being imported. From the header to the end, the volume takes no other writes.
/// That holds even if the import is dropped or the pool is opened again. Pushing the same stream
/// continues the import, and so does a stream that begins at the stored position. An import that
/// continues takes over: the one before it fails with [`ErrorKind::Conflict`] from then on.
/// Renaming the volume does not disturb it.
pub struct Import {
    pool: Arc<Pool>,
    /// The volume's name, if the caller gave one. Otherwise the stream's name counts.
    name: Option<String>,
    /// The check of a volume's name before the volume is created.
    check: Option<NameCheck>,
    /// The bytes are no stream, or were damaged on the way.
    malformed: bool,
    decoder: Decoder,
    target: Option<Target>,
}

struct Target {
    lease: Lease,
    header: StreamHeader,
    volume: Arc<Volume>,
    record: ImportRecord,
    /// The byte of the volume up to which everything has arrived.
    position: u64,
    /// Bytes of data since a position was stored. Zeros count too, since they had to be sent.
    unkept: u64,
}

impl Pool {
    /// Begins to import a stream, into the volume `name` or one of the name in the stream. A whole
    /// snapshot needs a volume that does not exist (or is empty, without snapshots). A difference
    /// needs a volume whose content is that of the snapshot that it builds upon.
    pub fn import(self: &Arc<Self>, name: Option<&str>) -> Import {
        let (pool, name) = (self.clone(), name.map(str::to_owned));
        Import { pool, name, check: None, malformed: false, decoder: Decoder::new(), target: None }
    }

    /// Returns the import into a volume that has begun and not ended, if there is one.
    pub fn unfinished_import(&self, volume: &str) -> Result<Option<UnfinishedImport>> {
        let names = self.core.names.read();
        let state = names.volume(volume)?;
        let import = *state.import.read();
        Ok(import.map(|i| UnfinishedImport {
            from: (!i.from.is_nil()).then_some(i.from),
            to: i.to,
            position: i.position,
            running: state.lease.load(Ordering::Acquire) != 0,
        }))
    }

    /// Cancels an import: the volume takes writes again, with what has arrived so far. (A rollback
    /// to the older snapshot restores its content.)
    pub fn cancel_import(&self, volume: &str) -> Result<()> {
        self.destager.submit(|names| {
            let state = names.volume(volume)?;
            if state.import.read().is_none() {
                return Err(conflict(format!("cancel the import into {volume}: no import is unfinished")));
            }
            Ok(SetImport { id: state.id, import: None }.into())
        })?;
        Ok(())
    }
}

impl Import {
    /// Sets `check` as the check of a volume's name before the volume is created.
    #[must_use]
    pub fn with_check(self, check: impl Fn(&str) -> Result<()> + Send + 'static) -> Import {
        Import { check: Some(Box::new(check)), ..self }
    }

    /// Returns the header of the stream, once it has arrived.
    pub fn header(&self) -> Option<&StreamHeader> {
        self.target.as_ref().map(|t| &t.header)
    }

    /// Returns the byte of the volume up to which everything has arrived.
    pub fn position(&self) -> u64 {
        self.target.as_ref().map_or(0, |t| t.position)
    }

    /// Imports the next bytes of the stream. After an error nothing more is imported.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.decoder.push(bytes);
        while let Some(item) = self.decoder.next().inspect_err(|_| self.malformed = true)? {
            match (item, &mut self.target) {
                (StreamItem::Header(header), _) => self.target = Some(self.begin(header)?),
                (StreamItem::Data { offset, data }, Some(target)) => {
                    let end = offset + data.len() as u64;
                    if end > target.position {
                        target.write(offset, &data)?;
                        target.arrived(&self.pool, end, data.len() as u64)?;
                    }
                }
                (StreamItem::Zeros { offset, length }, Some(target)) => {
                    if offset + length > target.position {
                        target.volume.discard(offset, length, false)?;
                        target.arrived(&self.pool, offset + length, 0)?;
                    }
                }
                (StreamItem::End, _) => {}
                (_, None) => return Err(corrupt("read the stream: it has no header")),
            }
        }
        Ok(())
    }

    /// Returns whether the whole stream has arrived, so that the import can be ended.
    pub fn is_complete(&self) -> bool {
        self.decoder.is_complete()
    }

    /// Returns whether the import failed because the bytes are no stream, or were damaged on the
    /// way.
    pub fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Stores the position durably, so that the import can continue from here after any
    /// interruption. The import also does that by itself from time to time.
    pub fn keep(&mut self) -> Result<()> {
        self.target.as_mut().map_or(Ok(()), |target| target.keep(&self.pool))
    }

    /// Ends the import, after the last byte. The snapshot then exists, under its name in the
    /// stream.
    pub fn finish(self) -> Result<SnapshotInfo> {
        let Some(target) = self.target.filter(|_| self.decoder.is_complete()) else {
            return Err(corrupt("end the import: the stream is not complete"));
        };
        let to = &target.header.to;
        self.pool.create_imported_snapshot(&target.lease, &to.name, to.content, to.created)
    }

    fn begin(&self, header: StreamHeader) -> Result<Target> {
        let name = self.name.clone().unwrap_or_else(|| header.volume.clone());
        let wanted = ImportRecord {
            from: header.from.as_ref().map_or(Uuid::nil(), |s| s.content),
            to: header.to.content,
            position: 0,
        };
        let found = self.pool.core.names.read().volume(&name).cloned();
        let unfinished = found.as_ref().ok().and_then(|state| *state.import.read());
        let position = unfinished.map_or(0, |record| record.position);
        check_same(&name, unfinished, wanted)?;
        check_start(&name, &header, position)?;
        let state = match found {
            Ok(state) => state,
            Err(_) if header.from.is_none() => self.create(&name, &header)?,
            Err(error) => return Err(error),
        };
        if !(header.block_size as u64).is_multiple_of(state.block_size as u64) {
            return Err(invalid(format!(
                "import into {name}: its logical blocks are larger than those of the stream"
            )));
        }
        if unfinished.is_none() {
            self.check_fits(&state, &header)?;
        }
        let (lease, unfinished) = Lease::take(&self.pool, state.clone(), wanted)?;
        let record = match unfinished {
            Some(record) => record,
            None => {
                // A client may have written since then. From here on it can't.
                self.pool.core.journal.write_out(self.pool.core.journal.last().lsn)?;
                self.check_fits(&state, &header)?;
                self.claim(&lease, wanted)?;
                wanted
            }
        };
        check_start(&name, &header, record.position)?;
        self.pool.resize_for_import(&lease, header.size)?;
        let volume = Arc::new(Volume::importer(self.pool.destager.clone(), state, lease.number()));
        Ok(Target { lease, header, volume, record, position: record.position, unkept: 0 })
    }

    fn create(&self, name: &str, header: &StreamHeader) -> Result<Arc<VolumeState>> {
        self.check.as_ref().map_or(Ok(()), |check| check(name))?;
        self.pool.create_volume(&NewVolume {
            name: name.to_owned(),
            size: header.size,
            chunk_size: header.chunk_size.min(self.pool.core.config.extent_size),
            block_size: header.block_size,
            read_only: false,
        })?;
        self.pool.core.names.read().volume(name).cloned()
    }

    /// Checks that the volume suits the stream. A whole snapshot needs a volume that holds nothing.
    /// A difference needs a volume whose content is what it builds upon.
    fn check_fits(&self, state: &Arc<VolumeState>, header: &StreamHeader) -> Result<()> {
        match &header.from {
            None => self.check_empty(state, header.size),
            Some(from) => self.check_base(state, &from.content),
        }
    }

    fn check_empty(&self, state: &Arc<VolumeState>, wanted: u64) -> Result<()> {
        let volume = Volume::new(self.pool.destager.clone(), state.clone(), true, false);
        let size = volume.info().size;
        let mut at = 0;
        let mut empty = size == wanted && self.pool.core.names.read().snapshots_of(state.id).is_empty();
        while empty && at < size {
            let runs = volume.block_status(at, size - at, 1)?;
            empty = runs.iter().all(|run| !run.allocated && run.zero);
            at += runs.iter().map(|run| run.length).sum::<u64>().max(volume.info().block_size as u64);
        }
        if empty {
            return Ok(());
        }
        Err(conflict(format!(
            "import into {}: it is not empty, or has another size; choose another name, or import a difference from one of its snapshots",
            volume.name()
        )))
    }

    fn check_base(&self, state: &Arc<VolumeState>, from: &Uuid) -> Result<()> {
        let volume = Arc::new(Volume::new(self.pool.destager.clone(), state.clone(), true, false));
        let base = {
            let names = self.pool.core.names.read();
            let found = names.snapshots_of(state.id).into_iter().find(|s| s.content() == *from);
            found.map(|s| Arc::new(Volume::new(self.pool.destager.clone(), s.state.clone(), true, true)))
        };
        let Some(base) = base else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "import into {}: it lacks the snapshot that the stream begins with; import that one first",
                    volume.name()
                ),
            ));
        };
        let difference = Difference::new(base.clone(), volume.clone())?;
        let same = difference.size() == base.info().size && difference.ranges().next().transpose()?.is_none();
        if same {
            return Ok(());
        }
        Err(conflict(format!(
            "import into {}: it was written after its snapshot {}; roll it back first",
            volume.name(),
            base.name()
        )))
    }

    /// Makes the import durable: from here on it is unfinished, whatever happens.
    fn claim(&self, lease: &Lease, wanted: ImportRecord) -> Result<()> {
        let state = lease.state();
        self.pool.destager.submit(|names| {
            lease.check()?;
            if names.snapshots_of(state.id).iter().any(|s| s.content() == wanted.to) {
                return Err(conflict(format!(
                    "import into {}: the snapshot already exists",
                    state.name.read()
                )));
            }
            Ok(SetImport { id: state.id, import: Some(wanted) }.into())
        })?;
        Ok(())
    }
}

/// Refuses a stream that is not that of the unfinished import.
pub(super) fn check_same(name: &str, unfinished: Option<ImportRecord>, wanted: ImportRecord) -> Result<()> {
    if unfinished.is_some_and(|record| (record.from, record.to) != (wanted.from, wanted.to)) {
        return Err(conflict(format!(
            "import into {name}: the import of another stream is unfinished; continue or cancel that one"
        )));
    }
    Ok(())
}

/// Refuses a stream that leaves a gap behind what has arrived.
fn check_start(name: &str, header: &StreamHeader, position: u64) -> Result<()> {
    if header.start > position {
        return Err(conflict(format!(
            "import into {name}: the stream begins at byte {}, and the import needs byte {position}",
            header.start
        )));
    }
    Ok(())
}

impl Target {
    /// Writes data to the volume. Runs of zeros that are as long as a chunk may be are discarded:
    /// they take no space here, whatever they took in the exporting pool.
    fn write(&self, offset: u64, data: &Bytes) -> Result<()> {
        let mut ops = Vec::new();
        for (part, zero) in runs(data, offset, least(self.volume.chunk_size())) {
            let at = offset + part.start as u64;
            if zero {
                self.volume.discard(at, part.len() as u64, false)?;
            } else {
                ops.push(WriteOp::new(at, data.slice(part)));
            }
        }
        self.volume.write(&mut ops, false);
        ops.into_iter().try_for_each(|op| op.result)
    }

    fn arrived(&mut self, pool: &Pool, position: u64, bytes: u64) -> Result<()> {
        self.position = position;
        self.unkept += bytes;
        if self.unkept >= KEPT_EVERY { self.keep(pool) } else { Ok(()) }
    }

    /// Stores the position durably. Its record comes after the writes that it counts, so the
    /// position is right whatever part of the journal survives a crash.
    fn keep(&mut self, pool: &Pool) -> Result<()> {
        let import = ImportRecord { position: self.position, ..self.record };
        pool.destager.submit(|_| {
            self.lease.check()?;
            Ok(SetImport { id: self.lease.state().id, import: Some(import) }.into())
        })?;
        self.unkept = 0;
        Ok(())
    }
}

impl Pool {
    /// Gives the volume of a lease the size of the stream.
    pub(crate) fn resize_for_import(self: &Arc<Self>, lease: &Lease, size: u64) -> Result<()> {
        let state = lease.state();
        if state.size.load(Ordering::Acquire) != size {
            Volume::internal(self.destager.clone(), state.clone()).materialize_around(size)?;
            self.destager.submit_with(|names| {
                lease.check()?;
                resized(names, state, size, true, &*self.core.world.rng)
            })?;
        }
        Ok(())
    }
}

impl Pool {
    /// Creates the snapshot that a stream has carried into the volume of the lease. That ends the
    /// import.
    pub(crate) fn create_imported_snapshot(
        &self,
        lease: &Lease,
        name: &str,
        origin: Uuid,
        created: u64,
    ) -> Result<SnapshotInfo> {
        let identity = uuid(&*self.core.world.rng);
        self.destager.submit(|names| {
            lease.check()?;
            let record = SnapshotRecord { origin, ..record(names, lease.state(), name, identity, created)? };
            Ok(CreateSnapshots { snapshots: vec![(SnapshotId(names.next_id), record)] }.into())
        })?;
        let names = self.core.names.read();
        let made = names.snapshots.values().find(|s| s.state.uuid == identity);
        made.map(|s| info(&self.core.clock, &names, s))
            .ok_or_else(|| not_found("find the imported snapshot: it was deleted"))
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::crc32c;
    use crate::device::{BlockDevice, WriteOp};
    use crate::stream::codec::{ItemKind, MAX_DATA, RecordHeader, StreamHeader, StreamState, Total};
    use crate::testing::Site;
    use uuid::Uuid;

    /// A stream in which zeros come as data.
    fn zeros(header: &StreamHeader, change: impl Fn(u64, &mut [u8])) -> Vec<u8> {
        let (mut stream, mut total) = (header.encode(), Total::new());
        for offset in (0..header.size).step_by(MAX_DATA as usize) {
            let mut data = vec![0; MAX_DATA as usize];
            change(offset, &mut data);
            let record = RecordHeader { kind: ItemKind::Data, crc: crc32c(&data), offset, length: MAX_DATA };
            stream.extend(record.encode());
            stream.extend(data);
        }
        total.add(&stream);
        stream.extend(total.trailer(header.size).encode());
        stream
    }

    /// Zeros take as long to send as data.
    #[test]
    fn positions_are_kept_where_zeros_come_as_data() {
        let Site { pool, .. } = Site::new(7);
        let to = StreamState { content: Uuid::from_bytes([1; 16]), name: "s".into(), created: 1 };
        let (chunk_size, size) = (16 << 10, 80 << 20);
        let header =
            StreamHeader { volume: "v".into(), size, block_size: 512, chunk_size, start: 0, to, from: None };
        let stream = zeros(&header, |_, _| ());
        let mut import = pool.import(None);
        stream[..stream.len() * 9 / 10].chunks(1 << 20).for_each(|piece| import.push(piece).unwrap());
        let kept = pool.unfinished_import("v").unwrap().unwrap().position;
        assert_eq!(kept, super::KEPT_EVERY);
    }

    /// Earlier versions sent as data what a volume that was taken back showed as nothing.
    #[test]
    fn zeros_that_come_as_data_take_no_space() {
        let size = 32 * MAX_DATA;
        let to = StreamState { content: Uuid::from_bytes([1; 16]), name: "s".into(), created: 1 };
        for chunk_size in [4096, 16 << 10, 1 << 20] {
            // This is less than the stream has.
            let Site { pool, .. } = Site::new(7);
            let header = StreamHeader {
                volume: "v".into(),
                size,
                block_size: 512,
                chunk_size,
                start: 0,
                to: to.clone(),
                from: None,
            };
            let stream =
                zeros(&header, |offset, data| data[40_000] = if offset == 5 * MAX_DATA { 7 } else { 0 });
            let mut import = pool.import(None);
            stream.chunks(1 << 20).for_each(|piece| import.push(piece).unwrap());
            import.finish().unwrap();
            pool.drain().unwrap();
            let info = pool.volume("v").unwrap();
            assert_eq!(info.allocated, info.chunk_size, "chunks of {chunk_size}");
            let v = pool.open_volume("v", false).unwrap();
            let mut found = vec![1; 1 << 20];
            v.read(5 * MAX_DATA, &mut found).unwrap();
            assert!(found.iter().enumerate().all(|(n, byte)| *byte == if n == 40_000 { 7 } else { 0 }));
            // The volume is an ordinary volume now.
            let mut ops = [WriteOp::new(0, vec![1; 512].into())];
            v.write(&mut ops, false);
            assert!(ops[0].result.is_ok());
        }
    }
}
