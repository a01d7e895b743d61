//! A flush: pending blocks and their parities are written to the members.
//!
//! For each line the new parity is computed from the fewest reads that are right (`Source`). Then
//! all lines of a part are logged and synced, and only then written.

use super::log::{LoggedLine, ParityLog};
use super::pending::{BlockContent, BlockMap, PendingBlock, zeros};
use super::rows::BLOCK;
use super::{Raid5, add};
use crate::codec::crc32c;
use crate::disk::layout::members::{Opened, Role, like};
use crate::disk::layout::spans::CopyPlace;
use crate::disk::{Cause, Disk, SyncPurpose};
use crate::error::is_shortage;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Number of lines whose old content is read at once.
const LINES_READ: usize = 1024;
/// Number of lines that are written at once. Reads that need several members wait meanwhile.
const LINES_WRITTEN: usize = 256;

/// What the new parity of a line is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// All columns are written: nothing is read.
    New,
    /// The columns that are not written are read.
    Others,
    /// The old content of the columns that are written, and the old parity, are read. It is right
    /// only if the line is consistent, and the old content is what the parity was made from.
    Old,
    /// Nothing: the member with the parity is out.
    NoParity,
    /// This column is on a member that is out and rebuilt. All others and the parity are read, so
    /// that the disk that it is rebuilt onto gets the column too.
    AllBut(usize),
}

/// A line that is written.
struct Line<'b> {
    number: u64,
    /// The columns that are written.
    new: Vec<(usize, &'b BlockContent)>,
    /// Those of them of which only a part is written.
    patched: Vec<usize>,
    /// The sums of what is replaced, as far as they are known: (column, sum).
    old_sums: Vec<(usize, u32)>,
    source: Source,
    /// What was read: (column, content).
    read: Vec<(usize, BlockContent)>,
    parity: Option<BlockContent>,
    /// Columns that are not written, for the disks that their members are rebuilt onto, and for
    /// where they move: these have anything where nothing was in use. Without the columns, the line
    /// would not be consistent when they count.
    carried: Vec<usize>,
    /// Their content: (column, content).
    carries: Vec<(usize, BlockContent)>,
}

/// A block that a flush reads or writes: (member, byte of its disk), and what it is of.
struct Wanted {
    place: (usize, u64),
    /// Position of the line.
    line: usize,
    column: usize,
}

/// A block to be written.
struct Outgoing<'b> {
    member: usize,
    role: Role,
    /// Whether the block moves to this place, and is still read at another one.
    moves: bool,
    disk: Arc<Opened>,
    at: u64,
    content: &'b [u8],
}

impl<'b> Outgoing<'b> {
    fn to(place: CopyPlace, role: Role, disk: Arc<Opened>, content: &'b BlockContent) -> Self {
        Outgoing { member: place.member, role, moves: false, disk, at: place.offset, content: &content[..] }
    }
}

impl Raid5 {
    /// Writes everything that is pending, and makes it and all that was written before durable.
    pub(super) fn flush(&self, purpose: SyncPurpose) -> io::Result<()> {
        // The writes that waited have the cause of the sync.
        let _cause = Cause::of_sync(purpose).begin_default();
        let mut log = self.log.lock();
        self.check_broken()?;
        let Some(blocks) = self.pending.leave() else {
            // A flush before this one did not come to its end.
            let error = || io::Error::other("a flush of the RAID-5 was interrupted");
            return Err(like(self.broken.get_or_init(error)));
        };
        // A member that an opening found missing is out only in memory. The lines of the youngest
        // entry may agree only without it, so the record says so before another entry counts.
        let done = self.members.store().and_then(|()| match blocks.is_empty() {
            true => self.members.sync_all(purpose),
            false => self.flush_blocks(&mut log, &blocks, purpose),
        });
        let done = done.and_then(|()| self.give_back(&mut log));
        if let Err(error) = done {
            return Err(like(self.broken.get_or_init(|| error)));
        }
        self.pending.left();
        Ok(())
    }

    fn flush_blocks(&self, log: &mut ParityLog, blocks: &BlockMap, purpose: SyncPurpose) -> io::Result<()> {
        self.write_corrected()?;
        let mut lines: BTreeMap<u64, Vec<(usize, &PendingBlock)>> = BTreeMap::new();
        for (block, pending) in blocks {
            let (line, column) = self.rows.find(*block);
            lines.entry(line).or_default().push((column, pending));
        }
        let mut part = Vec::new();
        let mut written = 0;
        for (number, pending) in lines {
            let patched: Vec<_> =
                pending.iter().filter(|(_, block)| block.is_patched).map(|(column, _)| *column).collect();
            let old_sums =
                pending.iter().filter_map(|(column, block)| Some((*column, block.old_sum?))).collect();
            let new: Vec<_> = pending.into_iter().map(|(column, block)| (column, &block.content)).collect();
            // An entry has at most a block for each line, and those that are patched.
            let blocks = new.len() + patched.len();
            if written + blocks > log.room {
                self.write_part(log, std::mem::take(&mut part), purpose)?;
                written = 0;
            }
            written += blocks;
            let source = self.source(number, &new);
            let carried = self.carried(number, &new);
            let (read, carries) = (Vec::new(), Vec::new());
            part.push(Line { number, new, patched, old_sums, source, read, parity: None, carried, carries });
        }
        self.write_part(log, part, purpose)
    }

    /// Writes lines that have room in one entry of the log.
    fn write_part(
        &self,
        log: &mut ParityLog,
        mut lines: Vec<Line<'_>>,
        purpose: SyncPurpose,
    ) -> io::Result<()> {
        let mut logged = Vec::with_capacity(lines.len());
        for some in lines.chunks_mut(LINES_READ) {
            self.read_old(some)?;
            logged.extend(some.iter_mut().filter_map(|line| self.compute(line)));
        }
        if logged.is_empty() {
            log.end_entry()?;
        } else {
            log.append(&logged)?;
        }
        drop(logged);
        self.list_lines_without_entry(&lines)?;
        for some in lines.chunks(LINES_WRITTEN) {
            self.write_lines(some)?;
        }
        // The next entry replaces this one, so these lines must be durable before it is written.
        self.members.sync_all(purpose)
    }

    /// Lists the lines that no entry of the log names, durably, before they are written. Their
    /// parity is on a member that is out. If a crash comes before the sync behind the writes, the
    /// next opening can't know that the disk of that member has a parity of other blocks.
    fn list_lines_without_entry(&self, lines: &[Line<'_>]) -> io::Result<()> {
        let mut without = lines.iter().filter(|line| line.parity.is_none()).peekable();
        if without.peek().is_none() {
            return Ok(());
        }
        without.for_each(|line| self.note_written(line.number..line.number + 1));
        self.members.store()
    }

    /// Chooses what the new parity of a line is computed from.
    fn source(&self, line: u64, new: &[(usize, &BlockContent)]) -> Source {
        let parity = self.rows.parity();
        let from_new = if new.len() == parity { Source::New } else { Source::Others };
        let is_written = |column: usize| new.iter().any(|(written, _)| *written == column);
        let missing = (0..self.rows.width()).find(|column| self.stored(line, *column).1.is_none());
        let is_rebuilt = |column: usize| self.is_arriving(line, column);
        match missing {
            Some(column) if column == parity && !is_rebuilt(column) => Source::NoParity,
            Some(column) if column == parity || is_written(column) => from_new,
            Some(column) if is_rebuilt(column) => Source::AllBut(column),
            // A line of which a column is missing is consistent: the column is what follows from
            // the others.
            Some(_) => Source::Old,
            None if new.len() < parity
                && new.len() < parity - new.len()
                && self.groups.are_consistent(line) =>
            {
                Source::Old
            }
            None => from_new,
        }
    }

    /// Returns whether a column of a line is written to another disk, too, which will have it.
    fn is_arriving(&self, line: u64, column: usize) -> bool {
        self.target(line, column).is_some()
            || self.members.incoming(self.place(line, column).member).is_some()
    }

    /// Returns the columns that are not written, that a disk will have, and that their member has.
    fn carried(&self, line: u64, new: &[(usize, &BlockContent)]) -> Vec<usize> {
        let is_written = |column: usize| new.iter().any(|(written, _)| *written == column);
        let is_carried = |column: &usize| {
            !is_written(*column) && self.is_arriving(line, *column) && self.stored(line, *column).1.is_some()
        };
        (0..self.rows.parity()).filter(is_carried).collect()
    }

    /// Reads what the sources of lines need, and what is carried. A parity that is computed from
    /// rotten old content is wrong for the other columns. So if an old sum does not match, the
    /// other columns are the source.
    fn read_old(&self, lines: &mut [Line<'_>]) -> io::Result<()> {
        self.read_sources(lines, |_| true)?;
        let mut again = BTreeSet::new();
        for (n, line) in lines.iter_mut().enumerate() {
            if line.source == Source::Old && self.replaces_rot(line) {
                line.source = Source::Others;
                line.read.clear();
                again.insert(n);
            }
        }
        match again.is_empty() {
            true => Ok(()),
            false => self.read_sources(lines, |n| again.contains(&n)),
        }
    }

    /// Returns whether old content of a line does not match its sum, and all other columns can be
    /// read. After a crash the sum may be that of the new content. Then the content is not rotten,
    /// and the other columns are as good a source.
    fn replaces_rot(&self, line: &Line<'_>) -> bool {
        let old = |column| line.read.iter().find(|(read, _)| *read == column);
        let is_wrong = |(column, sum): &(usize, u32)| {
            old(*column).is_some_and(|(_, content)| !self.has_sum(&content[..], *sum))
        };
        line.old_sums.iter().any(is_wrong)
            && (0..self.rows.parity()).all(|column| self.stored(line.number, column).1.is_some())
    }

    /// Reads what the sources of some lines need. `suits` chooses the lines by their positions.
    fn read_sources(&self, lines: &mut [Line<'_>], suits: impl Fn(usize) -> bool) -> io::Result<()> {
        let mut wanted = Vec::new();
        for (n, line) in lines.iter().enumerate().filter(|(n, _)| suits(*n)) {
            let is_written = |column: usize| line.new.iter().any(|(written, _)| *written == column);
            for column in 0..self.rows.width() {
                let is_parity = column == self.rows.parity();
                let needed = match line.source {
                    Source::New | Source::NoParity => false,
                    Source::Others => !is_parity && !is_written(column),
                    Source::Old => is_parity || is_written(column),
                    Source::AllBut(missing) => column != missing,
                };
                if needed || line.carried.contains(&column) {
                    let place = self.place(line.number, column);
                    wanted.push(Wanted { place: (place.member, place.offset), line: n, column });
                }
            }
        }
        wanted.sort_unstable_by_key(|wanted| wanted.place);
        let runs: Vec<&[Wanted]> =
            wanted.chunk_by(|a, b| a.place.0 == b.place.0 && a.place.1 + BLOCK as u64 == b.place.1).collect();
        for run in &runs {
            if let Some(disk) = self.members.disk(run[0].place.0).filter(|_| runs.len() > 1) {
                disk.0.will_need(run[0].place.1, (run.len() * BLOCK) as u64);
            }
        }
        for run in runs {
            self.read_run(lines, run)?;
        }
        Ok(())
    }

    /// Reads blocks that are next to each other on a member.
    fn read_run(&self, lines: &mut [Line<'_>], run: &[Wanted]) -> io::Result<()> {
        let (member, at) = run[0].place;
        let disk = self.members.disk(member);
        let mut buffer = vec![0; run.len() * BLOCK];
        let is_read = disk.is_some_and(|disk| disk.0.read_at(&mut buffer, at).is_ok());
        for (wanted, block) in run.iter().zip(buffer.chunks_mut(BLOCK)) {
            let line = &mut lines[wanted.line];
            if !is_read {
                self.read_block(line.number, wanted.column, block)?;
            }
            if line.source == Source::Others {
                self.verify(line.number, wanted.column, block);
            }
            line.read.push((wanted.column, super::content_of(block)));
        }
        Ok(())
    }

    /// Replaces a block that was read and does not match its sum, if what follows from the others
    /// does. It is not written now, and the line is looked at later.
    fn verify(&self, line: u64, column: usize, block: &mut [u8]) {
        let Some(sum) = self.known_sum(self.rows.block(line, column)) else { return };
        let is_right = |block: &[u8]| self.has_sum(block, sum);
        if is_right(block) {
            return;
        }
        let mut other = [0; BLOCK];
        let read = |disk: &dyn Disk, buf: &mut [u8], at| disk.read_at(buf, at);
        if self.restore(&mut other, line, column, 0, &read).is_ok() && is_right(&other) {
            block.copy_from_slice(&other);
            self.suspect(line);
        }
    }

    /// Reads a block of a line, if need be from the other members. A block that nothing has any
    /// more counts as zeros: its sum tells that it is damaged.
    pub(super) fn read_block(&self, line: u64, column: usize, block: &mut [u8]) -> io::Result<()> {
        let (place, disk) = self.stored(line, column);
        if let Some(disk) = disk {
            let Err(error) = disk.0.read_at(block, place.offset) else { return Ok(()) };
            if is_shortage(&error) {
                return Err(error);
            }
            if column != self.rows.parity() {
                let at = self.rows.block(line, column) * BLOCK as u64;
                self.members.look_after(at, BLOCK as u64, place.member, &disk, &error);
            }
        }
        let restored = self.restore(block, line, column, 0, &|disk, buf, at| disk.read_at(buf, at));
        match restored {
            Err(error) if is_shortage(&error) => Err(error),
            Err(error) => {
                let layout = &self.members.name;
                tracing::error!(layout, line, column, %error, "a block of a line is lost, and counts as zeros");
                block.fill(0);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Computes what the blocks of a line that are not written have in common. `None`: the line
    /// needs no parity.
    fn partial_parity(&self, line: &mut Line<'_>, read: &[(usize, BlockContent)]) -> Option<BlockContent> {
        let is_written = |column: usize| line.new.iter().any(|(written, _)| *written == column);
        let parity = self.rows.parity();
        let mut partial = zeros();
        match line.source {
            Source::NoParity => return None,
            Source::New => {}
            Source::Others => read.iter().for_each(|(_, content)| add(&mut partial[..], &content[..])),
            Source::Old => {
                let old = read.iter().filter(|(column, _)| *column == parity || is_written(*column));
                old.for_each(|(_, content)| add(&mut partial[..], &content[..]));
            }
            Source::AllBut(missing) => {
                let mut restored = zeros();
                for (column, content) in read {
                    add(&mut restored[..], &content[..]);
                    if *column != parity && !is_written(*column) {
                        add(&mut partial[..], &content[..]);
                    }
                }
                add(&mut partial[..], &restored[..]);
                line.carries.push((missing, restored));
            }
        }
        Some(partial)
    }

    /// Computes the new parity of a line, and its line of the log. `None`: it needs none.
    fn compute(&self, line: &mut Line<'_>) -> Option<LoggedLine> {
        let read = std::mem::take(&mut line.read);
        let carried = read.iter().filter(|(column, _)| line.carried.contains(column));
        line.carries = carried.cloned().collect();
        let partial = self.partial_parity(line, &read)?;
        let mut parity = partial.clone();
        line.new.iter().for_each(|(_, content)| add(&mut parity[..], &content[..]));
        let logged = LoggedLine {
            line: line.number,
            written: line.new.iter().map(|(column, _)| 1 << column).sum(),
            sums: line.new.iter().map(|(_, content)| crc32c(&content[..])).collect(),
            parity_sum: crc32c(&parity[..]),
            partial: (line.source != Source::New).then_some(partial),
            patched: line
                .new
                .iter()
                .filter(|(column, _)| line.patched.contains(column))
                .map(|(column, content)| (*column, (*content).clone()))
                .collect(),
        };
        line.parity = Some(parity);
        Some(logged)
    }

    fn write_lines(&self, lines: &[Line<'_>]) -> io::Result<()> {
        let mut outgoing = Vec::new();
        for line in lines {
            let parity = line.parity.iter().map(|content| (self.rows.parity(), content));
            for (column, content) in line.new.iter().copied().chain(parity) {
                let place = self.place(line.number, column);
                let written = self.members.written(place.member);
                outgoing.extend(written.map(|(role, disk)| Outgoing::to(place, role, disk, content)));
                outgoing.extend(self.to_target(line.number, column, content));
            }
            for (column, content) in &line.carries {
                let place = self.place(line.number, *column);
                let incoming = self.members.incoming(place.member);
                outgoing.extend(incoming.map(|disk| Outgoing::to(place, Role::Incoming, disk, content)));
                outgoing.extend(self.to_target(line.number, *column, content));
            }
        }
        let done = self.write_out(outgoing);
        lines.iter().for_each(|line| self.note_written(line.number..line.number + 1));
        done
    }

    /// Returns the write of a block to the place that it moves to.
    fn to_target<'b>(&self, line: u64, column: usize, content: &'b BlockContent) -> Option<Outgoing<'b>> {
        let (place, disk) = self.target(line, column)?;
        Some(Outgoing { moves: true, ..Outgoing::to(place, Role::Member, disk, content) })
    }

    /// Writes blocks of whole lines. A member that fails is out.
    fn write_out(&self, mut outgoing: Vec<Outgoing<'_>>) -> io::Result<()> {
        outgoing.sort_unstable_by_key(|out| (out.member, out.role == Role::Incoming, out.moves, out.at));
        let _alone = self.lines.write();
        let runs = outgoing.chunk_by(|a, b| {
            (a.member, a.role, a.moves, a.at + BLOCK as u64) == (b.member, b.role, b.moves, b.at)
                && Arc::ptr_eq(&a.disk, &b.disk)
        });
        for run in runs {
            let mut slices: Vec<IoSlice<'_>> = run.iter().map(|out| IoSlice::new(out.content)).collect();
            let first = &run[0];
            match first.disk.0.write_vectored_at(&mut slices, first.at) {
                Ok(()) => {}
                Err(error) if first.moves => self.members.target_failed(first.member, &first.disk, &error),
                Err(error) if is_shortage(&error) && first.role == Role::Member => return Err(error),
                Err(error) => self.members.lose(first.member, &first.disk, &error)?,
            }
        }
        Ok(())
    }
}
