//! Reads durations (`500ms`, `1s`, `2h30m`, `10` = seconds).

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DurationError {
    /// Nothing was typed.
    #[error("the duration is empty")]
    Empty,
    /// A sign in front.
    #[error("a duration cannot have a sign")]
    Signed,
    /// Something other than numbers with units.
    #[error("not a duration: write 500ms, 10s, 2h30m, or a bare number of seconds")]
    Malformed,
    /// Letters that are no unit.
    #[error("unknown unit: use ms, s, m, h or d")]
    Unit,
    /// `30m2h` or `1s1s`.
    #[error("units must go from the largest to the smallest, each once")]
    Order,
    /// Longer than 64 bits of nanoseconds: 584 years.
    #[error("too long: more than 584 years")]
    TooLong,
}

/// Reads a duration: a bare number is seconds; otherwise numbers with `d`, `h`, `m`, `s`, `ms`,
/// from the largest unit to the smallest. A number may have a fraction.
///
/// # Errors
/// Anything else; only ASCII is read.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let text = text.trim_matches(|c: char| c.is_ascii_whitespace());
    if text.is_empty() {
        return Err(DurationError::Empty);
    }
    if text.starts_with(['+', '-']) {
        return Err(DurationError::Signed);
    }
    let mut rest = text;
    let mut total: u128 = 0;
    let mut last_unit = u128::MAX;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        if whole.is_empty() {
            return Err(DurationError::Malformed);
        }
        let (fraction, after) = match after.strip_prefix('.') {
            None => ("", after),
            Some(after) => match digits(after) {
                ("", _) => return Err(DurationError::Malformed),
                parts => parts,
            },
        };
        let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let unit: u128 = match unit {
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            "" if after.is_empty() && last_unit == u128::MAX => 1_000_000_000,
            "" => return Err(DurationError::Malformed),
            _ => return Err(DurationError::Unit),
        };
        if unit >= last_unit {
            return Err(DurationError::Order);
        }
        last_unit = unit;
        let whole = whole.trim_start_matches('0');
        let whole: u128 =
            if whole.is_empty() { 0 } else { whole.parse().map_err(|_| DurationError::TooLong)? };
        // A nanosecond of a day is its fifteenth decimal: eighteen digits are more than enough.
        let fraction = fraction.get(..18).unwrap_or(fraction);
        let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().unwrap_or(0) };
        let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        total = whole
            .checked_mul(unit)
            .and_then(|nanos| nanos.checked_add(parts * unit / scale))
            .and_then(|nanos| nanos.checked_add(total))
            .filter(|nanos| *nanos <= u128::from(u64::MAX))
            .ok_or(DurationError::TooLong)?;
        rest = after;
    }
    Ok(Duration::from_nanos(u64::try_from(total).map_err(|_| DurationError::TooLong)?))
}

/// Splits the leading digits off.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_units_and_bare_seconds() {
        for (text, millis) in [
            ("500ms", 500),
            ("1s", 1000),
            ("2h30m", 9_000_000),
            ("10", 10_000),
            ("0.5", 500),
            ("1.5h", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            (" 3s ", 3000),
            ("0", 0),
            ("007s", 7000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn names_what_is_wrong() {
        for (text, error) in [
            ("", DurationError::Empty),
            ("-1s", DurationError::Signed),
            ("+1s", DurationError::Signed),
            ("s", DurationError::Malformed),
            ("1.s", DurationError::Malformed),
            ("1s2", DurationError::Malformed),
            ("1 s", DurationError::Malformed),
            ("1x", DurationError::Unit),
            ("1H", DurationError::Unit),
            ("30m2h", DurationError::Order),
            ("1s1s", DurationError::Order),
            ("99999999999999999999999999999999999999999s", DurationError::TooLong),
            ("600000000000000d", DurationError::TooLong),
            ("\u{ff11}s", DurationError::Malformed),
        ] {
            assert_eq!(parse_duration(text), Err(error), "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60_000))]

        #[test]
        fn anything_typed_is_a_duration_or_a_mistake(text in "\\PC{0,24}") {
            let _ = parse_duration(&text);
        }

        #[test]
        fn duration_like_text_never_panics(text in "([0-9]{0,22}[.]?[0-9]{0,22}(ms|s|m|h|d|x)?){0,4}") {
            let _ = parse_duration(&text);
        }

        #[test]
        fn whole_milliseconds_are_exact(ms in 0_u64..=u64::from(u32::MAX)) {
            prop_assert_eq!(parse_duration(&format!("{ms}ms")), Ok(Duration::from_millis(ms)));
        }
    }
}
