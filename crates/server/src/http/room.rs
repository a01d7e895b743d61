//! The memory that responses over TCP may hold while their clients read them.

use hindcast_target::admission::Source;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of bytes of all responses at one time.
const ALL: u64 = 256 << 20;
/// Maximum number of bytes of the responses to one party. A longer response counts as this many, so
/// that it is possible while the party has no other one.
const OF_ONE: u64 = 128 << 20;

/// The bytes of the responses that clients are reading.
#[derive(Default)]
pub(super) struct AnswerRoom(Mutex<Used>);

#[derive(Default)]
struct Used {
    all: u64,
    of: BTreeMap<Source, u64>,
}

/// The share of one response. Its drop frees the share.
pub(super) struct AnswerShare {
    room: Arc<AnswerRoom>,
    source: Source,
    bytes: u64,
}

impl AnswerRoom {
    /// Takes room for a response of this length. Returns `None` if there is none.
    pub(super) fn take(self: &Arc<Self>, source: Source, length: u64) -> Option<AnswerShare> {
        let bytes = length.min(OF_ONE);
        let mut used = self.0.lock();
        let own = used.of.get(&source).copied().unwrap_or(0);
        if own + bytes > OF_ONE || used.all + bytes > ALL {
            return None;
        }
        used.all += bytes;
        *used.of.entry(source).or_insert(0) += bytes;
        Some(AnswerShare { room: self.clone(), source, bytes })
    }
}

impl Drop for AnswerShare {
    fn drop(&mut self) {
        let mut used = self.room.0.lock();
        used.all -= self.bytes;
        if let Some(own) = used.of.get_mut(&self.source) {
            *own -= self.bytes;
            if *own == 0 {
                used.of.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn one_party_leaves_room_for_others() {
        let room = Arc::new(AnswerRoom::default());
        let party = |n: u8| Source::of(IpAddr::from([10, 0, 0, n]));
        let mut held: Vec<_> = std::iter::from_fn(|| room.take(party(1), OF_ONE / 4)).collect();
        assert_eq!(held.len(), 4);
        held.push(room.take(party(2), u64::MAX).unwrap());
        assert!(room.take(party(2), 1).is_none() && room.take(party(3), 1).is_none());
        drop(held);
        assert!(room.take(party(3), u64::MAX).is_some());
        assert!(room.0.lock().of.is_empty() && room.0.lock().all == 0);
    }
}
