//! The values of the job as a whole.

use super::{Sampler, known};
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::sampling::MIB;
use crate::sampling::attribution::PidMatch;
use crate::sampling::settings::TreeRoot;

/// What the job's tree of processes has as a whole.
const JOB_TREE: [MetricId; 7] = [
    MetricId::JobProcesses,
    MetricId::JobThreads,
    MetricId::JobCpuPercent,
    MetricId::JobMemoryRss,
    MetricId::JobIoRead,
    MetricId::JobIoWrite,
    MetricId::JobCpuAffinity,
];

impl Sampler {
    /// Whether it is known which processes are the job.
    pub(super) fn knows_the_job(&self) -> bool {
        self.settings.root != TreeRoot::GpuProcesses || (self.lists_seen && self.pid_match != PidMatch::Other)
    }

    /// How the quota of the job's cgroup holds it back.
    pub(super) fn sample_throttling(&mut self, out: &mut Sample) {
        let Some(throttling) = &self.throttling else { return };
        let throttled = throttling.read(&mut self.buffer);
        let (seconds, periods) = (throttled.map(|t| 100.0 * t.seconds), throttled.map(|t| t.periods as f64));
        self.whole.push(MetricId::JobCpuThrottled, known(seconds), out);
        self.whole.push(MetricId::JobCpuThrottledPeriods, known(periods), out);
    }

    pub(super) fn sample_job(&mut self, out: &mut Sample) {
        let totals = self.tree.totals();
        let whole = &self.whole;
        if !self.knows_the_job() {
            // While no list can be read it is unknown which processes use a GPU, and unknown is not none.
            for metric in JOB_TREE {
                whole.push(metric, Reading::Missing, out);
            }
            return;
        }
        let cpu = self.job_cpu.clamp(out.at, 100.0 * totals.cpu_seconds);
        whole.push(MetricId::JobCpuPercent, Reading::Value(cpu), out);
        whole.push(MetricId::JobIoRead, known(totals.read.map(|bytes| bytes / MIB)), out);
        whole.push(MetricId::JobIoWrite, known(totals.written.map(|bytes| bytes / MIB)), out);
        // A job that has ended has no memory; it would be wrong to let its last window sink to 0.
        if totals.processes > 0 || self.settings.root == TreeRoot::GpuProcesses {
            self.seen_alive = true;
            whole.push(MetricId::JobProcesses, Reading::Value(totals.processes as f64), out);
            whole.push(MetricId::JobThreads, Reading::Value(totals.threads as f64), out);
            whole.push(MetricId::JobMemoryRss, Reading::Value(totals.rss as f64 / MIB), out);
            if totals.processes > 0 {
                whole.push(MetricId::JobCpuAffinity, known(totals.cpus.map(f64::from)), out);
            }
        } else if !self.seen_alive {
            // It ended before the first sample. Once its end is known, there was at least one process.
            let count = if totals.reaped { Reading::Peak(1.0) } else { Reading::Missing };
            whole.push(MetricId::JobProcesses, count, out);
            whole.push(MetricId::JobThreads, count, out);
            whole.push(MetricId::JobMemoryRss, Reading::Missing, out);
        }
        if let Some(peak) = totals.rss_peak {
            whole.push(MetricId::JobMemoryRss, Reading::Peak(peak as f64 / MIB), out);
        }
    }
}
