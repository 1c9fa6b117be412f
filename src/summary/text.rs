//! The end of a run in a few lines of text.

use std::fmt::Write as _;

use super::json::{DroppedSummary, Figures, Summary, TargetSummary};
use crate::sys::format::{duration, joules};

/// The lines that gpurun prints on stderr when the job has ended.
pub fn lines(summary: &Summary) -> Vec<String> {
    let mut lines = Vec::new();
    let lasted = duration(summary.duration_s);
    lines.push(match &summary.exit {
        Some(exit) => format!("{} after {lasted}", exit.words),
        None => format!("recorded for {lasted}"),
    });
    for gpu in &summary.gpus {
        lines.push(gpu_line(gpu));
    }
    lines.push(job_line(summary));
    lines.push(own_line(summary));
    for target in summary.targets.iter().filter(|target| !is_trouble(target)) {
        lines.push(format!("{}: {} {}", target.target, target.rows, unit(target)));
    }
    lines.extend(summary.dropped.iter().map(dropped_line));
    lines.extend(summary.facts.iter().map(|fact| format!("note: {fact}")));
    lines
}

/// The lines about logs that are not whole, which a quiet run prints as well.
pub fn troubles(summary: &Summary) -> Vec<String> {
    let failed = summary.targets.iter().filter(|target| is_trouble(target));
    failed
        .map(|target| {
            let why = target.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("{}: {} {}, {} lost{why}", target.target, target.rows, unit(target), target.lost_rows)
        })
        .collect()
}

fn dropped_line(dropped: &DroppedSummary) -> String {
    format!("not recorded: {} {} of the job: {}", dropped.count, dropped.what, dropped.reason)
}

/// What a target counts.
fn unit(target: &TargetSummary) -> &'static str {
    if target.target.starts_with("tensorboard:") { "events" } else { "rows" }
}

fn is_trouble(target: &TargetSummary) -> bool {
    target.error.is_some() || target.lost_rows > 0
}

fn gpu_line(gpu: &super::json::GpuSummary) -> String {
    let mut line = match gpu.mig {
        None => format!("GPU {}", gpu.index),
        Some(mig) => format!("GPU {}:{mig}", gpu.index),
    };
    let _ = write!(line, ": utilisation {}", mean_max(&gpu.gpu_utilization, "%"));
    let total = gpu.memory_total_mib.map_or_else(|| "?".to_owned(), |t| format!("{t:.0}"));
    let peak = gpu.job_memory_mib.max.filter(|max| *max > 0.0);
    match (peak, gpu.memory_used_mib.max) {
        (Some(job), _) => {
            let _ = write!(line, ", job memory peak {job:.0} of {total} MiB");
        }
        (None, Some(used)) => {
            let _ = write!(line, ", memory in use at most {used:.0} of {total} MiB");
        }
        (None, None) => line.push_str(", memory unknown"),
    }
    if let Some(power) = gpu.power_w.mean {
        let _ = write!(line, ", {power:.0} W");
    }
    if let Some(energy) = gpu.energy_j {
        let _ = write!(line, ", {}", joules(energy));
        if gpu.energy_source == Some("power") {
            line.push_str(" (from power readings)");
        }
    }
    if let Some(temperature) = gpu.temperature_c.max {
        let _ = write!(line, ", at most {temperature:.0} C");
    }
    for (held, why) in [(gpu.throttled_power_s, "the power cap"), (gpu.throttled_thermal_s, "heat")] {
        if let Some(seconds) = held.filter(|s| *s >= 0.1) {
            let _ = write!(line, ", held back by {why} {}", duration(seconds));
        }
    }
    line
}

fn job_line(summary: &Summary) -> String {
    let job = &summary.job;
    let mut line = String::from(if summary.exit.is_some() { "job: " } else { "processes followed: " });
    match job.cpu_s {
        Some(cpu) => {
            let _ = write!(line, "{} of CPU ({} of a core)", duration(cpu), mean_max(&job.cpu_percent, "%"));
        }
        None => line.push_str("CPU unknown"),
    }
    if let Some(rss) = job.memory_rss_mib.max {
        let _ = write!(line, ", memory peak {rss:.0} MiB RSS");
    }
    if let Some(pss) = job.memory_pss_mib.max {
        let _ = write!(line, ", {pss:.0} MiB PSS");
    }
    if let Some(processes) = job.processes.max {
        let _ = write!(line, ", up to {processes:.0} process{}", if processes == 1.0 { "" } else { "es" });
    }
    let pressure = [
        ("CPU", &summary.host_totals.cpu_pressure),
        ("memory", &summary.host_totals.memory_pressure),
        ("I/O", &summary.host_totals.io_pressure),
    ];
    let waits: Vec<String> = pressure
        .iter()
        .filter_map(|(what, figures)| Some((what, figures.mean.filter(|mean| *mean >= 10.0)?)))
        .map(|(what, mean)| format!("for {what} {mean:.0} %"))
        .collect();
    if !waits.is_empty() {
        let _ = write!(line, ", tasks on the host waited {} of the time", waits.join(", "));
    }
    line
}

fn own_line(summary: &Summary) -> String {
    let own = &summary.own;
    let mut line = format!("{} window{} measured", own.windows, if own.windows == 1 { "" } else { "s" });
    let late = own.late_samples.unwrap_or(0.0) + own.dropped_samples.unwrap_or(0.0);
    if late > 0.0 {
        let _ = write!(line, ", {late:.0} samples late or not taken");
    }
    if let Some(cpu) = own.cpu_s {
        let _ = write!(line, ", at a cost of {:.0} ms of CPU", cpu * 1000.0);
    }
    // A share of a run that is over at once says nothing but that the start costs something.
    if let Some(mean) = own.cpu_percent.mean.filter(|_| summary.duration_s >= 5.0) {
        let _ = write!(line, " ({mean:.2} % of a core)");
    }
    if let Some(rss) = own.memory_rss_mib.max {
        let _ = write!(line, " and {rss:.0} MiB");
    }
    line
}

fn mean_max(figures: &Figures, unit: &str) -> String {
    match (figures.mean, figures.max) {
        (Some(mean), Some(max)) => format!("mean {mean:.0} {unit}, max {max:.0} {unit}"),
        _ => "unknown".to_owned(),
    }
}
