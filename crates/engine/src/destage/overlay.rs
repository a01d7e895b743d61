//! The new content of a chunk, and what has to be written to a slot for it.

use super::batch::{BatchItem, Content, PartSource, Placed};
use crate::catalog::page::Slot;
use crate::units::BLOCK;

/// The new content of one chunk, as the batch's items give it, newest on top.
pub(super) struct ChunkOverlay {
    /// Disjoint parts, in order.
    pub(super) parts: Vec<(u32, u32, PartSource)>,
    /// A whole-chunk discard lies under the parts: the rest is zeros.
    pub(super) emptied: bool,
    /// A reference lies under the parts: the rest is in its slot.
    pub(super) referred: Option<Slot>,
    /// Slots of references that later items of the batch overwrite as a whole.
    pub(super) overtaken: Vec<Slot>,
    /// The chunk has sums, so it is written in whole units.
    whole_units: bool,
}

impl ChunkOverlay {
    pub(super) fn of(items: &[BatchItem], chunk_size: u64, has_sums: bool) -> ChunkOverlay {
        let mut overlay = ChunkOverlay {
            parts: Vec::with_capacity(items.len()),
            emptied: false,
            referred: None,
            overtaken: Vec::new(),
            whole_units: has_sums && chunk_size >= BLOCK,
        };
        for item in items {
            match item.source {
                PartSource::Hole if (item.end - item.start) as u64 == chunk_size => {
                    overlay.begin_with(None);
                }
                PartSource::Slot(slot) => overlay.begin_with(Some(slot)),
                source => overlay.put(item.start, item.end, source),
            }
        }
        overlay
    }

    /// Lays the slot of a reference, or zeros, over everything so far.
    fn begin_with(&mut self, referred: Option<Slot>) {
        self.parts.clear();
        self.emptied = referred.is_none();
        self.overtaken.extend(std::mem::replace(&mut self.referred, referred));
    }

    /// Adds a part on top of the others.
    fn put(&mut self, start: u32, end: u32, source: PartSource) {
        let first = self.parts.partition_point(|p| p.1 <= start);
        let last = first + self.parts[first..].partition_point(|p| p.0 < end);
        let mut replacement = Vec::with_capacity(3);
        if let Some(&(s, _, src)) = self.parts[first..last].first().filter(|p| p.0 < start) {
            replacement.push((s, start, src));
        }
        replacement.push((start, end, source));
        if let Some(&(s, e, src)) = self.parts[first..last].last().filter(|p| p.1 > end) {
            replacement.push((end, e, src.advanced(end - s)));
        }
        self.parts.splice(first..last, replacement);
    }

    /// Returns whether the parts cover the first `len` bytes.
    pub(super) fn covers(&self, len: u64) -> bool {
        let mut end = 0;
        self.parts.iter().for_each(|p| end = if p.0 <= end { end.max(p.1) } else { end });
        u64::from(end) >= len
    }

    /// Number of bytes that the batch writes to the chunk.
    pub(super) fn written(&self) -> u64 {
        self.parts.iter().filter(|p| p.2 != PartSource::Hole).map(|p| (p.1 - p.0) as u64).sum()
    }

    pub(super) fn needs_slot(&self) -> bool {
        self.parts.iter().any(|p| p.2 != PartSource::Hole)
    }

    /// Returns whether the parts cover a unit in part.
    pub(super) fn is_mixed(&self) -> bool {
        self.whole_units && !self.emptied && self.parts.iter().any(|p| !is_whole(p.0) || !is_whole(p.1))
    }

    /// Adds to `out` the writes for the slot at `slot`: the parts, and in the gaps between them the
    /// content that `under` gives. With sums, each unit is written as a whole. Returns the units of
    /// which old content is kept in part: its place, and the byte of the chunk.
    pub(super) fn place(
        &self,
        slot: Slot,
        chunk_size: u64,
        under: Under,
        out: &mut Vec<Placed>,
    ) -> Vec<(Slot, u32)> {
        let mut mixed: Vec<(Slot, u32)> = Vec::new();
        let mut put = |start, end, fill| out.push(Placed::new(slot, chunk_size, (start, end), fill));
        let mut keep = |from: Slot, (start, end): (u32, u32), put: &mut dyn FnMut(u32, u32, Content)| {
            put(start, end, Content::Slot(from.advanced(start.into())));
            for edge in [start, end].into_iter().filter(|edge| self.whole_units && !is_whole(*edge)) {
                let unit = edge - edge % UNIT;
                if mixed.last().is_none_or(|(_, last)| *last != unit) {
                    mixed.push((from.advanced(unit.into()), unit));
                }
            }
        };
        let mut gap = |start: u32, end: u32, put: &mut dyn FnMut(u32, u32, Content)| match under {
            Under::Kept if self.whole_units => {
                // The rest of the units at both ends of the gap.
                let head = if is_whole(start) { start } else { end.min(start.next_multiple_of(UNIT)) };
                let tail = if is_whole(end) { end } else { head.max(end - end % UNIT) };
                let parts = [(start, head), (tail, end)].into_iter().filter(|part| part.0 < part.1);
                parts.for_each(|part| keep(slot, part, put));
            }
            Under::Kept => {}
            Under::Zeros | Under::Covered => put(start, end, Content::Zeros),
            Under::Slot(old) => keep(old, (start, end), put),
        };
        let mut at = 0u32;
        for &(start, end, source) in &self.parts {
            if at < start {
                gap(at, start, &mut put);
            }
            let fill = match source {
                PartSource::Journal(file, position) => Content::Journal(file, position),
                PartSource::Slot(slot) => Content::Slot(slot),
                PartSource::Zeros | PartSource::Hole => Content::Zeros,
            };
            put(start, end, fill);
            at = end;
        }
        if (at as u64) < chunk_size {
            gap(at, chunk_size as u32, &mut put);
        }
        mixed
    }
}

/// The size of a unit, in bytes.
pub(super) const UNIT: u32 = BLOCK as u32;

/// Returns whether a byte of a chunk begins a unit.
fn is_whole(at: u32) -> bool {
    at.is_multiple_of(UNIT)
}

/// The content under the parts of an overlay.
#[derive(Debug, Clone, Copy)]
pub(super) enum Under {
    /// The content that the slot holds already. It is not written again.
    Kept,
    Zeros,
    /// An image or a moment of which the parts leave nothing visible. Bytes outside the parts are
    /// zeros.
    Covered,
    /// The content of another slot.
    Slot(Slot),
}

impl PartSource {
    fn advanced(self, by: u32) -> PartSource {
        match self {
            PartSource::Journal(file, position) => PartSource::Journal(file, position + by),
            zeros => zeros,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Chunk;
    use crate::world::{Rng, SplitMix};

    #[test]
    fn overlays_agree_with_a_plain_array() {
        for seed in 0..300 {
            let rng = SplitMix::new(seed);
            let mut plain = [None; 32];
            let mut items = Vec::new();
            for order in 0..1 + rng.next() as u32 % 12 {
                let start = rng.next() as u32 % 32;
                let end = start + 1 + rng.next() as u32 % (32 - start);
                let (start, end) = if rng.next() % 5 == 0 { (0, 32) } else { (start, end) };
                let source = match rng.next() % 4 {
                    0 => PartSource::Hole,
                    1 => PartSource::Zeros,
                    _ => PartSource::Journal(order, 1000 + start),
                };
                items.push(BatchItem { branch: 0, order, chunk: Chunk::FIRST, start, end, source });
                for (at, cell) in plain.iter_mut().enumerate() {
                    let at = at as u32;
                    if (start..end).contains(&at) {
                        *cell = Some(source.advanced(at - start));
                    }
                }
            }
            let overlay = ChunkOverlay::of(&items, 32, false);
            let mut got = [overlay.emptied.then_some(PartSource::Hole); 32];
            let mut last = 0;
            for &(start, end, source) in &overlay.parts {
                assert!(start >= last && start < end);
                last = end;
                for at in start..end {
                    got[at as usize] = Some(source.advanced(at - start));
                }
            }
            assert_eq!(got, plain, "seed {seed}");
        }
    }
}
