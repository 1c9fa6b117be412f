//! One message of a client: what a line may hold.
//!
//! The text of the protocol is `schemas/control.md`, its JSON schema `schemas/control.v1.json`.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::model::limits;

/// Version of the protocol; a client names the one it speaks in `hello`.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest line in bytes, newline included.
pub const MAX_LINE: usize = limits::MESSAGE_BYTES;

/// Longest tag or scalar name in bytes.
pub const MAX_NAME: usize = limits::NAME_BYTES;

/// Longest `id` that is text, in bytes.
const MAX_ID: usize = 128;

/// A line as it was sent. Fields that an operation does not know are ignored, so that clients may grow.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message<'a> {
    pub(super) op: String,
    /// Asks for a reply that carries the same id.
    pub(super) id: Option<Value>,
    /// The client's `CLOCK_MONOTONIC` in nanoseconds.
    pub(super) t: Option<u64>,
    pub(super) tag: Option<String>,
    /// The client's own number of a tag it began, so that `end` means exactly that one.
    pub(super) span: Option<i64>,
    pub(super) epoch: Option<i64>,
    pub(super) step: Option<i64>,
    pub(super) began: Option<u64>,
    /// Steps that ended together.
    pub(super) steps: Option<u32>,
    pub(super) first: bool,
    /// Training samples in the steps.
    pub(super) samples: Option<u64>,
    #[serde(borrow)]
    pub(super) values: Option<Scalars<'a>>,
    /// Messages that the client could not send.
    pub(super) dropped: Option<u64>,
    pub(super) version: Option<u32>,
    pub(super) rank: Option<i32>,
    pub(super) stack: Option<String>,
    pub(super) parts: Option<Vec<String>>,
    pub(super) metrics: Option<Vec<String>>,
}

/// The id of a line that is no message otherwise, so that its client can be told.
#[derive(Deserialize)]
struct Identified {
    id: Option<Value>,
}

/// A line that is no message.
#[derive(Debug)]
pub(super) struct NoMessage {
    /// Its id, if it had one that could be read.
    pub(super) id: Option<Value>,
    /// What is wrong with it.
    pub(super) why: String,
}

impl Message<'_> {
    /// The id, if it is one that we send back.
    pub(super) fn reply_id(&self) -> Option<Value> {
        reply_id(self.id.as_ref())
    }
}

fn reply_id(id: Option<&Value>) -> Option<Value> {
    match id {
        Some(Value::String(text)) if text.len() <= MAX_ID => id.cloned(),
        Some(Value::Number(_)) => id.cloned(),
        _ => None,
    }
}

/// Parses one line (without its newline).
pub(super) fn parse(line: &[u8]) -> Result<Message<'_>, NoMessage> {
    serde_json::from_slice(line).map_err(|error| NoMessage {
        id: serde_json::from_slice::<Identified>(line).ok().and_then(|line| reply_id(line.id.as_ref())),
        why: format!("not a message: {error}"),
    })
}

/// What Python's `json.dumps` writes for a number that is not finite, though JSON has no word for it.
const NOT_FINITE: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];

/// The line with `null` for each word of [`NOT_FINITE`] outside texts; `None` if it has none.
pub(super) fn with_nulls(line: &[u8]) -> Option<Vec<u8>> {
    let (mut repaired, mut changed) = (Vec::with_capacity(line.len()), false);
    let (mut rest, mut in_text) = (line, false);
    while let Some((&byte, mut after)) = rest.split_first() {
        let after_word = || NOT_FINITE.iter().find_map(|word| rest.strip_prefix(*word));
        match if in_text { None } else { after_word() } {
            Some(after_word) => {
                repaired.extend_from_slice(b"null");
                (after, changed) = (after_word, true);
            }
            None => {
                repaired.push(byte);
                if byte == b'"' {
                    in_text = !in_text;
                } else if let (true, b'\\', Some((&escaped, after_escaped))) =
                    (in_text, byte, after.split_first())
                {
                    repaired.push(escaped);
                    after = after_escaped;
                }
            }
        }
        rest = after;
    }
    changed.then_some(repaired)
}

/// Scalars by name, each value as it was written: one that cannot be read costs only itself.
#[derive(Debug)]
pub(super) struct Scalars<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Scalars<'a> {
    /// Every name with its number; `None` is no number. A number that is not finite is NaN: JSON writes it as null,
    /// or with an exponent beyond the range of a double.
    pub(super) fn into_numbers(self) -> impl Iterator<Item = (String, Option<f64>)> + 'a {
        self.0.into_iter().map(|(name, raw)| {
            let number = match raw.get() {
                "null" => Some(f64::NAN),
                text if text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
                    text.parse().ok().map(|number: f64| if number.is_finite() { number } else { f64::NAN })
                }
                _ => None,
            };
            (name, number)
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalars<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of names and numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Pairs).map(Scalars)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::fuzz::fuzz;

    #[test]
    fn unknown_fields_are_ignored_and_ids_are_plain() {
        let message = parse(br#"{"op":"begin","tag":"a","t":5,"new":[1,2],"far":1e400,"id":"x"}"#).unwrap();
        assert_eq!((message.op.as_str(), message.t), ("begin", Some(5)));
        assert_eq!(message.reply_id(), Some(Value::from("x")));
        assert_eq!(parse(br#"{"op":"x","id":{}}"#).unwrap().reply_id(), None);
        assert_eq!(parse(br#"{"op":"begin","t":-5,"id":7}"#).unwrap_err().id, Some(Value::from(7)));
        assert!(parse(br#"{"op":"begin","t":1e400,"id":7}"#).unwrap_err().why.starts_with("not a message: "));
        assert!(parse(br#"{"op":"log","values":{"a":NaN}}"#).is_err());
    }

    fn numbers(values: &str) -> Vec<(String, Option<f64>)> {
        let line = format!("{{\"op\":\"log\",\"values\":{values}}}");
        parse(line.as_bytes()).unwrap().values.unwrap().into_numbers().collect()
    }

    #[test]
    fn a_bad_value_costs_only_itself() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        let found = numbers(&format!(r#"{{"a":1.5,"t":"3","deep":{deep},"o":{{"x":1}},"b":-2e3,"f":true}}"#));
        let kept: Vec<_> = found.iter().map(|(name, number)| (name.as_str(), *number)).collect();
        let (a, b) = (("a", Some(1.5)), ("b", Some(-2000.0)));
        assert_eq!(kept, [a, ("t", None), ("deep", None), ("o", None), b, ("f", None)]);
    }

    #[test]
    fn what_is_not_finite_is_a_number_that_is_missing() {
        for value in ["null", "1e400", "-1e400", &"9".repeat(400)] {
            let found = numbers(&format!(r#"{{"a":{value},"b":1}}"#));
            assert!(found[0].1.unwrap().is_nan(), "{value}");
            assert_eq!(found[1].1, Some(1.0));
        }
    }

    #[test]
    fn words_for_numbers_that_are_not_finite_become_null_outside_texts() {
        for (line, repaired) in [
            (r#"{"a":NaN,"b":-Infinity, "c" : Infinity}"#, Some(r#"{"a":null,"b":null, "c" : null}"#)),
            (r#"{"NaN":NaN,"\"NaN":"Infinity\\"}"#, Some(r#"{"NaN":null,"\"NaN":"Infinity\\"}"#)),
            (r#"{"\"Infinity":"NaN\\"#, None),
            (r#"{"a":1}"#, None),
            ("", None),
        ] {
            assert_eq!(with_nulls(line.as_bytes()).as_deref(), repaired.map(str::as_bytes), "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_line_that_is_json_has_nothing_to_repair(name in ".*", text in ".*", inner in "(NaN|Infinity|[\"\\\\a])*") {
            let line = serde_json::json!({name: text, "x": inner, "y": [1, null]}).to_string();
            prop_assert_eq!(with_nulls(line.as_bytes()), None);
        }

        #[test]
        fn deep_nesting_is_an_error_not_a_crash(depth in 200usize..20_000) {
            let line = format!("{{\"op\":\"x\",\"id\":{}", "[".repeat(depth));
            prop_assert!(parse(line.as_bytes()).is_err());
        }

        #[test]
        fn every_finite_number_comes_through(value in proptest::num::f64::NORMAL | proptest::num::f64::ZERO) {
            let found = numbers(&serde_json::json!({"a": value}).to_string());
            prop_assert_eq!(found, [("a".to_owned(), Some(value))]);
        }
    }

    const LINES: [&str; 5] = [
        r#"{"op":"hello","version":1,"pid":7,"rank":3,"stack":"shell","id":"a"}"#,
        r#"{"op":"begin","tag":"train/é","span":-1,"t":18446744073709551615,"id":1}"#,
        r#"{"op":"step","step":12,"began":5,"steps":4,"samples":64,"first":true,"id":2.5}"#,
        r#"{"op":"log","values":{"loss":1.5e-3,"nan":null,"text":"x","list":[1,{"a":2}]},"step":7}"#,
        r#"{"op":"collect","parts":["gpu"],"metrics":["power_usage"],"dropped":9,"id":"\u00e9"}"#,
    ];

    #[test]
    fn fuzz_no_line_makes_the_control_socket_panic_and_a_refusal_is_one_line() {
        let edit = (any::<prop::sample::Index>(), 0usize..12, proptest::collection::vec(any::<u8>(), 0..8));
        let line = (prop::sample::select(LINES.to_vec()), proptest::collection::vec(edit, 0..4));
        let bytes = proptest::collection::vec(any::<u8>(), 0..400);
        fuzz(500, |config| {
            proptest!(config, |((line, edits) in line.clone(), garbage in bytes.clone())| {
                prop_assert!(parse(line.as_bytes()).is_ok());
                let mut edited = line.as_bytes().to_vec();
                for (at, removed, inserted) in edits {
                    let at = at.index(edited.len() + 1);
                    let end = (at + removed).min(edited.len());
                    edited.splice(at..end, inserted);
                }
                for line in [&edited, &garbage] {
                    match parse(line) {
                        Ok(message) => {
                            prop_assert!(message.reply_id().is_none_or(|id| id.to_string().len() <= 6 * MAX_ID + 2));
                            for (_, value) in message.values.into_iter().flat_map(Scalars::into_numbers) {
                                prop_assert!(value.is_none_or(|value| value.is_nan() || value.is_finite()));
                            }
                        }
                        Err(no_message) => prop_assert!(!no_message.why.contains('\n')),
                    }
                }
            });
        });
    }
}
