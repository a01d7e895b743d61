//! Performs one operation on the pool and on the oracle, and compares the answers.

use crate::disk::CrashPoint;
use crate::oracle::{Content, Effect, SECTOR, View, VolId, VolumeModel, fill_sector};
use crate::run::{Outcome, Run, write_effects, zero_effects};
use crate::survive;
use crate::workload::Op;
use bytes::Bytes;
use hindcast_engine::device::{BlockDevice, StatusRun, WriteOp};
use hindcast_engine::pool::{NewVolume, Pool, VolumeInfo};
use hindcast_engine::{Error, ErrorKind};
use std::sync::Arc;

/// Ranges of snapshots that are read when everything is verified.
pub(crate) const VERIFIED_RANGES: usize = 400;

/// A write of this many bytes is one record in every pool.
const ONE_RECORD: u64 = 32 << 10;

/// The outcome of a request.
pub(crate) enum Answer {
    /// The request succeeded.
    Done,
    /// The request was refused, and the refusal is allowed. It has changed nothing.
    Refused(ErrorKind),
    /// The outcome is unknown because of a crash or a fault.
    Unknown,
}

impl Run {
    pub(crate) fn perform(&mut self, op: &Op) -> Outcome<()> {
        match op {
            Op::Write { vol, parts, fua } => self.write(*vol, parts, *fua).map(drop),
            Op::Read { vol, offset, len, try_first } => self.read(*vol, *offset, *len, *try_first),
            Op::Flush(vol) => self.flush(*vol),
            Op::Discard { vol, offset, len, fua } => self.zero(*vol, *offset, *len, true, *fua, true),
            Op::Zeroes { vol, offset, len, unmap, fua } => {
                self.zero(*vol, *offset, *len, *unmap, *fua, false)
            }
            Op::Status { vol, offset, len, max_runs } => self.status(*vol, *offset, *len, *max_runs),
            Op::Misuse(vol) => self.misuse(*vol),
            Op::Create(model) => self.create_volume(model),
            Op::CreateOver(model, len) => self.create_over(model, *len),
            Op::Flatten(vol, on) => self.flatten(*vol, *on),
            Op::LoseImages => self.lose_images(),
            Op::Resize { vol, size, force } => self.resize(*vol, *size, *force),
            Op::Rename(vol, name) => self.rename(*vol, name),
            Op::ReadOnly(vol, on) => self.set_read_only(*vol, *on),
            Op::Trash { .. } | Op::LabelVolume(..) => self.perform_on_trash(op),
            Op::Delete { vol, force } => self.delete(*vol, *force),
            Op::Release(vol) => self.release(*vol),
            Op::Maintain(steps) => {
                for _ in 0..*steps {
                    self.maintain_once()?;
                }
                Ok(())
            }
            Op::Settle => self.settle(),
            Op::Drain => {
                let pool = self.pool()?;
                let result = survive(|| pool.drain());
                if let Answer::Done = self.durably(result, &[])? {
                    self.emptied = 0;
                    self.check_features_carried_out()?;
                }
                Ok(())
            }
            Op::Reopen(loss) => self.reopen(*loss),
            Op::Check => self.check_offline(),
            Op::Injure(seed) => self.injure(*seed),
            Op::Verify => self.verify_unless_crashed(),
            Op::Fill(vol) => self.fill(*vol),
            Op::Crash(how) => self.crash(*how),
            Op::CrashIn(ops, how) => {
                self.plan_crash(CrashPoint::Op(self.dir.counts().ops + ops), *how);
                Ok(())
            }
            // On another member than the weak one it would leave too few.
            Op::FailSync(_) if self.plan.layout.is_some() => Ok(()),
            Op::FailSync(purpose) => {
                self.faults = true;
                self.dir.fail_next_sync(*purpose);
                Ok(())
            }
            Op::ClearFaults => {
                self.dir.clear_faults();
                Ok(())
            }
            of_pvs => self.perform_on_pvs(of_pvs),
        }
    }

    pub(crate) fn perform_on_snapshots(&mut self, op: &Op) -> Outcome<()> {
        match op {
            Op::Snapshot(wanted) => self.create_snapshots(wanted),
            Op::DeleteSnapshots(snaps) => self.delete_snapshots(snaps),
            Op::RenameSnapshot(snap, name) => self.rename_snapshot(*snap, name),
            Op::Clone(snap, name) => self.clone_volume(*snap, name),
            Op::RollBack { snap, undo, force } => self.roll_back(*snap, undo, *force),
            Op::Cdp(vol, settings) => self.set_cdp(*vol, *settings),
            Op::Clock(change) => self.move_clock(*change),
            Op::ReadMoment(vol, pick) => self.read_moment(*vol, *pick),
            Op::Recover(vol, pick, name) => self.recover(*vol, *pick, name),
            Op::KeepMoment(vol, pick, name) => self.keep_moment(*vol, *pick, name),
            Op::RollBackTo { vols, pick, force } => self.roll_back_to(vols, *pick, *force),
            Op::Order(vol, order) => self.set_order(*vol, *order),
            Op::Relocate(vol) => self.relocate(*vol),
            Op::Method(vol, method) => self.set_method(*vol, *method),
            Op::ReadSnapshot { snap, offset, len, try_first } => {
                self.read_snapshot(*snap, *offset, *len, *try_first)
            }
            Op::StatusSnapshot { snap, offset, len, max_runs } => {
                self.status_snapshot(*snap, *offset, *len, *max_runs)
            }
            Op::MisuseSnapshot(snap) => self.misuse_snapshot(*snap),
            Op::Label(snap, key, value) => self.label(*snap, key, value.as_deref()),
            Op::Protect(snap, on) => self.protect(*snap, *on),
            Op::Policy(vol, percent, auto_delete) => self.set_policy(*vol, *percent, *auto_delete),
            Op::ReleaseSnapshots => {
                self.snapshot_handles.clear();
                self.gone.clear();
                Ok(())
            }
            of_streams => self.perform_on_streams(of_streams),
        }
    }

    fn perform_on_streams(&mut self, op: &Op) -> Outcome<()> {
        match op {
            Op::Export { snap, from, start } => self.export(*snap, *from, *start),
            Op::Import { stream, name } => self.begin_import(*stream, name),
            Op::Feed(records) => self.feed(*records),
            Op::FeedStale(which) => self.feed_stale(*which),
            Op::KeepImport => self.keep_import(),
            Op::EndImport => self.end_import(),
            Op::BreakImport => {
                self.arriving = None;
                Ok(())
            }
            Op::CancelImport(vol) => self.cancel_import(*vol),
            other => Err(format!("nobody performs {other:?}")),
        }
    }

    fn set_read_only(&mut self, vol: VolId, on: bool) -> Outcome<()> {
        let volume = self.model(vol)?;
        if volume.read_only == on {
            return Ok(());
        }
        let name = volume.name.clone();
        self.control(Effect::ReadOnly(vol, on), &[], |pool| pool.set_read_only(&name, on).map(drop)).map(drop)
    }

    pub(crate) fn verify_unless_crashed(&mut self) -> Outcome<()> {
        if self.faults {
            return Ok(());
        }
        let result = self.verify(VERIFIED_RANGES);
        if self.dir.crashed() { Ok(()) } else { result }
    }

    pub(crate) fn model(&self, vol: VolId) -> Outcome<&VolumeModel> {
        self.oracle.state().volumes.get(&vol).ok_or_else(|| format!("volume {vol} is gone"))
    }

    /// Classifies the answer of an operation for which the oracle expects no record.
    pub(crate) fn around(&mut self, result: Result<(), Error>, may_refuse: &[ErrorKind]) -> Outcome<Answer> {
        self.oracle.observe(self.pool()?.stats().sequenced_lsn.0);
        self.sort(result, may_refuse)
    }

    /// Classifies the answer of an operation for which the oracle expects no record. If it
    /// succeeded, everything before it is durable.
    pub(crate) fn durably(&mut self, result: Result<(), Error>, may_refuse: &[ErrorKind]) -> Outcome<Answer> {
        let answer = self.around(result, may_refuse)?;
        if let Answer::Done = answer {
            self.oracle.all_durable();
        }
        Ok(answer)
    }

    pub(crate) fn sort(&mut self, result: Result<(), Error>, may_refuse: &[ErrorKind]) -> Outcome<Answer> {
        if let Err(e) = &result {
            self.say(|| format!("  {e:?}"));
        }
        match result {
            Ok(()) => Ok(Answer::Done),
            Err(e) if may_refuse.contains(&e.kind()) => Ok(Answer::Refused(e.kind())),
            Err(_) if self.dir.crashed() => Ok(Answer::Unknown),
            Err(_) if self.faults || self.all_failed() || self.ran_full() => Ok(Answer::Unknown),
            // Data that has to leave a failed physical volume may find no space on the others.
            Err(e) if self.failing && matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Busy) => {
                Ok(Answer::Unknown)
            }
            // A request may have to read sectors that became unreadable. An export does so, and a
            // write to a part of a chunk over a moment.
            Err(e) if !self.lost.is_empty() && matches!(e.kind(), ErrorKind::Io | ErrorKind::Lost) => {
                Ok(Answer::Refused(e.kind()))
            }
            Err(e) => Err(format!("{e:?}")),
        }
    }

    /// Tells the oracle what an answer means for `effects`, which were attempted just now.
    pub(crate) fn settle_with_oracle(
        &mut self,
        answer: &Answer,
        effects: &[Effect],
        durable: bool,
    ) -> Outcome<()> {
        let lsn = self.pool()?.stats().sequenced_lsn.0;
        let tried = if let Answer::Done = answer { effects.len() as u64 } else { 0 };
        let brought = std::mem::take(&mut self.brought);
        let extra = lsn.saturating_sub(self.oracle.last_lsn() + tried);
        // An unreadable disk may end a request while the request materializes content. Then no
        // record of the request itself was sequenced.
        let known = !matches!(answer, Answer::Unknown) || !self.dir.crashed() && !self.poisoned();
        let explained = extra <= brought || self.oracle.may_skip();
        if known && brought > 0 && extra > 0 && explained {
            // The records of materialized content come before those of the request.
            self.oracle.observe(lsn - tried);
            self.filled |= tried == 0;
        }
        match answer {
            Answer::Done => {
                self.oracle.acknowledge(effects, lsn)?;
                if durable {
                    self.oracle.all_durable();
                }
                Ok(())
            }
            Answer::Refused(_) => self.oracle.retract(effects.len(), lsn),
            Answer::Unknown if self.oracle.last_lsn() == lsn => self.oracle.retract(effects.len(), lsn),
            Answer::Unknown => Ok(()),
        }
    }

    /// Performs a control operation: one record that is durable when it is acknowledged.
    pub(crate) fn control(
        &mut self,
        effect: Effect,
        may_refuse: &[ErrorKind],
        run: impl FnOnce(&Arc<Pool>) -> Result<(), Error>,
    ) -> Outcome<Answer> {
        self.make_room(4096)?;
        let pool = self.pool()?;
        self.oracle.attempt(std::slice::from_ref(&effect));
        let result = survive(|| run(&pool));
        let answer = self.sort(result, may_refuse)?;
        self.settle_with_oracle(&answer, &[effect], true)?;
        Ok(answer)
    }

    /// Returns the parts of a write whose outcomes are certain. A part may fail before it is
    /// sequenced. If a crash followed, it would be unknown which of several parts were sequenced. A
    /// part of more than one record may be refused after its first records were taken, if physical
    /// volumes fail. A sync that is to fail may make one fail meanwhile.
    fn certain_parts(&self, parts: &[(u64, u64)], watched: bool) -> Vec<(u64, u64)> {
        let uncertain = self.faults || self.failing;
        let alone = if watched || uncertain { 1 } else { parts.len() };
        let most = if uncertain { ONE_RECORD } else { u64::MAX };
        parts.iter().take(alone).map(|(offset, len)| (*offset, *len.min(&most))).collect()
    }

    /// Writes the parts. Returns the kind of the error that refused the last refused part, if any.
    fn write(&mut self, vol: VolId, parts: &[(u64, u64)], fua: bool) -> Outcome<Option<ErrorKind>> {
        let watched = self.watch_policies()?.is_some();
        let parts = &self.certain_parts(parts, watched)[..];
        let bytes: u64 = parts.iter().map(|p| p.1 + 8192).sum();
        self.make_room(bytes)?;
        // The policies are read again, because making room may have deleted a snapshot.
        let watch = self.watch_policies()?.filter(|_| watched);
        let Some(handle) = self.handle(vol)? else { return Ok(None) };
        let read_only = self.model(vol)?.refuses_writes();
        let (most, referred) = (self.pool()?.max_record_bytes(), self.pool()?.stats().direct_bytes);
        let (mut writes, effects): (Vec<_>, Vec<_>) =
            parts.iter().map(|part| self.stamped(vol, *part, most)).unzip();
        let all: Vec<Effect> = effects.iter().flatten().cloned().collect();
        let materialized = self.may_bring_in_for(vol, parts)?;
        self.oracle.attempt(&all);
        let before = self.before_steps(vol, all.len());
        let survived = survive(|| {
            handle.write(&mut writes, fua);
            Ok(())
        });
        self.summary.referred += self.pool()?.stats().direct_bytes - referred;
        if let Err(panic) = survived {
            writes.iter_mut().for_each(|write| write.result = Err(panic.clone()));
        }
        let deleted = self.deleted_for_space(watch.as_ref())?;
        // The effects are in order, without those that certainly did nothing.
        let mut tried = Vec::new();
        let mut refused = None;
        let mut answer = Answer::Done;
        let whole = writes.iter().zip(&effects).filter(|(write, _)| write.result.is_ok());
        let mut whole: usize = whole.map(|(_, effects)| effects.len()).sum();
        for (write, effects) in writes.into_iter().zip(effects) {
            let may_refuse = if read_only { [ErrorKind::ReadOnly] } else { [ErrorKind::NoSpace] };
            match self.sort(write.result, &may_refuse)? {
                Answer::Done if read_only => return Err("a read-only volume took a write".into()),
                Answer::Refused(kind) => {
                    refused = Some(kind);
                    if self.failing || self.faults {
                        // The journal was full, and nothing could be carried out: there was no
                        // space, or a disk had failed.
                        let begun = self.sequenced_of_it(deleted.len() + whole)?.min(effects.len());
                        whole += begun;
                        tried.extend(effects.into_iter().take(begun));
                    }
                    continue;
                }
                // There is no journal file for the rest.
                Answer::Unknown if !self.dir.crashed() && !self.poisoned() => {
                    refused = Some(ErrorKind::Io);
                    self.brings_no_anchor(vol, materialized)?;
                    tried.extend(effects.into_iter().take(self.sequenced_of_it(deleted.len())?));
                    continue;
                }
                Answer::Unknown => answer = Answer::Unknown,
                Answer::Done => {}
            }
            tried.extend(effects);
        }
        if refused == Some(ErrorKind::NoSpace) {
            self.summary.refused += 1;
            self.filled |= self.brought > 0;
        }
        self.oracle.forget(all.len());
        self.attempt_and_settle(&answer, deleted, &tried, fua && !tried.is_empty())?;
        if let (Answer::Done, Some(before)) = (answer, before) {
            self.note_steps(vol, before, &tried);
        }
        Ok(refused)
    }

    /// Returns a write with unique content, and its effects.
    fn stamped(&mut self, vol: VolId, (offset, len): (u64, u64), most: u64) -> (WriteOp, Vec<Effect>) {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let mut data = vec![0; len as usize];
        for (sector, part) in (offset / SECTOR..).zip(data.chunks_exact_mut(SECTOR as usize)) {
            fill_sector(part, vol, sector, stamp);
        }
        (WriteOp::new(offset, Bytes::from(data)), write_effects(vol, offset, len, most, stamp))
    }

    /// Returns how many records of a failed write were sequenced. The other parts of the request,
    /// and the deletions that made room for it, have `known` records.
    fn sequenced_of_it(&self, known: usize) -> Outcome<usize> {
        let sequenced = (self.pool()?.stats().sequenced_lsn.0 - self.oracle.last_lsn()) as usize;
        // Records of materialized content come before those of the write, and the oracle observes
        // both together.
        Ok(if self.brought > 0 { 0 } else { sequenced.saturating_sub(known) })
    }

    /// Returns the effects of a request that was carried out in part, as far as they are known.
    /// `answer` is its answer. Before it, the pool sequenced `deleted` records to make room. A
    /// request of several records may be refused after its first records were taken.
    pub(crate) fn done_in_part<'a>(
        &self,
        answer: &Answer,
        effects: &'a [Effect],
        deleted: usize,
    ) -> Outcome<Option<&'a [Effect]>> {
        let certain = match answer {
            Answer::Done => false,
            Answer::Refused(_) => self.failing,
            Answer::Unknown => !self.dir.crashed() && !self.poisoned(),
        };
        if !certain || self.brought > 0 || effects.len() < 2 {
            return Ok(None);
        }
        let taken = self.sequenced_of_it(0)?.saturating_sub(deleted);
        Ok(effects.get(..taken).filter(|taken| !taken.is_empty()))
    }

    fn read(&mut self, vol: VolId, offset: u64, len: u64, try_first: bool) -> Outcome<()> {
        let Some(handle) = self.handle(vol)? else {
            return Ok(());
        };
        let mut data = vec![0xEE; len as usize];
        let ready = if try_first { handle.try_read(offset, &mut data) } else { Ok(false) };
        let result = match ready {
            // A read may repair what it finds damaged, and a disk may panic then.
            Ok(false) => survive(|| handle.read(offset, &mut data)),
            other => other.map(drop),
        };
        match self.sort(result, &[])? {
            Answer::Done => self.oracle.check_read(View::Volume(vol), offset, &data),
            Answer::Refused(_) => self.may_be_unreadable(View::Volume(vol), offset, len),
            Answer::Unknown => Ok(()),
        }
    }

    /// Checks that a failed read was allowed to fail: something that it had to show must be
    /// unreadable.
    pub(crate) fn may_be_unreadable(&self, view: View, offset: u64, len: u64) -> Outcome<()> {
        let content = self.oracle.state().content(view).ok_or_else(|| format!("{view:?} is gone"))?;
        // Content that comes from a moment is reconstructed chunk by chunk.
        let doubtful = self.oracle.doubtful() || self.kept_history;
        let mut sectors = offset / SECTOR..(offset + len) / SECTOR;
        if doubtful || sectors.any(|sector| self.lost.contains(&(sector, content.get(sector)))) {
            return Ok(());
        }
        Err(format!("{view:?} can't be read at {offset}, {len} bytes, though nothing there went bad"))
    }

    fn flush(&mut self, vol: VolId) -> Outcome<()> {
        let Some(handle) = self.handle(vol)? else {
            return Ok(());
        };
        let answer = self.durably(survive(|| handle.flush()), &[])?;
        if let Answer::Done = answer { self.note_flush(vol) } else { Ok(()) }
    }

    fn zero(
        &mut self,
        vol: VolId,
        offset: u64,
        len: u64,
        unmap: bool,
        fua: bool,
        discard: bool,
    ) -> Outcome<()> {
        self.make_room(8192)?;
        let Some(handle) = self.handle(vol)? else {
            return Ok(());
        };
        let read_only = self.model(vol)?.refuses_writes();
        let effects = zero_effects(vol, offset, len, unmap);
        let watch = self.watch_policies()?;
        self.may_bring_in(vol, 2)?;
        if self.may_stay_open(&effects) {
            return Ok(());
        }
        self.oracle.attempt(&effects);
        let result = survive(|| match discard {
            true => handle.discard(offset, len, fua),
            false => handle.write_zeroes(offset, len, unmap, fua),
        });
        let may_refuse: &[ErrorKind] = if read_only { &[ErrorKind::ReadOnly] } else { &[ErrorKind::NoSpace] };
        let answer = self.sort(result, may_refuse)?;
        if read_only && matches!(answer, Answer::Done) {
            return Err("a read-only volume was zeroed".into());
        }
        self.oracle.forget(effects.len());
        let deleted = self.deleted_for_space(watch.as_ref())?;
        match self.done_in_part(&answer, &effects, deleted.len())? {
            Some(taken) => self.attempt_and_settle(&Answer::Done, deleted, taken, false),
            None => self.attempt_and_settle(&answer, deleted, &effects, fua),
        }
    }

    fn status(&mut self, vol: VolId, offset: u64, len: u64, max_runs: usize) -> Outcome<()> {
        let Some(handle) = self.handle(vol)? else {
            return Ok(());
        };
        let runs = match handle.block_status(offset, len, max_runs) {
            Ok(runs) => runs,
            Err(e) => return self.sort(Err(e), &[]).map(drop),
        };
        let volume = self.model(vol)?;
        let known = (!self.oracle.doubtful()).then_some(&volume.content);
        check_runs(&runs, (offset, len), max_runs, known, volume.chunk_size)
    }

    fn misuse(&mut self, vol: VolId) -> Outcome<()> {
        let Some(handle) = self.handle(vol)? else {
            return Ok(());
        };
        let (size, block) = (self.model(vol)?.size, u64::from(self.model(vol)?.block_size));
        let data = |len: u64| Bytes::from(vec![7; len as usize]);
        let ranges = [
            (size, block),
            (size - block, 2 * block),
            (u64::MAX - block + 1, block),
            (1, block),
            (0, block - 1),
        ];
        for (offset, len) in ranges {
            let mut writes = [WriteOp::new(offset, data(len))];
            handle.write(&mut writes, false);
            let mut buf = vec![0; len as usize];
            let [write] = writes;
            let answers = [
                ("write", write.result),
                ("read", handle.read(offset, &mut buf)),
                ("discard", handle.discard(offset, len, false)),
                ("zero", handle.write_zeroes(offset, len, true, false)),
                ("status", handle.block_status(offset, len, 8).map(drop)),
            ];
            for (what, answer) in answers {
                let kind = answer.err().map(|e| e.kind());
                let fine =
                    [ErrorKind::Invalid, ErrorKind::OutOfRange, ErrorKind::ReadOnly, ErrorKind::Poisoned];
                if kind.is_none_or(|kind| !fine.contains(&kind)) && !self.dir.crashed() {
                    return Err(format!("{what} of {len} bytes at {offset} ended with {kind:?}"));
                }
            }
        }
        // None of these requests became a record.
        self.oracle.acknowledge(&[], self.pool()?.stats().sequenced_lsn.0)
    }

    pub(crate) fn create_volume_of(
        &mut self,
        model: &VolumeModel,
        may_refuse: &[ErrorKind],
        create: impl FnOnce(&Pool, NewVolume) -> Result<VolumeInfo, Error>,
    ) -> Outcome<()> {
        let vol = self.next_vol;
        self.next_vol += 1;
        let taken = self.oracle.state().volumes.values().any(|v| v.name == model.name);
        let new = NewVolume {
            name: model.name.clone(),
            size: model.size,
            chunk_size: model.chunk_size,
            block_size: model.block_size,
            read_only: model.read_only,
        };
        let mut made = None;
        let own = if taken { ErrorKind::Conflict } else { ErrorKind::NoSpace };
        let refusals = &[may_refuse, &[own]].concat()[..];
        let answer = self.control(Effect::Create(vol, model.clone()), refusals, |pool| {
            made = Some(create(pool, new)?);
            Ok(())
        })?;
        match (answer, made) {
            (Answer::Done, Some(info)) if !taken => {
                self.ids.insert(info.uuid, vol);
                Ok(())
            }
            (Answer::Done, _) => Err("two volumes with one name".into()),
            (Answer::Unknown, _) => {
                self.unborn = Some(vol);
                Ok(())
            }
            (Answer::Refused(_), _) => Ok(()),
        }
    }

    fn resize(&mut self, vol: VolId, size: u64, force: bool) -> Outcome<()> {
        let volume = self.model(vol)?;
        let (name, old) = (volume.name.clone(), volume.size);
        if size == old {
            return Ok(());
        }
        // A stream defines the length of its volume.
        let refused = volume.import.is_some() || (size < old && !force);
        let refusals: &[ErrorKind] = if refused { &[ErrorKind::Conflict] } else { &[ErrorKind::NoSpace] };
        self.may_bring_in(vol, 1)?;
        let answer = self.control(Effect::Resize(vol, size), refusals, |pool| {
            pool.resize_volume(&name, size, force).map(drop)
        })?;
        if let Answer::Done = answer {
            if refused {
                return Err("a volume was resized that should not have been".into());
            }
            let seen = self.handles.get(&vol).map_or(size, |handle| handle.info().size);
            if seen != size {
                return Err(format!("an open handle sees {seen} bytes"));
            }
        }
        Ok(())
    }

    fn rename(&mut self, vol: VolId, name: &str) -> Outcome<()> {
        let old = self.model(vol)?.name.clone();
        let taken = self.oracle.state().volumes.values().any(|v| v.name == name);
        if old == name {
            return Ok(());
        }
        let refusals: &[ErrorKind] = if taken { &[ErrorKind::Conflict] } else { &[] };
        let effect = Effect::Rename(vol, name.into());
        match self.control(effect, refusals, |pool| pool.rename_volume(&old, name).map(drop))? {
            Answer::Done if taken => Err("two volumes with one name".into()),
            _ => Ok(()),
        }
    }

    fn delete(&mut self, vol: VolId, force: bool) -> Outcome<()> {
        let name = self.model(vol)?.name.clone();
        let open = self.in_use(vol);
        let snapshots = self.oracle.state().snapshots_of(vol).next().is_some();
        let protected = self.oracle.state().snapshots_of(vol).any(|(_, s)| s.protected);
        let refusals: &[ErrorKind] = match (force && !protected, snapshots, open) {
            (false, true, _) => &[ErrorKind::Conflict],
            (false, false, true) => &[ErrorKind::Busy],
            _ => &[],
        };
        self.part_with(|_, s| s.volume == vol);
        let answer = self.control(Effect::Delete(vol), refusals, |pool| pool.delete_volume(&name, force))?;
        let Answer::Done = answer else { return Ok(()) };
        if (open || snapshots) && !force || protected {
            return Err("a volume in use went without force".into());
        }
        if let Some(handle) = self.handles.remove(&vol) {
            let block = handle.info().block_size as usize;
            let mut writes = [WriteOp::new(0, Bytes::from(vec![1; block]))];
            handle.write(&mut writes, false);
            if (writes[0].result.is_ok() || handle.read(0, &mut vec![0; block]).is_ok())
                && !self.dir.crashed()
            {
                return Err("a handle of a deleted volume still works".into());
            }
        }
        Ok(())
    }

    /// Writes until the pool refuses. Everything acknowledged must still be there, and space must
    /// become available again.
    fn fill(&mut self, vol: VolId) -> Outcome<()> {
        let volume = self.model(vol)?;
        if volume.refuses_writes() {
            return Ok(());
        }
        let (size, chunk) = (volume.size, volume.chunk_size);
        // With small chunks, short writes would need very many requests.
        let step = if chunk < 4096 { 128 << 10 } else { 64 << 10 };
        let mut at = 0;
        let mut full = false;
        // A history grows with every round, and takes space that no physical volume needs.
        let again =
            self.plan.backing.is_some() && self.pool()?.volume(&volume.name).is_ok_and(|v| v.cdp.is_some());
        for _ in 0..if again { 800 } else { 200 } {
            if again && at >= size {
                at = 0;
            }
            if at >= size || full || self.dir.crashed() || self.faults || self.poisoned() {
                break;
            }
            let len = (size - at).min(step);
            full = self.write(vol, &[(at, len)], false)? == Some(ErrorKind::NoSpace);
            at += len;
        }
        self.say(|| format!("filled to {at}, full: {full}"));
        if !full || self.dir.crashed() || self.faults {
            return Ok(());
        }
        self.verify_unless_crashed()?;
        if self.dir.crashed() {
            return Ok(());
        }
        self.zero(vol, 0, size.min(1 << 20), true, false, true)?;
        self.settle()?;
        if self.dir.crashed() {
            return Ok(());
        }
        // Freed space may also go to a volume that is being flattened, and a history keeps the
        // space.
        let leaving = self.failing
            || self.pool()?.pvs().iter().any(|pv| pv.draining)
            || self.flattening()?
            || self.kept_history;
        let refused = self.write(vol, &[(0, u64::from(self.model(vol)?.block_size))], false)?;
        match refused {
            // Freed space may be on a physical volume that takes no new data, or the file system
            // below may be full.
            Some(ErrorKind::NoSpace) if at > 1 << 20 && !leaving && self.plan.backing.is_none() => {
                Err("no space after a MiB was freed".into())
            }
            _ => Ok(()),
        }
    }
}

/// Checks the runs of a block status. They must be adjacent, and a run of zeros must contain no
/// sector that is `known` to have been written.
pub(crate) fn check_runs(
    runs: &[StatusRun],
    (offset, len): (u64, u64),
    max_runs: usize,
    known: Option<&Content>,
    chunk_size: u64,
) -> Outcome<()> {
    let mut at = offset;
    for run in runs {
        if run.length == 0 || (!run.allocated && !run.zero) {
            return Err(format!("a run that can't be: {run:?}"));
        }
        let end = at + run.length.min((offset + len).saturating_sub(at));
        if run.zero
            && let Some(sector) = known.and_then(|content| content.first(at / SECTOR, end / SECTOR))
        {
            return Err(format!("sector {sector} was written, but {run:?} at {at} calls it zeros"));
        }
        at += run.length;
    }
    // A call checks a limited number of chunks.
    let stopped = runs.len() == max_runs || at - offset >= chunk_size << 19;
    if at > offset + len || (at < offset + len && !stopped) || runs.len() > max_runs {
        return Err(format!("{} runs to {at} for {offset}+{len}, at most {max_runs}", runs.len()));
    }
    Ok(())
}
