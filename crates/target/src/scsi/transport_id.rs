//! TransportIDs of iSCSI initiators (SPC-4 7.6.4.6).

use std::sync::Arc;

/// Longest iSCSI name (RFC 7143 4.2.7.1), in bytes.
const MAX_NAME: usize = 223;
/// Longest ISID in a port name, in characters: six bytes in hexadecimal.
const MAX_ISID: usize = 12;
/// Longest TransportID in bytes: header, name, separator, ISID and a NUL, padded to a multiple of
/// four.
const MAX_LEN: usize = 4 + (MAX_NAME + ISID.len() + MAX_ISID + 1).next_multiple_of(4);
/// Separator between the name of a device and the ISID.
const ISID: &str = ",i,0x";

/// Decodes a TransportID. Returns the name of the initiator port, or of the device if there is no
/// ISID, and the length in bytes. Returns `None` if no initiator could log in under the name.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Arc<str>, usize)> {
    let (&first, _) = bytes.split_first()?;
    let len = 4 + usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]));
    if first & 0x0f != 5 || !(24..=MAX_LEN).contains(&len) || len % 4 != 0 {
        return None;
    }
    let name = bytes.get(4..len)?.split(|&b| b == 0).next()?;
    let name = std::str::from_utf8(name).ok()?.to_lowercase();
    let (device, isid) = name.split_once(ISID).map_or((name.as_str(), None), |(d, i)| (d, Some(i)));
    let fits = match first >> 6 {
        0 => isid.is_none(),
        1 => isid.is_some_and(is_isid),
        _ => false,
    };
    let printable = device.chars().all(|c| c == ' ' || !c.is_control() && !c.is_whitespace());
    let printable = printable && !device.starts_with(' ') && !device.ends_with(' ');
    let named = printable && (1..=MAX_NAME).contains(&device.len());
    (fits && named).then(|| (name.as_str().into(), len))
}

fn is_isid(text: &str) -> bool {
    (1..=MAX_ISID).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Encodes the name of an initiator port (format 01b) or device (format 00b).
pub(crate) fn encode(name: &str) -> Vec<u8> {
    let format = if name.contains(ISID) { 0x40 } else { 0 };
    let len = (name.len() + 1).next_multiple_of(4).max(20);
    let mut bytes = vec![format | 5, 0];
    bytes.extend(u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend(name.as_bytes());
    bytes.resize(4 + len, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_the_round_trip() {
        for name in [
            "iqn.2026-11.com.example:host,i,0x00023d000001",
            "iqn.2026-11.com.example:host",
            "a,i,0x1",
            "iqn.a:win 10_b,i,0x1",
        ] {
            let bytes = encode(name);
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(decode(&bytes).unwrap(), (name.into(), bytes.len()));
            assert_eq!(decode(&bytes[..bytes.len() - 1]), None, "truncated");
        }
    }

    #[test]
    fn a_name_is_no_longer_than_an_initiator_may_have() {
        let port = |len: usize| format!("iqn.{},i,0x00023d000001", "a".repeat(len - 4));
        for len in [MAX_NAME - 1, MAX_NAME] {
            let bytes = encode(&port(len));
            assert!(bytes.len() <= MAX_LEN);
            assert_eq!(decode(&bytes).unwrap(), (port(len).as_str().into(), bytes.len()));
        }
        for long in [
            port(MAX_NAME + 1),
            port(4000),
            "b".repeat(MAX_NAME + 1),
            "iqn.a,i,0x0123456789abc".into(),
            "iqn.a,i,0xz".into(),
            "iqn.a\u{a0}b,i,0x1".into(),
        ] {
            assert_eq!(decode(&encode(&long)), None, "{long}");
        }
        // A short name in a long identifier.
        let mut padded = encode("iqn.a,i,0x1");
        padded.resize(65_532, 0);
        padded[2..4].copy_from_slice(&65_528u16.to_be_bytes());
        assert_eq!(decode(&padded), None);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let good = encode("iqn.a,i,0x1");
        for (at, value) in
            [(0, 0x46), (0, 0x05), (0, 0xc5), (3, 19), (3, 16), (6, 0xff), (7, b'\t'), (4, b' '), (14, b' ')]
        {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(decode(&bad), None, "{at} {value:#x}");
        }
        assert_eq!(decode(&[]), None);
    }
}
