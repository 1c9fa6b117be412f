//! Words and numbers in texts of the kernel, on bytes and without allocation.
//!
//! Whatever the bytes are, they give a value or `None`, never a panic and never an invented 0.

/// An unsigned decimal number that fills the whole slice.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// A signed decimal number that fills the whole slice.
pub fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => i64::try_from(number(digits)?).ok().map(|n| -n),
        None => i64::try_from(number(text)?).ok(),
    }
}

/// The words of a text, separated by blanks of any kind.
pub fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// The lines of a text, empty ones left out.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        // On a large host these files are tens of kilobytes.
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let line = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            if !line.is_empty() {
                return Some(line);
            }
        }
        None
    })
}

/// The first number of the line that begins with `label`.
pub fn labelled(text: &[u8], label: &[u8]) -> Option<u64> {
    let line = lines(text).find(|line| line.starts_with(label))?;
    number(words(&line[label.len()..]).next()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_what_was_written(value: u64, negative in 1..=i64::MAX) {
            prop_assert_eq!(number(value.to_string().as_bytes()), Some(value));
            prop_assert_eq!(signed((-negative).to_string().as_bytes()), Some(-negative));
        }

        #[test]
        fn garbage_never_panics(text in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (number(&text), signed(&text), labelled(&text, b"a"));
            let _ = lines(&text).flat_map(words).count();
        }
    }

    #[test]
    fn what_is_no_number_is_none() {
        for text in ["", "-", "+1", "1x", " 1", "18446744073709551616"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
        assert_eq!(labelled(b"VmRSS:\t 12 kB\nVmHWM: 13 kB\n", b"VmHWM:"), Some(13));
    }
}
