//! Calls that may hang, watched from beside: a thread that does nothing but sleep, and wakes when a call is slow, and
//! again when it is too slow. Handing each call to another thread would cost two switches between threads a call.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::launch::BareThread;

/// What a watched call has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// It takes its time. Said once, whatever the number of calls.
    Slow,
    /// It has taken so long that it is given up. The call cannot end while this is heard.
    TooSlow(Duration),
}

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Until it is slow.
    pub slow: Duration,
    /// Until it is given up; not shorter.
    pub each: Duration,
}

/// Watches the calls of one thread.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    thread: BareThread,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Only the end of the watch wakes the thread. A call need not: one that begins later is overdue later, too.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The call under way.
    begun: Option<Instant>,
    ended: bool,
}

impl Watchdog {
    /// Starts to watch; `hear` is called on the watching thread.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(allowance: Allowance, hear: impl FnMut(Overdue) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let thread = BareThread::start(move || watched.sleep_and_look(allowance, hear))?;
        Ok(Self { shared, thread })
    }

    /// Makes a call under the eyes of the watchdog.
    pub fn watch<T>(&self, call: impl FnOnce() -> T) -> T {
        let set = |begun| self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).begun = begun;
        set(Some(Instant::now()));
        let answer = call();
        set(None);
        answer
    }

    /// Ends the watch, and the thread.
    pub fn stop(self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.shared.ended.notify_one();
        self.thread.join();
    }
}

impl Shared {
    /// The thread.
    fn sleep_and_look(&self, allowance: Allowance, mut hear: impl FnMut(Overdue)) {
        let mut slow_said = false;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.ended {
            let taken = state.begun.map(|begun| begun.elapsed()).unwrap_or_default();
            // Both are heard with the lock held: the call cannot end meanwhile, and be answered twice.
            if taken >= allowance.each {
                hear(Overdue::TooSlow(taken));
                return;
            }
            if taken >= allowance.slow && !slow_said {
                slow_said = true;
                hear(Overdue::Slow);
            }
            let next = if slow_said { allowance.each } else { allowance.slow };
            let woken = self.ended.wait_timeout(state, next.saturating_sub(taken));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_call_that_hangs_is_slow_and_then_given_up() {
        let (heard, hearing) = mpsc::channel();
        let allowance = Allowance { slow: Duration::from_millis(10), each: Duration::from_millis(40) };
        let watchdog = Watchdog::start(allowance, move |overdue| heard.send(overdue).unwrap()).unwrap();
        assert_eq!(watchdog.watch(|| 7), 7);
        watchdog.watch(|| {
            assert_eq!(hearing.recv(), Ok(Overdue::Slow));
            let Ok(Overdue::TooSlow(taken)) = hearing.recv() else { panic!("not given up") };
            assert!(taken >= allowance.each);
        });
        watchdog.stop();
    }

    #[test]
    fn calls_in_time_are_nobodys_business() {
        let forever = Duration::from_secs(3600);
        let watchdog = Watchdog::start(Allowance { slow: forever, each: forever }, |overdue| {
            panic!("{overdue:?}");
        })
        .unwrap();
        for number in 0..100 {
            assert_eq!(watchdog.watch(|| number), number);
        }
        // Does not sleep its hour out.
        watchdog.stop();
    }

    #[test]
    fn what_is_slow_more_than_once_is_said_once() {
        let (heard, hearing) = mpsc::channel();
        let allowance = Allowance { slow: Duration::from_millis(5), each: Duration::from_secs(3600) };
        let watchdog = Watchdog::start(allowance, move |overdue| heard.send(overdue).unwrap()).unwrap();
        for _ in 0..3 {
            watchdog.watch(|| thread::sleep(Duration::from_millis(20)));
        }
        watchdog.stop();
        assert_eq!(hearing.iter().collect::<Vec<_>>(), [Overdue::Slow]);
    }
}
