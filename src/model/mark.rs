//! Marks: what the job (or a library user) says about its own progress, with the instant it meant, and the rules for
//! the names in them.

use std::sync::Arc;

use super::id::StackId;
use super::limits::NAME_BYTES;
use super::time::Mono;

/// One statement on one tag stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The stack it is for.
    pub stack: StackId,
    /// The client's own instant, on `CLOCK_MONOTONIC`.
    pub at: Mono,
    /// What happened then.
    pub op: MarkOp,
}

/// What a mark says.
#[derive(Clone, Debug, PartialEq)]
pub enum MarkOp {
    /// A client appeared: its stack is empty, its rows carry `rank`.
    Open {
        /// Rank of the client ([`super::rank::rank`]).
        rank: Option<i32>,
    },
    /// The client is gone: every open tag of its stack ends.
    Close,
    /// A tag begins inside the innermost open one.
    Begin {
        /// One path component; unique among the open tags of the stack.
        tag: Arc<str>,
    },
    /// A tag ends, and every tag opened inside it; `None` means the innermost.
    End {
        /// The tag to end.
        tag: Option<Arc<str>>,
    },
    /// The statistics of a tag (`None`: all of the stack) start again, as nvitop's `clear`.
    Clear {
        /// The tag to clear, with the tags inside it.
        tag: Option<Arc<str>>,
    },
    /// An epoch begins: no time between steps is counted across it.
    Epoch {
        /// Its number, if the client says one.
        epoch: Option<i64>,
    },
    /// A training step begins.
    StepBegin {
        /// Its number, if the client knows it by now.
        step: Option<i64>,
    },
    /// A training step ended at the mark's instant.
    Step {
        /// The training step's number.
        step: i64,
        /// How many steps ended together, of which this is the last; each has an equal part of the time. At least 1.
        count: u32,
        /// When the step began, if the client marks both ends; gives intra- and inter-step times.
        began: Option<Mono>,
        /// Training samples in these steps, if the client says so.
        samples: Option<u64>,
    },
    /// Scalars of the job's own.
    Log {
        /// Training step they belong to, if any.
        step: Option<i64>,
        /// Name and value. A value that is not finite counts as missing.
        values: Vec<(Arc<str>, f64)>,
    },
}

/// Whether `tag` may name a tag: one path component, without control characters.
///
/// # Errors
/// One sentence that says which rule it breaks.
pub fn check_tag(tag: &str) -> Result<(), String> {
    check_name(tag, "tag")?;
    if tag.contains('/') {
        return Err("a tag is one level and must not contain '/'".to_owned());
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

fn check_name(name: &str, what: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("a {what} must not be empty"));
    }
    if name.len() > NAME_BYTES {
        return Err(format!("a {what} must not be longer than {NAME_BYTES} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("a {what} must not contain control characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules() {
        assert!(check_tag("train").is_ok() && check_tag("épo que").is_ok());
        assert!(check_tag("").is_err() && check_tag("a/b").is_err() && check_tag("a\nb").is_err());
        assert!(
            check_tag(&"x".repeat(NAME_BYTES)).is_ok() && check_tag(&"x".repeat(NAME_BYTES + 1)).is_err()
        );
        assert!(check_scalar_name("train/loss").is_ok() && check_scalar_name("\u{7f}").is_err());
    }
}
