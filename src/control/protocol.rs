//! One message of a client: what a line may hold, and the rules for names.
//!
//! The text of the protocol is `schemas/control.md`, its JSON schema `schemas/control.v1.json`.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Version of the protocol; a client names the one it speaks in `hello`.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest line in bytes, newline included.
pub const MAX_LINE: usize = 64 * 1024;

/// Longest tag or scalar name in bytes.
pub const MAX_NAME: usize = 128;

/// Most scalars in one `log` message.
pub(super) const MAX_VALUES: usize = 256;

/// Longest `id` that is text, in bytes.
const MAX_ID: usize = 128;

/// A line as it was sent. Fields that an operation does not know are ignored, so that clients may grow.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    pub(super) op: String,
    /// Asks for a reply that carries the same id.
    #[serde(default)]
    pub(super) id: Option<Value>,
    /// The client's `CLOCK_MONOTONIC` in nanoseconds.
    #[serde(default)]
    pub(super) t: Option<u64>,
    #[serde(default)]
    pub(super) tag: Option<String>,
    /// The client's own number of a tag it began, so that `end` means exactly that one.
    #[serde(default)]
    pub(super) span: Option<i64>,
    #[serde(default)]
    pub(super) step: Option<i64>,
    #[serde(default)]
    pub(super) began: Option<u64>,
    #[serde(default)]
    pub(super) first: bool,
    #[serde(default)]
    pub(super) values: Option<Map<String, Value>>,
    #[serde(default)]
    pub(super) version: Option<u32>,
    #[serde(default)]
    pub(super) rank: Option<i32>,
    #[serde(default)]
    pub(super) stack: Option<String>,
    /// The answer may come a moment later.
    #[serde(default)]
    pub(super) patient: bool,
    #[serde(default)]
    pub(super) parts: Option<Vec<String>>,
    #[serde(default)]
    pub(super) metrics: Option<Vec<String>>,
}

impl Message {
    /// The id, if it is one that we send back.
    pub(super) fn reply_id(&self) -> Option<Value> {
        match &self.id {
            Some(Value::String(text)) if text.len() <= MAX_ID => self.id.clone(),
            Some(Value::Number(_)) => self.id.clone(),
            _ => None,
        }
    }
}

/// Parses one line (without its newline).
pub(super) fn parse(line: &[u8]) -> Result<Message, String> {
    serde_json::from_slice(line).map_err(|error| format!("not a message: {error}"))
}

fn check_name(name: &str, what: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("a {what} must not be empty"));
    }
    if name.len() > MAX_NAME {
        return Err(format!("a {what} must not be longer than {MAX_NAME} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("a {what} must not hold control characters"));
    }
    Ok(())
}

/// Whether `tag` may name a tag: one path component, without control characters.
///
/// # Errors
/// One sentence that says which rule it breaks.
pub fn check_tag(tag: &str) -> Result<(), String> {
    check_name(tag, "tag")?;
    if tag.contains('/') {
        return Err("a tag is one level and must not hold '/'".to_owned());
    }
    Ok(())
}

/// Whether `name` may name a scalar of the job's own; `/` is allowed, as in `train/loss`.
///
/// # Errors
/// One sentence that says which rule it breaks.
pub fn check_scalar_name(name: &str) -> Result<(), String> {
    check_name(name, "scalar's name")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_follow_the_rules() {
        assert!(check_tag("train").is_ok() && check_tag("épo que").is_ok());
        assert!(check_tag("").is_err() && check_tag("a/b").is_err() && check_tag("a\nb").is_err());
        assert!(check_tag(&"x".repeat(MAX_NAME)).is_ok() && check_tag(&"x".repeat(MAX_NAME + 1)).is_err());
        assert!(check_scalar_name("train/loss").is_ok() && check_scalar_name("\u{7f}").is_err());
    }

    #[test]
    fn unknown_fields_are_ignored_and_ids_are_plain() {
        let message = parse(br#"{"op":"begin","tag":"a","t":5,"new":[1,2],"id":"x"}"#).unwrap();
        assert_eq!((message.op.as_str(), message.t), ("begin", Some(5)));
        assert_eq!(message.reply_id(), Some(Value::from("x")));
        assert_eq!(parse(br#"{"op":"x","id":{}}"#).unwrap().reply_id(), None);
        assert!(parse(br#"{"op":"begin","t":-5}"#).is_err());
        assert!(parse(br#"{"op":"log","values":{"a":NaN}}"#).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(line in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&line);
        }

        #[test]
        fn deep_nesting_is_an_error_not_a_crash(depth in 200usize..20_000) {
            let line = format!("{{\"op\":\"x\",\"id\":{}", "[".repeat(depth));
            prop_assert!(parse(line.as_bytes()).is_err());
        }
    }
}
