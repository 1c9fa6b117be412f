//! Where finished windows go: the totals, the callback of the library, and the files once they are begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::model::run::{JobExit, RunEnd, RunInfo};
use crate::model::window::{RowKind, WindowBatch};
use crate::summary::Totals;
use crate::sys::clock;
use crate::writers::{FanOut, Opened};

use super::ended::EngineEnd;
use super::settings::OnWindow;

/// How long the writers may take to finish their files after the job has ended. A Parquet target
/// that is not done by then stays a journal, which `gpurun recover` finishes.
pub(super) const WRITERS_PATIENCE: Duration = Duration::from_secs(120);

/// The receivers of windows.
pub(super) struct Output {
    /// Totals of the run.
    pub(super) totals: Totals,
    on_window: Option<OnWindow>,
    /// The targets until the files are begun.
    targets: Option<Opened>,
    out: Option<FanOut>,
    /// Windows that wait for the files to be begun.
    waiting: VecDeque<Arc<WindowBatch>>,
    /// The run as the files describe it, once they are begun.
    run: Option<Arc<RunInfo>>,
}

impl Output {
    pub(super) fn new(targets: Option<Opened>, on_window: Option<OnWindow>, rank: Option<i32>) -> Self {
        let totals = Totals::new(rank);
        Self { totals, on_window, targets, out: None, waiting: VecDeque::new(), run: None }
    }

    /// Whether anything but the totals receives windows.
    pub(super) fn has_receiver(&self) -> bool {
        self.targets.is_some() || self.out.is_some() || self.on_window.is_some()
    }

    /// Whether the files are begun.
    pub(super) fn has_begun(&self) -> bool {
        self.run.is_some()
    }

    /// Begins the files with what is known of the run. Windows that were ready before are written first.
    pub(super) fn begin(&mut self, run: RunInfo) {
        let run = Arc::new(run);
        self.run = Some(Arc::clone(&run));
        self.out = self.targets.take().map(|targets| targets.start(run));
        while let Some(batch) = self.waiting.pop_front() {
            if let Some(out) = &self.out {
                out.send(batch);
            }
        }
    }

    /// Takes a finished window.
    pub(super) fn take(&mut self, batch: WindowBatch) {
        self.totals.add(&batch);
        if batch.kind == RowKind::Window
            && let Some(callback) = &mut self.on_window
        {
            callback(&batch);
        }
        let batch = Arc::new(batch);
        match &self.out {
            Some(out) => out.send(batch),
            None if self.targets.is_some() => self.waiting.push_back(batch),
            None => {}
        }
    }

    /// What the writers have to say since the last call.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.out.as_ref().map(|out| out.notices().take()).unwrap_or_default()
    }

    /// Finishes the files. What the last window ran into is said as well.
    pub(super) fn finish(mut self, exit: Option<JobExit>, run: RunInfo, warn: impl Fn(&str)) -> EngineEnd {
        let end = RunEnd { exit, end: clock::wall(), duration_s: self.totals.seconds };
        let mut reports = Vec::new();
        if let Some(out) = self.out.take() {
            let notices = out.notices().clone();
            reports = out.finish(end.clone(), WRITERS_PATIENCE);
            notices.take().iter().for_each(|line| warn(line));
        }
        let run = self.run.take().unwrap_or_else(|| Arc::new(run));
        EngineEnd { totals: self.totals, run, end, reports }
    }
}
