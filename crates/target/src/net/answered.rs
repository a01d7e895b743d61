//! The requests that one send answers, by kind ([`Answered`]).

use hindcast_engine::device::{BlockDevice, RequestKind};
use std::time::Duration;

/// Numbers of requests to one device, by kind, that one receive brought and one send answers. They
/// take the same time, so one look at the clock is enough.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered([u64; RequestKind::ALL.len()]);

impl Answered {
    pub(crate) fn add(&mut self, kind: RequestKind, count: u64) {
        self.0[kind as usize] += count;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// Tells the device that each of the requests took `took`, and forgets them.
    pub(crate) fn tell(&mut self, device: &dyn BlockDevice, took: Duration) {
        for (kind, count) in RequestKind::ALL.into_iter().zip(std::mem::take(self).0) {
            if count > 0 {
                device.answered(kind, took, count);
            }
        }
    }
}
