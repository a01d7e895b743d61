//! The space that volumes and snapshots need: lines of history, and the most slots that each of
//! them may own ([`Lines`]).
//!
//! The model is the least that the rule of preservation allows. A chunk has one slot for each epoch
//! in which it was written, if a volume or snapshot still shows the content of that epoch.

use super::content::Content;
use std::collections::{BTreeMap, BTreeSet};

/// All lines of history, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    lines: BTreeMap<u32, Line>,
    next: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    /// The base of the line: (line, epoch).
    base: Option<(u32, u32)>,
    chunk_size: u64,
    /// Whether the line rests on an image, directly or through other lines.
    over_image: bool,
    /// The largest number of chunks of its base or image that the line shows.
    below: u64,
    epoch: u32,
    /// Whether a volume writes to the line.
    written: bool,
    /// The epoch in which each chunk that has a slot was born.
    slots: Content,
    frozen: BTreeMap<u32, Frozen>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Frozen {
    slots: Content,
    /// Whether a snapshot names the state. If none does, another line rests on it.
    named: bool,
}

impl Lines {
    /// Begins a new line.
    pub(super) fn begin(&mut self, base: Option<(u32, u32)>, chunk_size: u64) -> u32 {
        self.next += 1;
        let under = base.and_then(|(line, epoch)| {
            let line = self.lines.get(&line)?;
            Some((line.over_image, line.below + line.frozen.get(&epoch)?.slots.count()))
        });
        let (over_image, below) = under.unwrap_or_default();
        let line = Line {
            base,
            chunk_size,
            over_image,
            below,
            epoch: 1,
            written: true,
            slots: Content::default(),
            frozen: BTreeMap::new(),
        };
        self.lines.insert(self.next, line);
        self.next
    }

    /// Begins a new line over content that belongs to no line, like an image. The caller sets its
    /// length with [`Lines::put_over_image`].
    pub(super) fn begin_over_image(&mut self, chunk_size: u64) -> u32 {
        let line = self.begin(None, chunk_size);
        self.put_over_image(line, 0);
        line
    }

    /// Notes that the line rests on an image and shows `shown` bytes of it.
    pub(super) fn put_over_image(&mut self, line: u32, shown: u64) {
        if let Some(line) = self.lines.get_mut(&line) {
            (line.over_image, line.below) = (true, shown.div_ceil(line.chunk_size));
        }
    }

    /// Returns whether any line rests on an image, or did so once.
    pub(crate) fn any_over_image(&self) -> bool {
        self.lines.values().any(|line| line.over_image)
    }

    /// Returns whether a line rests on an image, or did so once.
    pub(crate) fn over_image(&self, line: u32) -> bool {
        self.lines.get(&line).is_some_and(|l| l.over_image)
    }

    /// Returns whether a line began over another one.
    pub(crate) fn has_base(&self, line: u32) -> bool {
        self.lines.get(&line).is_some_and(|l| l.base.is_some())
    }

    pub(super) fn write(&mut self, line: u32, start: u64, end: u64) {
        if let Some(line) = self.lines.get_mut(&line) {
            let (first, last) = (start / line.chunk_size, end.div_ceil(line.chunk_size));
            line.slots.set(first, last, u64::from(line.epoch));
        }
    }

    /// Discards a range of bytes. Whole chunks lose their slots. A chunk that is cut in part is
    /// written, if it has content.
    pub(super) fn discard(&mut self, line: u32, start: u64, end: u64) {
        let Some(line) = self.lines.get_mut(&line) else { return };
        let (first, last) = (start.div_ceil(line.chunk_size), end / line.chunk_size);
        line.slots.set(first, last, 0);
        for edge in [start, end] {
            let part = edge / line.chunk_size;
            let cut = !edge.is_multiple_of(line.chunk_size);
            if cut && (line.base.is_some() || line.over_image || line.slots.get(part) != 0) {
                line.slots.set(part, part + 1, u64::from(line.epoch));
            }
        }
    }

    /// Ends an epoch of a line, and returns that epoch.
    pub(super) fn freeze(&mut self, line: u32) -> u32 {
        let Some(line) = self.lines.get_mut(&line) else { return 0 };
        line.frozen.insert(line.epoch, Frozen { slots: line.slots.clone(), named: true });
        line.epoch += 1;
        line.epoch - 1
    }

    /// Notes that no volume writes to the line any more.
    pub(super) fn leave(&mut self, line: u32) {
        if let Some(line) = self.lines.get_mut(&line) {
            line.written = false;
            line.slots = Content::default();
        }
    }

    /// Notes that a snapshot no longer names this epoch of the line.
    pub(super) fn let_go(&mut self, (line, epoch): (u32, u32)) {
        if let Some(frozen) = self.lines.get_mut(&line).and_then(|l| l.frozen.get_mut(&epoch)) {
            frozen.named = false;
        }
    }

    /// Forgets lines and epochs that nothing needs any more.
    pub(super) fn collect(&mut self) {
        loop {
            let bases: BTreeSet<(u32, u32)> = self.lines.values().filter_map(|l| l.base).collect();
            let before = self.lines.len();
            for (id, line) in &mut self.lines {
                line.frozen.retain(|epoch, frozen| frozen.named || bases.contains(&(*id, *epoch)));
            }
            self.lines.retain(|_, line| line.written || !line.frozen.is_empty());
            if self.lines.len() == before {
                return;
            }
        }
    }

    /// Returns whether there is a deleted snapshot that a line still rests on.
    pub(crate) fn any_hidden(&self) -> bool {
        self.lines.values().any(|line| line.frozen.values().any(|frozen| !frozen.named))
    }

    /// Returns the number of lines from this line down to the lowest base.
    pub(crate) fn depth(&self, line: u32) -> usize {
        let base = |id: &u32| self.lines.get(id).and_then(|l| l.base).map(|(line, _)| line);
        std::iter::successors(Some(line), base).count()
    }

    /// Returns the largest number of bytes of slots that a line may own when nothing is pending.
    /// `shared` means that snapshots share what did not change between them. `filled` means that
    /// the line may own what it shows of its base.
    pub(crate) fn bytes(&self, line: u32, atomic_unit: u32, shared: bool, filled: bool) -> u64 {
        let Some(line) = self.lines.get(&line) else { return 0 };
        let mut seen = BTreeSet::new();
        let mut slots: BTreeSet<(u64, u64)> = BTreeSet::new();
        let mut unshared = 0;
        let contents = line.frozen.values().map(|f| &f.slots).chain(line.written.then_some(&line.slots));
        for (number, zone) in contents.flat_map(Content::zones) {
            if !shared {
                unshared += zone.iter().filter(|born| **born != 0).count() as u64;
            } else if seen.insert(std::sync::Arc::as_ptr(zone)) {
                let chunks = zone.iter().enumerate().filter(|(_, born)| **born != 0);
                slots.extend(chunks.map(|(at, born)| (number * zone.len() as u64 + at as u64, *born)));
            }
        }
        // Over an image a chunk is materialized before it is written. If a crash removes the write,
        // the materialized chunk stays.
        let once = shared && !line.over_image;
        let copies = if once { 1 } else { line.frozen.len() as u64 + 1 };
        let below = if filled { line.below * copies } else { 0 };
        (slots.len() as u64 + unshared + below) * line.chunk_size.max(atomic_unit.into())
    }

    /// Returns the largest number of bytes of slots in use when nothing is pending.
    pub(crate) fn total_bytes(&self, atomic_unit: u32, shared: bool, filled: bool) -> u64 {
        self.lines.keys().map(|line| self.bytes(*line, atomic_unit, shared, filled)).sum()
    }
}
