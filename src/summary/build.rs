//! The summary of a run from its totals.

use crate::model::cause::Cause;
use crate::model::device::DeviceIdentity;
use crate::model::loss::{Loss, Losses};
use crate::model::metric::{MetricId, Scope};
use crate::model::run::{JobExit, RunEnd, RunInfo, SCHEMA_VERSION};
use crate::model::signal;

use super::cause::words_of_cause;
use super::facts::facts;
use super::json::{
    DroppedSummary, ExitSummary, FactSummary, Figures, GpuSummary, HostSummary, JobSummary, LeftoverSummary,
    NotFiniteSummary, NullSummary, OwnSummary, Summary, TargetSummary,
};
use super::totals::{SeriesTotal, Totals};

/// The exit status in words.
pub fn exit_words(exit: JobExit) -> String {
    match exit {
        JobExit::Code(code) => format!("exited with status {code}"),
        JobExit::Signal { signal, core } => {
            format!("killed by {}{}", signal::name(signal), if core { ", core dumped" } else { "" })
        }
    }
}

impl Summary {
    /// Puts a run's totals together.
    pub fn new(
        run: &RunInfo,
        end: &RunEnd,
        totals: &Totals,
        targets: Vec<TargetSummary>,
        leftovers: Vec<LeftoverSummary>,
    ) -> Self {
        let whole = |metric| figures_of(totals.whole(metric));
        let amount = |metric| totals.whole(metric).filter(|t| t.known_s > 0.0).map(|t| t.integral);
        let last = |metric| totals.whole(metric).and_then(|t| t.last);
        let mut summary = Self {
            schema: SCHEMA_VERSION,
            gpurun: run.version.to_owned(),
            run: run.run.to_string(),
            host: run.host.to_string(),
            rank: run.rank,
            argv: run.argv.clone(),
            start_us: run.start.0,
            end_us: end.end.0,
            duration_s: end.duration_s,
            exit: end.exit.map(|exit| ExitSummary {
                code: if let JobExit::Code(code) = exit { Some(code) } else { None },
                signal: if let JobExit::Signal { signal, .. } = exit { Some(signal) } else { None },
                words: exit_words(exit),
                cause: None,
            }),
            driver: run.driver.clone(),
            gpus: run.devices.iter().map(|d| gpu(totals, d)).collect(),
            job: JobSummary {
                cpu_s: amount(MetricId::JobCpuPercent).map(|percent_s| percent_s / 100.0),
                cpu_percent: whole(MetricId::JobCpuPercent),
                memory_rss_mib: whole(MetricId::JobMemoryRss),
                memory_pss_mib: whole(MetricId::JobMemoryPss),
                processes: whole(MetricId::JobProcesses),
                io_read_mib: amount(MetricId::JobIoRead),
                io_write_mib: amount(MetricId::JobIoWrite),
                gpu_memory_mib: whole(MetricId::JobGpuMemory),
            },
            host_totals: HostSummary {
                cpu_percent: whole(MetricId::HostCpuPercent),
                memory_percent: whole(MetricId::HostMemoryPercent),
                cpu_pressure: whole(MetricId::HostCpuPressure),
                memory_pressure: whole(MetricId::HostMemoryPressure),
                io_pressure: whole(MetricId::HostIoPressure),
            },
            own: OwnSummary {
                cpu_s: amount(MetricId::GpurunCpuPercent).map(|percent_s| percent_s / 100.0),
                cpu_percent: whole(MetricId::GpurunCpuPercent),
                memory_rss_mib: whole(MetricId::GpurunMemoryRss),
                sample_time_ms: whole(MetricId::GpurunSampleTime),
                late_samples: last(MetricId::GpurunLateSamples),
                dropped_samples: last(MetricId::GpurunDroppedSamples),
                missing_reads: totals.series().filter(|t| t.samples > 0).map(|t| t.missing).sum(),
                windows: totals.windows,
            },
            targets,
            leftovers,
            nulls: nulls(totals),
            not_finite: not_finite(totals),
            dropped: Vec::new(),
            facts: Vec::new(),
        };
        summary.facts = facts(&summary, totals.seconds, false);
        summary
    }

    /// Notes that gpurun chose and held the GPUs for the job, which says more of one that was not used.
    pub fn add_hold(&mut self) {
        self.facts = facts(self, self.duration_s, true);
    }

    /// Adds why the job ended, as far as that is known.
    pub fn add_cause(&mut self, cause: &Cause) {
        if let Some(exit) = &mut self.exit {
            exit.cause = words_of_cause(exit.signal, cause);
        }
    }

    /// Adds what the job said and gpurun did not record.
    pub fn add_losses(&mut self, losses: &Losses) {
        let dropped = |(loss, count): (Loss, u64)| DroppedSummary {
            what: loss.subject(),
            reason: loss.reason(),
            count,
        };
        self.dropped.extend(losses.iter().map(dropped));
    }
}

fn figures_of(total: Option<&SeriesTotal>) -> Figures {
    total.map_or_else(Figures::default, |t| Figures { mean: t.mean(), min: t.min, max: t.max })
}

/// Every series that has nulls. Those of processes are too many, and those of the job's own scalars are its own affair.
fn nulls(totals: &Totals) -> Vec<NullSummary> {
    let scopes = [Scope::Host, Scope::Gpu, Scope::Job, Scope::Gpurun];
    let with_nulls = totals.series().filter(|t| t.missing > 0 && scopes.contains(&t.series.scope()));
    with_nulls
        .map(|total| {
            let absent = total.series.metric.get().absent;
            let reason = match totals.reason(&total.series) {
                Some(reason) => reason,
                None if total.samples == 0 && !absent.is_empty() => absent,
                None => "the read failed or came too late",
            };
            NullSummary {
                series: format!("{}/{}", total.series.subject(false), total.series.name_with_unit()),
                reason: reason.to_owned(),
                samples: total.samples,
                missing: total.missing,
            }
        })
        .collect()
}

fn not_finite(totals: &Totals) -> Vec<NotFiniteSummary> {
    let scalars = totals.not_finite().map(|(total, step)| NotFiniteSummary {
        name: total.series.label.as_deref().unwrap_or_default().to_owned(),
        count: total.missing,
        values: total.samples + total.missing,
        step,
    });
    scalars.collect()
}

fn gpu(totals: &Totals, device: &DeviceIdentity) -> GpuSummary {
    let of = |metric| totals.of_device(metric, device);
    let figures = |metric| figures_of(of(metric));
    let seconds = |metric| of(metric).filter(|t| t.known_s > 0.0).map(|t| t.integral / 100.0);
    let counted = of(MetricId::GpuEnergy).and_then(|t| t.last);
    let silence = totals.silence(device);
    // One reading of power is no energy yet.
    let integrated = of(MetricId::GpuEnergyFromPower).filter(|t| t.samples > 1).and_then(|t| t.last);
    GpuSummary {
        index: device.index,
        mig: device.mig.map(|m| m.index),
        cuda: device.cuda,
        uuid: device.uuid.to_string(),
        name: device.name.clone(),
        memory_total_mib: device
            .memory_total
            .map(|bytes| bytes as f64 / 1_048_576.0)
            .or_else(|| of(MetricId::GpuMemoryTotal).and_then(|t| t.last)),
        gpu_utilization: figures(MetricId::GpuGpuUtilization),
        memory_used_mib: figures(MetricId::GpuMemoryUsed),
        job_memory_mib: figures(MetricId::JobGpuMemory),
        temperature_c: figures(MetricId::GpuTemperature),
        power_w: figures(MetricId::GpuPowerUsage),
        energy_j: counted.or(integrated),
        energy_wh: counted.or(integrated).map(|joules| joules / 3600.0),
        energy_source: counted.map(|_| "counter").or(integrated.map(|_| "power")),
        throttled_power_s: seconds(MetricId::GpuThrottledPower),
        throttled_thermal_s: seconds(MetricId::GpuThrottledThermal),
        idle_s: totals.idle_seconds(device),
        starved_s: totals.starved_seconds(device),
        silent_s: silence.map_or(0.0, |(silence, _)| silence.seconds),
        silent_since_s: silence.and_then(|(silence, _)| silence.since),
        silent_why: silence.map(|(_, why)| why.to_owned()),
        device_facts: device
            .facts
            .iter()
            .map(|(name, value)| FactSummary {
                name,
                value: value.as_ref().ok().copied(),
                reason: value.as_ref().err().map(ToString::to_string),
            })
            .collect(),
    }
}
