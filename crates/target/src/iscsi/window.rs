//! The command window of a session (RFC 7143, 4.2.2.1), and the order of its tasks (SAM-5 8.6). The
//! module does no input or output.
//!
//! Commands carry CmdSN. The window accepts numbers between ExpCmdSN and MaxCmdSN and ignores all
//! others. A command that comes before its turn, over another connection, is held until the gap is
//! filled. MaxCmdSN grows when a command ends, so the window limits how many commands are under
//! way.

use std::collections::{HashMap, VecDeque};

/// The task attribute of a SCSI command (11.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attribute {
    /// The task may run in any order. Untagged and ACA tasks count as simple, because there is
    /// never an auto contingent allegiance.
    Simple,
    /// The task runs after all earlier tasks and before all later ones.
    Ordered,
    /// The task runs at once.
    HeadOfQueue,
}

impl Attribute {
    pub(super) fn from_wire(flags: u8) -> Attribute {
        match flags & super::pdu::command_flag::ATTR {
            2 => Attribute::Ordered,
            3 => Attribute::HeadOfQueue,
            _ => Attribute::Simple,
        }
    }
}

/// The properties of a request that the window uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticketed {
    /// CmdSN. `None` for a request for immediate delivery.
    pub(super) cmd_sn: Option<u32>,
    /// Task attribute. `None` for a request that is no SCSI command. Such a request ends as soon as
    /// it begins.
    pub(super) attribute: Option<Attribute>,
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// The request may begin.
    Go,
    /// The request waits. [`Window::next`] or [`Window::ended`] returns it later.
    Kept,
    /// The request is a duplicate or outside the window. The caller ignores it (4.2.2.1).
    Ignored,
}

struct Item<H> {
    attribute: Option<Attribute>,
    item: H,
}

/// The command window. `H` is what the window keeps of a request that waits.
pub(super) struct Window<H> {
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    /// Requests that came before their turn. The value is `None` if a task management function has
    /// removed the request, or counts its CmdSN as received.
    held: HashMap<u32, Option<Item<H>>>,
    /// Number of SCSI commands in progress.
    running: usize,
    /// Whether an ordered task is in progress.
    exclusive: bool,
    /// Ordered tasks that wait, and tasks that wait for an ordered task, in order.
    fenced: VecDeque<Item<H>>,
}

impl<H> Window<H> {
    pub(super) fn new(cmd_sn: u32, depth: u32) -> Window<H> {
        Window {
            exp_cmd_sn: cmd_sn,
            max_cmd_sn: cmd_sn.wrapping_add(depth - 1),
            held: HashMap::new(),
            running: 0,
            exclusive: false,
            fenced: VecDeque::new(),
        }
    }

    /// Returns ExpCmdSN and MaxCmdSN.
    pub(super) fn numbers(&self) -> (u32, u32) {
        (self.exp_cmd_sn, self.max_cmd_sn)
    }

    /// Returns the number of requests that the window keeps.
    pub(super) fn waiting(&self) -> usize {
        self.held.len() + self.fenced.len()
    }

    /// Returns whether the request with ExpCmdSN is held, so that [`Window::next`] must be called.
    pub(super) fn has_next(&self) -> bool {
        self.held.contains_key(&self.exp_cmd_sn)
    }

    /// Returns whether the window accepts a CmdSN and has not received it yet.
    pub(super) fn awaits(&self, cmd_sn: u32) -> bool {
        let size = self.max_cmd_sn.wrapping_sub(self.exp_cmd_sn).wrapping_add(1);
        cmd_sn.wrapping_sub(self.exp_cmd_sn) < size && !self.held.contains_key(&cmd_sn)
    }

    /// Admits a request. If it must wait, `keep` makes the value that the window keeps.
    pub(super) fn admit(&mut self, request: Ticketed, keep: impl FnOnce() -> H) -> Admission {
        if let Some(cmd_sn) = request.cmd_sn {
            if !self.awaits(cmd_sn) {
                return Admission::Ignored;
            }
            if cmd_sn != self.exp_cmd_sn {
                self.held.insert(cmd_sn, Some(Item { attribute: request.attribute, item: keep() }));
                return Admission::Kept;
            }
            self.take(request.attribute);
        }
        if self.begin(request.attribute) {
            return Admission::Go;
        }
        self.fenced.push_back(Item { attribute: request.attribute, item: keep() });
        Admission::Kept
    }

    /// Advances ExpCmdSN. A request that is no SCSI command frees its place in the window at once.
    fn take(&mut self, attribute: Option<Attribute>) {
        self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        if attribute.is_none() {
            self.max_cmd_sn = self.max_cmd_sn.wrapping_add(1);
        }
    }

    /// Begins a task, unless it must wait for an ordered one. Returns whether it has begun.
    fn begin(&mut self, attribute: Option<Attribute>) -> bool {
        let fence = self.exclusive || !self.fenced.is_empty();
        let free = match attribute {
            None => return true,
            Some(Attribute::HeadOfQueue) => true,
            Some(Attribute::Simple) => !fence,
            Some(Attribute::Ordered) => !fence && self.running == 0,
        };
        if free {
            self.running += 1;
            self.exclusive |= attribute == Some(Attribute::Ordered);
        }
        free
    }

    /// Returns the next held request that may begin.
    pub(super) fn next(&mut self) -> Option<H> {
        while let Some(held) = self.held.remove(&self.exp_cmd_sn) {
            let Some(item) = held else {
                self.take(None);
                continue;
            };
            self.take(item.attribute);
            if self.begin(item.attribute) {
                return Some(item.item);
            }
            self.fenced.push_back(item);
        }
        None
    }

    /// Registers that SCSI commands have ended. `counted` of them were not immediate. Returns the
    /// requests that may begin now.
    pub(super) fn ended(&mut self, commands: usize, counted: u32) -> Vec<H> {
        self.running = self.running.saturating_sub(commands);
        self.max_cmd_sn = self.max_cmd_sn.wrapping_add(counted);
        self.exclusive &= self.running > 0;
        let mut ready = Vec::new();
        while !self.exclusive && !self.fenced.is_empty() {
            let ordered = self.fenced.front().is_some_and(|item| item.attribute == Some(Attribute::Ordered));
            if ordered && self.running > 0 {
                break;
            }
            self.running += 1;
            self.exclusive = ordered;
            ready.extend(self.fenced.pop_front().map(|item| item.item));
        }
        ready
    }

    /// Counts a CmdSN as received that was not received. ABORT TASK needs it for a command that is
    /// still in transit (11.5.1).
    pub(super) fn plug(&mut self, cmd_sn: u32) {
        self.held.insert(cmd_sn, None);
    }

    /// Removes and returns all requests that wait, because the session has ended.
    pub(super) fn clear(&mut self) -> Vec<H> {
        let held = std::mem::take(&mut self.held).into_values().flatten();
        held.chain(std::mem::take(&mut self.fenced)).map(|item| item.item).collect()
    }

    /// Removes and returns the waiting requests that `which` chooses. The first list has the
    /// requests that came before their turn. The second list has those that waited for an ordered
    /// task: the caller must pass the number of the non-immediate ones to [`Window::ended`], to
    /// free their places in the window.
    pub(super) fn drop_where(&mut self, which: impl Fn(&H) -> bool) -> (Vec<H>, Vec<H>) {
        let mut held = Vec::new();
        for slot in self.held.values_mut() {
            if slot.as_ref().is_some_and(|item| which(&item.item)) {
                held.extend(slot.take().map(|item| item.item));
            }
        }
        let mut fenced = Vec::new();
        for item in std::mem::take(&mut self.fenced) {
            if which(&item.item) {
                fenced.push(item.item);
            } else {
                self.fenced.push_back(item);
            }
        }
        (held, fenced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Admission::*;

    fn scsi(cmd_sn: u32) -> Ticketed {
        Ticketed { cmd_sn: Some(cmd_sn), attribute: Some(Attribute::Simple) }
    }

    fn with(cmd_sn: u32, attribute: Attribute) -> Ticketed {
        Ticketed { cmd_sn: Some(cmd_sn), attribute: Some(attribute) }
    }

    #[test]
    fn commands_go_in_order_and_the_window_closes() {
        let mut window = Window::<u32>::new(u32::MAX, 3);
        assert_eq!(window.numbers(), (u32::MAX, 1));
        for (sn, expected) in [(u32::MAX, Go), (0, Go), (1, Go), (2, Ignored), (u32::MAX, Ignored)] {
            assert_eq!(window.admit(scsi(sn), || sn), expected, "{sn}");
        }
        assert_eq!(window.numbers(), (2, 1), "closed");
        assert!(window.ended(1, 1).is_empty());
        assert_eq!(window.numbers(), (2, 2));
        assert_eq!(window.admit(scsi(2), || 2), Go);
    }

    #[test]
    fn what_comes_early_waits_for_its_turn() {
        let mut window = Window::new(10, 8);
        assert_eq!(window.admit(scsi(12), || 12), Kept);
        assert_eq!(window.admit(scsi(12), || 99), Ignored, "a duplicate");
        assert_eq!(window.admit(scsi(11), || 11), Kept);
        assert_eq!(window.next(), None);
        assert_eq!(window.admit(scsi(10), || 10), Go);
        assert!(window.has_next());
        assert_eq!([window.next(), window.next(), window.next()], [Some(11), Some(12), None]);
        assert_eq!(window.numbers(), (13, 17));
    }

    #[test]
    fn immediate_requests_and_others_take_no_place() {
        let mut window = Window::<u32>::new(1, 2);
        let immediate = Ticketed { cmd_sn: None, attribute: Some(Attribute::Simple) };
        assert_eq!(window.admit(immediate, || 0), Go);
        assert_eq!(window.numbers(), (1, 2));
        assert_eq!(window.admit(Ticketed { cmd_sn: Some(1), attribute: None }, || 0), Go);
        assert_eq!(window.numbers(), (2, 3));
    }

    #[test]
    fn a_plugged_number_is_skipped() {
        let mut window = Window::new(1, 8);
        assert_eq!(window.admit(scsi(3), || 3), Kept);
        assert!(window.awaits(2) && !window.awaits(3) && !window.awaits(9));
        window.plug(2);
        assert_eq!(window.admit(scsi(1), || 1), Go);
        assert_eq!(window.next(), Some(3));
        assert_eq!(window.numbers(), (4, 9));
    }

    #[test]
    fn ordered_tasks_run_alone() {
        use Attribute::*;
        let mut window = Window::new(1, 16);
        assert_eq!(window.admit(with(1, Simple), || 1), Go);
        assert_eq!(window.admit(with(2, Ordered), || 2), Kept);
        assert_eq!(window.admit(with(3, Simple), || 3), Kept, "behind the ordered one");
        assert_eq!(window.admit(with(4, HeadOfQueue), || 4), Go);
        assert_eq!(window.admit(with(5, Ordered), || 5), Kept);
        assert_eq!(window.admit(with(6, Simple), || 6), Kept);
        assert!(window.ended(1, 1).is_empty(), "one is left");
        assert_eq!(window.ended(1, 1), [2]);
        assert_eq!(window.ended(1, 1), [3]);
        assert_eq!(window.ended(1, 1), [5]);
        assert_eq!(window.ended(1, 1), [6]);
        assert_eq!(window.admit(with(7, Ordered), || 7), Kept);
        assert_eq!(window.ended(1, 1), [7]);
        assert!(window.ended(1, 1).is_empty());
        assert_eq!(window.admit(with(8, Ordered), || 8), Go);
        assert_eq!(window.numbers(), (9, 23));
    }

    #[test]
    fn waiting_tasks_can_be_taken_out() {
        let mut window = Window::new(1, 16);
        assert_eq!(window.admit(scsi(1), || 1), Go);
        assert_eq!(window.admit(with(2, Attribute::Ordered), || 2), Kept);
        assert_eq!(window.admit(scsi(3), || 3), Kept);
        assert_eq!(window.admit(scsi(5), || 5), Kept);
        let (held, fenced) = window.drop_where(|n| *n != 3);
        assert_eq!((held, fenced), (vec![5], vec![2]));
        assert_eq!(window.admit(scsi(4), || 4), Kept);
        assert_eq!(window.next(), None);
        assert_eq!(window.numbers().0, 6);
        assert_eq!(window.ended(1, 1), [3, 4]);
        assert_eq!(window.admit(scsi(9), || 9), Kept);
        assert_eq!(window.admit(Ticketed { cmd_sn: Some(8), attribute: None }, || 8), Kept);
        let mut rest = window.clear();
        rest.sort_unstable();
        assert_eq!(rest, [8, 9]);
        assert!(window.clear().is_empty());
    }
}
