//! Places for responses that go on. One caller can't take all of them, and some are for the Unix
//! socket only.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of streams over TCP at one time.
const NETWORK: usize = 56;
/// Maximum number of streams over Unix sockets at one time.
const LOCAL: usize = 8;
/// Maximum number of streams of one caller over TCP.
const OF_ONE: usize = 16;

/// The streams that are open, by caller. The empty name stands for Unix sockets.
#[derive(Default)]
pub(crate) struct StreamPlaces(Mutex<BTreeMap<String, usize>>);

/// A place. Its drop frees it.
pub(crate) struct StreamPlace {
    places: Arc<StreamPlaces>,
    caller: String,
}

impl StreamPlaces {
    /// Takes a place for a caller over TCP, or with `None` for one over a Unix socket. Returns
    /// `None` if there is none.
    pub(crate) fn take(self: &Arc<Self>, caller: Option<&str>) -> Option<StreamPlace> {
        let mut all = self.0.lock();
        let local = all.get("").copied().unwrap_or(0);
        let network = all.values().sum::<usize>() - local;
        let own = all.get(caller.unwrap_or("")).copied().unwrap_or(0);
        let is_free = match caller {
            None => local < LOCAL,
            Some(_) => network < NETWORK && own < OF_ONE,
        };
        if !is_free {
            return None;
        }
        let caller = caller.unwrap_or("").to_owned();
        *all.entry(caller.clone()).or_insert(0) += 1;
        Some(StreamPlace { places: self.clone(), caller })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut all = self.places.0.lock();
        if let Some(count) = all.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_caller_takes_all_places() {
        let places = Arc::new(StreamPlaces::default());
        let take = |caller: Option<&str>| std::iter::from_fn(|| places.take(caller)).collect::<Vec<_>>();
        let one = take(Some("anna"));
        assert_eq!(one.len(), OF_ONE);
        let others: Vec<_> = ["b", "c", "d", "e"].into_iter().flat_map(|name| take(Some(name))).collect();
        assert_eq!(one.len() + others.len(), NETWORK);
        assert_eq!(take(None).len(), LOCAL);
        drop((one, others));
        assert!(places.0.lock().is_empty());
    }
}
