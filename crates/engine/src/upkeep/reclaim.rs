//! Frees much at once, in steps: long discards, the tails of shrunk volumes, and branches without a
//! volume. Every step is a commit of its own and can be repeated after a crash, since slots that
//! were freed already are not in the map any more.

use crate::branch::HEAD;
use crate::catalog::PageKey;
use crate::catalog::page::{Entry, Slot};
use crate::destage::Destager;
use crate::destage::discard::{DiscardStep, PAGES_PER_STEP};
use crate::destage::state::BackgroundState;
use crate::error::Result;
use crate::ids::BranchId;
use crate::shortage::Task;

impl Destager {
    /// Frees a part of what is unowned: of branches that no volume writes to, and of deleted
    /// snapshots. False when there is nothing that can be freed now.
    pub(crate) fn reclaim(&self, state: &mut BackgroundState) -> Result<bool> {
        let pinned = |id: &BranchId| {
            let names = self.core.names.read();
            names.branches.get(id).is_some_and(|branch| branch.cdp.oldest_pin().is_some())
        };
        let dead = state.orphan_branches.iter().find(|(id, _)| !pinned(id)).map(|(id, from)| (*id, *from));
        let worked = match dead {
            Some((id, from)) => self.trim_branch(state, id, from).map(|()| true),
            None => self.dissolve(state),
        };
        worked.map_err(|e| self.failed(state, Task::Upkeep, e))
    }

    /// Frees, from map page `from` on, what no snapshot of a branch without a writer sees. The
    /// branch's current map counts as the version of its newest snapshot. A branch without
    /// snapshots is removed as a whole.
    fn trim_branch(&self, state: &mut BackgroundState, id: BranchId, from: u64) -> Result<()> {
        let branch = self.core.names.read().branches.get(&id).cloned();
        let Some(branch) = branch else {
            state.orphan_branches.remove(&id);
            return Ok(());
        };
        let newest = branch.frozen.read().last().copied();
        let most = self.core.catalog_room.pages(PAGES_PER_STEP);
        let numbers = self.core.catalog.page_numbers(id, from, u64::MAX, most)?;
        let next = numbers.last().map(|n| n + 1);
        let mut step = DiscardStep::default();
        for number in numbers {
            let mut page = (*self.core.map.read(PageKey::new(id, number))?).clone();
            let unseen = |e: &Entry| newest.is_none_or(|newest| e.born > newest);
            let doomed: Vec<usize> = page.iter().filter(|(_, e)| unseen(e)).map(|(at, _)| at).collect();
            for at in &doomed {
                if let Some(entry) = page.remove(*at).filter(|e| e.slot != Slot::HOLE) {
                    state.allocator.free(entry.slot, branch.slot_log2)?;
                    step.freed += 1;
                }
            }
            if !doomed.is_empty() {
                step.pages.push((PageKey::new(id, number), page));
            }
        }
        if !step.pages.is_empty() {
            self.commit_freed(state, &branch, step, HEAD)?;
        }
        match next {
            Some(next) => drop(state.orphan_branches.insert(id, next)),
            None => {
                // A deleted snapshot that is being dissolved keeps nothing any more, but still
                // names the branch. When it is gone, the branch is added here again.
                let recorded = !branch.cdp.log.read().events.is_empty();
                if newest.is_none() && !recorded && !self.core.names.read().is_named(id) {
                    self.remove_branch(state, id)?;
                }
                state.orphan_branches.remove(&id);
            }
        }
        Ok(())
    }

    fn remove_branch(&self, state: &mut BackgroundState, id: BranchId) -> Result<()> {
        let mut txn = self.core.catalog.begin()?;
        txn.remove_branch(id)?;
        self.commit_aside(state, txn, &[])?;
        self.core.names.write().forget_branch(id);
        self.core.map.forget_branch(id);
        Ok(())
    }
}
