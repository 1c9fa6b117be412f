//! The logging options: what was typed, and what it means.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::model::mark::check_tag;
use crate::model::metric::{CATALOGUE, MetricId};

use super::duration::parse_duration;
use super::number::whole;

/// Shortest time between samples.
const SHORTEST: Duration = Duration::from_millis(10);
/// What is said of a shorter one.
const TOO_SHORT: &str = "must be at least 10ms, the resolution of /proc's clock";

/// Logging options as typed.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LoggingArgs {
    /// Write the metrics to TARGET (repeatable)
    ///
    /// TARGET is one of: *.csv, *.parquet; for TensorBoard tensorboard:DIR, an existing directory or a name that ends
    /// in /. In its name {host}, {rank}, {pid}, {run}, {time} and {job} are replaced.
    #[arg(long, value_name = "TARGET")]
    pub(crate) log: Vec<String>,

    /// Take a sample every D [default: 1s]
    #[arg(long, value_name = "D", value_parser = span)]
    pub(crate) interval: Option<Duration>,

    /// Write mean, min and max every D [default: 10s]
    #[arg(long, value_name = "D", value_parser = span)]
    pub(crate) window: Option<Duration>,

    /// Add metrics (+NAME), leave some out (-NAME), or list all of them (NAME)
    ///
    /// NAME is a metric or a group; several are separated by commas. `gpurun metrics` lists them.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    pub(crate) metrics: Vec<String>,

    /// Write rows for processes on a `gpu`, for `all` or for `none` [default: gpu]
    ///
    /// The job's totals count all of its processes in any case.
    #[arg(long, value_enum, hide_possible_values = true, value_name = "WHICH", hide_short_help = true)]
    pub(crate) processes: Option<ProcessesArg>,

    /// Write `long` or `wide` rows [default: long]
    ///
    /// A long row holds one metric in one window. A wide row holds all metrics of a window, one column for each; it has no
    /// scalars of the job, no step times and no single processes.
    #[arg(long, value_enum, hide_possible_values = true, hide_short_help = true)]
    pub(crate) layout: Option<LayoutArg>,

    /// Write every metric to TensorBoard, not only the ten most important ones
    #[arg(long, hide_short_help = true)]
    pub(crate) tensorboard_all: bool,

    /// Set the name in the column `run`
    ///
    /// By default Slurm's job and step, else torchrun's run id, else start time, host and process id.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub(crate) run: Option<String>,

    /// Set the root tag in the column `tag` [default: run]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub(crate) tag: Option<String>,

    /// Write rows of kind `step` every N training steps [default: 50]
    #[arg(long, value_name = "N", value_parser = steps, hide_short_help = true)]
    pub(crate) every_n_steps: Option<u32>,

    /// Write the totals of the run to FILE as JSON
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) summary: Option<PathBuf>,

    /// Replace existing files
    #[arg(long, conflicts_with = "append", hide_short_help = true)]
    pub(crate) overwrite: bool,

    /// Append to existing files of the same schema
    #[arg(long, hide_short_help = true)]
    pub(crate) append: bool,

    /// Run the job even if a target cannot be written
    #[arg(long, hide_short_help = true)]
    pub(crate) best_effort: bool,
}

/// Layout as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutArg {
    /// One row per series and window.
    Long,
    /// One row per window and tag.
    Wide,
}

/// Process detail as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProcessesArg {
    /// Processes of the job that use a GPU.
    Gpu,
    /// Every process of the job.
    All,
    /// None.
    None,
}

/// Logging options as meant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Logging {
    /// Targets as typed; the writers room gives them their meaning.
    pub(crate) targets: Vec<String>,
    /// Time between samples.
    pub(crate) interval: Duration,
    /// Length of a window.
    pub(crate) window: Duration,
    /// Root tag.
    pub(crate) tag: String,
    /// Name of the run, if given.
    pub(crate) run: Option<String>,
    /// Wide instead of long rows.
    pub(crate) wide: bool,
    /// Every metric to TensorBoard.
    pub(crate) tensorboard_all: bool,
    /// Process detail.
    pub(crate) processes: ProcessesArg,
    /// The metrics to record, in catalogue order.
    pub(crate) metrics: Vec<MetricId>,
    /// Replace existing files.
    pub(crate) overwrite: bool,
    /// Continue existing files.
    pub(crate) append: bool,
    /// Targets that cannot be written are warned about and left out.
    pub(crate) best_effort: bool,
    /// Steps per step row.
    pub(crate) every_n_steps: u32,
    /// Where the totals go as JSON.
    pub(crate) summary: Option<PathBuf>,
}

impl LoggingArgs {
    /// Checks what was typed. The error is one line.
    pub(crate) fn meaning(&self) -> Result<Logging, String> {
        let interval = self.interval.unwrap_or(Duration::from_secs(1));
        let window = self.window.unwrap_or(Duration::from_secs(10).max(interval));
        // The library's settings come here without a command line.
        if interval < SHORTEST {
            return Err(format!("--interval {interval:?}: {TOO_SHORT}"));
        }
        if window < interval {
            return Err(format!("--window {window:?} is shorter than --interval {interval:?}"));
        }
        let every_n_steps = self.every_n_steps.unwrap_or(50);
        if every_n_steps == 0 {
            return Err("--every-n-steps 0: must be at least 1".to_owned());
        }
        let tag = self.tag.clone().unwrap_or_else(|| "run".to_owned());
        check_tag(&tag).map_err(|why| format!("--tag {tag:?}: {why}"))?;
        if self.run.as_deref().is_some_and(|run| run.is_empty() || run.chars().any(char::is_control)) {
            return Err("--run: must not be empty or contain control characters".to_owned());
        }
        Ok(Logging {
            targets: self.log.clone(),
            interval,
            window,
            tag,
            run: self.run.clone(),
            wide: self.layout == Some(LayoutArg::Wide),
            tensorboard_all: self.tensorboard_all,
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

/// Time between samples, or length of a window.
fn span(typed: &str) -> Result<Duration, String> {
    let span = parse_duration(typed).map_err(|error| error.to_string())?;
    match span < SHORTEST {
        true => Err(TOO_SHORT.to_owned()),
        false => Ok(span),
    }
}

/// How many steps a row has.
fn steps(typed: &str) -> Result<u32, &'static str> {
    match whole(typed)? {
        0 => Err("must be at least 1"),
        number => Ok(number),
    }
}

/// Applies the words of `--metrics` to the default set, in order.
fn chosen_metrics(words: &[String]) -> Result<Vec<MetricId>, String> {
    let names_alone = words.iter().any(|w| !w.starts_with(['+', '-']));
    let mut on: Vec<bool> = CATALOGUE.iter().map(|m| !names_alone && m.on_by_default()).collect();
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
                "--metrics {word}: there is no metric or group {name:?}; 'gpurun metrics' lists them"
            ));
        }
    }
    Ok(MetricId::ALL.iter().zip(on).filter_map(|(id, on)| on.then_some(*id)).collect())
}

/// Whether a word of `--metrics` names a metric or a group.
pub(super) fn is_metric(word: &str) -> bool {
    let name = word.trim_start_matches(['+', '-']);
    CATALOGUE.iter().any(|metric| metric.answers_to(name))
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
        assert!(span("9ms").unwrap_err().contains("10ms"));
        assert_eq!(span("10ms"), Ok(Duration::from_millis(10)));
        assert!(
            refuse(LoggingArgs { interval: d(2000), window: d(1000), ..Default::default() })
                .contains("shorter")
        );
        assert!(refuse(LoggingArgs { tag: Some("a/b".into()), ..Default::default() }).contains("--tag"));
        let wide = LoggingArgs { interval: d(60_000), ..Default::default() }.meaning().unwrap();
        assert_eq!(wide.window, Duration::from_secs(60));
    }
}
