//! Sizes in the form that people write: `512`, `16K`, `10G`, `1.5T`. Units are powers of 1024.
//! `KB`, `MB`, `GB` and so on are powers of 1000.

use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::str::FromStr;

/// A number of bytes. It parses and prints with binary units (`K` is 1024 bytes). Everywhere else a
/// size is an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseSizeError(String);

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseSizeError {}

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A size with a fraction or a decimal unit is rounded down to a multiple of this number of bytes.
/// So `1.3G` and `1GB` are valid volume sizes.
const FRACTION_UNIT: u64 = 4096;

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |why: &str| Err(ParseSizeError(format!("{text:?} is not a size: {why}")));
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let (base, power) = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => (1024u128, 0),
            "k" | "kib" => (1024, 1),
            "m" | "mib" => (1024, 2),
            "g" | "gib" => (1024, 3),
            "t" | "tib" => (1024, 4),
            "p" | "pib" => (1024, 5),
            "e" | "eib" => (1024, 6),
            "kb" => (1000, 1),
            "mb" => (1000, 2),
            "gb" => (1000, 3),
            "tb" => (1000, 4),
            "pb" => (1000, 5),
            "eb" => (1000, 6),
            _ => {
                return fail("write for example 512, 16K, 10G or 1.5T (K is 1024 bytes, KB is 1000)");
            }
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
            return fail("it must begin with a number, like 10G or 1.5T");
        }
        // Twelve decimal digits are finer than a byte of a terabyte and keep the arithmetic inside
        // 128 bits.
        if fraction.len() > 12 {
            return fail("it has too many digits after the point");
        }
        if !fraction.is_empty() && power == 0 {
            return fail("a number of bytes must be whole");
        }
        let Ok(digits) = format!("{whole}{fraction}").parse::<u64>() else {
            return fail("it is too large");
        };
        let scale = 10u128.pow(u32::try_from(fraction.len()).unwrap_or(12));
        let scaled = u128::from(digits) * base.pow(power);
        let Ok(mut bytes) = u64::try_from(scaled / scale) else {
            return fail("it is too large");
        };
        if !scaled.is_multiple_of(scale) || base == 1000 {
            bytes -= bytes % if bytes >= FRACTION_UNIT { FRACTION_UNIT } else { 1 };
        }
        Ok(Size(bytes))
    }
}

impl fmt::Display for Size {
    /// Prints at most one decimal, rounded down, so that free space is never overstated: `10 GiB`,
    /// `1.5 TiB`, `512 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = 0;
        while unit + 1 < UNITS.len() && self.0 >> (10 * (unit + 1)) > 0 {
            unit += 1;
        }
        let one = 1u64 << (10 * unit);
        let tenths = u128::from(self.0 % one) * 10 / u128::from(one);
        let text = match tenths {
            0 => format!("{} {}", self.0 / one, UNITS[unit]),
            _ => format!("{}.{tenths} {}", self.0 / one, UNITS[unit]),
        };
        f.pad(&text)
    }
}

impl<'de> Deserialize<'de> for Size {
    /// Reads an integer of bytes, or a string in the form of the command line.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size: bytes, or a string like \"10G\"")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Size, E> {
                Ok(Size(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Size, E> {
                u64::try_from(v).map(Size).map_err(|_| E::custom("a size cannot be negative"))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Size, E> {
                v.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u64, ParseSizeError> {
        text.parse::<Size>().map(|s| s.0)
    }

    #[test]
    fn sizes_are_binary_multiples() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("16K", 16 << 10),
            ("16k", 16 << 10),
            ("16KiB", 16 << 10),
            ("10G", 10 << 30),
            ("10 GiB", 10 << 30),
            ("1.5T", 3 << 39),
            ("0.5K", 512),
            ("64T", 64 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn odd_fractions_come_to_whole_blocks() {
        assert_eq!(parse("1.3G"), Ok(1_395_863_552));
        assert_eq!(parse("1.3G").unwrap() % 4096, 0);
        assert_eq!(parse("1.3K"), Ok(1331));
    }

    #[test]
    fn decimal_units_come_to_whole_blocks() {
        assert_eq!(parse("1GB"), Ok(999_997_440));
        assert_eq!(parse("1.5 tb").unwrap() % 4096, 0);
        assert_eq!((parse("18EB").is_ok(), parse("19EB").is_ok()), (true, false));
        assert_eq!(parse("1kb"), Ok(1000));
        assert!(parse("10XB").unwrap_err().to_string().contains("KB is 1000"));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in
            ["", "G", ".5G", "1.", "1.G", "1.2.3G", "-1", "10X", "10GX", "1.5", "16E", "99999999999999999999"]
        {
            assert!(parse(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn sizes_print_short_and_never_too_large() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1023, "1023 B"),
            (16 << 10, "16 KiB"),
            (3 << 39, "1.5 TiB"),
            ((10 << 30) - 1, "9.9 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn files_may_say_a_number_or_a_string() {
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size(4096));
        assert_eq!(serde_json::from_str::<Size>("\"4K\"").unwrap(), Size(4096));
        assert!(serde_json::from_str::<Size>("-1").is_err());
        assert!(serde_json::from_str::<Size>("true").is_err());
    }
}
