//! Text requests of the full feature phase: SendTargets and the few keys that may be declared then (RFC 7143, 6.2, 11.10
//! to 11.11, and appendix C).

use super::conn::Conn;
use super::params::{Answer, Phase, Wishes};
use super::pdu::{NO_TAG, RejectReason};
use super::targets::Initiator;
use super::text;
use std::net::{IpAddr, SocketAddr};

/// A text exchange under way on a connection.
#[derive(Default)]
pub(super) struct Exchange {
    /// The initiator task tag of the exchange.
    itt: u32,
    /// What the initiator has sent of its request.
    request: Vec<u8>,
    /// What has not been sent of the response.
    response: Vec<u8>,
    /// The target transfer tag that the initiator has to come back with.
    ttt: Option<u32>,
    next_ttt: u32,
}

/// A Text Response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Last(Vec<u8>),
    /// More follows when the initiator asks with this tag.
    Part(u32, Vec<u8>),
    /// The initiator is to go on with its request, with this tag.
    GoOn(u32),
}

impl Exchange {
    /// Adds to the request; true when it is complete.
    fn gather(&mut self, more: bool, (itt, ttt): (u32, u32), data: &[u8]) -> Result<bool, RejectReason> {
        if ttt == NO_TAG {
            // A new exchange; whatever was under way is forgotten (6.2: a negotiation is reset).
            *self = Exchange { itt, next_ttt: self.next_ttt, ..Exchange::default() };
        } else if self.ttt != Some(ttt) || self.itt != itt {
            return Err(RejectReason::InvalidPduField);
        }
        if !self.response.is_empty() {
            // Only the rest of the response can be asked for.
            return if data.is_empty() && !more { Ok(true) } else { Err(RejectReason::ProtocolError) };
        }
        if self.request.len() + data.len() > text::MAX_TEXT {
            *self = Exchange { next_ttt: self.next_ttt, ..Exchange::default() };
            return Err(RejectReason::OutOfResources);
        }
        self.request.extend_from_slice(data);
        Ok(!more)
    }

    fn tag(&mut self) -> u32 {
        self.next_ttt = if self.next_ttt >= NO_TAG - 1 { 1 } else { self.next_ttt + 1 };
        self.ttt = Some(self.next_ttt);
        self.next_ttt
    }

    /// The next part of the response, at most `limit` bytes.
    fn part(&mut self, limit: usize) -> Reply {
        let rest = self.response.split_off(self.response.len().min(limit));
        let part = std::mem::replace(&mut self.response, rest);
        if self.response.is_empty() {
            self.ttt = None;
            return Reply::Last(part);
        }
        Reply::Part(self.tag(), part)
    }
}

/// Takes a text request: whether it is continued, its tags, and its text.
pub(super) fn take(
    conn: &Conn,
    more: bool,
    tags: (u32, u32),
    data: &[u8],
    limit: usize,
) -> Result<Reply, RejectReason> {
    let mut exchange = conn.text.lock();
    if !exchange.gather(more, tags, data)? {
        return Ok(Reply::GoOn(exchange.tag()));
    }
    if exchange.response.is_empty() {
        let request = std::mem::take(&mut exchange.request);
        let pairs = text::parse(&request).map_err(|_| RejectReason::ProtocolError)?;
        exchange.response = answer(conn, &pairs)?;
    }
    Ok(exchange.part(limit))
}

fn answer(conn: &Conn, pairs: &[(&str, &str)]) -> Result<Vec<u8>, RejectReason> {
    let mut out = Vec::new();
    let mut params = conn.params.clone();
    let wishes = Wishes::new(&conn.shared.config);
    for (n, (key, value)) in pairs.iter().enumerate() {
        if pairs[..n].iter().any(|(k, _)| k == key) {
            return Err(RejectReason::ProtocolError);
        }
        if *key == "SendTargets" {
            send_targets(conn, value, &mut out)?;
            continue;
        }
        let discovery = conn.session.nexus.is_none();
        match params.negotiate(key, value, Phase::FullFeature, discovery, &wishes) {
            Answer::Value(answer) => text::put(&mut out, key, &answer),
            Answer::Declared => conn.set_segment(params.max_send_data_segment),
        }
    }
    Ok(out)
}

/// SendTargets: all targets, one by its name, or the session's own (the empty value).
fn send_targets(conn: &Conn, value: &str, out: &mut Vec<u8>) -> Result<(), RejectReason> {
    let own = conn.session.key.target.as_deref();
    let wanted = match (value, own) {
        ("All", None) => None,
        ("All", Some(_)) | ("", None) => {
            text::put(out, "SendTargets", text::REJECT);
            return Ok(());
        }
        ("", Some(own)) => Some(own),
        (name, _) => Some(name),
    };
    let (peer, local) = (conn.record.peer, conn.record.local);
    let who = Initiator {
        name: &conn.session.key.initiator,
        peer,
        local,
        portal_group: conn.session.key.portal_group,
    };
    for target in conn.shared.targets.list(&who) {
        // In a normal session there is nothing but its own target to be told of.
        if wanted.is_some_and(|name| name != target.name) || own.is_some_and(|own| own != target.name) {
            continue;
        }
        text::put(out, "TargetName", &target.name);
        for portal in conn.shared.portals.iter() {
            let chosen = target.portal_groups.is_empty() || target.portal_groups.contains(&portal.group);
            if let (true, Some(address)) =
                (chosen, address(portal.listen, portal.advertise.as_deref(), local))
            {
                text::put(out, "TargetAddress", &format!("{address},{}", portal.group));
            }
        }
    }
    Ok(())
}

/// How a portal is reached by somebody who reached `local`. None if that cannot be known.
fn address(listen: SocketAddr, advertise: Option<&str>, local: SocketAddr) -> Option<String> {
    if let Some(host) = advertise {
        let has_port = host.rsplit_once(':').is_some_and(|(name, port)| {
            port.parse::<u16>().is_ok() && (!name.contains(':') || name.ends_with(']'))
        });
        return Some(if has_port { host.to_owned() } else { format!("{host}:{}", listen.port()) });
    }
    if !listen.ip().is_unspecified() {
        return Some(SocketAddr::new(listen.ip().to_canonical(), listen.port()).to_string());
    }
    // An IPv6 wildcard takes IPv4 too.
    let ip = local.ip().to_canonical();
    let reachable = matches!(listen.ip(), IpAddr::V6(_)) || ip.is_ipv4();
    reachable.then(|| SocketAddr::new(ip, listen.port()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_have_addresses_that_can_be_reached() {
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        let local4 = at("10.0.0.5:3260");
        let mapped = at("[::ffff:10.0.0.5]:3260");
        let local6 = at("[2001:db8::5]:3260");
        let cases = [
            ("192.0.2.1:3261", None, local4, Some("192.0.2.1:3261")),
            ("[2001:db8::1]:3260", None, local4, Some("[2001:db8::1]:3260")),
            ("0.0.0.0:3261", None, local4, Some("10.0.0.5:3261")),
            ("0.0.0.0:3261", None, local6, None),
            ("[::]:3261", None, local6, Some("[2001:db8::5]:3261")),
            ("[::]:3261", None, mapped, Some("10.0.0.5:3261")),
            ("0.0.0.0:3261", Some("san.example"), local4, Some("san.example:3261")),
            ("0.0.0.0:3261", Some("san.example:860"), local4, Some("san.example:860")),
            ("0.0.0.0:3261", Some("[2001:db8::7]"), local4, Some("[2001:db8::7]:3261")),
            ("0.0.0.0:3261", Some("[2001:db8::7]:860"), local4, Some("[2001:db8::7]:860")),
        ];
        for (listen, advertise, local, expected) in cases {
            assert_eq!(address(at(listen), advertise, local).as_deref(), expected, "{listen} {advertise:?}");
        }
    }

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
