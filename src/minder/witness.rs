//! Whether a signal that a process sent to the minder has reached the job as well.
//!
//! The sidecar stands in the same process group, session and cgroup as the job and keeps the minder's command line. A
//! signal that it got too, from the same sender at the same time, was sent to all of them (`kill -- -PGID`, `timeout`,
//! `pkill -f`, `scancel`, a service manager), and must not reach the job a second time. Only the minder's signals are
//! passed on, once it is known that the sidecar got none. A pure state machine.

use std::collections::VecDeque;
use std::time::Duration;

use crate::link::Witnessed;
use crate::model::time::Mono;

/// How far apart one sender's signals to several processes may be.
const WINDOW: Duration = Duration::from_millis(30);

/// How long a sender may take to reach all processes while it has no CPU, and how often it is looked at then.
const SENDING: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(10);

/// How long the sidecar may take to say what it got; one that is stopped does not answer.
const ANSWER: Duration = Duration::from_millis(500);

/// How many of the sidecar's signals are remembered.
const REMEMBERED: usize = 64;

/// Signals that can be held without more memory.
const HELD: usize = 256;

/// What is known of a signal that was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Only the minder got it.
    MinderOnly,
    /// The sidecar got it too, and so did the job.
    Everybody,
}

#[derive(Debug)]
struct Held<T> {
    signal: i32,
    sender: i32,
    payload: T,
    /// When it was read.
    at: Mono,
    /// When there was no signal to read for the last time before: it was sent after that.
    since: Mono,
    /// When the window is over.
    over: Mono,
    /// The question that was asked then, and when.
    asked: Option<(u32, Mono)>,
}

/// Signals that wait for the sidecar's word, in the order in which they came.
#[derive(Debug)]
pub(super) struct Witness<T> {
    held: VecDeque<Held<T>>,
    seen: VecDeque<Witnessed>,
    last_empty: Mono,
    last_question: u32,
    last_answer: u32,
}

impl<T> Witness<T> {
    pub(super) fn new(now: Mono) -> Self {
        Self {
            held: VecDeque::with_capacity(HELD),
            seen: VecDeque::with_capacity(REMEMBERED),
            last_empty: now,
            last_question: 0,
            last_answer: 0,
        }
    }

    /// Holds a signal until it is known which processes got it.
    pub(super) fn hold(&mut self, signal: i32, sender: i32, payload: T, now: Mono) {
        let since = self.last_empty;
        self.held.push_back(Held {
            signal,
            sender,
            payload,
            at: now,
            since,
            over: now + WINDOW,
            asked: None,
        });
    }

    /// The minder has read all signals that had come by now.
    pub(super) fn drained(&mut self, now: Mono) {
        self.last_empty = now;
    }

    /// The sidecar got a signal.
    pub(super) fn saw(&mut self, seen: Witnessed) {
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(seen);
    }

    /// The sidecar has reported everything that came before this question.
    pub(super) fn answered(&mut self, question: u32) {
        self.last_answer = self.last_answer.max(question);
    }

    /// The question to ask now, if one is due. A sender that still runs, as `is_running` tells, may be about to send to the
    /// sidecar.
    pub(super) fn question(&mut self, now: Mono, is_running: impl FnOnce(i32) -> bool) -> Option<u32> {
        let first = self.held.front_mut().filter(|held| held.asked.is_none() && now >= held.over)?;
        if now < first.at + SENDING && is_running(first.sender) {
            first.over = now + LOOK;
            return None;
        }
        self.last_question += 1;
        first.asked = Some((self.last_question, now));
        Some(self.last_question)
    }

    /// The number of a new question.
    pub(super) fn ask(&mut self) -> u32 {
        self.last_question += 1;
        self.last_question
    }

    /// The number of the question that was answered last.
    pub(super) fn last_answer(&self) -> u32 {
        self.last_answer
    }

    /// The first signal, once it is decided. Without a sidecar that cannot be known, and losing a signal is worse than
    /// sending it twice.
    pub(super) fn decided(&mut self, now: Mono, has_sidecar: bool) -> Option<(T, Verdict)> {
        let first = self.held.front()?;
        let verdict = if self.seen.iter().any(|seen| is_same(first, seen)) {
            Verdict::Everybody
        } else {
            let is_over =
                first.asked.is_some_and(|(question, at)| self.last_answer >= question || now >= at + ANSWER);
            if has_sidecar && !is_over {
                return None;
            }
            Verdict::MinderOnly
        };
        self.held.pop_front().map(|held| (held.payload, verdict))
    }

    /// Drops what is held of a signal that has had its effect.
    pub(super) fn forget(&mut self, signal: i32) {
        self.held.retain(|held| held.signal != signal);
    }

    /// When to look again.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.held.front().map(|held| match held.asked {
            None => held.over,
            Some((_, at)) => at + ANSWER,
        })
    }
}

/// Whether the sidecar's signal and the minder's can have been sent together. Of either it is known between which instants
/// it was sent; a process that was stopped, or had no CPU, reads late.
fn is_same<T>(held: &Held<T>, seen: &Witnessed) -> bool {
    held.signal == seen.signal
        && held.sender == seen.sender
        && held.since <= seen.at + WINDOW
        && seen.since <= held.over
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Mono {
        Mono(ms * MS)
    }

    /// A sender that has sent all that it wanted to.
    fn gone(_sender: i32) -> bool {
        false
    }

    /// A signal that the sidecar read at once.
    fn seen(signal: i32, sender: i32, ms: u64) -> Witnessed {
        Witnessed { signal, sender, since: at(ms), at: at(ms) }
    }

    /// A minder that looked for signals a moment before 1000 ms, and then read one of sender 7.
    fn holding(signal: i32) -> Witness<&'static str> {
        let mut witness = Witness::new(at(0));
        witness.drained(at(999));
        witness.hold(signal, 7, "first", at(1000));
        witness
    }

    #[test]
    fn what_the_sidecar_got_too_was_sent_to_everybody() {
        for ms in [970, 1000, 1030] {
            let mut witness = holding(15);
            witness.saw(seen(15, 7, ms));
            assert_eq!(witness.decided(at(1000), true), Some(("first", Verdict::Everybody)), "{ms}");
            assert_eq!(witness.deadline(), None);
        }
        for other in [seen(2, 7, 1000), seen(15, 8, 1000), seen(15, 7, 900), seen(15, 7, 1031)] {
            let mut witness = holding(15);
            witness.saw(other);
            assert_eq!(witness.decided(at(1000), true), None, "{other:?}");
        }
    }

    #[test]
    fn what_only_the_minder_got_is_decided_after_the_sidecars_answer() {
        let mut witness = holding(15);
        assert_eq!(witness.question(at(1029), gone), None);
        assert_eq!(witness.deadline(), Some(at(1030)));
        let question = witness.question(at(1030), gone).unwrap();
        assert_eq!(witness.question(at(1031), gone), None);
        assert_eq!(witness.decided(at(1100), true), None);
        witness.answered(question);
        assert_eq!(witness.decided(at(1101), true), Some(("first", Verdict::MinderOnly)));
    }

    #[test]
    fn a_sidecar_that_does_not_answer_or_is_gone_holds_up_no_signal() {
        let mut witness = holding(15);
        witness.question(at(1030), gone).unwrap();
        assert_eq!(witness.decided(at(1529), true), None);
        assert_eq!(witness.decided(at(1530), true), Some(("first", Verdict::MinderOnly)));
        assert_eq!(holding(15).decided(at(1000), false), Some(("first", Verdict::MinderOnly)));
    }

    #[test]
    fn a_sender_without_cpu_is_waited_for_but_not_for_ever() {
        let mut witness = holding(2);
        for ms in (1030..1300).step_by(10) {
            assert_eq!(witness.question(at(ms), |sender| sender == 7), None, "{ms}");
            assert_eq!(witness.deadline(), Some(at(ms + 10)));
        }
        let mut late = holding(2);
        assert_eq!(late.question(at(1030), |_| true), None);
        late.saw(seen(2, 7, 1040));
        assert_eq!(late.decided(at(1040), true), Some(("first", Verdict::Everybody)));
        assert!(witness.question(at(1300), |_| true).is_some());
    }

    #[test]
    fn a_signal_that_one_of_them_reads_late_is_recognized() {
        // Sent to both at 1000 ms; the sidecar had no CPU until 1700 ms.
        let mut witness = holding(15);
        witness.question(at(1030), gone).unwrap();
        witness.saw(Witnessed { signal: 15, sender: 7, since: at(980), at: at(1700) });
        assert_eq!(witness.decided(at(1700), true), Some(("first", Verdict::Everybody)));
        let mut witness = Witness::new(at(0));
        witness.drained(at(100));
        // Sent to both at 200 ms; the minder was stopped until 9000 ms.
        witness.saw(seen(15, 7, 200));
        witness.hold(15, 7, "late", at(9000));
        assert_eq!(witness.decided(at(9000), true), Some(("late", Verdict::Everybody)));
    }

    #[test]
    fn a_senders_direct_signal_and_its_signal_to_the_group_are_one() {
        // What `timeout` does: to its child, then to its group. The second may come after the first was decided.
        let mut witness = holding(2);
        witness.saw(seen(2, 7, 1001));
        assert_eq!(witness.decided(at(1001), true), Some(("first", Verdict::Everybody)));
        witness.drained(at(1001));
        witness.hold(2, 7, "second", at(1002));
        assert_eq!(witness.decided(at(1002), true), Some(("second", Verdict::Everybody)));
    }

    proptest! {
        /// Signals to the minder alone, to the sidecar alone and to both, by senders of their own: each of the
        /// minder's is decided once, in order, and rightly.
        #[test]
        fn each_signal_is_decided_once_and_rightly(
            plan in prop::collection::vec((1i32..=64, any::<bool>(), any::<bool>(), 1u64..100), 1..40),
        ) {
            let mut witness = Witness::new(at(0));
            let (mut now, mut expected, mut decided) = (1000, Vec::new(), Vec::new());
            for (sender, (signal, to_minder, to_sidecar, pause)) in (1..).zip(plan) {
                if to_sidecar {
                    witness.saw(seen(signal, sender, now));
                }
                if to_minder {
                    witness.hold(signal, sender, sender, at(now));
                    expected.push((sender, if to_sidecar { Verdict::Everybody } else { Verdict::MinderOnly }));
                }
                witness.drained(at(now));
                now += pause;
                if let Some(question) = witness.question(at(now), gone) {
                    witness.answered(question);
                }
                decided.extend(std::iter::from_fn(|| witness.decided(at(now), true)));
            }
            while let Some(due) = witness.deadline() {
                if let Some(question) = witness.question(due, gone) {
                    witness.answered(question);
                }
                decided.extend(std::iter::from_fn(|| witness.decided(due, true)));
            }
            prop_assert_eq!(decided, expected);
        }
    }
}
