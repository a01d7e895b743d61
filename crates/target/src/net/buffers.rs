//! The two reusable buffers of a connection: requests are received into an [`RxBuffer`], replies
//! are built in a [`ReplyBuf`].

use super::admission::Source;
use super::budget::{Budget, Grant};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// Size in bytes of the receive buffer of a connection that receives no large writes. It has room
/// for the longest PDU that an iSCSI initiator sends unless configured otherwise, 256 KiB, with
/// headers and digests.
pub(crate) const RX_BASE: usize = (256 << 10) + CHEAP_MOVE;
/// Maximum length in bytes of an unread rest that is moved to the start of the buffer. So the
/// buffer reuses memory that is in the CPU's cache.
const CHEAP_MOVE: usize = 8 << 10;
/// Maximum number of buffers that the device still uses and that are kept to be reused later.
const MAX_RETIRED: usize = 4;

/// Received bytes. The whole buffer is initialised once and then reused. It is lent to the device
/// as [`Bytes`], so the payload of a write is not copied. The buffer returns when the device has
/// dropped its references.
pub(crate) struct RxBuffer {
    /// The bytes. Those at `start..end` have been received and are unread.
    buf: BytesMut,
    start: usize,
    end: usize,
    source: Option<Source>,
    /// The grant for the bytes beyond [`RX_BASE`], up to [`MAX_AHEAD`] for a request. `rest` is the
    /// grant for a longer request.
    grant: Option<Grant>,
    rest: Option<Grant>,
    retired: Vec<Bytes>,
}

/// Limits the memory that receive buffers take beyond their base. A long request first gets a part
/// of its room. It gets room for the rest when that part is full, because a client that sends a
/// header and nothing after it must not hold much memory.
///
/// There are two budgets. A connection that waits for the rest holds what it has received. No
/// connection that has got its rest waits for it.
pub(crate) struct RxBudget {
    ahead: Arc<Budget>,
    rest: Arc<Budget>,
}

impl RxBudget {
    /// Makes two budgets with half of `bytes` each.
    pub(crate) fn new(bytes: u64) -> RxBudget {
        RxBudget { ahead: Budget::new(bytes / 2), rest: Budget::new(bytes / 2) }
    }
}

impl RxBuffer {
    /// Makes a buffer that already contains `received`. Memory is counted to `source`.
    pub(crate) fn new(source: Option<Source>, received: &[u8]) -> RxBuffer {
        let mut buf = BytesMut::zeroed(RX_BASE.max(received.len()));
        buf[..received.len()].copy_from_slice(received);
        RxBuffer { buf, start: 0, end: received.len(), source, grant: None, rest: None, retired: Vec::new() }
    }

    pub(crate) fn unread(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// Marks `n` unread bytes as read, and returns their place in the buffer.
    pub(crate) fn take(&mut self, n: usize) -> std::ops::Range<usize> {
        let at = self.start;
        assert!(n <= self.end - at);
        self.start += n;
        at..at + n
    }

    /// Returns bytes whose place [`RxBuffer::take`] has returned. The place is valid until the next
    /// [`RxBuffer::make_room`].
    pub(crate) fn taken(&self, range: &std::ops::Range<usize>) -> &[u8] {
        &self.buf[range.clone()]
    }

    /// Makes room for `need` contiguous unread bytes, and for at least one more byte than there is
    /// now. Waits for `budget` if the buffer has to grow.
    pub(crate) fn make_room(&mut self, need: usize, budget: &RxBudget) {
        let unread = self.end - self.start;
        let contended = self.grant.is_some() && budget.ahead.contended()
            || self.rest.is_some() && budget.rest.contended();
        if contended && unread <= RX_BASE {
            // A busy connection must not make other connections wait forever. It returns its grants
            // and joins the queue again.
            *self = RxBuffer::new(self.source, self.unread());
        }
        if unread == 0 {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0
            && (unread <= CHEAP_MOVE || self.start + need.max(unread + 1) > self.buf.len())
        {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
        }
        let need = need.max(unread + 1);
        let ahead = if unread < MAX_AHEAD { need.min(MAX_AHEAD) } else { need };
        if self.start + ahead > self.buf.len() {
            self.grow(ahead, budget);
        }
    }

    fn grow(&mut self, need: usize, budget: &RxBudget) {
        let mut len = RX_BASE + need;
        if need <= MAX_AHEAD {
            // The buffer has room for two requests. Otherwise the head of each next request would
            // have to be moved.
            len = (2 * need).next_power_of_two();
            // A connection that waits here holds nothing. Otherwise two connections could wait for
            // each other.
            (self.grant, self.rest) = (None, None);
            self.grant = Some(budget.ahead.grant(self.source, (len - RX_BASE) as u64));
        } else {
            // The connection keeps the first part of its room, because received bytes are in it.
            self.rest = None;
            self.rest = Some(budget.rest.grant(self.source, len as u64));
        }
        let mut buf = BytesMut::zeroed(len);
        let unread = self.end - self.start;
        buf[..unread].copy_from_slice(&self.buf[self.start..self.end]);
        (self.buf, self.start, self.end) = (buf, 0, unread);
        if self.rest.is_some() {
            self.grant = None;
        }
    }

    /// Returns the free space at the end of the buffer. The connection receives into it.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.buf[self.end..]
    }

    /// Makes the first `n` bytes of [`RxBuffer::space`] unread bytes.
    pub(crate) fn received(&mut self, n: usize) {
        self.end += n;
        assert!(self.end <= self.buf.len());
    }

    /// Lends the whole buffer. The caller must call [`RxBuffer::give_back`] before any other
    /// function.
    pub(crate) fn lend(&mut self) -> Bytes {
        std::mem::take(&mut self.buf).freeze()
    }

    /// Takes the buffer back. If the device still uses a part of it, another buffer replaces it.
    pub(crate) fn give_back(&mut self, lent: Bytes) {
        match lent.try_into_mut() {
            Ok(buf) => self.buf = buf,
            Err(kept) => {
                let mut buf = self.reclaim(kept.len()).unwrap_or_else(|| BytesMut::zeroed(kept.len()));
                buf[self.start..self.end].copy_from_slice(&kept[self.start..self.end]);
                self.buf = buf;
                if self.retired.len() == MAX_RETIRED {
                    self.retired.remove(0);
                }
                self.retired.push(kept);
            }
        }
    }

    /// Returns a retired buffer of `len` bytes that the device no longer uses.
    fn reclaim(&mut self, len: usize) -> Option<BytesMut> {
        let at = self.retired.iter().position(|kept| kept.len() == len && kept.is_unique())?;
        self.retired.swap_remove(at).try_into_mut().ok()
    }

    /// Returns the memory beyond [`RX_BASE`] if the buffer has no unread bytes. An idle connection
    /// calls it.
    pub(crate) fn shrink(&mut self) {
        if self.start == self.end && self.buf.len() > RX_BASE {
            *self = RxBuffer::new(self.source, &[]);
        }
    }
}

/// Maximum room in bytes that a request gets before any of it has arrived. For requests up to this
/// length the buffer has room for two.
const MAX_AHEAD: usize = 2 << 20;

/// Returns the minimum of the receive budget in bytes, for requests of `max_request` bytes.
pub(crate) fn rx_budget_floor(max_request: u32) -> u64 {
    2 * (u64::from(max_request).max(2 * MAX_AHEAD as u64) + 2 * RX_BASE as u64)
}

/// Replies that are being built, with headers and data in one piece. The buffer is reused, and its
/// memory stays initialised.
#[derive(Default)]
pub(crate) struct ReplyBuf {
    buf: Vec<u8>,
    len: usize,
}

impl ReplyBuf {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the size of the buffer's memory in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.buf.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf[..self.len]
    }

    /// Returns `n` bytes behind the end. Their content is undefined. [`ReplyBuf::commit`] makes
    /// them part of the replies.
    pub(crate) fn space(&mut self, n: usize) -> &mut [u8] {
        let end = self.len + n;
        if self.buf.is_empty() {
            self.buf = vec![0; end.next_multiple_of(4096)]; // zeroed by the system, if it is large
        } else if self.buf.len() < end {
            self.buf.resize(end.next_multiple_of(4096), 0);
        }
        &mut self.buf[self.len..end]
    }

    pub(crate) fn commit(&mut self, n: usize) {
        self.len += n;
        assert!(self.len <= self.buf.len());
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends the replies in `built` and empties `built`. The two buffers may exchange their
    /// memory.
    pub(crate) fn append(&mut self, built: &mut ReplyBuf) {
        if self.len == 0 {
            std::mem::swap(self, built);
        } else {
            self.put(built.bytes());
        }
        built.truncate(0);
    }

    /// Keeps the first `len` bytes and drops the others.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Frees the memory if the buffer is empty and its memory is larger than `max` bytes.
    pub(crate) fn shrink(&mut self, max: usize) {
        if self.len == 0 && self.buf.len() > max {
            self.buf = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(rx: &mut RxBuffer, bytes: &[u8]) {
        rx.space()[..bytes.len()].copy_from_slice(bytes);
        rx.received(bytes.len());
    }

    #[test]
    fn the_same_memory_is_used_again() {
        let budget = RxBudget::new(0);
        let mut rx = RxBuffer::new(None, &[]);
        let memory = rx.buf.as_ptr();
        for round in 0..10u8 {
            rx.make_room(28, &budget);
            fill(&mut rx, &[round; 5000]);
            let range = rx.take(4096);
            let lent = rx.lend();
            let payload = lent.slice(range);
            assert!(payload.iter().all(|b| *b == round));
            drop(payload);
            rx.give_back(lent);
            assert_eq!(rx.buf.as_ptr(), memory);
            rx.take(904);
        }
    }

    #[test]
    fn a_payload_that_the_device_keeps_is_never_overwritten() {
        let budget = RxBudget::new(0);
        let mut rx = RxBuffer::new(None, &[]);
        let mut kept = Vec::new();
        for round in 0..20u8 {
            rx.make_room(28, &budget);
            fill(&mut rx, &[round; 700]);
            let range = rx.take(512);
            let lent = rx.lend();
            kept.push((round, lent.slice(range)));
            rx.give_back(lent);
            assert_eq!(rx.unread(), [round; 188], "the unread rest came along");
            rx.take(188);
            assert!(kept.iter().all(|(round, payload)| payload.iter().all(|b| b == round)));
        }
        kept.clear();
        assert!(rx.reclaim(RX_BASE).is_some(), "and is reused when the device lets go");
    }

    #[test]
    fn growing_keeps_the_rest_and_returns_the_budget() {
        let budget = RxBudget::new(rx_budget_floor(32 << 20));
        let mut rx = RxBuffer::new(None, b"head");
        rx.make_room(1 << 20, &budget);
        assert_eq!(rx.unread(), b"head");
        assert!(rx.space().len() >= (1 << 20) - 4);
        rx.make_room(32 << 20, &budget);
        assert_eq!(rx.unread(), b"head");
        assert!(rx.buf.len() <= 2 * MAX_AHEAD, "none of it has arrived");
        while rx.unread().len() < 32 << 20 {
            rx.make_room(32 << 20, &budget);
            let n = rx.space().len().min(100_000);
            rx.space()[..n].fill(7);
            rx.received(n);
        }
        assert_eq!(rx.unread()[..4], *b"head");
        assert!(rx.unread()[4..].iter().all(|b| *b == 7));
        rx.shrink();
        assert!(rx.rest.is_some(), "not while something is unread");
        rx.take(rx.unread().len());
        rx.shrink();
        assert!(rx.grant.is_none() && rx.rest.is_none());
        assert_eq!(rx.buf.len(), RX_BASE);
    }

    #[test]
    fn a_busy_connection_lets_others_have_their_turn() {
        let budget = Arc::new(RxBudget::new(8 << 20));
        let mut busy = RxBuffer::new(None, &[]);
        busy.make_room(1 << 20, &budget);
        let all = budget.ahead.grant(None, 1 << 20);
        let waiting = std::thread::spawn({
            let budget = budget.clone();
            move || RxBuffer::new(None, &[]).make_room(1 << 20, &budget)
        });
        while !budget.ahead.contended() {
            std::thread::yield_now();
        }
        fill(&mut busy, b"the next request's head");
        busy.make_room(28, &budget); // gives back what it does not need
        waiting.join().unwrap();
        drop(all);
        assert_eq!(busy.unread(), b"the next request's head");
        assert!(busy.grant.is_none());
    }

    #[test]
    fn there_is_always_space_to_receive_into() {
        let budget = RxBudget::new(u64::MAX);
        let mut rx = RxBuffer::new(None, &vec![1; RX_BASE]);
        rx.make_room(28, &budget);
        assert!(!rx.space().is_empty());
    }

    #[test]
    fn replies_are_appended_and_taken_back() {
        let mut out = ReplyBuf::default();
        out.put(b"abc");
        out.space(5000)[0] = b'd';
        out.commit(1);
        assert_eq!(out.bytes(), b"abcd");
        out.truncate(2);
        assert_eq!(out.bytes(), b"ab");
        out.truncate(0);
        out.shrink(4096);
        assert_eq!(out.capacity(), 0);
    }
}
