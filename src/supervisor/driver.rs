//! The driver before there is a job: asked on a thread of its own, so that a call that hangs can be told from one
//! that is slow, and be given up. Judges nothing of what the driver says.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::collectors::nvml::{Nvml, NvmlError};
use crate::model::device::{DeviceSnapshot, ProbeRequest};
use crate::model::selection::Patience;

use super::notice::Notices;

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

type Answer = (u64, Result<Vec<DeviceSnapshot>, NvmlError>);

/// An open driver on its thread.
pub(super) struct Driver {
    requests: SyncSender<(u64, ProbeRequest)>,
    answers: Receiver<Answer>,
    thread: JoinHandle<Option<Nvml>>,
    limits: Limits,
    asked: u64,
    slow_said: bool,
}

impl Driver {
    /// Opens the driver; `say` tells the user that it is slow.
    ///
    /// # Errors
    /// It cannot be opened, or does not answer in time; its thread is left behind then.
    pub fn open(
        library: Option<PathBuf>,
        limits: Limits,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, DriverError> {
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

    /// Looks at the devices.
    ///
    /// # Errors
    /// What the driver says, or that it says nothing.
    pub fn probe(
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

    /// The driver itself, for whoever reads it from here on; `None` where a call still hangs.
    pub fn into_nvml(self) -> Option<Nvml> {
        drop((self.requests, self.answers));
        self.thread.join().ok().flatten()
    }
}

/// Tells the user, unless quiet; never waits for a reader.
pub(super) fn teller(quiet: bool) -> impl FnMut(&str) {
    let notices = Notices::new(quiet);
    move |line| notices.say(line)
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
