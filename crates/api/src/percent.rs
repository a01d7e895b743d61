//! Percent-encoding of parts of URIs (RFC 3986).

/// Percent-encodes all bytes of a text but the unreserved characters of RFC 3986 and those in
/// `plain`.
pub fn percent_encoded(text: &str, plain: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            _ if plain.contains(&byte) => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreserved_and_chosen_characters_stay() {
        assert_eq!(percent_encoded("aZ09-._~", b""), "aZ09-._~");
        assert_eq!(percent_encoded("a/b ä@1:2", b"@:"), "a%2Fb%20%C3%A4@1:2");
    }
}
