//! The end of a run in a few lines of text.

use std::fmt::Write as _;

use super::json::{DroppedSummary, Summary, TargetSummary};
use crate::sys::format::{self, duration, mib};

/// What gpurun prints on stderr when the job has ended: the job, its GPUs, the files.
pub fn lines(summary: &Summary) -> Vec<String> {
    let mut lines = vec![job_line(summary)];
    lines.extend(summary.gpus.iter().map(gpu_line));
    let whole = summary.targets.iter().filter(|target| !is_trouble(target));
    let files: Vec<String> = whole.map(|target| format!("{} ({})", target.target, rows(target))).collect();
    if !files.is_empty() {
        lines.push(format!("wrote {}", files.join(", ")));
    }
    lines
}

/// What the user should look at: findings, and what was not recorded.
pub fn warnings(summary: &Summary) -> Vec<String> {
    let dropped = summary.dropped.iter().map(dropped_line);
    dropped.chain(summary.facts.iter().map(|fact| format!("note: {fact}"))).collect()
}

/// What `--verbose` adds.
pub fn details(summary: &Summary) -> Vec<String> {
    pressure_line(summary).into_iter().chain([own_line(summary)]).collect()
}

/// The lines about logs that are not whole, which a quiet run prints as well.
pub fn troubles(summary: &Summary) -> Vec<String> {
    let failed = summary.targets.iter().filter(|target| is_trouble(target));
    failed
        .map(|target| {
            let why = target.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("{}: {}, {} lost{why}", target.target, rows(target), target.lost_rows)
        })
        .collect()
}

fn dropped_line(dropped: &DroppedSummary) -> String {
    format!("not recorded: {} of the job: {}", format::counted(dropped.count, dropped.what), dropped.reason)
}

/// What a target got.
fn rows(target: &TargetSummary) -> String {
    format::counted(target.rows, if target.target.starts_with("tensorboard:") { "events" } else { "rows" })
}

fn is_trouble(target: &TargetSummary) -> bool {
    target.error.is_some() || target.lost_rows > 0
}

fn gpu_line(gpu: &super::json::GpuSummary) -> String {
    let mut line = match gpu.mig {
        None => format!("GPU {}", gpu.index),
        Some(mig) => format!("GPU {}:{mig}", gpu.index),
    };
    match (gpu.gpu_utilization.mean, gpu.gpu_utilization.max) {
        (Some(mean), Some(max)) => {
            let _ = write!(line, ": util. {mean:.0} % (max {max:.0} %)");
        }
        _ => line.push_str(": util. unknown"),
    }
    let total = gpu.memory_total_mib.map_or_else(|| "?".to_owned(), gib);
    let peak = gpu.job_memory_mib.max.filter(|max| *max > 0.0);
    match (peak, gpu.memory_used_mib.max) {
        (Some(job), _) => {
            let _ = write!(line, ", job memory {}/{total} GiB", gib(job));
        }
        (None, Some(used)) => {
            let _ = write!(line, ", memory used {}/{total} GiB", gib(used));
        }
        (None, None) => line.push_str(", memory unknown"),
    }
    if let Some(power) = gpu.power_w.mean {
        let _ = write!(line, ", {power:.0} W");
    }
    if let Some(energy) = gpu.energy_j {
        let _ = write!(line, ", {}", format::energy(energy));
        if gpu.energy_source == Some("power") {
            line.push_str(" (from power readings)");
        }
    }
    if let Some(temperature) = gpu.temperature_c.max {
        let _ = write!(line, ", max {temperature:.0} C");
    }
    line
}

/// How the job ended, and what it used.
fn job_line(summary: &Summary) -> String {
    let job = &summary.job;
    let lasted = duration(summary.duration_s);
    let mut line = match &summary.exit {
        Some(exit) => {
            let cause = exit.cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default();
            format!("{}{cause} after {lasted}", exit.words)
        }
        None => format!("recorded for {lasted}"),
    };
    match job.cpu_s {
        Some(cpu) => {
            let _ = write!(line, "; CPU {}", duration(cpu));
        }
        None => line.push_str("; CPU unknown"),
    }
    if let Some(mean) = job.cpu_percent.mean {
        let _ = write!(line, " ({mean:.0} %)");
    }
    if let Some(rss) = job.memory_rss_mib.max {
        let _ = write!(line, ", peak memory {}", mib(rss));
    }
    if let Some(pss) = job.memory_pss_mib.max {
        let _ = write!(line, " ({} PSS)", mib(pss));
    }
    if let Some(processes) = job.processes.max {
        let _ = write!(line, ", {}", format::counted(processes as u64, "processes"));
    }
    line
}

/// MiB as the number of GiB.
fn gib(amount: f64) -> String {
    format!("{:.1}", amount / 1024.0)
}

/// How much tasks on the host waited, where it was much.
fn pressure_line(summary: &Summary) -> Option<String> {
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
    (!waits.is_empty()).then(|| format!("tasks on the host waited {} of the time", waits.join(", ")))
}

/// What gpurun itself used.
fn own_line(summary: &Summary) -> String {
    let own = &summary.own;
    let mut line = format!("gpurun itself: {}", format::counted(own.windows, "windows"));
    let late = own.late_samples.unwrap_or(0.0) + own.dropped_samples.unwrap_or(0.0);
    if late > 0.0 {
        let _ = write!(line, ", {} late or not taken", format::counted(late as u64, "samples"));
    }
    if let Some(cpu) = own.cpu_s {
        let _ = write!(line, ", {:.0} ms of CPU", cpu * 1000.0);
    }
    // A share of a run that is over at once says nothing but that the start costs something.
    if let Some(mean) = own.cpu_percent.mean.filter(|_| summary.duration_s >= 5.0) {
        let _ = write!(line, " ({mean:.2} % of a core)");
    }
    if let Some(rss) = own.memory_rss_mib.max {
        let _ = write!(line, ", {rss:.0} MiB of memory");
    }
    line
}
