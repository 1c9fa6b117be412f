//! `gpurun tag`, `step`, `epoch` and `log`: what a script typed, and what it means.

use super::args::{EpochArgs, LogArgs, StepArgs, TagAction, TagArgs};
use crate::model::mark::{check_scalar_name, check_tag};

/// What a script says to the gpurun around it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MarkRequest {
    /// Begin a tag inside the open ones.
    Begin(String),
    /// End a tag (`None`: the innermost) and those inside it.
    End(Option<String>),
    /// A training step ended.
    Step {
        /// Its number.
        step: i64,
        /// How many training samples it took.
        samples: Option<u64>,
    },
    /// An epoch begins, with this number.
    Epoch(Option<i64>),
    /// Scalars.
    Log {
        /// Name and value, in the order typed. A value that is not finite counts as missing.
        values: Vec<(String, f64)>,
        /// Training step they belong to.
        step: Option<i64>,
    },
}

/// What a script typed, without what cannot be recorded: a wrong value must not end a script that runs with `set -e`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    /// What is left to record, if anything.
    pub(crate) request: Option<MarkRequest>,
    /// What was left out, and why.
    pub(crate) ignored: Vec<String>,
}

impl Mark {
    /// A mark that is recorded whole or not at all.
    fn whole(request: Result<MarkRequest, String>) -> Self {
        match request {
            Ok(request) => Self { request: Some(request), ignored: Vec::new() },
            Err(why) => Self { request: None, ignored: vec![why] },
        }
    }
}

impl TagArgs {
    /// What it means.
    pub(crate) fn meaning(&self) -> Mark {
        Mark::whole(match &self.action {
            TagAction::Begin { name } => tag(name).map(MarkRequest::Begin),
            TagAction::End { name } => name.as_deref().map(tag).transpose().map(MarkRequest::End),
        })
    }
}

impl StepArgs {
    /// What it means.
    pub(crate) fn meaning(&self) -> Mark {
        let mut ignored = Vec::new();
        let step = kept(integer("step", &self.step), &mut ignored);
        let samples = self.samples.as_deref().and_then(|word| kept(samples(word), &mut ignored));
        Mark { request: step.map(|step| MarkRequest::Step { step, samples }), ignored }
    }
}

impl EpochArgs {
    /// What it means. An epoch without a readable number still divides the steps.
    pub(crate) fn meaning(&self) -> Mark {
        let mut ignored = Vec::new();
        let epoch = self.epoch.as_deref().and_then(|word| kept(integer("epoch", word), &mut ignored));
        Mark { request: Some(MarkRequest::Epoch(epoch)), ignored }
    }
}

impl LogArgs {
    /// What it means.
    pub(crate) fn meaning(&self) -> Mark {
        let mut ignored = Vec::new();
        let step = self.step.as_deref().and_then(|step| kept(integer("--step", step), &mut ignored));
        let values: Vec<_> = self.values.iter().filter_map(|word| kept(scalar(word), &mut ignored)).collect();
        let request = (!values.is_empty()).then_some(MarkRequest::Log { values, step });
        Mark { request, ignored }
    }
}

/// The value, or a note of why there is none.
fn kept<T>(value: Result<T, String>, ignored: &mut Vec<String>) -> Option<T> {
    value.map_err(|why| ignored.push(why)).ok()
}

fn tag(name: &str) -> Result<String, String> {
    check_tag(name).map_err(|why| format!("{name:?}: {why}"))?;
    Ok(name.to_owned())
}

/// The number of a step or an epoch.
fn integer(what: &str, word: &str) -> Result<i64, String> {
    word.trim().parse().map_err(|_| format!("{what} {word:?} is not an integer of 64 bits"))
}

/// A number of samples, in the range that the Python package has too.
fn samples(word: &str) -> Result<u64, String> {
    let number = word.trim().parse::<i64>().ok().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| format!("--samples {word:?} is not a number of samples"))
}

/// `loss=0.25`; the last `=` divides, since names may hold one.
fn scalar(word: &str) -> Result<(String, f64), String> {
    let Some((name, value)) = word.rsplit_once('=') else {
        return Err(format!("{word:?} is not KEY=VALUE"));
    };
    check_scalar_name(name).map_err(|why| format!("{word:?}: {why}"))?;
    match value.trim().parse() {
        Ok(number) => Ok((name.to_owned(), number)),
        Err(_) => Err(format!("{word:?}: {value:?} is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_from_the_right() {
        assert_eq!(scalar("loss=0.25"), Ok(("loss".to_owned(), 0.25)));
        assert_eq!(scalar("top=1=3e-2"), Ok(("top=1".to_owned(), 0.03)));
        for wrong in ["loss", "=1", "loss=", "loss=x", "a\nb=1"] {
            assert!(scalar(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_diverged_value_is_no_mistake_of_the_script() {
        for word in ["loss=nan", "loss=NaN", "loss=inf", "loss=-Infinity", "loss=1e999"] {
            let (name, value) = scalar(word).unwrap();
            assert!(name == "loss" && !value.is_finite(), "{word}");
        }
    }

    #[test]
    fn a_tag_is_one_level() {
        assert!(tag("train").is_ok());
        for wrong in ["", "a/b", "a\nb"] {
            assert!(tag(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_wrong_value_is_left_out_and_the_others_count() {
        for wrong in ["", "N/A", "1,5", "1e", "0x10"] {
            let values = vec!["acc=1".to_owned(), format!("loss={wrong}"), "lr=2".to_owned()];
            let mark = LogArgs { values, step: Some("3".to_owned()) }.meaning();
            let values = vec![("acc".to_owned(), 1.0), ("lr".to_owned(), 2.0)];
            assert_eq!(mark.request, Some(MarkRequest::Log { values, step: Some(3) }));
            assert_eq!(mark.ignored, [format!("\"loss={wrong}\": {wrong:?} is not a number")]);
        }
        let mark = LogArgs { values: vec!["acc=1".to_owned()], step: Some("x".to_owned()) }.meaning();
        let values = vec![("acc".to_owned(), 1.0)];
        assert_eq!(mark.request, Some(MarkRequest::Log { values, step: None }));
        assert_eq!(mark.ignored, ["--step \"x\" is not an integer of 64 bits"]);
        let mark = LogArgs { values: vec!["foo".to_owned()], step: None }.meaning();
        assert_eq!((mark.request, mark.ignored.len()), (None, 1));
    }

    #[test]
    fn a_step_needs_an_integer() {
        for (word, step) in [("7", 7), (" 7\n", 7), ("-5", -5), ("+2", 2)] {
            let mark = StepArgs { step: word.to_owned(), samples: Some("64".to_owned()) }.meaning();
            let request = MarkRequest::Step { step, samples: Some(64) };
            assert_eq!(mark, Mark { request: Some(request), ignored: Vec::new() });
        }
        for wrong in ["", "abc", "1.5", "9223372036854775808"] {
            let mark = StepArgs { step: wrong.to_owned(), samples: None }.meaning();
            assert_eq!((mark.request, mark.ignored.len()), (None, 1), "{wrong}");
        }
        for wrong in ["", "many", "-1", "1.5"] {
            let mark = StepArgs { step: "7".to_owned(), samples: Some(wrong.to_owned()) }.meaning();
            assert_eq!(mark.request, Some(MarkRequest::Step { step: 7, samples: None }), "{wrong}");
            assert_eq!(mark.ignored, [format!("--samples {wrong:?} is not a number of samples")]);
        }
    }

    #[test]
    fn an_epoch_begins_with_or_without_a_number() {
        for (word, epoch, ignored) in
            [(None, None, 0), (Some("3"), Some(3), 0), (Some("-1"), Some(-1), 0), (Some("x"), None, 1)]
        {
            let mark = EpochArgs { epoch: word.map(str::to_owned) }.meaning();
            assert_eq!((mark.request, mark.ignored.len()), (Some(MarkRequest::Epoch(epoch)), ignored));
        }
    }
}
