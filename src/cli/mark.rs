//! `gpurun tag`, `gpurun step` and `gpurun log`: what a script typed, and what it means.

use super::args::{LogArgs, StepArgs, TagAction, TagArgs};
use crate::model::mark::{check_scalar_name, check_tag};

/// What a script says to the gpurun around it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MarkRequest {
    /// Begin a tag inside the open ones.
    Begin(String),
    /// End a tag (`None`: the innermost) and those inside it.
    End(Option<String>),
    /// A training step ended.
    Step(i64),
    /// Scalars.
    Log {
        /// Name and value, in the order typed. A value that is not finite counts as missing.
        values: Vec<(String, f64)>,
        /// Training step they belong to.
        step: Option<i64>,
    },
}

impl TagArgs {
    /// What it means.
    ///
    /// # Errors
    /// One line: the name cannot be a tag.
    pub(crate) fn meaning(&self) -> Result<MarkRequest, String> {
        match &self.action {
            TagAction::Begin { name } => Ok(MarkRequest::Begin(tag(name)?)),
            TagAction::End { name } => Ok(MarkRequest::End(name.as_deref().map(tag).transpose()?)),
        }
    }
}

impl StepArgs {
    /// What it means.
    pub(crate) fn meaning(&self) -> MarkRequest {
        MarkRequest::Step(self.step)
    }
}

impl LogArgs {
    /// What it means.
    ///
    /// # Errors
    /// One line: a word is not `KEY=VALUE`, or its value is not a number.
    pub(crate) fn meaning(&self) -> Result<MarkRequest, String> {
        let values = self.values.iter().map(|word| scalar(word)).collect::<Result<_, _>>()?;
        Ok(MarkRequest::Log { values, step: self.step })
    }
}

fn tag(name: &str) -> Result<String, String> {
    check_tag(name).map_err(|why| format!("{name:?}: {why}"))?;
    Ok(name.to_owned())
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
}
