//! Relocation of a volume's chunks: its control and its progress.

use super::Pool;
use crate::catalog::PageKey;
use crate::catalog::page::{CHUNKS, Slot};
use crate::destage::state::Relocation;
use crate::error::{Result, not_found};
use crate::ids::Chunk;
use crate::info::{Layout, RelocationInfo};
use crate::upkeep::relocate::{PAGES_PER_STEP, follows};

impl Pool {
    /// Begins to put a volume's chunks back in order, in the background, at most `bytes_per_second`
    /// (0: no limit). A restart ends it. A repeated call continues from what is in order by then.
    pub fn relocate_volume(&self, volume: &str, bytes_per_second: u64) -> Result<()> {
        let branch = self.core.names.read().volume(volume)?.line.branch.id;
        let job = Relocation { rate: bytes_per_second, ..Relocation::default() };
        self.destager.state.lock().relocating.insert(branch, job);
        self.core.wake();
        Ok(())
    }

    /// Ends the relocation of a volume where it is. Returns [`crate::ErrorKind::NotFound`] if there
    /// is none.
    pub fn stop_relocation(&self, volume: &str) -> Result<RelocationInfo> {
        let info = self.relocation(volume)?;
        let branch = self.core.names.read().volume(volume)?.line.branch.id;
        self.destager.state.lock().relocating.remove(&branch);
        info.ok_or_else(|| not_found(format!("stop the relocation of {volume}: none is running")))
    }

    /// Returns the progress of a volume's relocation; `None` if there is none (any more).
    pub fn relocation(&self, volume: &str) -> Result<Option<RelocationInfo>> {
        let names = self.core.names.read();
        let state = names.volume(volume)?;
        let (branch, size) = (&state.line.branch, state.size.load(std::sync::atomic::Ordering::Relaxed));
        let (id, page_bytes) = (branch.id, CHUNKS << branch.chunk_log2);
        drop(names);
        let m = self.destager.state.lock();
        let info = |job: &Relocation| RelocationInfo {
            pass: job.pass + 1,
            position: (job.page * page_bytes).min(size),
            moved_bytes: job.moved,
        };
        Ok(m.relocating.get(&id).map(info))
    }

    /// Returns how a volume's own chunks lie, which relocation would improve. Reads the whole map.
    pub fn layout(&self, volume: &str) -> Result<Layout> {
        let branch = self.core.names.read().volume(volume)?.line.branch.clone();
        let mut layout = Layout::default();
        let (mut from, mut before) = (0, None::<(Chunk, Slot)>);
        loop {
            let numbers = self.core.catalog.page_numbers(branch.id, from, u64::MAX, PAGES_PER_STEP)?;
            for number in &numbers {
                let page = self.core.map.read(PageKey::new(branch.id, *number))?;
                for (at, entry) in page.iter().filter(|(_, e)| e.slot != Slot::HOLE) {
                    let chunk = Chunk::in_page(*number, at);
                    let goes_on = before.is_some_and(|(earlier, slot)| {
                        follows((slot, entry.slot), chunk.since(earlier), branch.slot_log2)
                    });
                    layout.chunks += 1;
                    layout.runs += u64::from(!goes_on);
                    before = Some((chunk, entry.slot));
                }
            }
            match numbers.last() {
                Some(last) => from = last + 1,
                None => return Ok(layout),
            }
        }
    }
}
