//! `--kill-after`: when a request to end becomes a command. A pure state machine.

use std::time::Duration;

use crate::model::time::Mono;

/// Waits for the job to end after it was asked to; without a grace period it never acts.
#[derive(Clone, Copy, Debug)]
pub struct Termination {
    grace: Option<Duration>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Asked { due: Mono },
    Killed,
}

impl Termination {
    /// `grace` is `--kill-after`; `None` means that gpurun never kills on its own.
    pub fn new(grace: Option<Duration>) -> Termination {
        Termination { grace, state: State::Running }
    }

    /// A signal has reached the job, by gpurun or by the terminal. Only TERM, INT and HUP ask it to end,
    /// and only the first one starts the clock.
    pub fn on_signal(&mut self, signal: i32, now: Mono) {
        if let (Some(grace), State::Running) = (self.grace, self.state)
            && matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP)
        {
            self.state = State::Asked { due: now + grace };
        }
    }

    /// When to look again, if ever.
    pub fn deadline(&self) -> Option<Mono> {
        match self.state {
            State::Asked { due } => Some(due),
            State::Running | State::Killed => None,
        }
    }

    /// Whether the tree is to be killed now; true once.
    pub fn due(&mut self, now: Mono) -> bool {
        let is_due = matches!(self.state, State::Asked { due } if due <= now);
        if is_due {
            self.state = State::Killed;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRACE: Duration = Duration::from_nanos(100);

    #[test]
    fn without_a_grace_it_never_kills() {
        let mut t = Termination::new(None);
        t.on_signal(libc::SIGTERM, Mono(1));
        assert_eq!(t.deadline(), None);
        assert!(!t.due(Mono(u64::MAX)));
    }

    #[test]
    fn the_first_request_counts_and_it_kills_once() {
        let mut t = Termination::new(Some(GRACE));
        t.on_signal(libc::SIGUSR1, Mono(1));
        assert_eq!(t.deadline(), None);
        t.on_signal(libc::SIGINT, Mono(10));
        t.on_signal(libc::SIGTERM, Mono(50));
        assert_eq!(t.deadline(), Some(Mono(110)));
        assert!(!t.due(Mono(109)));
        assert!(t.due(Mono(110)));
        assert!(!t.due(Mono(500)));
        t.on_signal(libc::SIGTERM, Mono(600));
        assert_eq!(t.deadline(), None);
    }

    proptest! {
        #[test]
        fn never_early_and_at_most_once(signals in prop::collection::vec((1i32..=64, 0u64..1000), 0..50)) {
            let mut t = Termination::new(Some(GRACE));
            let (mut asked, mut kills, mut now) = (None, 0, 0);
            for (signal, step) in signals {
                now += step;
                if t.due(Mono(now)) {
                    kills += 1;
                    prop_assert!(asked.is_some_and(|at| now >= at + 100));
                }
                t.on_signal(signal, Mono(now));
                if matches!(signal, 1 | 2 | 15) && asked.is_none() {
                    asked = Some(now);
                }
            }
            prop_assert!(kills <= 1);
        }
    }
}
