//! Text exchanges of the full feature phase. Their requests and responses may take several PDUs
//! (RFC 7143, 6.2).

use super::pdu::{NO_TAG, RejectReason};
use super::text;

/// A text exchange in progress on a connection.
#[derive(Default)]
pub(super) struct Exchange {
    /// Initiator task tag of the exchange.
    itt: u32,
    /// The part of the request that was received.
    pub(super) request: Vec<u8>,
    /// The part of the response that was not sent yet.
    pub(super) response: Vec<u8>,
    /// Target transfer tag that the initiator must send with the next request of the exchange.
    ttt: Option<u32>,
    next_ttt: u32,
}

/// A Text Response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Last(Vec<u8>),
    /// A part of the response. The initiator requests the next part with this tag.
    Part(u32, Vec<u8>),
    /// An empty response. The initiator must continue its request with this tag.
    GoOn(u32),
}

impl Exchange {
    /// Adds text to the request. Returns true when the request is complete.
    pub(super) fn gather(
        &mut self,
        more: bool,
        (itt, ttt): (u32, u32),
        data: &[u8],
    ) -> Result<bool, RejectReason> {
        if ttt == NO_TAG {
            // A new exchange begins. It discards an exchange in progress (6.2: a negotiation is
            // reset).
            *self = Exchange { itt, next_ttt: self.next_ttt, ..Exchange::default() };
        } else if self.ttt != Some(ttt) || self.itt != itt {
            return Err(RejectReason::InvalidPduField);
        }
        if !self.response.is_empty() {
            // The initiator may request only the rest of the response.
            return if data.is_empty() && !more { Ok(true) } else { Err(RejectReason::ProtocolError) };
        }
        if self.request.len() + data.len() > text::MAX_TEXT {
            *self = Exchange { next_ttt: self.next_ttt, ..Exchange::default() };
            return Err(RejectReason::OutOfResources);
        }
        self.request.extend_from_slice(data);
        Ok(!more)
    }

    pub(super) fn tag(&mut self) -> u32 {
        self.next_ttt = if self.next_ttt >= NO_TAG - 1 { 1 } else { self.next_ttt + 1 };
        self.ttt = Some(self.next_ttt);
        self.next_ttt
    }

    /// Returns the next part of the response, at most `limit` bytes.
    pub(super) fn part(&mut self, limit: usize) -> Reply {
        let rest = self.response.split_off(self.response.len().min(limit));
        let part = std::mem::replace(&mut self.response, rest);
        if self.response.is_empty() {
            self.ttt = None;
            return Reply::Last(part);
        }
        Reply::Part(self.tag(), part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_responses_come_in_parts() {
        let mut exchange = Exchange { response: vec![7; 10], ..Exchange::default() };
        let Reply::Part(first, part) = exchange.part(4) else { panic!() };
        assert_eq!(part, [7; 4]);
        assert_eq!(exchange.gather(false, (0, first + 1), &[]), Err(RejectReason::InvalidPduField));
        assert_eq!(exchange.gather(false, (0, first), b"x"), Err(RejectReason::ProtocolError));
        assert_eq!(exchange.gather(false, (0, first), &[]), Ok(true));
        let Reply::Part(second, _) = exchange.part(4) else { panic!() };
        assert_eq!(exchange.gather(false, (0, second), &[]), Ok(true));
        assert_eq!(exchange.part(4), Reply::Last(vec![7; 2]));
        assert_eq!(exchange.gather(false, (0, second), &[]), Err(RejectReason::InvalidPduField));
    }

    #[test]
    fn requests_may_be_continued_within_limits() {
        let mut exchange = Exchange::default();
        assert_eq!(exchange.gather(true, (5, NO_TAG), b"Send"), Ok(false));
        let tag = exchange.tag();
        assert_eq!(exchange.gather(false, (6, tag), b""), Err(RejectReason::InvalidPduField), "another task");
        assert_eq!(exchange.gather(false, (5, tag), b"Targets=All"), Ok(true));
        assert_eq!(exchange.request, b"SendTargets=All");
        let long = vec![b'x'; text::MAX_TEXT];
        assert_eq!(exchange.gather(true, (5, tag), &long), Err(RejectReason::OutOfResources));
        assert!(exchange.request.is_empty());
    }
}
