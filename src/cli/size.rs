//! Reads memory sizes (`8GiB`, `500M`, `10000`), in integers only: no rounding through floats.

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    /// Nothing was typed.
    #[error("the size is empty")]
    Empty,
    /// Something other than digits, one point and a unit.
    #[error("not a size: write digits and a unit, as in 8GiB, 500M or 10000 (bytes)")]
    Malformed,
    /// A sign in front.
    #[error("a size cannot have a sign")]
    Signed,
    /// Letters that are no unit.
    #[error(
        "unknown unit: use K, M, G, T, P (powers of 1000) or Ki, Mi, Gi, Ti, Pi (powers of 1024), with or without B"
    )]
    Unit,
    /// More bytes than 64 bits hold.
    #[error("too large: more bytes than 64 bits can hold")]
    TooLarge,
}

/// Reads a size in bytes, as `nvisel` writes them: `K M G T P` with an optional `B` are powers of 1000,
/// `Ki Mi Gi Ti Pi` powers of 1024, a bare number is bytes; case does not matter, `1.5 GiB` is allowed,
/// a fraction of a byte is cut.
///
/// # Errors
/// Anything else, each with its own words; only ASCII is read.
pub(crate) fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim_matches(|c: char| c.is_ascii_whitespace());
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    if text.starts_with(['+', '-']) {
        return Err(SizeError::Signed);
    }
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = text.split_at(digits_end);
    if whole.is_empty() {
        return Err(SizeError::Malformed);
    }
    let (fraction, rest) = match rest.strip_prefix('.') {
        None => ("", rest),
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (fraction, rest) = rest.split_at(end);
            if fraction.is_empty() {
                return Err(SizeError::Malformed);
            }
            (fraction, rest)
        }
    };
    let unit = unit(rest.trim_start_matches(|c: char| c.is_ascii_whitespace()))?;
    let whole: u128 = whole.trim_start_matches('0').parse().or_else(|error: std::num::ParseIntError| {
        match error.kind() {
            std::num::IntErrorKind::Empty => Ok(0),
            _ => Err(SizeError::TooLarge),
        }
    })?;
    // Nineteen digits decide every byte of the largest unit; what follows them is far below one byte.
    let fraction = fraction.get(..19).unwrap_or(fraction);
    let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().unwrap_or(0) };
    let bytes = whole
        .checked_mul(unit)
        .and_then(|bytes| bytes.checked_add(parts * unit / scale))
        .ok_or(SizeError::TooLarge)?;
    u64::try_from(bytes).map_err(|_| SizeError::TooLarge)
}

/// The factor that a unit stands for.
fn unit(text: &str) -> Result<u128, SizeError> {
    let lower = text.to_ascii_lowercase();
    let bare = lower.strip_suffix('b').unwrap_or(&lower);
    let (letter, base) = match bare.strip_suffix('i') {
        Some(letter) => (letter, 1024_u128),
        None => (bare, 1000),
    };
    let power = match letter {
        "" if base == 1000 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ if letter.starts_with(|c: char| c.is_ascii_alphabetic()) => return Err(SizeError::Unit),
        "" => return Err(SizeError::Unit),
        _ => return Err(SizeError::Malformed),
    };
    Ok(base.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_nvisel_reads() {
        for (text, bytes) in [
            ("200", 200),
            ("10k", 10_000),
            ("10ki", 10_240),
            ("1.5 GiB", 1_610_612_736),
            ("5G", 5_000_000_000),
            ("5gI", 5_368_709_120),
            ("1.999B", 1),
            (" 8 MiB ", 8 << 20),
            ("0.57G", 570_000_000),
            ("9007199254740993", 9_007_199_254_740_993),
            ("18446744073709551615", u64::MAX),
            ("007", 7),
            ("1p", 1_000_000_000_000_000),
            ("0", 0),
            ("500MB", 500_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn names_what_is_wrong() {
        for (text, error) in [
            ("", SizeError::Empty),
            ("  ", SizeError::Empty),
            ("+5G", SizeError::Signed),
            ("-5G", SizeError::Signed),
            ("5E", SizeError::Unit),
            ("5X", SizeError::Unit),
            ("5i", SizeError::Unit),
            ("5iB", SizeError::Unit),
            ("inf", SizeError::Malformed),
            (".5G", SizeError::Malformed),
            ("5.", SizeError::Malformed),
            ("1e9", SizeError::Unit),
            ("1_000", SizeError::Malformed),
            ("1,000", SizeError::Malformed),
            ("100%", SizeError::Malformed),
            ("18446744073709551616", SizeError::TooLarge),
            ("99999999P", SizeError::TooLarge),
            ("5\u{212a}", SizeError::Malformed),
            ("\u{ff15}G", SizeError::Malformed),
        ] {
            assert_eq!(parse_size(text), Err(error), "{text:?}");
        }
        let long = "9".repeat(80);
        assert_eq!(parse_size(&long), Err(SizeError::TooLarge));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60_000))]

        #[test]
        fn anything_typed_is_a_size_or_a_mistake(text in "\\PC{0,24}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn size_like_text_never_panics(text in "[+-]?[0-9]{0,24}[.]?[0-9]{0,40} ?[kKmMgGtTpPeEiIbB%\u{212a}]{0,4}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn whole_numbers_are_exact(n in 0_u64..=u64::MAX / 1024, ki in any::<bool>()) {
            prop_assert_eq!(parse_size(&n.to_string()), Ok(n));
            let factor = if ki { 1024 } else { 1000 };
            prop_assert_eq!(parse_size(&format!("{n}{}", if ki { "KiB" } else { "k" })), Ok(n * factor));
        }
    }
}
