//! A limit of entries about refused requests, by caller. A caller must not fill the disk with
//! requests that it may not make.

use super::entry::note;
use crate::identity::principal::Principal;
use hindcast_api::AuditEntry;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of entries that a caller gets in a row.
const BURST: u32 = 16;
/// Time after which a caller gets one more entry.
const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of callers with a limit of their own. Further ones share one.
const MAX: usize = 1024;

/// The refusals of one caller.
struct Bucket {
    caller: Option<Arc<Principal>>,
    /// Time at which the caller has [`BURST`] entries again.
    full: Instant,
    /// Number of refusals without an entry since the last entry.
    left_out: u64,
}

/// The refusals that have no entries, by caller. The empty text stands for unknown callers.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<String, Bucket>>);

impl Refusals {
    /// Asks whether a refusal of `caller` gets an entry. Returns the number of refusals of this
    /// caller without one since its last entry. `None`: this refusal has none, and is counted.
    pub(crate) fn turn(&self, caller: Option<&Arc<Principal>>, now: Instant) -> Option<u64> {
        let mut all = self.0.lock();
        let mut key = caller.map_or_else(String::new, ToString::to_string);
        let mut caller = caller;
        if all.len() >= MAX && !all.contains_key(&key) {
            (key, caller) = (String::new(), None);
        }
        let bucket =
            all.entry(key).or_insert_with(|| Bucket { caller: caller.cloned(), full: now, left_out: 0 });
        let full = bucket.full.max(now) + INTERVAL;
        if full.saturating_duration_since(now) > INTERVAL * BURST {
            bucket.left_out += 1;
            return None;
        }
        bucket.full = full;
        Some(std::mem::take(&mut bucket.left_out))
    }

    /// Returns entries about refusals that have none, and forgets callers that were not refused
    /// lately. So the number of refusals reaches the audit although no other one follows.
    pub(super) fn left_out(&self, now: Instant) -> Vec<AuditEntry> {
        let mut all = self.0.lock();
        let mut entries = Vec::new();
        all.retain(|_, bucket| {
            let left_out = std::mem::take(&mut bucket.left_out);
            if left_out > 0 {
                let known = bucket.caller.as_ref();
                let of = known.map_or_else(|| "unknown callers".to_owned(), ToString::to_string);
                entries.push(AuditEntry {
                    who: known.map(|caller| caller.name.clone()),
                    kind: known.map(|caller| caller.kind),
                    role: known.map(|caller| caller.role),
                    suppressed: Some(left_out),
                    ..note(format!("{left_out} refused requests of {of} have no entries"))
                });
            }
            bucket.full > now
        });
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::{PrincipalKind, Role};

    #[test]
    fn refusals_are_counted_when_they_are_many() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let caller = |name: &str| Arc::new(Principal::new(PrincipalKind::Token, name, Role::Viewer));
        let (ci, other) = (caller("ci"), caller("other"));
        let written = (0..1000).filter_map(|_| refusals.turn(Some(&ci), start)).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(refusals.turn(Some(&other), start), Some(0), "each caller has its own limit");
        assert_eq!(refusals.turn(None, start), Some(0));
        assert_eq!(refusals.turn(Some(&ci), start + INTERVAL), Some(1000 - u64::from(BURST)));
        for _ in 0..5 {
            assert_eq!(refusals.turn(Some(&ci), start + INTERVAL), None);
        }
        let rest = refusals.left_out(start + INTERVAL);
        assert_eq!((rest.len(), rest[0].suppressed, rest[0].who.as_deref()), (1, Some(5), Some("ci")));
        assert!(refusals.left_out(start + INTERVAL * 100).is_empty());
        assert!(refusals.0.lock().is_empty());
    }

    #[test]
    fn the_number_of_callers_is_bounded() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for n in 0..MAX + 100 {
            let caller = Arc::new(Principal::new(PrincipalKind::Token, format!("t{n}"), Role::Viewer));
            refusals.turn(Some(&caller), now);
        }
        assert!(refusals.0.lock().len() <= MAX + 1);
    }
}
