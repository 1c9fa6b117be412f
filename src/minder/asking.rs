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

/// How long each call may take when nobody said how long to wait.
const EACH: Duration = Duration::from_secs(60);

/// How much longer than `--wait` a call may take: a last look after the time is up must still be possible.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// A call of the driver has taken this long.
    Silent(Duration),
    /// The time that the user gave is over, and a call of the driver has taken this long.
    TimedOut(Duration),
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
}

impl<'a> Asking<'a> {
    pub(super) fn new(patience: Patience, notices: &'a Notices) -> Self {
        Self { patience, notices, begun: Instant::now(), call: None, slow_said: false }
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
        Asking { patience, notices, begun, call: Some(begun), slow_said: false }
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
    fn without_a_call_there_is_no_limit() {
        let notices = Notices::new(Verbosity::Quiet);
        let mut asking = Asking::new(Patience::None, &notices);
        assert_eq!(asking.judge(asking.begun + Duration::from_secs(1000)), Ok(None));
    }
}
