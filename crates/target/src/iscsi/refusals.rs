//! Log lines about refused logins. The log must show why an initiator is refused, but any client
//! that can connect can cause refusals as often as it likes.
//!
//! So each combination of initiator, address and reason gets one line at once. As long as the
//! refusals go on, it gets one more line an hour, with the number of refusals.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time after which a refusal that goes on is logged again.
const AGAIN: Duration = Duration::from_secs(3600);
/// Maximum number of lines in [`WINDOW`], of all initiators together. An initiator can use any
/// number of names.
const MAX_LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of remembered refusals. Beyond it the least recent one is forgotten.
const MAX_KNOWN: usize = 1024;

type Key = (String, IpAddr, &'static str);

/// Recent refusals, by initiator, address and reason. They decide which refusals get a log line.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    known: HashMap<Key, Known>,
    /// Start of the current window, and the number of lines since then.
    window: Option<(Instant, u32)>,
    /// Number of refusals that were forgotten without a line.
    unwritten: u64,
}

#[derive(Debug)]
struct Known {
    /// Number of refusals since the last line.
    times: u64,
    told: Option<Instant>,
    last: Instant,
}

/// A line to write: the number of these refusals, and the number of other refusals that were
/// forgotten without a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) times: u64,
    pub(super) unwritten: u64,
}

impl Refusals {
    /// Registers a refused login. Returns the line to write, if there is one.
    pub(super) fn refused(
        &mut self,
        now: Instant,
        initiator: &str,
        address: IpAddr,
        why: &'static str,
    ) -> Option<Line> {
        let key = (initiator.to_owned(), address, why);
        if !self.known.contains_key(&key) && self.known.len() >= MAX_KNOWN {
            self.forget_one();
        }
        let has_room = self.has_room(now);
        let known = self.known.entry(key).or_insert(Known { times: 0, told: None, last: now });
        known.times += 1;
        known.last = now;
        if !has_room || known.told.is_some_and(|told| now.saturating_duration_since(told) < AGAIN) {
            return None;
        }
        known.told = Some(now);
        let times = std::mem::take(&mut known.times);
        if let Some((_, lines)) = &mut self.window {
            *lines += 1;
        }
        Some(Line { times, unwritten: std::mem::take(&mut self.unwritten) })
    }

    fn has_room(&mut self, now: Instant) -> bool {
        match self.window {
            Some((began, lines)) if now.saturating_duration_since(began) < WINDOW => lines < MAX_LINES,
            _ => {
                self.window = Some((now, 0));
                true
            }
        }
    }

    fn forget_one(&mut self) {
        let oldest = self.known.iter().min_by_key(|(_, known)| known.last).map(|(key, _)| key.clone());
        if let Some(known) = oldest.and_then(|key| self.known.remove(&key)) {
            self.unwritten += known.times;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: &str = "the initiator may not log in";
    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn line(times: u64) -> Option<Line> {
        Some(Line { times, unwritten: 0 })
    }

    #[test]
    fn a_refusal_is_told_once_and_then_counted() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let there: IpAddr = "10.0.0.7".parse().unwrap();
        assert_eq!(refusals.refused(start, "iqn.a", HERE, WHY), line(1));
        for second in 0..1000 {
            let now = start + Duration::from_secs(second);
            assert_eq!(refusals.refused(now, "iqn.a", HERE, WHY), None);
        }
        assert_eq!(refusals.refused(start, "iqn.a", there, WHY), line(1), "another address");
        assert_eq!(refusals.refused(start, "iqn.b", HERE, WHY), line(1), "another name");
        assert_eq!(refusals.refused(start, "iqn.a", HERE, "no such target"), line(1), "another reason");
        assert_eq!(refusals.refused(start + AGAIN, "iqn.a", HERE, WHY), line(1001), "it goes on");
    }

    #[test]
    fn names_that_are_made_up_flood_neither_the_log_nor_memory() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let all = 10 * MAX_KNOWN as u64;
        let name = |n| format!("iqn.{n}");
        let lines = (0..all)
            .filter_map(|n| refusals.refused(start + Duration::from_micros(n), &name(n), HERE, WHY))
            .count();
        assert_eq!((lines, refusals.known.len()), (MAX_LINES as usize, MAX_KNOWN));
        let later = refusals.refused(start + WINDOW, "iqn.later", HERE, WHY).unwrap();
        assert!(later.unwritten >= all - MAX_KNOWN as u64 - u64::from(MAX_LINES), "{later:?}");
        let waited = refusals.refused(start + WINDOW, &name(all - 1), HERE, WHY);
        assert_eq!(waited.map(|line| line.times), Some(2), "what had no room comes later");
    }
}
