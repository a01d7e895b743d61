//! What a logical unit is known by: its serial number and its designators (SPC-4 7.8.6).

use super::lu::LogicalUnit;

/// T10 VENDOR IDENTIFICATION.
pub(crate) const VENDOR: &[u8; 8] = b"HINDCAST";

/// ASCII in a field of fixed length, padded with spaces.
pub(crate) fn padded(text: &str, len: usize) -> Vec<u8> {
    let printable = |b: u8| if (0x20..0x7f).contains(&b) { b } else { b'?' };
    let mut bytes: Vec<u8> = text.bytes().map(printable).take(len).collect();
    bytes.resize(len, b' ');
    bytes
}

impl LogicalUnit {
    /// Its unit serial number, as it is reported to initiators (SPC-4 7.8.17).
    pub fn serial(&self) -> String {
        let serial = match &self.options.serial {
            Some(serial) => serial.clone(),
            None => self.info().uuid.simple().to_string(),
        };
        let len = serial.len().min(252);
        String::from_utf8(padded(&serial, len)).unwrap_or_default()
    }
}

/// An NAA identifier, locally assigned (SPC-4 7.8.6.6.3): 60 bits of the device's uuid. There is no
/// company id to make a registered one of.
pub(crate) fn naa(lu: &LogicalUnit) -> [u8; 8] {
    let (high, low) = lu.info().uuid.as_u64_pair();
    let mut naa = (high ^ low).to_be_bytes();
    naa[0] = 0x30 | (naa[0] & 0x0f);
    naa
}

/// T10 VENDOR ID based: the vendor, and the serial number.
pub(crate) fn vendor_specific(lu: &LogicalUnit) -> Vec<u8> {
    let mut designator = VENDOR.to_vec();
    designator.extend(lu.serial().bytes().take(64));
    designator
}

/// Whether a designation descriptor (code set, association and type, designator) is one of this
/// logical unit's own.
pub(crate) fn is_designated(lu: &LogicalUnit, code_set: u8, kind: u8, designator: &[u8]) -> bool {
    match (code_set, kind & 0x3f) {
        (1, 0x03) => designator == naa(lu),
        (2, 0x01) => designator == vendor_specific(lu),
        _ => false,
    }
}
