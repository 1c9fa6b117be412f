//! The job's proportional set size, which is too expensive to be read at every sample.

use std::time::Duration;

use super::Sampler;
use crate::collectors::procfs::file::FileError;
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::time::Mono;
use crate::sampling::MIB;
use crate::sys::clock;

/// A running read of all processes: some in each sample.
#[derive(Debug, Default)]
pub(super) struct PssRound {
    /// When the first round began.
    first: Option<Mono>,
    next: Mono,
    waiting: Vec<i32>,
    running: bool,
    bytes: u64,
    failed: bool,
    spent: Duration,
}

/// Time that one sample may spend on `smaps_rollup`, beyond the process it is in.
const SLICE: Duration = Duration::from_millis(20);

/// The next round waits for at least so many times the time that the last one took.
const PAUSE: u32 = 50;

impl Sampler {
    pub(super) fn sample_pss(&mut self, now: Mono, out: &mut Sample) {
        let Some(id) = self.whole.get(MetricId::JobMemoryPss) else { return };
        if !self.knows_the_job() {
            return;
        }
        let round = &mut self.pss;
        if !round.running {
            if now < round.next {
                return;
            }
            let live = self.tree.nodes().iter().filter(|node| node.is_alive());
            round.waiting.extend(live.map(|node| node.key().pid));
            if round.waiting.is_empty() {
                return;
            }
            let waiting = std::mem::take(&mut round.waiting);
            let first = Some(round.first.unwrap_or(now));
            *round = PssRound { first, running: true, waiting, ..PssRound::default() };
        }
        let begin = clock::monotonic();
        let mut slice = Duration::ZERO;
        while slice < SLICE {
            let Some(pid) = round.waiting.pop() else { break };
            match self.tree.pss(pid) {
                Ok(bytes) => round.bytes += bytes,
                // It has ended meanwhile: its memory is free again.
                Err(FileError::Gone) => {}
                Err(_) => round.failed = true,
            }
            slice = clock::monotonic().since(begin);
        }
        round.spent += slice;
        if round.waiting.is_empty() {
            round.running = false;
            // A job grows at its start: a round each time that its age has doubled, up to the usual pace.
            let age = round.first.map_or(Duration::ZERO, |first| now.since(first));
            let pause = age.max(self.settings.interval).min(self.settings.pss_interval);
            round.next = now + pause.max(round.spent * PAUSE);
            let known = !round.failed && round.bytes > 0;
            out.push(id, if known { Reading::Value(round.bytes as f64 / MIB) } else { Reading::Missing });
        }
    }
}
