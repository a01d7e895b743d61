//! Text in PDUs: `key=value` pairs, each ended by a NUL (RFC 7143, 6.1), and the numbers and binary
//! values in them.

use super::access::is_unseen;
use std::fmt::Write as _;

/// Maximum length of a key in bytes (6.1: a standard-label).
pub const MAX_KEY: usize = 63;
/// Maximum length of a value in bytes. A binary value of 1024 bytes in hexadecimal fits easily.
pub const MAX_VALUE: usize = 8192;
/// Maximum length in bytes of the text of one request, over all PDUs that continue it.
pub const MAX_TEXT: usize = 64 << 10;
/// Maximum number of keys in such a text, and in one login.
pub const MAX_KEYS: usize = 256;

/// Answer to an unknown key (6.2). It is not a value of the key.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// Answer to a key that has no meaning in the session (6.2).
pub const IRRELEVANT: &str = "Irrelevant";
/// Answer to a value that is not admissible (6.2).
pub const REJECT: &str = "Reject";

/// The reason why text is not well-formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// Splits text into keys and values. It skips empty pairs, which are padding. The last pair may
/// lack its NUL.
pub fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, Malformed> {
    let mut pairs = Vec::new();
    for pair in text.split(|b| *b == 0).filter(|pair| !pair.is_empty()) {
        let Ok(pair) = std::str::from_utf8(pair) else {
            return Err(Malformed("text is not UTF-8"));
        };
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Malformed("text without '='"));
        };
        if !is_key(key) {
            return Err(Malformed("the key is invalid"));
        }
        if value.len() > MAX_VALUE {
            return Err(Malformed("a value is too long"));
        }
        if pairs.len() == MAX_KEYS {
            return Err(Malformed("too many keys"));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// Returns whether text has the form of a key: a letter, followed by letters, digits and a few
/// signs. `X#` and `X-` begin extension keys.
fn is_key(key: &str) -> bool {
    let sign = |b: u8| b.is_ascii_alphanumeric() || b".-+@_#/:".contains(&b);
    key.len() <= MAX_KEY
        && key.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && key.bytes().all(sign)
}

/// Appends a key and its value.
pub fn put(out: &mut Vec<u8>, key: &str, value: &str) {
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
    out.extend_from_slice(value.as_bytes());
    out.push(0);
}

/// Parses a number: decimal, or hexadecimal after `0x` (6.1).
pub fn number(value: &str) -> Option<u64> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(hex) if !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u64::from_str_radix(hex, 16).ok()
        }
        None if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) => value.parse().ok(),
        _ => None,
    }
}

/// Parses a boolean: `Yes` or `No`.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// Returns the text of a boolean.
pub fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// Parses a binary value of 1 to `max` bytes: hexadecimal after `0x`, or base64 after `0b` (6.1).
pub fn binary(value: &str, max: usize) -> Option<Vec<u8>> {
    let (prefix, digits) = (value.get(..2)?, value.get(2..)?.as_bytes());
    let bytes = match prefix {
        "0x" | "0X" => hex(digits)?,
        "0b" | "0B" => base64(digits)?,
        _ => return None,
    };
    (!bytes.is_empty() && bytes.len() <= max).then_some(bytes)
}

/// Parses hexadecimal digits. If their number is odd, the first digit is a byte.
fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let (first, rest) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    if let [odd] = first {
        bytes.push(digit(*odd)?);
    }
    for pair in rest.chunks_exact(2) {
        bytes.push(digit(pair[0])? << 4 | digit(pair[1])?);
    }
    Some(bytes)
}

fn base64(digits: &[u8]) -> Option<Vec<u8>> {
    let padding = digits.iter().rev().take_while(|b| **b == b'=').count();
    if digits.len() % 4 != 0 || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    for four in digits[..digits.len() - padding].chunks(4) {
        let mut bits = 0u32;
        for b in four {
            bits = bits << 6 | u32::from(base64_digit(*b)?);
        }
        bits <<= 6 * (4 - four.len());
        let [_, triple @ ..] = bits.to_be_bytes();
        bytes.extend_from_slice(triple.get(..four.len().checked_sub(1)?)?);
    }
    Some(bytes)
}

fn base64_digit(b: u8) -> Option<u8> {
    Some(match b {
        b'A'..=b'Z' => b - b'A',
        b'a'..=b'z' => b - b'a' + 26,
        b'0'..=b'9' => b - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// Formats bytes as a binary value: `0x` and hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("0x"), |mut text, b| {
        let _ = write!(text, "{b:02x}"); // a String takes everything
        text
    })
}

/// Returns whether an initiator may use a name: it has the beginning of an iSCSI name, and at most
/// 223 bytes (RFC 7143, 4.2.7). RFC 3722 excludes `_`, spaces and more from names. But initiators
/// derive names from the names of hosts and virtual machines, and no standard requires a target to
/// refuse such names. So every printable character is accepted, except a comma. A SCSI port name is
/// the name, a comma, and the identifier of the port. Reservations keep such names, and
/// TransportIDs contain them. A space is accepted except at the end, where it is invisible.
pub fn is_name(name: &str) -> bool {
    let digits = |rest: &str, lens: &[usize]| {
        lens.contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_hexdigit())
    };
    if let Some(rest) = name.strip_prefix("eui.") {
        return digits(rest, &[16]);
    }
    if let Some(rest) = name.strip_prefix("naa.") {
        return digits(rest, &[16, 32]);
    }
    let allowed = |c: char| c != ',' && (c == ' ' || !is_unseen(c) && !c.is_whitespace());
    let text = name.strip_prefix("iqn.").filter(|text| !text.is_empty() && !text.ends_with(' '));
    name.len() <= 223 && text.is_some_and(|text| text.chars().all(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split() {
        let text = b"InitiatorName=iqn.a:b\0SessionType=Normal\0\0\0X-com.example.k=a=b\0Empty=\0";
        let pairs = parse(text).unwrap();
        let expected = [
            ("InitiatorName", "iqn.a:b"),
            ("SessionType", "Normal"),
            ("X-com.example.k", "a=b"),
            ("Empty", ""),
        ];
        assert_eq!(pairs, expected);
        assert_eq!(parse(b"A=b").unwrap(), [("A", "b")]);
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn malformed_text_is_refused() {
        let long_key = format!("{}=1", "K".repeat(64));
        let long_value = format!("K={}", "v".repeat(MAX_VALUE + 1));
        let many = "K=v\0".repeat(MAX_KEYS + 1);
        let cases = [&b"NoEquals\0"[..], b"=v\0", b"1K=v\0", b"K K=v\0", b"K=\xff\0"];
        for text in cases.into_iter().chain([long_key.as_bytes(), long_value.as_bytes(), many.as_bytes()]) {
            assert!(parse(text).is_err(), "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number("8192"), Some(8192));
        assert_eq!(number("0x2000"), Some(8192));
        for bad in ["", "0x", "-1", "+1", "1 ", "8k", "99999999999999999999", "0xg"] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }

    #[test]
    fn binary_values_in_both_codings() {
        assert_eq!(binary("0x0102ff", 3).unwrap(), [1, 2, 255]);
        assert_eq!(binary("0x102FF", 3).unwrap(), [1, 2, 255]);
        assert_eq!(binary("0bAQL/", 3).unwrap(), [1, 2, 255]);
        assert_eq!(binary("0bAQI=", 3).unwrap(), [1, 2]);
        assert_eq!(binary("0bAQ==", 3).unwrap(), [1]);
        for bad in ["", "0", "01", "0x", "0xzz", "0b", "0bA", "0bA===", "0bA=Q=", "0bAQI", "0x01020304", "é1"]
        {
            assert_eq!(binary(bad, 3), None, "{bad}");
        }
        assert_eq!(binary(&to_hex(&[0, 171]), 9).unwrap(), [0, 171]);
    }

    #[test]
    fn names() {
        for good in [
            "iqn.2026-11.io.hindcast:vol",
            "iqn.1993-08.org.debian:01:ab",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "iqn.2008-11.org.linux-kvm:web_01",
            "iqn.2008-11.org.linux-kvm:Win 10",
            "iqn.a:(x)=~b/c@d+e\"'\\*?",
            "iqn.a:grüße",
        ] {
            assert!(is_name(good), "{good}");
        }
        let long = format!("iqn.{}", "a".repeat(220));
        for bad in [
            "",
            "iqn.",
            "vol",
            "eui.1",
            "iqn.a ",
            "iqn.a\tb",
            "iqn.a\nb",
            "iqn.a,i,0x00023d000001",
            "iqn.a\u{a0}b",
            "iqn.a\u{85}b",
            "iqn.a\u{2028}b",
            "iqn.a\u{202e}b",
            "iqn.a\u{200b}b",
            "iqn.a\u{feff}b",
            "iqn.a\u{e0041}b",
            &long,
            "naa.xyz",
        ] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
