//! Text requests of the full feature phase: SendTargets, and the few keys that an initiator may
//! declare in that phase (RFC 7143, 6.2, 11.10 to 11.11, and appendix C).

use super::config::Portal;
use super::conn::Conn;
use super::exchange::Reply;
use super::params::{Answer, Phase, Wishes};
use super::pdu::RejectReason;
use super::targets::{Initiator, Proof};
use super::text;
use std::net::{IpAddr, SocketAddr};

/// Handles a text request. `more` states whether the next request continues it, `tags` are its task
/// tags, and `limit` is the maximum length of the response in bytes.
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

/// Answers SendTargets: with all targets, with the target of a name, or, for the empty value, with
/// the target of the session.
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
        proof: Proof::Given(conn.session.identity.user.as_deref()),
    };
    for target in conn.shared.targets.list(&who) {
        // A normal session gets a report of its own target only.
        if wanted.is_some_and(|name| name != target.name) || own.is_some_and(|own| own != target.name) {
            continue;
        }
        let addresses = addresses(&conn.shared.portals, &target.portal_groups, local);
        if addresses.is_empty() {
            continue; // a target without an address would be looked for at the one of this connection
        }
        text::put(out, "TargetName", &target.name);
        for address in addresses {
            text::put(out, "TargetAddress", &address);
        }
    }
    Ok(())
}

/// Returns the portals of a target for an initiator that connected to `local`: `ADDRESS,GROUP`,
/// each address once. An empty `groups` means all groups.
fn addresses(portals: &[Portal], groups: &[u16], local: SocketAddr) -> Vec<String> {
    let mut told: Vec<(String, u16)> = Vec::new();
    for portal in portals.iter().filter(|p| groups.is_empty() || groups.contains(&p.group)) {
        if let Some(address) = address(portal.listen, portal.advertise.as_deref(), local)
            && !told.iter().any(|(known, _)| known.eq_ignore_ascii_case(&address))
        {
            told.push((address, portal.group));
        }
    }
    told.into_iter().map(|(address, group)| format!("{address},{group}")).collect()
}

/// Returns the address through which an initiator that connected to `local` reaches a portal.
/// Returns `None` if the initiator cannot reach the portal, as far as the server knows.
fn address(listen: SocketAddr, advertise: Option<&str>, local: SocketAddr) -> Option<String> {
    if let Some(host) = advertise {
        let has_port = host.rsplit_once(':').is_some_and(|(name, port)| {
            port.parse::<u16>().is_ok() && (!name.contains(':') || name.ends_with(']'))
        });
        return Some(if has_port { host.to_owned() } else { format!("{host}:{}", listen.port()) });
    }
    let (at, here) = (listen.ip().to_canonical(), local.ip().to_canonical());
    // Each host has its own zones, so the reported address has none.
    let told = |ip| Some(SocketAddr::new(ip, listen.port()).to_string());
    if at.is_unspecified() {
        // A wildcard address accepts connections of its own address family only.
        return if at.is_ipv4() == here.is_ipv4() { told(here) } else { None };
    }
    let reaches = match (at, here) {
        _ if at.is_loopback() => here.is_loopback(),
        (IpAddr::V6(at), IpAddr::V6(here)) if at.is_unicast_link_local() => {
            here.is_unicast_link_local() && zone(listen) == zone(local)
        }
        (IpAddr::V6(at), _) if at.is_unicast_link_local() => false,
        (IpAddr::V4(at), IpAddr::V4(here)) if at.is_link_local() => here.is_link_local(),
        (IpAddr::V4(at), _) => !at.is_link_local(),
        _ => true,
    };
    if reaches { told(at) } else { None }
}

/// Returns the number of the interface that a link-local address belongs to.
fn zone(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(v6) => Some(v6.scope_id()),
        SocketAddr::V4(_) => None,
    }
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
            ("[::]:3261", None, local4, None),
            ("[::]:3261", None, mapped, None),
            ("0.0.0.0:3261", None, mapped, Some("10.0.0.5:3261")),
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
    fn portals_of_one_host_or_link_are_told_there_only() {
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        let net4 = at("10.0.0.5:3260");
        let (lo4, lo6) = (at("127.0.0.1:3260"), at("[::1]:3260"));
        let (link4, link6) = (at("169.254.7.7:3260"), at("[fe80::5%3]:3260"));
        let cases = [
            ("127.0.0.1:3260", net4, None),
            ("127.0.0.1:3260", lo4, Some("127.0.0.1:3260")),
            ("127.0.0.2:3260", lo6, Some("127.0.0.2:3260")),
            ("[::1]:3260", net4, None),
            ("[::1]:3260", link6, None),
            ("[::1]:3260", lo4, Some("[::1]:3260")),
            ("10.0.0.5:3260", lo4, Some("10.0.0.5:3260")),
            ("[fe80::5%3]:3260", link6, Some("[fe80::5]:3260")),
            ("[fe80::5%4]:3260", link6, None),
            ("[fe80::5%3]:3260", net4, None),
            ("[fe80::5%3]:3260", lo6, None),
            ("[::]:3260", link6, Some("[fe80::5]:3260")),
            ("169.254.7.7:3260", link4, Some("169.254.7.7:3260")),
            ("169.254.7.7:3260", net4, None),
            ("169.254.7.7:3260", link6, None),
        ];
        for (listen, local, expected) in cases {
            assert_eq!(address(at(listen), None, local).as_deref(), expected, "{listen} from {local}");
        }
    }

    #[test]
    fn no_address_is_told_twice() {
        let portal = |listen: &str, group, advertise: Option<&str>| Portal {
            listen: listen.parse().unwrap(),
            group,
            advertise: advertise.map(str::to_owned),
        };
        let local = "10.9.0.5:3260".parse().unwrap();
        let told = |portals: &[Portal], groups: &[u16]| addresses(portals, groups, local);
        let both = [portal("0.0.0.0:3260", 1, None), portal("[::]:3260", 1, None)];
        assert_eq!(told(&both, &[]), ["10.9.0.5:3260,1"]);
        let apart = [portal("0.0.0.0:3260", 1, None), portal("[::]:3261", 2, None)];
        assert_eq!(told(&apart, &[]), ["10.9.0.5:3260,1"]);
        assert!(told(&apart, &[2]).is_empty());
        let named = ["San.example", "san.example:3260"].map(|host| portal("127.0.0.1:3260", 1, Some(host)));
        assert_eq!(told(&named, &[]), ["San.example:3260,1"]);
        let tags = [portal("10.9.0.5:3260", 1, None), portal("0.0.0.0:3260", 2, None)];
        assert_eq!(told(&tags, &[]), ["10.9.0.5:3260,1"], "one address under two tags");
        assert_eq!(told(&tags, &[2]), ["10.9.0.5:3260,2"]);
    }
}
