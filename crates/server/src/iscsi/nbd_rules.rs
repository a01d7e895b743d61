//! An access rule for NBD ([`NbdRule`]), and what a list of them decides about a client: the first
//! rule that matches, as for iSCSI.

use hindcast_api::Access;
use hindcast_target::iscsi::access::{AddressRange, is_unseen};
use hindcast_target::nbd::Client;
use std::net::IpAddr;

/// The maximum number of addresses and ranges in one rule.
const MAX_ADDRESSES: usize = 64;
/// The maximum length of a common name in a rule, in bytes.
const MAX_COMMON_NAME: usize = 255;
/// The attribute of a certificate's subject that rules examine, as rules write it.
const ATTRIBUTE: &str = "CN=";

/// An access rule for NBD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NbdRule {
    /// The addresses that the rule applies to. An empty list means any address.
    pub(crate) addresses: Vec<AddressRange>,
    /// The common name that the client's certificate must have. `None` means any certificate, or
    /// none.
    pub(crate) common_name: Option<String>,
    /// The access of the clients that match.
    pub(crate) access: Access,
}

impl NbdRule {
    /// Parses and checks a rule that a user or the file of targets gives.
    pub(crate) fn parse(
        addresses: &[String],
        certificate: Option<&str>,
        access: Access,
    ) -> std::result::Result<NbdRule, String> {
        if addresses.len() > MAX_ADDRESSES {
            return Err(format!("a rule has at most {MAX_ADDRESSES} addresses"));
        }
        let addresses = addresses.iter().map(|a| a.parse().map_err(|e| format!("{e}")));
        let addresses = addresses.collect::<std::result::Result<_, _>>()?;
        let common_name = certificate.map(common_name).transpose()?;
        Ok(NbdRule { addresses, common_name, access })
    }

    /// Returns the certificate that the rule requires, as users write it.
    pub(crate) fn certificate(&self) -> Option<String> {
        self.common_name.as_ref().map(|name| format!("{ATTRIBUTE}{name}"))
    }

    /// Returns whether the rule matches a client with this address. A certificate with several
    /// common names never allows a client, because only one of them could be meant. It refuses the
    /// client for each of its names.
    fn matches(&self, client: &Client, address: IpAddr) -> bool {
        let named = match (&self.common_name, self.access) {
            (None, _) => true,
            (Some(name), Access::Denied) => client.common_names.contains(name),
            (Some(name), _) => client.common_names == [name.as_str()],
        };
        named && (self.addresses.is_empty() || self.addresses.iter().any(|range| range.contains(address)))
    }
}

/// Parses `CN=NAME`, the only form of a subject that rules know.
fn common_name(subject: &str) -> std::result::Result<String, String> {
    let form = || {
        format!(
            "{subject:?} is not a subject that a rule can match: write {ATTRIBUTE}NAME, for example CN=vm1"
        )
    };
    let name = subject.strip_prefix(ATTRIBUTE).ok_or_else(form)?;
    if name.is_empty() || name.len() > MAX_COMMON_NAME {
        return Err(format!("{}; NAME has 1 to {MAX_COMMON_NAME} bytes", form()));
    }
    let special = |c: char| matches!(c, ',' | '+' | '=' | ';' | '"' | '\\' | '<' | '>' | '/');
    if let Some(bad) = name.chars().find(|c| special(*c)) {
        return Err(format!("{}; only the common name is compared, and it can't have {bad:?} here", form()));
    }
    if let Some(bad) = name.chars().find(|c| is_unseen(*c) || *c == char::REPLACEMENT_CHARACTER) {
        return Err(format!("{}; the character {bad:?} is invisible, or stands for another one", form()));
    }
    if name.trim() != name {
        return Err(format!("{}; NAME begins and ends without a blank", form()));
    }
    Ok(name.to_owned())
}

/// What NBD does with a client that asks for a volume. The order is from less to more access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NbdAccess {
    /// NBD does not serve the volume, to no client.
    Excluded,
    /// The rules refuse the client.
    Refused,
    /// The client may read.
    ReadOnly,
    /// The client may read and write.
    ReadWrite,
}

/// Returns the access of a client to a volume. `own` are the volume's rules, and `all` are the
/// rules for all volumes. Without any rule, `open` decides. Rules do not concern clients on Unix
/// sockets: the permissions of the socket's file decide about them.
pub(super) fn decide(own: &[NbdRule], all: &[NbdRule], open: bool, client: &Client) -> NbdAccess {
    let Some(address) = client.address else { return NbdAccess::ReadWrite };
    if own.is_empty() && all.is_empty() {
        return if open { NbdAccess::ReadWrite } else { NbdAccess::Refused };
    }
    match own.iter().chain(all).find(|rule| rule.matches(client, address)).map(|rule| rule.access) {
        Some(Access::ReadWrite) => NbdAccess::ReadWrite,
        Some(Access::ReadOnly) => NbdAccess::ReadOnly,
        Some(Access::Denied) | None => NbdAccess::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_target::nbd::Listen;

    fn client(address: &str, names: &[&str]) -> Client {
        Client {
            listener: Listen::Tcp("0.0.0.0:1".parse().unwrap()),
            address: Some(address.parse().unwrap()),
            common_names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn rule(addresses: &[&str], certificate: Option<&str>, access: Access) -> NbdRule {
        let addresses: Vec<String> = addresses.iter().map(|a| (*a).to_owned()).collect();
        NbdRule::parse(&addresses, certificate, access).unwrap()
    }

    #[test]
    fn without_rules_the_listener_decides() {
        let far = client("192.0.2.1", &["vm1"]);
        assert_eq!(decide(&[], &[], true, &far), NbdAccess::ReadWrite);
        assert_eq!(decide(&[], &[], false, &far), NbdAccess::Refused);
        let unix = Client { address: None, ..far };
        let nobody = [rule(&[], None, Access::Denied)];
        assert_eq!(decide(&nobody, &nobody, false, &unix), NbdAccess::ReadWrite, "permissions of the file");
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let (write, read, deny) = (Access::ReadWrite, Access::ReadOnly, Access::Denied);
        let own = [
            rule(&["10.0.0.66"], None, deny),
            rule(&["10.0.0.0/8", "fd00::/8"], Some("CN=vm1"), write),
            rule(&["10.1.0.0/16"], None, read),
        ];
        let all = [rule(&[], Some("CN=admin"), write)];
        let access = |address: &str, names: &[&str]| decide(&own, &all, true, &client(address, names));
        assert_eq!(access("10.0.0.66", &["vm1"]), NbdAccess::Refused);
        assert_eq!(access("10.0.0.1", &["vm1"]), NbdAccess::ReadWrite);
        assert_eq!(access("::ffff:10.0.0.1", &["vm1"]), NbdAccess::ReadWrite);
        assert_eq!(access("fd00::1", &["vm1"]), NbdAccess::ReadWrite);
        assert_eq!(access("10.1.0.1", &["vm1"]), NbdAccess::ReadWrite);
        assert_eq!(access("10.1.0.1", &[]), NbdAccess::ReadOnly);
        for names in [&[][..], &["vm2"], &["VM1"], &["vm1 "], &["vm1", "vm1"], &["vm1", "vm2"]] {
            assert_eq!(access("10.0.0.1", names), NbdAccess::Refused, "{names:?}");
        }
        assert_eq!(access("192.0.2.1", &["vm1"]), NbdAccess::Refused, "no rule, although it is open");
        assert_eq!(access("192.0.2.1", &["admin"]), NbdAccess::ReadWrite);
        assert_eq!(decide(&[], &all, true, &client("127.0.0.1", &[])), NbdAccess::Refused);
    }

    #[test]
    fn each_common_name_of_a_certificate_is_refused() {
        let rules = [rule(&[], Some("CN=vm1"), Access::Denied), rule(&[], None, Access::ReadWrite)];
        let access = |names: &[&str]| decide(&rules, &[], false, &client("10.0.0.1", names));
        assert_eq!(access(&["vm1"]), NbdAccess::Refused);
        assert_eq!(access(&["vm2", "vm1"]), NbdAccess::Refused);
        assert_eq!(access(&["vm2"]), NbdAccess::ReadWrite);
    }

    #[test]
    fn a_subject_has_one_form() {
        assert_eq!(common_name("CN=vm1").unwrap(), "vm1");
        assert_eq!(common_name("CN=host 1.example.org").unwrap(), "host 1.example.org");
        for bad in [
            "vm1",
            "cn=vm1",
            "CN=",
            "CN = vm1",
            "O=acme",
            "CN=vm1,O=acme",
            "/CN=vm1",
            "CN=vm1/O=acme",
            "CN=a+b",
            "CN=vm1\0",
            "CN=vm1 ",
            "CN= vm1",
            "CN=\u{fffd}",
            "CN=a\u{200b}b",
            "",
        ] {
            let why = common_name(bad).unwrap_err();
            assert!(why.contains("CN=NAME"), "{bad:?}: {why}");
        }
        assert!(common_name(&format!("CN={}", "x".repeat(256))).is_err());
        let many = vec!["10.0.0.1".to_owned(); MAX_ADDRESSES + 1];
        assert!(NbdRule::parse(&many, None, Access::ReadWrite).is_err());
        assert!(NbdRule::parse(&["10.0.0.1/8".to_owned()], None, Access::ReadWrite).is_err());
    }
}
