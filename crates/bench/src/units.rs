//! Sizes in the notation of people: `512M`, `16T`.

/// Parses a size in bytes with an optional binary suffix (K, M, G, T).
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(format!("unknown unit {suffix:?}: use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|e| format!("{text:?}: {e}"))?;
    number.checked_mul(1u64 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

/// Formats a number of bytes as mebibytes with one decimal.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("16TiB"), Ok(16 << 40));
        assert!(parse_size("").is_err());
        assert!(parse_size("12X").is_err());
        assert!(parse_size("99999999T").is_err());
    }
}
