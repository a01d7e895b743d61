//! Access rules: they decide which initiators may use a target. Rules are made of initiator names,
//! address ranges and accounts. The module does no input or output.
//!
//! A target has a list of rules ([`Rule`]), and one more list holds the rules for all targets. The
//! rules of the target are examined first, in their order, then the rules for all targets. **The
//! first rule that matches decides.** If no rule matches, the initiator is refused, with one
//! exception: if there are no rules at all and the server can be reached from this machine only,
//! the target is open ([`Otherwise`]).
//!
//! A rule matches an initiator if all of these hold:
//!
//! - The name of the initiator fits the pattern of the rule.
//! - The address that the initiator connects from lies in the range of the rule.
//! - If the rule names an account, the initiator has proven that account.

use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Maximum length of an iSCSI name in bytes (RFC 7143 4.2.7.1).
pub const MAX_NAME: usize = 223;
/// The reason why a name, pattern or range was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn refuse<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

/// Returns the form of a name that names are compared in. RFC 3722 folds case, so `IQN.…:Host` and
/// `iqn.…:host` are one name. The other step of RFC 3722, NFKC, is the duty of the sender (RFC 7143
/// 4.2.7.2). A name that the sender did not normalize is another name.
pub fn fold(name: &str) -> String {
    name.to_lowercase()
}

/// Returns whether a character is invisible, or moves the characters beside it. Such characters are
/// control characters, marks of writing direction, and characters without width. A name with such a
/// character looks like another name in a log and in a list of sessions.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// A well-formed iSCSI name (RFC 7143 4.2.7), folded: `iqn.YYYY-MM.DOMAIN[:TEXT]`, `eui.` with 16
/// hexadecimal digits, or `naa.` with 16 or 32.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IscsiName(String);

impl IscsiName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for IscsiName {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        let name = fold(text);
        if name.len() > MAX_NAME {
            return refuse(format!("an iSCSI name must have at most {MAX_NAME} bytes, not {}", name.len()));
        }
        // RFC 3722 6.2 permits these ASCII characters. Beyond ASCII it permits about all letters
        // and digits.
        let allowed = |c: char| match c {
            'a'..='z' | '0'..='9' | '-' | '.' | ':' => true,
            _ => !c.is_ascii() && c.is_alphanumeric(),
        };
        if let Some(bad) = name.chars().find(|c| !allowed(*c)) {
            return refuse(format!(
                "{text:?} is not an iSCSI name: it may have letters, digits, '-', '.' and ':', but not {bad:?}"
            ));
        }
        let hex = |digits: &str| digits.bytes().all(|b| b.is_ascii_hexdigit());
        let (kind, rest) = name.split_once('.').unwrap_or((&name, ""));
        match kind {
            "iqn" if is_qualified(rest) => Ok(IscsiName(name)),
            "iqn" => refuse(format!("{text:?} is not iqn.YYYY-MM.DOMAIN, or iqn.YYYY-MM.DOMAIN:TEXT")),
            "eui" if rest.len() == 16 && hex(rest) => Ok(IscsiName(name)),
            "eui" => refuse(format!("{text:?} is not eui. with 16 hexadecimal digits")),
            "naa" if matches!(rest.len(), 16 | 32) && hex(rest) => Ok(IscsiName(name)),
            "naa" => refuse(format!("{text:?} is not naa. with 16 or 32 hexadecimal digits")),
            _ => refuse(format!("{text:?} is not an iSCSI name: it must begin with iqn., eui. or naa.")),
        }
    }
}

/// Returns whether the text has the form `YYYY-MM.DOMAIN[:TEXT]`.
fn is_qualified(rest: &str) -> bool {
    let (authority, text) = rest.split_once(':').map_or((rest, None), |(a, t)| (a, Some(t)));
    let Some((date, domain)) = authority.split_once('.') else {
        return false;
    };
    let date_fits = match date.as_bytes() {
        [y1, y2, y3, y4, b'-', m1, m2] => {
            let month = [*m1, *m2];
            [y1, y2, y3, y4].iter().all(|b| b.is_ascii_digit())
                && (*b"01"..=*b"12").contains(&month)
                && month[1].is_ascii_digit()
        }
        _ => false,
    };
    let label = |l: &str| !l.is_empty() && !l.starts_with('-') && !l.ends_with('-');
    date_fits && domain.split('.').all(label) && text != Some("")
}

/// A pattern of initiator names, folded. `*` matches any text, and `?` matches any one character.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePattern(String);

impl NamePattern {
    /// Returns the pattern that matches every name.
    pub fn any() -> Self {
        NamePattern("*".into())
    }

    /// Returns the pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the pattern matches the name of an initiator. The case of letters has no
    /// effect.
    pub fn matches(&self, name: &str) -> bool {
        // The length is bounded because the time grows with the product of the lengths.
        name.len() <= MAX_NAME && glob(&self.0, &fold(name))
    }
}

/// Returns whether a pattern matches a name. It backtracks only to the last `*`. That is enough,
/// because the last `*` can match everything that an earlier `*` could still match.
fn glob(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

impl FromStr for NamePattern {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        if let Some(bad) = text.chars().find(|c| is_unseen(*c)) {
            return refuse(format!("{text:?} matches no iSCSI name: no name contains {bad:?}"));
        }
        NamePattern::kept(text)
    }
}

impl NamePattern {
    /// Parses a pattern that was accepted and stored earlier. Unlike a new pattern it may have
    /// invisible characters, because earlier builds accepted them.
    pub fn kept(text: &str) -> Result<Self, Refused> {
        let pattern = fold(text);
        if pattern.is_empty() || pattern.len() > MAX_NAME {
            return refuse(format!("a pattern of names must have 1 to {MAX_NAME} bytes"));
        }
        if let Some(bad) = pattern.chars().find(|c| c.is_control() || c.is_whitespace() && *c != ' ') {
            return refuse(format!("{text:?} matches no iSCSI name: no name contains {bad:?}"));
        }
        // A pattern whose beginning matches the beginning of no name is a typing mistake. It would
        // silently match no initiator.
        let kinds = ["iqn.", "eui.", "naa."];
        let head: String = pattern.chars().take(4).collect();
        let fits = |kind: &&str| {
            let literal = head.find(['*', '?']).unwrap_or(head.len());
            kind.starts_with(&head[..literal]) && (literal < head.len() || head.len() == 4)
        };
        if !kinds.iter().any(fits) {
            return refuse(format!(
                "{text:?} matches no iSCSI name: it must begin with iqn., eui. or naa., or with a wildcard"
            ));
        }
        Ok(NamePattern(pattern))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A range of addresses in CIDR notation (RFC 4632, RFC 4291 2.3): `10.0.0.0/8`, `fd00::/8`, or one
/// address. An IPv4 address mapped into IPv6 (`::ffff:10.0.0.1`) is an IPv4 address here, because a
/// socket for both kinds reports IPv4 addresses in this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Returns whether an address is in the range. IPv4 and IPv6 are separate: `::/0` contains no
    /// IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for AddressRange {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        let wrong = || Refused(format!("{text:?} is not an address or a range like 10.0.0.0/8 or fd00::/8"));
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let one = IpNet::from(address);
        let prefix = match prefix {
            None => one.max_prefix_len(),
            Some(p) if p.bytes().all(|b| b.is_ascii_digit()) => p.parse().map_err(|_| wrong())?,
            Some(_) => return Err(wrong()),
        };
        let (address, prefix) = match address.to_canonical() {
            v4 @ IpAddr::V4(_) if address.is_ipv6() && prefix >= 96 => (v4, prefix - 96),
            _ => (address, prefix),
        };
        let range = IpNet::new(address, prefix).map_err(|_| wrong())?;
        let whole = range.trunc();
        if whole != range {
            return refuse(format!(
                "{text:?} has bits after its prefix: write {whole}, or the address alone"
            ));
        }
        Ok(AddressRange(range))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            return write!(f, "{}", self.0.addr());
        }
        write!(f, "{}", self.0)
    }
}

/// The logical units that an initiator sees. A LUN has the same number for all initiators. A masked
/// LUN does not exist for the initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LunMask {
    /// All LUNs of the target, including those that are added later.
    All,
    /// These LUNs, if the target has them. The list is sorted and has no duplicates.
    Only(Vec<u16>),
}

impl LunMask {
    /// Makes a mask of the LUNs of a list.
    pub fn only(mut luns: Vec<u16>) -> Self {
        luns.sort_unstable();
        luns.dedup();
        LunMask::Only(luns)
    }

    /// Returns whether a LUN is visible.
    pub fn contains(&self, lun: u64) -> bool {
        match self {
            LunMask::All => true,
            LunMask::Only(luns) => u16::try_from(lun).is_ok_and(|lun| luns.binary_search(&lun).is_ok()),
        }
    }
}

/// The rights of an initiator that a rule admits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// Whether the server refuses writes of the initiator as if the medium were write-protected.
    pub read_only: bool,
    /// The logical units that the initiator sees.
    pub luns: LunMask,
}

impl Permit {
    /// Returns all rights: to read and write every logical unit.
    pub fn full() -> Self {
        Permit { read_only: false, luns: LunMask::All }
    }
}

/// One access rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Pattern of the initiator names that the rule applies to.
    pub initiator: NamePattern,
    /// Addresses that the rule applies to. `None` means any address.
    pub address: Option<AddressRange>,
    /// CHAP account that the initiator must have proven. `None` means any account, or none.
    pub user: Option<String>,
    /// Rights of the initiators that match. `None` means that they are refused.
    pub permit: Option<Permit>,
}

impl Rule {
    /// Returns whether the rule matches an initiator.
    pub fn matches(&self, who: &Party<'_>) -> bool {
        self.user.as_deref().is_none_or(|user| who.user == Some(user))
            && self.address.is_none_or(|range| range.contains(who.address))
            && self.initiator.matches(who.name)
    }
}

/// The properties of an initiator that rules examine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party<'a> {
    /// Name that the initiator sent.
    pub name: &'a str,
    /// Address that the initiator connects from.
    pub address: IpAddr,
    /// CHAP account that the initiator has proven.
    pub user: Option<&'a str>,
}

/// The decision for initiators when there are no rules at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// The target is open to every initiator.
    Open,
    /// The initiator is refused.
    Deny,
}

impl Otherwise {
    /// Returns `Deny` if another machine can reach at least one of the addresses that the server
    /// listens on.
    pub fn of<'a>(listening: impl IntoIterator<Item = &'a SocketAddr>) -> Self {
        let loopback = |a: &SocketAddr| a.ip().to_canonical().is_loopback();
        if listening.into_iter().all(loopback) { Otherwise::Open } else { Otherwise::Deny }
    }
}

/// Returns the rights of `who` at a target. `own` are the rules of the target, and `all` are the
/// rules for every target. Returns `None` if the initiator is refused.
pub fn decide(own: &[Rule], all: &[Rule], otherwise: Otherwise, who: &Party<'_>) -> Option<Permit> {
    if own.is_empty() && all.is_empty() {
        return (otherwise == Otherwise::Open).then(Permit::full);
    }
    let rule = own.iter().chain(all).find(|rule| rule.matches(who))?;
    rule.permit.clone()
}

/// Returns whether the rules could admit an initiator that has not proven an account yet. It may be
/// admitted with an account that `may_prove` accepts, or without an account. If the result is
/// false, the target does not exist for the initiator, and the initiator cannot prove an account to
/// it.
pub fn conceivable(
    own: &[Rule],
    all: &[Rule],
    otherwise: Otherwise,
    who: &Party<'_>,
    may_prove: &dyn Fn(&str) -> bool,
) -> bool {
    if own.is_empty() && all.is_empty() {
        return otherwise == Otherwise::Open;
    }
    for rule in own.iter().chain(all) {
        let user = rule.user.as_deref();
        let could_match = user.is_none_or(may_prove) && rule.matches(&Party { user, ..*who });
        // A rule that refuses one account does not decide about other accounts.
        if could_match && (user.is_none() || rule.permit.is_some()) {
            return rule.permit.is_some();
        }
    }
    false
}

#[cfg(test)]
mod tests;
