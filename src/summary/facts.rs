//! What a run's figures say that people ask for: facts with their figures, no guesses.

use super::json::{GpuSummary, Summary};
use crate::sys::format::duration;

/// A run of fewer seconds says nothing about how its GPUs are used.
const TOO_SHORT_S: f64 = 5.0;

/// The facts of a run whose windows cover `seconds`; with `held`, gpurun chose and held the GPUs for the job.
pub fn facts(summary: &Summary, seconds: f64, held: bool) -> Vec<String> {
    let mut facts: Vec<String> =
        summary.gpus.iter().flat_map(|gpu| facts_of_gpu(gpu, seconds, held)).collect();
    if let Some(max) = summary.host_totals.memory_percent.max.filter(|max| *max >= 95.0) {
        facts.push(format!("memory of the host was nearly full: {max:.1} %"));
    }
    facts.extend(diverged(summary));
    for left in &summary.leftovers {
        if let Some(mib) = left.gpu_memory_mib.filter(|mib| *mib > 0.0) {
            facts.push(format!(
                "process {} ({}) still held {mib:.0} MiB of GPU memory",
                left.pid, left.command
            ));
        }
    }
    facts
}

fn facts_of_gpu(gpu: &GpuSummary, seconds: f64, held: bool) -> Vec<String> {
    let mut facts = Vec::new();
    let share = |part: f64| 100.0 * part / seconds;
    let name = match gpu.mig {
        None => format!("GPU {}", gpu.index),
        Some(mig) => format!("GPU {}:{mig}", gpu.index),
    };
    if let Some(why) = &gpu.silent_why {
        let when = match gpu.silent_since_s {
            Some(since) => format!("since {} after the start", duration(since)),
            None => format!("for {}", duration(gpu.silent_s)),
        };
        facts.push(format!("{name}: {why}, {when} ({:.0} % of the run)", share(gpu.silent_s)));
    }
    // Of most of the run nothing is known: what the rest says is no judgement of it.
    if seconds > 0.0 && share(gpu.silent_s) > 50.0 {
        return facts;
    }
    if seconds >= TOO_SHORT_S {
        facts.extend(use_of_gpu(gpu, &name, share, held));
    }
    if let (Some(max), Some(total)) = (gpu.memory_used_mib.max, gpu.memory_total_mib)
        && total > 0.0
        && max >= 0.95 * total
    {
        facts.push(format!("memory of {name} was nearly full: {max:.0} of {total:.0} MiB"));
    }
    for (limited, why) in [(gpu.throttled_power_s, "its power limit"), (gpu.throttled_thermal_s, "heat")] {
        // A moment at the cap is what a well-used GPU looks like.
        if let Some(s) = limited.filter(|s| *s >= 1.0 && seconds > 0.0 && share(*s) >= 1.0) {
            facts.push(format!(
                "clocks of {name} were limited by {why} for {} ({:.0} % of the run)",
                duration(s),
                share(s)
            ));
        }
    }
    if seconds >= TOO_SHORT_S && !is_unused(gpu) && share(gpu.starved_s) > 20.0 {
        facts.push(format!(
            "{name} may have waited for the CPUs: below 50 % while they were over 90 % busy, for {:.0} % of the run",
            share(gpu.starved_s)
        ));
    }
    facts
}

/// Whether the GPU did nothing and the job had no memory on it.
fn is_unused(gpu: &GpuSummary) -> bool {
    gpu.gpu_utilization.max == Some(0.0) && gpu.job_memory_mib.max.is_none_or(|mib| mib == 0.0)
}

/// That the GPU was unused, or idle for most of the run.
fn use_of_gpu(gpu: &GpuSummary, name: &str, share: impl Fn(f64) -> f64, held: bool) -> Option<String> {
    if is_unused(gpu) {
        return Some(match held {
            true => format!("{name} was held and never used: does the job set CUDA_VISIBLE_DEVICES itself?"),
            false => format!("{name} was never used: utilisation was 0 % in every sample"),
        });
    }
    let idle = share(gpu.idle_s);
    (idle > 50.0).then(|| format!("{name} was idle (utilisation at most 5 %) for {idle:.0} % of the run"))
}

/// Scalars of the job that were not finite: most likely its training diverged.
fn diverged(summary: &Summary) -> Option<String> {
    /// Where one norm is not finite, those of all layers are.
    const NAMED: usize = 3;
    let scalars = &summary.not_finite;
    let mut named: Vec<String> = scalars
        .iter()
        .take(NAMED)
        .map(|scalar| {
            let first = scalar.step.map(|step| format!(", the first by step {step}")).unwrap_or_default();
            format!("{} {} of {} times{first}", scalar.name, scalar.count, scalar.values)
        })
        .collect();
    if scalars.len() > NAMED {
        named.push(format!("{} more", scalars.len() - NAMED));
    }
    (!named.is_empty()).then(|| format!("scalars of the job were NaN or infinite: {}", named.join("; ")))
}
