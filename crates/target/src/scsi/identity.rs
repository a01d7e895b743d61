//! The identity of a logical unit: its serial number and its designators (SPC-4 7.8.6).

use super::lu::LogicalUnit;

/// T10 VENDOR IDENTIFICATION.
pub(crate) const VENDOR: &[u8; 8] = b"HINDCAST";

/// Returns ASCII text in a field of `len` bytes, padded with spaces. A question mark replaces a
/// byte that is not printable.
pub(crate) fn padded(text: &str, len: usize) -> Vec<u8> {
    let printable = |b: u8| if (0x20..0x7f).contains(&b) { b } else { b'?' };
    let mut bytes: Vec<u8> = text.bytes().map(printable).take(len).collect();
    bytes.resize(len, b' ');
    bytes
}

impl LogicalUnit {
    /// Returns the unit serial number that the logical unit reports to initiators (SPC-4 7.8.17).
    pub fn serial(&self) -> String {
        let serial = match &self.options.serial {
            Some(serial) => serial.clone(),
            None => self.info().uuid.simple().to_string(),
        };
        let len = serial.len().min(252);
        String::from_utf8(padded(&serial, len)).unwrap_or_default()
    }
}

/// Returns a locally assigned NAA identifier (SPC-4 7.8.6.6.3): 60 bits of the device's UUID. A
/// registered identifier would need a company id, and the project has none.
pub(crate) fn naa(lu: &LogicalUnit) -> [u8; 8] {
    let (high, low) = lu.info().uuid.as_u64_pair();
    let mut naa = (high ^ low).to_be_bytes();
    naa[0] = 0x30 | (naa[0] & 0x0f);
    naa
}

/// Returns the T10 vendor ID based designator: the vendor and the serial number.
pub(crate) fn vendor_specific(lu: &LogicalUnit) -> Vec<u8> {
    let mut designator = VENDOR.to_vec();
    designator.extend(lu.serial().bytes().take(64));
    designator
}

/// Returns whether a designation descriptor identifies this logical unit. The parameters are its
/// code set, its association and type, and its designator.
pub(crate) fn is_designated(lu: &LogicalUnit, code_set: u8, kind: u8, designator: &[u8]) -> bool {
    match (code_set, kind & 0x3f) {
        (1, 0x03) => designator == naa(lu),
        (2, 0x01) => designator == vendor_specific(lu),
        _ => false,
    }
}
