//! The signals that ask the job to end, and what sent them.

use crate::link::StopRequest;
use crate::model::cause::{Sender, StopSignal};
use crate::model::time::Mono;
use crate::sys::clock;
use crate::sys::process::program_of;
use crate::sys::users;

/// Remembers the last of them.
#[derive(Debug, Default)]
pub(super) struct Stops {
    last: Option<(StopSignal, Mono)>,
}

impl Stops {
    /// One that the minder has just got. Its sender is looked at now: it may end soon.
    pub(super) fn add(&mut self, stop: &StopRequest) {
        let sender = stop.sender.map(|(pid, uid)| Sender {
            pid,
            name: program_of(pid),
            user: users::name_of(uid).unwrap_or_else(|| uid.to_string()),
        });
        let signal = StopSignal { signal: stop.signal, before_s: 0.0, sender };
        self.last = Some((signal, clock::monotonic()));
    }

    /// The last one, for a job that has ended now.
    pub(super) fn before_end(self) -> Option<StopSignal> {
        let now = clock::monotonic();
        self.last.map(|(signal, at)| StopSignal { before_s: now.since(at).as_secs_f64(), ..signal })
    }
}
