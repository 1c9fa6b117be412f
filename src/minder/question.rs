//! A question to the driver in a child process, for commands that only answer: what the driver library prints, and how
//! it crashes or hangs, stays there.

use std::time::Duration;

use super::asking::{Asking, NoAnswer, silence};
use super::exit;
use super::sidecar::Sidecar;
use crate::link::{SidecarEnd, ToMinder};
use crate::model::selection::Patience;
use crate::sys::notice::Notices;

/// How long the child may take to end after its answer: its library may have something to do.
const END: Duration = Duration::from_millis(500);

/// What is asked for, and what it means when there is no answer.
pub struct Question<'a> {
    /// How long the user wants to wait.
    pub patience: Patience,
    /// The status where the driver does not answer, or the child ends without an answer.
    pub failed: u8,
    /// Messages to the user.
    pub notices: &'a Notices,
}

/// Has a child answer; what it wrote for standard output, and the status.
pub fn ask(question: &Question<'_>, answer: impl FnOnce(SidecarEnd) -> u8) -> (Vec<u8>, u8) {
    let mut child = match Sidecar::start(answer) {
        Ok(child) => child,
        Err(error) => {
            question.notices.error(&format!("cannot start a process: {error}"));
            return (Vec::new(), question.failed);
        }
    };
    let mut output = Vec::new();
    let mut asking = Asking::new(question.patience, question.notices);
    loop {
        match asking.wait(&mut child) {
            Ok((ToMinder::Output(piece), _)) => output.extend(piece),
            Ok((ToMinder::Finish(code), _)) => {
                child.wait(END);
                return (output, code);
            }
            Ok(_) => {}
            Err(NoAnswer::Silent(taken) | NoAnswer::TimedOut(taken) | NoAnswer::Stuck(taken)) => {
                question.notices.error(&silence(taken));
                child.kill();
                return (Vec::new(), question.failed);
            }
            Err(NoAnswer::Ended) => {
                let how = exit::describe(child.wait(END));
                question.notices.error(&format!("the process that reads the NVIDIA driver {how}"));
                return (Vec::new(), question.failed);
            }
        }
    }
}
