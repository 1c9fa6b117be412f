//! Names that others chose, made fit for a terminal.

use std::borrow::Cow;
use std::path::Path;

/// A text as a terminal may show it: what would move the cursor, change colours, end the line or turn the direction of
/// writing round is written as an escape, such as `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => out.extend(c.escape_default()),
            c if is_unsafe(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// A path as a terminal may show it. Bytes that are no text become replacement characters.
pub fn printable_path(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// Words as a shell would take them.
pub fn shell_words(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// Control characters, line ends of Unicode, and the marks that reorder text that runs both ways.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_written_out() {
        assert_eq!(printable("train.py é 数"), "train.py é 数");
        assert_eq!(printable("a\x1b[2Jb\nc\td"), "a\\u{1b}[2Jb\\nc\\td");
        assert_eq!(
            printable("\u{202e}txt.exe\u{2066}\u{85}\u{2028}"),
            "\\u{202e}txt.exe\\u{2066}\\u{85}\\u{2028}"
        );
        assert_eq!(printable_path(Path::new("a\rb")), "a\\rb");
    }

    proptest! {
        #[test]
        fn nothing_unsafe_is_left(text in any::<String>()) {
            let shown = printable(&text);
            prop_assert!(!shown.contains(is_unsafe));
            prop_assert_eq!(printable(&shown), shown.as_ref());
        }
    }
}
