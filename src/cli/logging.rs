//! The logging options: what was typed, and what it means.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::model::mark::check_tag;
use crate::model::metric::{CATALOGUE, MetricId};

use super::duration::parse_duration;

/// Logging options as typed.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Logging")]
pub struct LoggingArgs {
    /// Write windows to TARGET: *.csv, *.parquet, a directory or tensorboard:DIR (repeatable);
    /// {host} {rank} {pid} {run} {time} {job} are filled in
    #[arg(long, value_name = "TARGET")]
    pub log: Vec<String>,

    /// Time between samples [default: 1s]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub interval: Option<Duration>,

    /// Length of a window, one row set each [default: 10s]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub window: Option<Duration>,

    /// Root tag of every row [default: run]
    #[arg(long, value_name = "NAME")]
    pub tag: Option<String>,

    /// Name of the run in the `run` column [default: start time, host and pid]
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,

    /// `long`: one row per series and window; `wide`: one per window [default: long]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub layout: Option<LayoutArg>,

    /// Processes with rows of their own: those on a `gpu`, `all` of the job, or `none` [default: gpu]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "WHICH")]
    pub processes: Option<ProcessesArg>,

    /// Metrics to add (+NAME) or leave out (-NAME), by name or group; bare names mean only these
    /// (`gpurun metrics` lists them)
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true)]
    pub metrics: Vec<String>,

    /// Replace existing files
    #[arg(long, conflicts_with = "append")]
    pub overwrite: bool,

    /// Continue existing files of the same schema
    #[arg(long)]
    pub append: bool,

    /// Run the job even if a target cannot be written
    #[arg(long)]
    pub best_effort: bool,

    /// Training steps per row of kind `step` [default: 50]
    #[arg(long, value_name = "N")]
    pub every_n_steps: Option<u32>,

    /// Write the totals of the run to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
}

/// Layout as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayoutArg {
    /// One row per series and window.
    Long,
    /// One row per window and tag.
    Wide,
}

/// Process detail as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProcessesArg {
    /// Processes of the job that use a GPU.
    Gpu,
    /// Every process of the job.
    All,
    /// None.
    None,
}

/// Logging options as meant.
#[derive(Clone, Debug, PartialEq)]
pub struct Logging {
    /// Targets as typed; the writers room gives them their meaning.
    pub targets: Vec<String>,
    /// Time between samples.
    pub interval: Duration,
    /// Length of a window.
    pub window: Duration,
    /// Root tag.
    pub tag: String,
    /// Name of the run, if given.
    pub run: Option<String>,
    /// Wide instead of long rows.
    pub wide: bool,
    /// Process detail.
    pub processes: ProcessesArg,
    /// The metrics to record, in catalogue order.
    pub metrics: Vec<MetricId>,
    /// Replace existing files.
    pub overwrite: bool,
    /// Continue existing files.
    pub append: bool,
    /// Targets that cannot be written are warned about and left out.
    pub best_effort: bool,
    /// Steps per step row.
    pub every_n_steps: u32,
    /// Where the totals go as JSON.
    pub summary: Option<PathBuf>,
}

impl LoggingArgs {
    /// Checks what was typed. The error is one line.
    pub fn meaning(&self) -> Result<Logging, String> {
        let interval = self.interval.unwrap_or(Duration::from_secs(1));
        let window = self.window.unwrap_or(Duration::from_secs(10).max(interval));
        if interval < Duration::from_millis(10) {
            return Err(format!(
                "--interval {interval:?}: shorter than 10ms, the resolution of /proc's clock"
            ));
        }
        if window < interval {
            return Err(format!("--window {window:?} is shorter than --interval {interval:?}"));
        }
        let every_n_steps = self.every_n_steps.unwrap_or(50);
        if every_n_steps == 0 {
            return Err("--every-n-steps 0: the number of steps per row is at least 1".to_owned());
        }
        let tag = self.tag.clone().unwrap_or_else(|| "run".to_owned());
        check_tag(&tag).map_err(|why| format!("--tag {tag:?}: {why}"))?;
        if self.run.as_deref().is_some_and(|run| run.is_empty() || run.chars().any(char::is_control)) {
            return Err("--run: the name is not empty and has no control characters".to_owned());
        }
        Ok(Logging {
            targets: self.log.clone(),
            interval,
            window,
            tag,
            run: self.run.clone(),
            wide: self.layout == Some(LayoutArg::Wide),
            processes: self.processes.unwrap_or(ProcessesArg::Gpu),
            metrics: chosen_metrics(&self.metrics)?,
            overwrite: self.overwrite,
            append: self.append,
            best_effort: self.best_effort,
            every_n_steps,
            summary: self.summary.clone(),
        })
    }
}

/// Applies the words of `--metrics` to the default set, in order.
fn chosen_metrics(words: &[String]) -> Result<Vec<MetricId>, String> {
    let bare = words.iter().any(|w| !w.starts_with(['+', '-']));
    let mut on: Vec<bool> = CATALOGUE.iter().map(|m| !bare && m.on_by_default()).collect();
    for word in words {
        let (name, value) = match word.strip_prefix('-') {
            Some(name) => (name, false),
            None => (word.strip_prefix('+').unwrap_or(word), true),
        };
        let mut known = false;
        for (slot, metric) in on.iter_mut().zip(CATALOGUE) {
            if metric.answers_to(name) {
                *slot = value;
                known = true;
            }
        }
        if !known {
            return Err(format!(
                "--metrics {word}: no metric or group is called {name:?}; 'gpurun metrics' lists them"
            ));
        }
    }
    Ok(MetricId::ALL.iter().zip(on).filter_map(|(id, on)| on.then_some(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Result<Vec<MetricId>, String> {
        chosen_metrics(&list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn signs_change_the_default_set_and_bare_names_replace_it() {
        let default = words(&[]).unwrap();
        assert!(default.contains(&MetricId::GpuPcieRx) && !default.contains(&MetricId::JobMemoryPss));
        let changed = words(&["+pss", "-pcie"]).unwrap();
        assert!(changed.contains(&MetricId::JobMemoryPss) && !changed.contains(&MetricId::GpuPcieRx));
        assert_eq!(
            words(&["gpu.memory_used", "load"]).unwrap(),
            [
                MetricId::HostLoadAverage1m,
                MetricId::HostLoadAverage5m,
                MetricId::HostLoadAverage15m,
                MetricId::GpuMemoryUsed
            ]
        );
    }

    #[test]
    fn an_unknown_word_is_named() {
        assert!(words(&["+warp"]).unwrap_err().contains("\"warp\""));
    }

    #[test]
    fn spans_that_make_no_sense_are_refused() {
        let refuse = |args: LoggingArgs| args.meaning().unwrap_err();
        let d = |ms| Some(Duration::from_millis(ms));
        assert!(refuse(LoggingArgs { interval: d(1), ..Default::default() }).contains("10ms"));
        assert!(
            refuse(LoggingArgs { interval: d(2000), window: d(1000), ..Default::default() })
                .contains("shorter")
        );
        assert!(refuse(LoggingArgs { tag: Some("a/b".into()), ..Default::default() }).contains("--tag"));
        let wide = LoggingArgs { interval: d(60_000), ..Default::default() }.meaning().unwrap();
        assert_eq!(wide.window, Duration::from_secs(60));
    }
}
