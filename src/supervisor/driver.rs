//! The driver before there is a job: asked so that a call that hangs can be told from one that is slow, and be given
//! up. Where gpurun ends with such a call it is asked here, under the eyes of a watchdog; where gpurun goes on without
//! it, on a thread of its own. Judges nothing of what the driver says.

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cli::exit::Exit;
use crate::collectors::nvml::{Nvml, NvmlError};
use crate::launch;
use crate::model::device::{DeviceSnapshot, ProbeRequest};
use crate::model::selection::Patience;

use super::notice::Notices;
use super::watchdog::{Allowance, Overdue, Watchdog};

/// How long the driver may take before the user hears of it. Without persistence mode it may well need seconds.
const SLOW: Duration = Duration::from_secs(5);

/// How long each call may take when nobody said how long to wait.
const EACH: Duration = Duration::from_secs(60);

/// What is said of a driver that is slow.
const SLOW_LINE: &str = "the NVIDIA driver does not answer; waiting for it";

/// How long the driver is waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Until then.
    until: Option<Instant>,
    /// Each answer so long.
    each: Option<Duration>,
    /// The user hears of a slow driver.
    say: bool,
}

impl Limits {
    /// As long as `--wait` says; a minute for each answer without it.
    pub fn of(patience: Patience) -> Self {
        match patience {
            Patience::None => Self { until: None, each: Some(EACH), say: true },
            Patience::For(patience) => {
                Self { until: Instant::now().checked_add(patience), each: None, say: true }
            }
            Patience::Forever => Self { until: None, each: None, say: true },
        }
    }

    /// So long for each answer, without a word.
    pub fn short(each: Duration) -> Self {
        Self { until: None, each: Some(each), say: false }
    }

    /// The time for the next answer; `None`: for ever.
    fn left(&self) -> Option<Duration> {
        /// A last look after the time is up must still be possible.
        const AT_LEAST: Duration = Duration::from_secs(1);
        let until = self.until.map(|until| until.saturating_duration_since(Instant::now()).max(AT_LEAST));
        [until, self.each].into_iter().flatten().min()
    }

    /// Whether the time that the user gave is over.
    pub fn are_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Why the driver is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum DriverError {
    /// It says no.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// It says nothing.
    #[error("the NVIDIA driver has not answered for {} s; does nvidia-smi?", .0.as_secs())]
    Silent(Duration),
    /// There is no thread to ask it on.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// How gpurun ends where it can do nothing without the driver, and the driver says nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// The status.
    pub exit: Exit,
    /// Before the words about a driver that does not even open.
    pub opening: &'static str,
    /// Not a word of a driver that is only slow.
    pub quiet: bool,
}

impl Ending {
    /// What is said at the end.
    pub fn line(&self, opened: bool, error: &DriverError) -> String {
        let before = if opened { "" } else { self.opening };
        format!("{before}{error}")
    }
}

/// An open driver. Dropped, it is left as it is: the process ends then, and the kernel closes in less time what the
/// driver's own shutdown could also hang in.
pub(super) struct Driver(Seat);

/// Who asks it.
enum Seat {
    /// This thread.
    Here(ManuallyDrop<Box<Nvml>>, Watchdog),
    /// Another one.
    Apart(Apart),
}

impl Driver {
    /// Opens the driver for what cannot be done without it. The patience that was asked for is kept; without any, a
    /// driver that does not answer ends the process, as its error would.
    ///
    /// # Errors
    /// It cannot be opened, or does not answer in the time that was asked for.
    pub fn open_or_end(
        library: Option<PathBuf>,
        patience: Patience,
        ending: Ending,
    ) -> Result<Self, DriverError> {
        if patience != Patience::None {
            return Self::open(library, Limits::of(patience), &mut teller(ending.quiet));
        }
        let opened = Arc::new(AtomicBool::new(false));
        let is_open = Arc::clone(&opened);
        let watchdog = Watchdog::start(Allowance { slow: SLOW, each: EACH }, move |overdue| match overdue {
            Overdue::Slow => Notices::new(ending.quiet).say(SLOW_LINE),
            Overdue::TooSlow(taken) => {
                let line = ending.line(is_open.load(Ordering::Relaxed), &DriverError::Silent(taken));
                Notices::new(ending.quiet).error(&line);
                launch::exit::at_once(ending.exit.code())
            }
        })
        .map_err(DriverError::Thread)?;
        let nvml = watchdog.watch(|| Nvml::open(library.as_deref()))?;
        opened.store(true, Ordering::Relaxed);
        Ok(Self(Seat::Here(ManuallyDrop::new(Box::new(nvml)), watchdog)))
    }

    /// Opens the driver on a thread of its own; `say` tells the user that it is slow.
    ///
    /// # Errors
    /// It cannot be opened, or does not answer in time; its thread is left behind then.
    pub fn open(
        library: Option<PathBuf>,
        limits: Limits,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, DriverError> {
        Apart::open(library, limits, say).map(|apart| Self(Seat::Apart(apart)))
    }

    /// Looks at the devices.
    ///
    /// # Errors
    /// What the driver says, or that it says nothing.
    pub fn probe(
        &mut self,
        request: &ProbeRequest,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<DeviceSnapshot>, DriverError> {
        match &mut self.0 {
            Seat::Here(nvml, watchdog) => Ok(watchdog.watch(|| nvml.probe(request))?),
            Seat::Apart(apart) => apart.probe(request, say),
        }
    }

    /// The driver itself, for whoever reads it from here on; `None` where a call still hangs.
    pub fn into_nvml(self) -> Option<Nvml> {
        match self.0 {
            Seat::Here(nvml, watchdog) => {
                watchdog.stop();
                Some(*ManuallyDrop::into_inner(nvml))
            }
            Seat::Apart(apart) => apart.into_nvml(),
        }
    }
}

type Answer = (u64, Result<Vec<DeviceSnapshot>, NvmlError>);

/// An open driver on its thread.
struct Apart {
    requests: SyncSender<(u64, ProbeRequest)>,
    answers: Receiver<Answer>,
    thread: JoinHandle<Option<Nvml>>,
    limits: Limits,
    asked: u64,
    slow_said: bool,
}

impl Apart {
    fn open(
        library: Option<PathBuf>,
        limits: Limits,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, DriverError> {
        ready_to_wait();
        let (opened, opening) = sync_channel(1);
        // Room for what is asked while an earlier answer is overdue.
        let (requests, asked) = sync_channel::<(u64, ProbeRequest)>(16);
        let (answer, answers) = sync_channel(16);
        let thread = std::thread::Builder::new()
            .name("gpurun-driver".to_owned())
            .spawn(move || {
                let nvml = match Nvml::open(library.as_deref()) {
                    Ok(nvml) => nvml,
                    Err(error) => {
                        let _ = opened.send(Err(error));
                        return None;
                    }
                };
                let _ = opened.send(Ok(()));
                while let Ok((number, request)) = asked.recv() {
                    let found = nvml.probe(&request);
                    if answer.send((number, found)).is_err() {
                        break;
                    }
                }
                Some(nvml)
            })
            .map_err(DriverError::Thread)?;
        let mut slow_said = false;
        let begun = Instant::now();
        match wait(&opening, limits, &mut slow_said, say) {
            Ok(Ok(())) => Ok(Self { requests, answers, thread, limits, asked: 0, slow_said }),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(DriverError::Silent(begun.elapsed())),
        }
    }

    fn probe(
        &mut self,
        request: &ProbeRequest,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<DeviceSnapshot>, DriverError> {
        let begun = Instant::now();
        self.asked += 1;
        if self.requests.try_send((self.asked, *request)).is_err() {
            return Err(DriverError::Silent(begun.elapsed()));
        }
        loop {
            match wait(&self.answers, self.limits, &mut self.slow_said, say) {
                // What comes too late is no answer to this question.
                Ok((number, found)) if number == self.asked => return found.map_err(DriverError::Nvml),
                Ok(_) => {}
                Err(_) => return Err(DriverError::Silent(begun.elapsed())),
            }
        }
    }

    fn into_nvml(self) -> Option<Nvml> {
        drop((self.requests, self.answers));
        self.thread.join().ok().flatten()
    }
}

/// Tells the user, unless quiet; never waits for a reader.
pub(super) fn teller(quiet: bool) -> impl FnMut(&str) {
    // It seldom is slow: the way to the user is made when there is something to say.
    move |line| Notices::new(quiet).say(line)
}

/// Has this thread wait on a channel once, for no time. The first wait of a thread registers the end of a local with the
/// dynamic loader, and would itself hang beside a library that hangs while it is loaded.
pub(super) fn ready_to_wait() {
    // A channel without room waits at once; one with room looks at the clock before.
    let (_sender, never) = sync_channel::<()>(0);
    let _ = never.recv_timeout(Duration::ZERO);
}

/// Waits for a message within the limits, and tells the user once when it is slow.
fn wait<T>(
    from: &Receiver<T>,
    limits: Limits,
    slow_said: &mut bool,
    say: &mut dyn FnMut(&str),
) -> Result<T, RecvTimeoutError> {
    let begun = Instant::now();
    let left = limits.left();
    if limits.say && !*slow_said && left.is_none_or(|left| left > SLOW) {
        match from.recv_timeout(SLOW) {
            Err(RecvTimeoutError::Timeout) => {
                *slow_said = true;
                say(SLOW_LINE);
            }
            other => return other,
        }
    }
    match left {
        Some(left) => from.recv_timeout(left.saturating_sub(begun.elapsed())),
        None => from.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_says_nothing_has_the_same_words_wherever_it_is_asked() {
        let ending = Ending { exit: Exit::OwnFailure, opening: "GPUs cannot be chosen: ", quiet: true };
        let silent = DriverError::Silent(EACH + Duration::from_millis(3));
        let words = "the NVIDIA driver has not answered for 60 s; does nvidia-smi?";
        assert_eq!(ending.line(false, &silent), format!("GPUs cannot be chosen: {words}"));
        assert_eq!(ending.line(true, &silent), words);
    }
}
