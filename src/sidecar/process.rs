//! What makes a process a sidecar: its place beside the job, and its talk with the minder.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::link::{Closed, SidecarEnd, ToMinder, ToSidecar, Witnessed};
use crate::model::time::Mono;
use crate::sys::signal_source::SignalSource;
use crate::sys::signals::{SignalSet, ignore};
use crate::sys::{clock, descriptors, process};

/// Its name in `ps` and `/proc/PID/comm`; the command line stays the typed one, so that `pkill -f` finds both processes
/// or none.
const NAME: &std::ffi::CStr = c"gpurun-sidecar";

/// Makes this process, just forked, a child that works for the minder: it has a name, no standard input and output, and
/// none of the descriptors that gpurun was started with.
///
/// # Errors
/// The system refuses a descriptor.
pub fn enter(link: SidecarEnd) -> io::Result<SidecarEnd> {
    process::name_thread(NAME);
    // What the driver library forks stays here, also when its parent ends.
    process::adopt_orphans();
    descriptors::keep_only(link.into_fd()).map(SidecarEnd::from_fd)
}

/// Signals by which job control stops a process: until the job runs, the sidecar stops with the minder.
const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Leaves signals to the minder: those that end it end the sidecar too, by the kernel's hand, and those that stop it stop
/// both. All others wait, blocked, to be reported once the job runs. They are ignored as well: a thread of the driver
/// library that unblocks them must not be ended by one that is meant for the job. Ignoring SIGCHLD would take the status
/// of children away.
pub fn leave_signals_to_minder() {
    let kept =
        |signal| STOPS.contains(&signal) || SignalSet::FAULTS.contains(&signal) || signal == libc::SIGCHLD;
    SignalSet::all_numbers().filter(|signal| !kept(*signal)).for_each(|signal| {
        ignore(signal);
    });
    let mut stops = SignalSet::EMPTY;
    STOPS.iter().for_each(|signal| stops.insert(*signal));
    stops.unblock();
}

/// From now on the end of the minder is told by the link alone, so that what is made for the job can be removed again, and
/// every signal waits to be reported: the job may start at any moment, and the sidecar does not stop with it. Before any
/// thread that stays: threads inherit what is blocked.
///
/// # Errors
/// No descriptors for the signals.
pub fn get_ready() -> io::Result<SignalSource> {
    process::outlive_parent();
    let mut signals = SignalSource::block_all()?;
    signals.catch_all();
    Ok(signals)
}

/// The sidecar's end of the link while the job runs: reports each signal that comes, for the minder to know which were
/// sent to both.
pub struct Talk {
    link: SidecarEnd,
    signals: SignalSource,
    /// When there was no signal to read for the last time.
    last_empty: Cell<Mono>,
}

impl Talk {
    /// Begins to report signals, those that came since `entered` included.
    pub fn begin(link: SidecarEnd, signals: SignalSource, entered: Mono) -> Self {
        Self { link, signals, last_empty: Cell::new(entered) }
    }

    /// The sidecar's end, to tell the minder something.
    pub fn link(&self) -> &SidecarEnd {
        &self.link
    }

    /// The next message, at the latest at `end`.
    ///
    /// # Errors
    /// The minder has ended.
    pub fn next(&self, end: Option<Instant>) -> Result<Option<ToSidecar>, Closed> {
        loop {
            self.report_signals();
            match self.link.receive()? {
                Some(ToSidecar::Ping(number)) => {
                    // Whatever was sent before the question is reported before the answer.
                    self.report_signals();
                    self.link.send(&ToMinder::Pong(number));
                    continue;
                }
                Some(message) => return Ok(Some(message)),
                None => {}
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.wait(left);
        }
    }

    fn wait(&self, left: Option<Duration>) {
        let mut entries = [
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.link.as_fd(), PollFlags::IN),
        ];
        self.signals.poll(&mut entries, left);
    }

    fn report_signals(&self) {
        let since = self.last_empty.get();
        while let Some(info) = self.signals.read() {
            let signal = i32::try_from(info.ssi_signo).unwrap_or(0);
            let sender = i32::try_from(info.ssi_pid).unwrap_or(0);
            // The kernel's own have positive codes: terminal keys, a child's change of state. A driver library may signal
            // its own threads.
            if info.ssi_code <= 0 && sender != process::id() {
                let at = clock::monotonic();
                self.link.send(&ToMinder::Witnessed(Witnessed { signal, sender, since, at }));
            }
        }
        self.last_empty.set(clock::monotonic());
    }
}
