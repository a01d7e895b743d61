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

/// Longest iSCSI name in bytes (RFC 7143 4.2.7.1).
pub const MAX_NAME: usize = 223;
/// Why a name, pattern or range was refused.
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

/// A name as it is compared: RFC 3722 folds case, so that `IQN.…:Host` and `iqn.…:host` are one
/// name. Its other step, NFKC, is the sender's duty (RFC 7143 4.2.7.2): a name that was not
/// normalized is another name.
pub fn fold(name: &str) -> String {
    name.to_lowercase()
}

/// Whether a character can't be seen, or moves what stands beside it: control characters, marks of
/// writing direction, and characters without width. A name that has one looks like another name, in
/// a log and in a list of sessions.
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
    /// The name.
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
        // RFC 3722 6.2 leaves these of ASCII; beyond ASCII it leaves letters and digits, more or
        // less.
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

/// `YYYY-MM.DOMAIN[:TEXT]`.
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

/// A pattern of initiator names, folded: `*` stands for any text, `?` for any one character.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePattern(String);

impl NamePattern {
    /// The pattern that every name fits.
    pub fn any() -> Self {
        NamePattern("*".into())
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an initiator's name fits, however its case is written.
    pub fn matches(&self, name: &str) -> bool {
        // Bounded, since the time grows with the product of the lengths.
        name.len() <= MAX_NAME && glob(&self.0, &fold(name))
    }
}

/// Backtracks to the last `*` only, which is enough: what an earlier one could still take, the last
/// one can too.
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
    /// characters that can't be seen, because earlier builds accepted them.
    pub fn kept(text: &str) -> Result<Self, Refused> {
        let pattern = fold(text);
        if pattern.is_empty() || pattern.len() > MAX_NAME {
            return refuse(format!("a pattern of names must have 1 to {MAX_NAME} bytes"));
        }
        if let Some(bad) = pattern.chars().find(|c| c.is_control() || c.is_whitespace() && *c != ' ') {
            return refuse(format!("{text:?} matches no iSCSI name: no name contains {bad:?}"));
        }
        // A pattern that begins like no name is a typing mistake. It would silently match no
        // initiator.
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
/// address. IPv4 addresses mapped into IPv6 (`::ffff:10.0.0.1`) are IPv4 addresses here, since a
/// socket for both kinds reports them so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Whether an address lies in it. IPv4 and IPv6 are apart: `::/0` holds no IPv4 address.
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

/// Which logical units an initiator sees. A LUN has the same number for all initiators. One that is
/// masked does not exist for the initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LunMask {
    /// All of the target's, also those that come later.
    All,
    /// These, if the target has them; sorted, without repetition.
    Only(Vec<u16>),
}

impl LunMask {
    /// Those of a list.
    pub fn only(mut luns: Vec<u16>) -> Self {
        luns.sort_unstable();
        luns.dedup();
        LunMask::Only(luns)
    }

    /// Whether a LUN is visible.
    pub fn contains(&self, lun: u64) -> bool {
        match self {
            LunMask::All => true,
            LunMask::Only(luns) => u16::try_from(lun).is_ok_and(|lun| luns.binary_search(&lun).is_ok()),
        }
    }
}

/// What an initiator may do that was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// Its writes are refused as if the medium were write-protected.
    pub read_only: bool,
    /// What it sees.
    pub luns: LunMask,
}

impl Permit {
    /// Everything.
    pub fn full() -> Self {
        Permit { read_only: false, luns: LunMask::All }
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Names it applies to.
    pub initiator: NamePattern,
    /// Addresses it applies to; `None`: any.
    pub address: Option<AddressRange>,
    /// The CHAP account that has to be proven; `None`: any, or none.
    pub user: Option<String>,
    /// What those may do; `None`: nothing, they are refused.
    pub permit: Option<Permit>,
}

impl Rule {
    /// Whether it decides about this initiator.
    pub fn matches(&self, who: &Party<'_>) -> bool {
        self.user.as_deref().is_none_or(|user| who.user == Some(user))
            && self.address.is_none_or(|range| range.contains(who.address))
            && self.initiator.matches(who.name)
    }
}

/// An initiator, as rules look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party<'a> {
    /// Its name, as it says.
    pub name: &'a str,
    /// Where it comes from.
    pub address: IpAddr,
    /// The CHAP account that it has proven.
    pub user: Option<&'a str>,
}

/// What happens to initiators that no rule speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// Targets for which there is no rule at all are open.
    Open,
    /// They are refused.
    Deny,
}

impl Otherwise {
    /// Deny, as soon as one address that the server listens on can be reached from another machine.
    pub fn of<'a>(listening: impl IntoIterator<Item = &'a SocketAddr>) -> Self {
        let loopback = |a: &SocketAddr| a.ip().to_canonical().is_loopback();
        if listening.into_iter().all(loopback) { Otherwise::Open } else { Otherwise::Deny }
    }
}

/// What `who` may do with a target that has the rules `own`, where `all` are the rules for every
/// target. `None`: nothing.
pub fn decide(own: &[Rule], all: &[Rule], otherwise: Otherwise, who: &Party<'_>) -> Option<Permit> {
    if own.is_empty() && all.is_empty() {
        return (otherwise == Otherwise::Open).then(Permit::full);
    }
    let rule = own.iter().chain(all).find(|rule| rule.matches(who))?;
    rule.permit.clone()
}

/// Whether an initiator that has yet to prove an account could be let in: as some account that
/// `may_prove` names, or without one. For those who may not there is no target here to prove
/// anything to.
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
        // A refusal of one account leaves the others.
        if could_match && (user.is_none() || rule.permit.is_some()) {
            return rule.permit.is_some();
        }
    }
    false
}

#[cfg(test)]
mod tests;
