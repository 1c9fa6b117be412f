//! Runs the decoders of other crates: where one panics on bytes that it did not expect, that is an error of the file.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sys::escape::printable;

thread_local! {
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread decodes a file. A panic hook keeps quiet then: the error of the file says what is wrong.
pub fn is_decoding() -> bool {
    DECODING.get()
}

/// Runs a decoder. After an error it must not be used again.
pub(super) fn decode<T, E: Display>(decoder: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    let before = DECODING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(decoder));
    DECODING.set(before);
    match result {
        // The words of a decoder may hold names from the file.
        Ok(result) => result.map_err(|error| printable(&error.to_string()).into_owned()),
        Err(_) => Err("its content is damaged".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(decode(|| Ok::<_, String>(is_decoding())), Ok(true));
        assert_eq!(decode(|| Err::<(), _>("no\n")), Err("no\\n".to_owned()));
        let damaged = decode(|| if is_decoding() { panic!("on purpose") } else { Ok::<(), String>(()) });
        assert!(damaged.unwrap_err().contains("damaged"));
        assert!(!is_decoding());
    }
}
