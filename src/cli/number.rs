//! Reads whole numbers, with a mistake that says what is wrong in plain words.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

/// Reads a whole number.
///
/// # Errors
/// Anything else, and what the type cannot hold.
pub(crate) fn whole<T: FromStr<Err = ParseIntError>>(typed: &str) -> Result<T, &'static str> {
    typed.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "too large",
        IntErrorKind::NegOverflow => "too small",
        _ if typed.starts_with('-') && typed.parse::<i64>().is_ok() => "must not be negative",
        _ => "not a whole number",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_or_explained() {
        assert_eq!(whole::<i32>("-7"), Ok(-7));
        assert_eq!(whole::<u32>("7"), Ok(7));
        for typed in ["", "abc", "1.5", " 1"] {
            assert_eq!(whole::<u32>(typed), Err("not a whole number"), "{typed:?}");
        }
        assert_eq!(whole::<u32>("-1"), Err("must not be negative"));
        assert_eq!(whole::<u32>("5000000000"), Err("too large"));
        assert_eq!(whole::<i32>("-5000000000"), Err("too small"));
    }
}
