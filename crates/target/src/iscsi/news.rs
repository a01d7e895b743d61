//! Asynchronous Messages (RFC 7143, 11.9.1). They report a unit attention to a session at once.
//! A session gets at most one message a second, because each unit attention also waits at its
//! logical unit.
//!
//! An initiator that gets such a message checks all of its logical units, or it passes the message
//! to a process that may fall behind. Linux ends a session that brings too many messages.

use crate::scsi::{Asc, Sense};
use std::time::{Duration, Instant};

/// Minimum time between two messages to a session.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time of the last message to a session, and the unit attention that waits for the next
/// message.
#[derive(Debug, Default)]
pub(super) struct News {
    told: Option<Instant>,
    owed: Option<(u16, Sense)>,
}

impl News {
    /// Registers a new unit attention of a logical unit. Returns it if a message may be sent now.
    pub(super) fn comes(&mut self, now: Instant, lun: u16, sense: Sense) -> Option<(u16, Sense)> {
        if self.is_early(now) {
            let keeps = |(_, owed): &(u16, Sense)| owed.asc == Asc::REPORTED_LUNS_DATA_CHANGED;
            if !self.owed.as_ref().is_some_and(keeps) {
                self.owed = Some((lun, sense)); // of several the last, or that the inventory changed
            }
            return None;
        }
        self.told(now);
        Some((lun, sense))
    }

    /// Returns the unit attention that waits, if a message may be sent now.
    pub(super) fn due(&mut self, now: Instant) -> Option<(u16, Sense)> {
        if self.is_early(now) { None } else { self.owed.take() }
    }

    /// Registers that a message was sent.
    pub(super) fn told(&mut self, now: Instant) {
        self.told = Some(now);
        self.owed = None;
    }

    fn is_early(&self, now: Instant) -> bool {
        self.told.is_some_and(|told| now.saturating_duration_since(told) < INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::SenseKey;

    fn sense(asc: Asc) -> Sense {
        Sense::new(SenseKey::UnitAttention, asc)
    }

    #[test]
    fn messages_keep_their_distance_and_the_inventory_comes_first() {
        let (mut news, start) = (News::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let (luns, size) = (sense(Asc::REPORTED_LUNS_DATA_CHANGED), sense(Asc::CAPACITY_DATA_CHANGED));
        assert_eq!(news.due(at(0)), None);
        assert_eq!(news.comes(at(0), 3, size.clone()), Some((3, size.clone())));
        for (millis, lun, what) in [(1, 4, &size), (2, 0, &luns), (3, 5, &size), (999, 6, &size)] {
            assert_eq!(news.comes(at(millis), lun, what.clone()), None, "{millis} ms");
            assert_eq!(news.due(at(millis)), None);
        }
        assert_eq!(news.due(at(1000)), Some((0, luns.clone())));
        news.told(at(1000));
        assert_eq!(news.comes(at(1500), 7, size.clone()), None);
        assert_eq!(news.comes(at(1600), 8, size.clone()), None);
        assert_eq!(news.due(at(2000)), Some((8, size)));
        assert_eq!(news.due(at(3000)), None);
        assert_eq!(news.comes(at(3000), 0, luns.clone()), Some((0, luns)));
    }
}
