//! Waiting for a child process that may ask the driver: it answers, ends, or is given up.
//!
//! The child says when a call of the driver begins and ends. A call that hangs is a child that does not answer.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::sidecar::Sidecar;
use crate::link::{Closed, ToMinder};
use crate::model::selection::Patience;
use crate::sys::notice::Notices;

/// How long the driver may take before the user hears of it. Without persistence mode it may well need seconds.
const SLOW: Duration = Duration::from_secs(5);

/// How long each call may take where no --wait limits it.
const EACH: Duration = Duration::from_secs(60);

/// How much longer than `--wait` a call may take: a last look after the time is up must still be possible.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// How long a sidecar that asks no driver may take until the job can start: it makes a few files.
const READY: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// A call of the driver has taken this long.
    Silent(Duration),
    /// The time that the user gave is over, and a call of the driver has taken this long.
    TimedOut(Duration),
    /// The child has not answered in this time, though it waits for no driver.
    Stuck(Duration),
    /// The child has ended without an answer.
    Ended,
}

/// Waits for the next message that is an answer.
pub(super) struct Asking<'a> {
    patience: Patience,
    notices: &'a Notices,
    begun: Instant,
    /// When the call that is under way began.
    call: Option<Instant>,
    slow_said: bool,
    /// When the answer is due, whatever the child does.
    due: Option<Instant>,
}

impl<'a> Asking<'a> {
    /// For a child that has nothing to ask the driver.
    pub(super) fn without_driver(notices: &'a Notices) -> Self {
        let asking = Self::new(Patience::Forever, notices);
        Self { due: Some(asking.begun + READY), ..asking }
    }

    pub(super) fn new(patience: Patience, notices: &'a Notices) -> Self {
        Self { patience, notices, begun: Instant::now(), call: None, slow_said: false, due: None }
    }

    pub(super) fn wait(&mut self, child: &mut Sidecar) -> Result<(ToMinder, Vec<OwnedFd>), NoAnswer> {
        loop {
            match child.receive() {
                Ok(Some((ToMinder::DriverCall(begins), _))) => {
                    self.call = begins.then(Instant::now);
                    continue;
                }
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(Closed) => return Err(NoAnswer::Ended),
            }
            let Some((link, _)) = child.link() else { return Err(NoAnswer::Ended) };
            let time = self.judge(Instant::now())?.and_then(|time| Timespec::try_from(time).ok());
            // An interrupted wait is looked at again.
            let _ = poll(&mut [PollFd::from_borrowed_fd(link, PollFlags::IN)], time.as_ref());
        }
    }

    /// How long to wait for the call that is under way; `None` without one.
    fn judge(&mut self, now: Instant) -> Result<Option<Duration>, NoAnswer> {
        if let Some(due) = self.due {
            let left = due.saturating_duration_since(now);
            return if left.is_zero() { Err(NoAnswer::Stuck(now - self.begun)) } else { Ok(Some(left)) };
        }
        let Some(call) = self.call else { return Ok(None) };
        let taken = now.saturating_duration_since(call);
        let limit = match self.patience {
            Patience::None => Some(EACH),
            Patience::For(patience) => {
                Some((self.begun + patience).saturating_duration_since(call).max(LAST_LOOK))
            }
            Patience::Forever => None,
        };
        if limit.is_some_and(|limit| taken >= limit) {
            return Err(match self.patience {
                Patience::For(_) => NoAnswer::TimedOut(taken),
                Patience::None | Patience::Forever => NoAnswer::Silent(taken),
            });
        }
        if taken >= SLOW && !self.slow_said {
            self.slow_said = true;
            self.notices.say("the NVIDIA driver does not answer; waiting for it");
        }
        let until_slow = (!self.slow_said).then(|| SLOW.saturating_sub(taken));
        let until_limit = limit.map(|limit| limit - taken);
        Ok([until_slow, until_limit].into_iter().flatten().min())
    }
}

/// What is said of a driver that has not answered for `taken`.
pub(super) fn silence(taken: Duration) -> String {
    format!("the NVIDIA driver has not answered for {} s; try nvidia-smi", taken.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::notice::Verbosity;

    fn asking(patience: Patience, notices: &Notices) -> Asking<'_> {
        let begun = Instant::now();
        Asking { patience, notices, begun, call: Some(begun), slow_said: false, due: None }
    }

    #[test]
    fn a_call_is_given_up_after_its_time() {
        let notices = Notices::new(Verbosity::Quiet);
        let after = |patience, seconds: u64| {
            let mut asking = asking(patience, &notices);
            asking.judge(asking.begun + Duration::from_secs(seconds))
        };
        let seconds = Duration::from_secs;
        assert_eq!(after(Patience::None, 0), Ok(Some(seconds(5))));
        assert_eq!(after(Patience::None, 59), Ok(Some(seconds(1))));
        assert_eq!(after(Patience::None, 60), Err(NoAnswer::Silent(seconds(60))));
        assert_eq!(after(Patience::For(seconds(90)), 89), Ok(Some(seconds(1))));
        assert_eq!(after(Patience::For(seconds(90)), 90), Err(NoAnswer::TimedOut(seconds(90))));
        // The last look has its second.
        assert_eq!(after(Patience::For(seconds(0)), 0), Ok(Some(seconds(1))));
        assert_eq!(after(Patience::Forever, 100_000), Ok(None));
    }

    #[test]
    fn a_job_that_wants_no_gpus_does_not_wait_for_a_stuck_sidecar() {
        let notices = Notices::new(Verbosity::Quiet);
        let mut asking = Asking::without_driver(&notices);
        let after = |seconds| asking.begun + Duration::from_secs(seconds);
        let (early, late) = (after(29), after(30));
        assert_eq!(asking.judge(early), Ok(Some(Duration::from_secs(1))));
        assert_eq!(asking.judge(late), Err(NoAnswer::Stuck(Duration::from_secs(30))));
    }

    #[test]
    fn without_a_call_there_is_no_limit() {
        let notices = Notices::new(Verbosity::Quiet);
        let mut asking = Asking::new(Patience::None, &notices);
        assert_eq!(asking.judge(asking.begun + Duration::from_secs(1000)), Ok(None));
    }
}
