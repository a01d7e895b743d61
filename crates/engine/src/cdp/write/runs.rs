//! Shared segments: what a batch records of many branches goes into one file with one sync.
//!
//! Each branch's part of a batch is a *run*: its records, sorted by (chunk, LSN), and an index of
//! them. A run has a number among the branch's segments, and is searched like a segment. Runs are
//! sorted into segments of the branch's own in the background ([`crate::upkeep::sort`]), as the
//! runs of a log-structured merge tree are (O'Neil et al., 1996).
//!
//! A shared segment loses its name when no run in it counts any more. Only the opening of the pool
//! that made a shared segment appends to it, so nothing that was committed is ever overwritten.

use super::append::{
    OpenSegmentWriter, RecordItem, Records, SegmentFactory, StagedSegments, WAITING, put_payload,
};
use crate::branch::Branch;
use crate::catalog::SegmentRecord;
use crate::cdp::log::codec::Packer;
use crate::cdp::log::record::Replaced;
use crate::cdp::log::segment::LogFile;
use crate::cdp::log::shared::SharedLog;
use crate::disk::{SerialWriter, SyncPurpose};
use crate::error::{Error, Result};
use crate::settings::{CdpSettings, Compression, Encoding};
use std::sync::Arc;

/// A writer of the runs of a batch.
pub(crate) struct Runs {
    shelf: SegmentFactory,
    lane: SerialWriter,
    packers: Vec<(Compression, Packer)>,
    current: Option<OpenSegmentWriter>,
    full: Vec<OpenSegmentWriter>,
    next: u64,
    new_files: bool,
}

impl Runs {
    /// Makes the writer. `shelf` makes shared segments. With `beside` the writer has a thread of
    /// its own.
    pub(crate) fn new(shared: &SharedLog, shelf: SegmentFactory, beside: bool) -> Result<Runs> {
        let (open, next) = shared.end();
        let of = |(file, end): (LogFile, u64)| {
            let disk = file.open()?;
            Ok::<_, Error>(OpenSegmentWriter::of((file, disk), SegmentRecord::empty(0, 0, end), Vec::new()))
        };
        let current = open.filter(|(_, end)| *end < shelf.limit).map(of).transpose()?;
        let lane = SerialWriter::new(beside, WAITING);
        Ok(Runs { shelf, lane, packers: Vec::new(), current, full: Vec::new(), next, new_files: false })
    }

    /// Begins the run of a branch.
    pub(crate) fn writer(&mut self, branch: &Arc<Branch>, settings: CdpSettings) -> Result<RunWriter<'_>> {
        if let Some(mut full) = self.current.take_if(|draft| draft.len() >= self.shelf.limit) {
            full.end_runs(&mut self.lane)?;
            self.full.push(full);
        }
        let draft = match &mut self.current {
            Some(draft) => draft,
            none => {
                let created = self.shelf.create(self.next, 0)?;
                (self.next, self.new_files) = (self.next + 1, true);
                none.insert(OpenSegmentWriter::new(created))
            }
        };
        draft.begin_run(branch.id);
        let compression = settings.compression;
        let known = self.packers.iter().position(|(of, _)| *of == compression);
        let known = match known {
            Some(known) => known,
            None => {
                self.packers.push((compression, Packer::new(compression)?));
                self.packers.len() - 1
            }
        };
        let packer = &mut self.packers[known].1;
        Ok(RunWriter { branch: branch.clone(), settings, draft, lane: &mut self.lane, packer })
    }

    /// Makes all runs durable.
    pub(crate) fn finish(mut self) -> Result<()> {
        if let Some(mut last) = self.current.take() {
            last.end_runs(&mut self.lane)?;
            self.full.push(last);
        }
        for draft in &mut self.full {
            draft.sync(&mut self.lane, SyncPurpose::CdpShared)?;
        }
        self.lane.join()?;
        if self.new_files {
            let failed = |e| Error::io("sync the data directory", e).lasting();
            self.shelf.dir.sync(SyncPurpose::Dir).map_err(failed)?;
        }
        Ok(())
    }
}

/// A writer of one run.
pub(crate) struct RunWriter<'a> {
    branch: Arc<Branch>,
    settings: CdpSettings,
    draft: &'a mut OpenSegmentWriter,
    lane: &'a mut SerialWriter,
    packer: &'a mut Packer,
}

impl Records for RunWriter<'_> {
    fn encoding(&self) -> Encoding {
        self.settings.encoding
    }

    fn push(&mut self, item: &RecordItem, old: &[u8], sum: &mut u32, new: &[u8]) -> Result<()> {
        let encoding = self.settings.encoding;
        let entry = item.entry((&self.branch, encoding), old, sum, new);
        let packer = &mut *self.packer;
        self.draft.push(self.lane, entry, item.epoch, |out| put_payload((encoding, packer), old, new, out))
    }

    fn push_bare(&mut self, item: &RecordItem, replaced: Replaced) -> Result<()> {
        let entry = item.entry_without_payload(self.settings.encoding, replaced);
        self.draft.push(self.lane, entry, item.epoch, |_| Compression::None)
    }
}

impl RunWriter<'_> {
    /// Ends the run. The run counts after [`Runs::finish`] has made it durable and a commit has
    /// stored it. Returns `None` when the run is empty.
    pub(crate) fn finish(self) -> Result<Option<StagedSegments>> {
        let file = self.draft.file.clone();
        let record = self.draft.end_run(self.lane)?;
        Ok(record.map(|record| StagedSegments::run(self.branch, file, record)))
    }
}
