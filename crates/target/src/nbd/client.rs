//! The properties of an NBD client that access rules examine: the listener that it connected to,
//! its address, and the common names of its certificate.

use crate::net::listener::Listen;
use std::net::IpAddr;
use webpki::EndEntityCert;

/// A client of an NBD server, as access rules examine it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The listener that accepted the connection, as bound.
    pub listener: Listen,
    /// The client's address. `None` for a client on a Unix socket.
    pub address: Option<IpAddr>,
    /// The common names in the subject of the certificate that the client presented and the server
    /// verified. Empty without a certificate. Characters that can't be decoded are U+FFFD.
    pub common_names: Vec<String>,
}

/// Tag of an object identifier in DER.
const OID: u8 = 0x06;
/// Tag of a sequence in DER.
const SEQUENCE: u8 = 0x30;
/// Tag of a set in DER.
const SET: u8 = 0x31;
/// Tag of a string of UTF-16 code units in DER.
const BMP_STRING: u8 = 0x1e;
/// The object identifier 2.5.4.3, `id-at-commonName` (RFC 5280 A.1).
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Returns the common names in the subject of an X.509 certificate in DER. Returns none if the
/// certificate is malformed.
pub(super) fn common_names(certificate: &rustls::pki_types::CertificateDer<'_>) -> Vec<String> {
    EndEntityCert::try_from(certificate).map(|parsed| of_subject(parsed.subject())).unwrap_or_default()
}

/// Returns the common names in the content of a `Name` (RFC 5280 4.1.2.4): a sequence of sets, and
/// each set has sequences of a type and a value.
fn of_subject(subject: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let parts = Elements(subject).filter(|(tag, _)| *tag == SET).flat_map(|(_, set)| Elements(set));
    for (_, attribute) in parts.filter(|(tag, _)| *tag == SEQUENCE) {
        let mut attribute = Elements(attribute);
        if attribute.next() == Some((OID, COMMON_NAME))
            && let Some((tag, value)) = attribute.next()
        {
            names.push(text(tag, value));
        }
    }
    names
}

fn text(tag: u8, value: &[u8]) -> String {
    match tag {
        BMP_STRING => {
            let units = value.chunks(2).map(|unit| match unit {
                [high, low] => u16::from_be_bytes([*high, *low]),
                _ => 0xfffd,
            });
            char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
        // The other types of strings agree with UTF-8 in the characters of ASCII.
        _ => String::from_utf8_lossy(value).into_owned(),
    }
}

/// The elements of a constructed value in DER, as tag and content. The iteration ends at the first
/// malformed element.
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            // A longer length does not occur in a subject that fits into a TLS message.
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{DnType, DnValue};

    fn signed(names: &[(DnType, DnValue)]) -> Vec<String> {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        let key = rcgen::KeyPair::generate().unwrap();
        common_names(params.self_signed(&key).unwrap().der())
    }

    #[test]
    fn a_common_name_is_found_among_others_and_in_every_kind_of_string() {
        let utf8 = |text: &str| DnValue::Utf8String(text.into());
        let long = "ü".repeat(150);
        assert_eq!(signed(&[]), [""; 0]);
        assert_eq!(signed(&[(DnType::OrganizationName, utf8("vm1"))]), [""; 0]);
        let unit = (DnType::OrganizationalUnitName, utf8("CN=vm2"));
        assert_eq!(signed(&[unit, (DnType::CommonName, utf8("vm1"))]), ["vm1"]);
        assert_eq!(signed(&[(DnType::CommonName, utf8(&long))]), [long]);
        let printable = DnValue::PrintableString("vm1".try_into().unwrap());
        assert_eq!(signed(&[(DnType::CommonName, printable)]), ["vm1"]);
        let bmp = DnValue::BmpString("vm1ü".try_into().unwrap());
        assert_eq!(signed(&[(DnType::CommonName, bmp)]), ["vm1ü"]);
    }

    #[test]
    fn several_common_names_are_all_found() {
        let name = |text: &[u8]| [&[0x30, 7 + 2, 6, 3, 0x55, 4, 3, 0x0c, 2][..], text].concat();
        let set = |content: Vec<u8>| [vec![0x31, u8::try_from(content.len()).unwrap()], content].concat();
        let subject = [set([name(b"v1"), name(b"v\xff")].concat()), set(name(b"v3"))].concat();
        assert_eq!(of_subject(&subject), ["v1", "v\u{fffd}", "v3"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            of_subject(&bytes);
            common_names(&bytes.into());
        }
    }
}
