//! TransportIDs of iSCSI initiators (SPC-4 7.6.4.6).

use std::sync::Arc;

/// Reads one: the initiator port's name, or the device's if that is all it says, and its length.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Arc<str>, usize)> {
    let (&first, _) = bytes.split_first()?;
    let len = 4 + usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]));
    if first & 0x0f != 5 || len < 24 || len % 4 != 0 {
        return None;
    }
    let name = bytes.get(4..len)?.split(|&b| b == 0).next()?;
    let name = std::str::from_utf8(name).ok()?.to_lowercase();
    let names_port = name.contains(",i,0x");
    let fits = match first >> 6 {
        0 => !names_port,
        1 => names_port,
        _ => false,
    };
    let printable = name.chars().all(|c| c == ' ' || !c.is_control() && !c.is_whitespace());
    let printable = printable && !name.starts_with(' ') && !name.ends_with(' ');
    (fits && printable && !name.is_empty()).then(|| (name.into(), len))
}

/// Writes the name of an initiator port (format 01b) or device (format 00b).
pub(crate) fn encode(name: &str) -> Vec<u8> {
    let format = if name.contains(",i,0x") { 0x40 } else { 0 };
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
