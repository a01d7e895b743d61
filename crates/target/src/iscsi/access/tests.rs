//! Tests of access rules.

use super::*;
use proptest::prelude::*;

fn name(text: &str) -> Result<String, Refused> {
    text.parse::<IscsiName>().map(|n| n.to_string())
}

fn pattern(text: &str) -> NamePattern {
    text.parse().unwrap()
}

fn range(text: &str) -> AddressRange {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn party(name: &str, address: IpAddr) -> Party<'_> {
    Party { name, address, user: None }
}

fn rule(initiator: &str, address: Option<&str>, permit: Option<Permit>) -> Rule {
    Rule { initiator: pattern(initiator), address: address.map(range), user: None, permit }
}

fn read_only() -> Permit {
    Permit { read_only: true, luns: LunMask::All }
}

const HOST: &str = "iqn.1993-08.org.debian:01:abc";

#[test]
fn names_are_of_three_kinds_and_folded() {
    for good in [
        "iqn.2026-11.io.hindcast:db",
        "iqn.2026-11.io.hindcast",
        "iqn.1993-08.org.debian:01:98dd7b8d0c4",
        "iqn.2001-04.com.example:storage:disk2.sys1.xyz",
        "eui.02004567a425678d",
        "naa.52004567ba64678d",
        "naa.62004567ba64678d0123456789abcdef",
        "iqn.2026-12.de.büro:platte",
    ] {
        assert_eq!(name(good).as_deref(), Ok(good));
        assert_eq!(name(&good.to_uppercase()).as_deref(), Ok(good), "case is folded");
    }
    let long = format!("iqn.2026-11.io.hindcast:{}", "x".repeat(MAX_NAME - 24));
    assert!(name(&long).is_ok() && name(&format!("{long}x")).is_err());
    for bad in [
        "",
        "iqn",
        "iqn.",
        "iqn.2026-13.io.hindcast",
        "iqn.2026-00.io.hindcast",
        "iqn.2026-1a.io.hindcast",
        "iqn.26-11.io.hindcast",
        "iqn.2026-11",
        "iqn.2026-11.",
        "iqn.2026-11.io..hindcast",
        "iqn.2026-11.-io",
        "iqn.2026-11.io:",
        "iqn.2026-11.io:a b",
        "iqn.2026-11.io:a_b",
        "iqn.2026-11.io:a\0",
        "iqn.2026-11.io:a/b",
        "eui.02004567a425678",
        "eui.02004567a425678g",
        "naa.52004567ba64678d0",
        "abc.2026-11.io",
        "hindcast",
    ] {
        assert!(name(bad).is_err(), "{bad:?} was accepted");
    }
}

#[test]
fn patterns_have_wildcards_and_no_case() {
    for (p, text, fits) in [
        ("*", HOST, true),
        (HOST, HOST, true),
        ("IQN.1993-08.ORG.debian:01:ABC", HOST, true),
        ("iqn.1993-08.org.debian:*", HOST, true),
        ("iqn.1993-08.org.debian:*", "IQN.1993-08.org.Debian:X", true),
        ("*:abc", HOST, true),
        ("*:ab", HOST, false),
        ("iqn.*:01:*c", HOST, true),
        ("iqn.*.org.*:01:a?c", HOST, true),
        ("iqn.*.org.*:01:a?", HOST, false),
        ("iqn.1993-08.org.debian", HOST, false),
        ("iqn.1993-08.org.debian*", HOST, true),
        ("iqn.1993-08.org.debian:01:abc?", HOST, false),
        ("iqn.1993-08.org.debian:01:abc*", HOST, true),
        ("eui.0200456?a4256*", "eui.02004567A425678D", true),
        ("???.*", "naa.52004567ba64678d", true),
        ("iq*", HOST, true),
        ("e*", HOST, false),
    ] {
        assert_eq!(pattern(p).matches(text), fits, "{p} on {text}");
    }
    assert!(!pattern("*").matches(&"x".repeat(MAX_NAME + 1)));
    for bad in ["", "host", "iqn", "iqm.*", "iqn *", "iqn.2026-11.io:a\n", "eu", &"*".repeat(MAX_NAME + 1)] {
        assert!(bad.parse::<NamePattern>().is_err(), "{bad:?} was accepted");
    }
}

#[test]
fn ranges_are_cidr() {
    for (r, address, inside) in [
        ("10.0.0.0/8", "10.255.1.2", true),
        ("10.0.0.0/8", "11.0.0.1", false),
        ("10.0.0.0/8", "::ffff:10.1.2.3", true),
        ("::ffff:10.0.0.0/104", "10.1.2.3", true),
        ("::ffff:10.0.0.0/104", "::ffff:11.1.2.3", false),
        ("::ffff:0:0/96", "1.2.3.4", true),
        ("192.168.1.7", "192.168.1.7", true),
        ("192.168.1.7", "192.168.1.8", false),
        ("192.168.1.6/31", "192.168.1.7", true),
        ("0.0.0.0/0", "255.255.255.255", true),
        ("0.0.0.0/0", "::1", false),
        ("::/0", "fe80::1", true),
        ("::/0", "10.0.0.1", false),
        ("::/0", "::ffff:10.0.0.1", false),
        ("fd00:1::/32", "fd00:1:2::3", true),
        ("fd00:1::/32", "fd00:2::3", false),
        ("::1", "::1", true),
        ("2001:db8::8/125", "2001:db8::f", true),
        ("2001:db8::8/125", "2001:db8::10", false),
    ] {
        assert_eq!(range(r).contains(ip(address)), inside, "{address} in {r}");
    }
    for bad in [
        "",
        "10",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0.1/8",
        "::/129",
        "::1/64",
        "host",
        "fe80::1%eth0",
    ] {
        assert!(bad.parse::<AddressRange>().is_err(), "{bad:?} was accepted");
    }
    assert!("10.0.0.1/8".parse::<AddressRange>().unwrap_err().to_string().contains("10.0.0.0/8"));
    assert!("fd00::1/8".parse::<AddressRange>().unwrap_err().to_string().contains("fd00::/8"));
    assert_eq!(range("::ffff:10.0.0.0/104").to_string(), "10.0.0.0/8");
    assert_eq!(range("fd00::/8").to_string(), "fd00::/8");
    assert_eq!(range("10.0.0.1/32").to_string(), "10.0.0.1");
}

#[test]
fn the_first_rule_that_matches_decides() {
    let own = [
        rule("iqn.1993-08.org.debian:01:bad", None, None),
        rule("iqn.1993-08.org.debian:*", Some("10.0.0.0/8"), Some(Permit::full())),
        rule("iqn.1993-08.org.debian:*", None, Some(read_only())),
    ];
    let all =
        [rule("*", Some("10.9.0.0/16"), Some(Permit { read_only: false, luns: LunMask::only(vec![0]) }))];
    let decide = |initiator, address| decide(&own, &all, Otherwise::Open, &party(initiator, ip(address)));
    assert_eq!(decide("iqn.1993-08.org.debian:01:BAD", "10.0.0.1"), None, "refused before it is allowed");
    assert_eq!(decide(HOST, "10.0.0.1"), Some(Permit::full()));
    assert_eq!(decide(HOST, "::ffff:10.0.0.1"), Some(Permit::full()));
    assert_eq!(decide(HOST, "192.168.0.1"), Some(read_only()));
    assert_eq!(decide("eui.02004567a425678d", "10.0.0.1"), None, "no rule matches");
    let masked = decide("eui.02004567a425678d", "10.9.0.1").unwrap();
    assert!(masked.luns.contains(0) && !masked.luns.contains(1), "the rules for all come last");
}

#[test]
fn without_any_rule_the_listeners_decide() {
    let sockets = |list: &[&str]| list.iter().map(|a| a.parse().unwrap()).collect::<Vec<SocketAddr>>();
    for local in [&["127.0.0.1:3260", "[::1]:3260"][..], &["127.8.0.1:1"], &["[::ffff:127.0.0.1]:1"], &[]] {
        assert_eq!(Otherwise::of(&sockets(local)), Otherwise::Open, "{local:?}");
    }
    for public in [&["127.0.0.1:3260", "10.0.0.1:3260"][..], &["0.0.0.0:3260"], &["[::]:3260"]] {
        assert_eq!(Otherwise::of(&sockets(public)), Otherwise::Deny, "{public:?}");
    }
    assert_eq!(decide(&[], &[], Otherwise::Open, &party(HOST, ip("127.0.0.1"))), Some(Permit::full()));
    assert_eq!(decide(&[], &[], Otherwise::Deny, &party(HOST, ip("127.0.0.1"))), None);
    let other = [rule("eui.*", None, Some(Permit::full()))];
    assert_eq!(
        decide(&other, &[], Otherwise::Open, &party(HOST, ip("127.0.0.1"))),
        None,
        "a rule closes the target"
    );
    assert_eq!(decide(&[], &other, Otherwise::Open, &party(HOST, ip("127.0.0.1"))), None);
}

#[test]
fn masks_keep_numbers() {
    let mask = LunMask::only(vec![5, 1, 5]);
    assert_eq!(mask, LunMask::Only(vec![1, 5]));
    assert!(mask.contains(5) && !mask.contains(0) && !mask.contains(1 << 16 | 5));
    assert!(LunMask::All.contains(u64::MAX));
}

/// Returns whether a pattern matches, by the definition of matching.
fn fits(pattern: &[char], name: &[char]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some(('*', rest)), None) => fits(rest, name),
        (Some(('*', rest)), Some((_, tail))) => fits(rest, name) || fits(pattern, tail),
        (Some((p, rest)), Some((n, tail))) => (*p == '?' || p == n) && fits(rest, tail),
        _ => false,
    }
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let names = prop::sample::select(vec!["*", "iqn.*", "iqn.*:a", "iqn.*:b", "eui.*"]);
    let ranges = prop::sample::select(vec![None, Some("10.0.0.0/8"), Some("10.1.0.0/16"), Some("fd00::/8")]);
    let permits = prop::sample::select(vec![None, Some(Permit::full()), Some(read_only())]);
    (names, ranges, permits).prop_map(|(n, a, p)| rule(n, a, p))
}

fn any_peer() -> impl Strategy<Value = (&'static str, IpAddr)> {
    let names = prop::sample::select(vec!["iqn.2026-11.x:a", "iqn.2026-11.x:b", "eui.0123456789abcdef"]);
    let addresses =
        prop::sample::select(vec!["10.0.0.1", "10.1.0.1", "11.0.0.1", "fd00::1", "::ffff:10.1.0.1"]);
    (names, addresses.prop_map(ip))
}

proptest! {
    #[test]
    fn matching_is_what_it_is_defined_to_be(p in "[ab*?]{0,8}", n in "[ab]{0,10}") {
        let chars = |s: &str| s.chars().collect::<Vec<char>>();
        prop_assert_eq!(glob(&p, &n), fits(&chars(&p), &chars(&n)));
    }

    #[test]
    fn what_parses_is_printed_and_parsed_again(text in "\\PC{0,40}") {
        if let Ok(n) = text.parse::<IscsiName>() {
            prop_assert_eq!(n.to_string().parse(), Ok(n.clone()));
            prop_assert!(pattern(n.as_str()).matches(&text));
        }
        if let Ok(p) = text.parse::<NamePattern>() {
            prop_assert_eq!(p.to_string().parse(), Ok(p));
        }
        if let Ok(r) = text.parse::<AddressRange>() {
            prop_assert_eq!(r.to_string().parse(), Ok(r));
        }
    }

    #[test]
    fn a_range_holds_what_shares_its_prefix(bits: u32, prefix in 0u8..=32, other: u32) {
        let kept = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        let network = std::net::Ipv4Addr::from_bits(bits & kept);
        let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(other));
        let r = range(&format!("{network}/{prefix}"));
        prop_assert_eq!(r.contains(address), other & kept == bits & kept);
        let mapped = range(&format!("::ffff:{network}/{}", prefix + 96));
        prop_assert_eq!(mapped, r);
        prop_assert_eq!(r.to_string().parse(), Ok(r));
    }

    /// The first rule that matches makes the decision. Rules after it change nothing. A rule that
    /// does not match may be at any place. If there is a rule and none matches, the initiator is
    /// refused.
    #[test]
    fn only_the_first_match_counts(
        rules in prop::collection::vec(any_rule(), 0..6),
        split in 0usize..7,
        more in prop::collection::vec(any_rule(), 0..3),
        peer in any_peer(),
        open: bool,
    ) {
        let (initiator, address) = peer;
        let otherwise = if open { Otherwise::Open } else { Otherwise::Deny };
        let at = split.min(rules.len());
        let decided = decide(&rules[..at], &rules[at..], otherwise, &party(initiator, address));
        let first = rules.iter().position(|r| r.matches(&party(initiator, address)));
        match first {
            Some(i) => {
                prop_assert_eq!(&decided, &rules[i].permit);
                let mut longer = rules[..=i].to_vec();
                longer.extend(more);
                prop_assert_eq!(decide(&longer, &[], otherwise, &party(initiator, address)), decided);
            }
            None if rules.is_empty() => prop_assert_eq!(decided.is_some(), open),
            None => prop_assert_eq!(decided, None),
        }
    }
}
