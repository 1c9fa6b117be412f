//! The selection options: exactly what was typed, then what it means, with every mistake in one line.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::duration::parse_duration;
use super::size::parse_size;
use crate::model::selection::{
    Candidates, Constraints, Count, DeviceName, Hold, NameFormat, NamePattern, Patience, Settings,
};

/// Selection options as typed; the same before a job and on `gpurun select`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Selection")]
pub(crate) struct SelectionArgs {
    /// Choose exactly N GPUs
    ///
    /// Overrides -c and -C. Without any of the three a job gets one GPU, and `gpurun select` prints all that satisfy
    /// the constraints.
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: Option<String>,

    /// Choose at least N GPUs
    #[arg(short = 'c', long, value_name = "N", hide_short_help = true)]
    pub(crate) min_count: Option<String>,

    /// Choose at most N GPUs
    #[arg(short = 'C', long, value_name = "N", hide_short_help = true)]
    pub(crate) max_count: Option<String>,

    /// Only GPUs with at least SIZE of free memory
    #[arg(short = 'f', long, value_name = "SIZE")]
    pub(crate) min_free_memory: Option<String>,

    /// Only GPUs with at least SIZE of memory in total
    #[arg(short = 't', long, value_name = "SIZE", hide_short_help = true)]
    pub(crate) min_total_memory: Option<String>,

    /// Only GPUs with at most PCT percent utilisation
    #[arg(short = 'G', long, value_name = "PCT", hide_short_help = true)]
    pub(crate) max_gpu_utilization: Option<String>,

    /// Only GPUs with at most PCT percent utilisation of the memory bandwidth
    #[arg(short = 'M', long, value_name = "PCT", hide_short_help = true)]
    pub(crate) max_memory_utilization: Option<String>,

    /// Relax -f, -t, -G and -M by PCT percent if too few GPUs satisfy them [default: 0]
    ///
    /// Only as many GPUs as the minimum count needs are taken this way.
    #[arg(long, visible_alias = "tol", value_name = "PCT", hide_short_help = true)]
    pub(crate) tolerance: Option<String>,

    /// Only GPUs without compute processes
    ///
    /// Their utilisation must be at most 5 percent as well.
    #[arg(long)]
    pub(crate) idle: bool,

    /// Only GPUs with at most N compute processes
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub(crate) max_processes: Option<String>,

    /// Only GPUs whose name matches REGEX (case-insensitive)
    #[arg(long, value_name = "REGEX", hide_short_help = true)]
    pub(crate) gpu_name: Option<String>,

    /// Never choose ID: indices or UUIDs, as in 6,7
    ///
    /// The beginning of a UUID is enough.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) exclude: Vec<String>,

    /// Count memory that USER's processes use as free [default: your user]
    ///
    /// USER is a user name or uid; several are separated by commas or blanks.
    #[arg(long, value_name = "USER", num_args = 0.., value_delimiter = ',', hide_short_help = true)]
    pub(crate) account_as_free: Option<Vec<String>>,

    /// Choose among DEVICES [default: CUDA_VISIBLE_DEVICES]
    ///
    /// DEVICES is read as CUDA reads CUDA_VISIBLE_DEVICES: indices or UUIDs, separated by commas. A job's GPUs are
    /// chosen among CUDA_VISIBLE_DEVICES in any case, those of `gpurun select` only with this option.
    #[arg(short, long, value_name = "DEVICES", hide_short_help = true)]
    pub(crate) inherit: Option<Option<String>>,

    /// Choose among all GPUs even if CUDA_VISIBLE_DEVICES is set
    #[arg(long, hide_short_help = true)]
    pub(crate) all_devices: bool,

    /// Judge utilisation by its maximum over D instead of a single reading
    #[arg(long, value_name = "D", hide_short_help = true)]
    pub(crate) observe: Option<String>,

    /// Wait until enough GPUs are available, at most D
    ///
    /// Without D, wait forever. Commands that wait are served first come, first served. If D passes, the exit status is 124.
    #[arg(long, value_name = "D")]
    pub(crate) wait: Option<Option<String>>,

    /// Take one of N shares of each GPU instead of all of it
    ///
    /// The other shares go to commands that use --share with the same N.
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub(crate) share: Option<String>,

    /// Do not hold the GPUs, and ignore what others hold
    #[arg(long, hide_short_help = true)]
    pub(crate) no_lease: bool,

    /// Name GPUs by `index` or `uuid` [default: index]
    ///
    /// MIG slices are always named by UUID.
    #[arg(
        short = 'O',
        long,
        value_enum,
        value_name = "FORMAT",
        hide_possible_values = true,
        hide_short_help = true
    )]
    pub(crate) format: Option<FormatArg>,

    /// Keep the order of the driver instead of putting the best GPU first
    ///
    /// The best GPU has the most free memory (in steps of 5 % of its memory), then the lowest utilisation, then the
    /// highest index.
    #[arg(short = 'S', long, hide_short_help = true)]
    pub(crate) no_sort: bool,

    /// Print why each GPU was chosen or refused
    ///
    /// One line a GPU on standard error; with -v a table of each constraint with value, limit and verdict.
    #[arg(long)]
    pub(crate) explain: bool,

    /// Print the choice and the verdicts as JSON
    ///
    /// `gpurun select` prints it on standard output instead of the GPUs, a job has it on standard error.
    #[arg(long, hide_short_help = true)]
    pub(crate) json: bool,
}

/// Name format as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// NVML index.
    Index,
    /// UUID.
    Uuid,
}

/// How `gpurun select` prints the chosen.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub(crate) struct SelectOutputArgs {
    /// Print SEP between two GPUs [default: ,]
    #[arg(short, long, visible_alias = "sep", value_name = "SEP", conflicts_with_all = ["newline", "null"])]
    pub(crate) separator: Option<String>,
    /// Print one GPU per line
    #[arg(long, conflicts_with = "null")]
    pub(crate) newline: bool,
    /// Print a null byte after each GPU, for xargs -0
    #[arg(short = '0', long)]
    pub(crate) null: bool,
}

impl SelectOutputArgs {
    /// What stands between two devices, and what ends the last.
    pub(crate) fn separators(&self) -> (&str, &str) {
        match (&self.separator, self.newline, self.null) {
            (_, _, true) => ("\0", "\0"),
            (_, true, _) => ("\n", "\n"),
            (Some(separator), _, _) => (separator, "\n"),
            (None, _, _) => (",", "\n"),
        }
    }
}

/// For what GPUs are chosen: it decides what is meant where nothing was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A job that gpurun runs.
    Job,
    /// `gpurun select`.
    Select,
}

/// Every mistake of one selection, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct SelectionMistakes(pub String);

/// Collects mistakes while options are read.
#[derive(Default)]
struct Mistakes(Vec<String>);

impl Mistakes {
    /// Reads one option, or notes what is wrong with it.
    fn read<T, E: std::fmt::Display>(
        &mut self,
        option: &str,
        typed: Option<&String>,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let typed = typed?;
        match read(typed) {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(format!("{option} {typed:?}: {error}"));
                None
            }
        }
    }

    fn note(&mut self, text: impl Into<String>) {
        self.0.push(text.into());
    }
}

impl SelectionArgs {
    /// Whether anything was typed that asks for GPUs to be chosen.
    pub(crate) fn any(&self) -> bool {
        self.inherit.is_some()
            || self.account_as_free.is_some()
            || self.min_count.is_some()
            || self.max_count.is_some()
            || self.count.is_some()
            || self.min_free_memory.is_some()
            || self.min_total_memory.is_some()
            || self.max_gpu_utilization.is_some()
            || self.max_memory_utilization.is_some()
            || self.tolerance.is_some()
            || self.format.is_some()
            || self.no_sort
            || !self.exclude.is_empty()
            || self.gpu_name.is_some()
            || self.idle
            || self.max_processes.is_some()
            || self.observe.is_some()
            || self.all_devices
            || self.wait.is_some()
            || self.share.is_some()
            || self.explain
            || self.json
    }

    /// What was meant.
    ///
    /// # Errors
    /// All mistakes, in one line.
    pub(crate) fn settings(&self, purpose: Purpose) -> Result<Settings, SelectionMistakes> {
        let mut mistakes = Mistakes::default();
        let settings = Settings {
            constraints: self.constraints(purpose, &mut mistakes),
            accounts: self.account_as_free.clone(),
            candidates: self.candidates(purpose, &mut mistakes),
            format: match self.format {
                Some(FormatArg::Uuid) => NameFormat::Uuid,
                Some(FormatArg::Index) | None => NameFormat::Index,
            },
            observe: mistakes.read("--observe", self.observe.as_ref(), positive_duration),
            hold: self.hold(&mut mistakes),
            patience: match &self.wait {
                None => Patience::None,
                Some(None) => Patience::Forever,
                Some(typed) => mistakes
                    .read("--wait", typed.as_ref(), parse_duration)
                    .map_or(Patience::None, Patience::For),
            },
            explain: self.explain,
            json: self.json,
        };
        if mistakes.0.is_empty() { Ok(settings) } else { Err(SelectionMistakes(mistakes.0.join("; "))) }
    }

    /// What each GPU must satisfy, and how many are wanted.
    fn constraints(&self, purpose: Purpose, mistakes: &mut Mistakes) -> Constraints {
        Constraints {
            count: self.count(purpose, mistakes),
            min_free_memory: mistakes.read("--min-free-memory", self.min_free_memory.as_ref(), parse_size),
            min_total_memory: mistakes.read("--min-total-memory", self.min_total_memory.as_ref(), parse_size),
            max_gpu_utilization: mistakes.read(
                "--max-gpu-utilization",
                self.max_gpu_utilization.as_ref(),
                percent,
            ),
            max_memory_utilization: mistakes.read(
                "--max-memory-utilization",
                self.max_memory_utilization.as_ref(),
                percent,
            ),
            tolerance: mistakes.read("--tolerance", self.tolerance.as_ref(), percent).unwrap_or(0),
            free_accounts: Vec::new(),
            exclude: self
                .exclude
                .iter()
                .filter_map(|typed| mistakes.read("--exclude", Some(typed), DeviceName::parse))
                .collect(),
            gpu_name: mistakes.read("--gpu-name", self.gpu_name.as_ref(), NamePattern::new),
            idle: self.idle,
            max_processes: mistakes.read("--max-processes", self.max_processes.as_ref(), number),
            for_job: purpose == Purpose::Job,
            sort: !self.no_sort,
        }
    }

    /// From which GPUs to choose.
    fn candidates(&self, purpose: Purpose, mistakes: &mut Mistakes) -> Candidates {
        match (&self.inherit, self.all_devices) {
            (Some(_), true) => {
                mistakes.note("--inherit cannot be used with --all-devices");
                Candidates::All
            }
            (Some(Some(typed)), false) => Candidates::Named(typed.clone()),
            (Some(None), false) => Candidates::Inherited,
            (None, true) => Candidates::All,
            (None, false) => match purpose {
                Purpose::Job => Candidates::Inherited,
                Purpose::Select => Candidates::All,
            },
        }
    }

    /// How the chosen GPUs are held.
    fn hold(&self, mistakes: &mut Mistakes) -> Hold {
        let share = mistakes.read("--share", self.share.as_ref(), |typed| match number(typed) {
            Ok(0) => Err("must be at least 1".to_owned()),
            other => other,
        });
        match (share, self.no_lease) {
            (Some(_), true) => {
                mistakes.note("--share cannot be used with --no-lease");
                Hold::None
            }
            (Some(1) | None, false) => Hold::Exclusive,
            (Some(slots), false) => Hold::Shared(slots),
            (None, true) => Hold::None,
        }
    }

    /// What is allowed and probably not meant: memory limits of a few bytes.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let limits = [("-f", &self.min_free_memory), ("-t", &self.min_total_memory)];
        let typed = limits.into_iter().filter_map(|(option, typed)| Some((option, typed.as_deref()?.trim())));
        typed
            .filter_map(|(option, typed)| {
                let bytes = parse_size(typed).ok().filter(|bytes| (1..1 << 20).contains(bytes))?;
                let number = typed.trim_end_matches(|c: char| !c.is_ascii_digit());
                let unit = if bytes <= 1024 { "GiB" } else { "MiB" };
                Some(format!("{option} {typed} means {bytes} bytes; write {number}{unit}"))
            })
            .collect()
    }

    /// How many GPUs were meant.
    fn count(&self, purpose: Purpose, mistakes: &mut Mistakes) -> Count {
        let least = match purpose {
            Purpose::Job => 1,
            Purpose::Select => 0,
        };
        let exact = mistakes.read("--count", self.count.as_ref(), number);
        let min = mistakes.read("--min-count", self.min_count.as_ref(), number);
        let max = mistakes.read("--max-count", self.max_count.as_ref(), number);
        let (min, max) = match (exact, min, max) {
            (Some(exact), _, _) => (exact, Some(exact)),
            (None, None, None) if purpose == Purpose::Job => (1, Some(1)),
            (None, min, max) => (min.unwrap_or(0).max(least), max),
        };
        match max {
            Some(0) if purpose == Purpose::Job => {
                mistakes.note(
                    "a job needs at least one GPU; for a job without GPUs leave the selection options out",
                );
            }
            Some(max) if min > max => {
                mistakes.note(format!("--min-count {min} is more than --max-count {max}"));
            }
            _ => {}
        }
        Count { min, max }
    }
}

/// A whole number that is not negative.
fn number(typed: &str) -> Result<u32, String> {
    let typed = typed.trim();
    if typed.is_empty() || !typed.bytes().all(|b| b.is_ascii_digit()) {
        return Err("must be a whole number, 0 or more".to_owned());
    }
    typed.parse().map_err(|_| "too large".to_owned())
}

/// A whole percentage; more than 100 is allowed, as a limit that everything keeps.
fn percent(typed: &str) -> Result<u32, String> {
    match typed.trim().strip_suffix('%') {
        Some(_) => Err("write the percentage without '%'".to_owned()),
        None => number(typed),
    }
}

/// A duration that takes some time.
fn positive_duration(typed: &str) -> Result<Duration, String> {
    match parse_duration(typed) {
        Ok(Duration::ZERO) => Err("must be longer than 0".to_owned()),
        other => other.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        selection: SelectionArgs,
        #[command(flatten)]
        output: SelectOutputArgs,
        #[arg(last = true)]
        command: Vec<String>,
    }

    fn typed(line: &str) -> Line {
        Line::try_parse_from(std::iter::once("gpurun").chain(line.split_whitespace())).unwrap()
    }

    fn job(line: &str) -> Result<Settings, String> {
        typed(line).selection.settings(Purpose::Job).map_err(|mistakes| mistakes.to_string())
    }

    fn select(line: &str) -> Result<Settings, String> {
        typed(line).selection.settings(Purpose::Select).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn counts_mean_what_each_command_says() {
        let count = |min, max| Count { min, max };
        assert_eq!(job("-f 1G").unwrap().constraints.count, count(1, Some(1)));
        assert_eq!(job("-c 2").unwrap().constraints.count, count(2, None));
        assert_eq!(job("-C 2").unwrap().constraints.count, count(1, Some(2)));
        assert_eq!(job("-n 3 -c 9 -C 1").unwrap().constraints.count, count(3, Some(3)));
        assert_eq!(select("").unwrap().constraints.count, count(0, None));
        assert_eq!(select("-C 0").unwrap().constraints.count, count(0, Some(0)));
        assert_eq!(select("-n 2").unwrap().constraints.count, count(2, Some(2)));
    }

    #[test]
    fn optional_values_stop_at_the_job() {
        let line = typed("-i --account-as-free --wait -- train 1");
        assert_eq!(line.command, ["train", "1"]);
        assert_eq!(line.selection.inherit, Some(None));
        assert_eq!(line.selection.account_as_free, Some(vec![]));
        assert_eq!(line.selection.wait, Some(None));
        let line = typed("--account-as-free alice 1000,bob -i 0,1 --wait 2h -n 1");
        assert_eq!(line.selection.account_as_free.unwrap(), ["alice", "1000", "bob"]);
        assert_eq!(line.selection.inherit, Some(Some("0,1".to_owned())));
        assert_eq!(typed("-i=-1").selection.inherit, Some(Some("-1".to_owned())));
    }

    #[test]
    fn nothing_typed_selects_nothing() {
        assert!(!typed("").selection.any());
        assert!(!typed("--no-lease").selection.any());
        assert!(typed("-n 1").selection.any());
    }

    #[test]
    fn all_mistakes_stand_in_one_line() {
        let line = job("-f 5X -G 50% -n 0 --exclude foo --share 0 --wait 1y --gpu-name (").unwrap_err();
        assert!(!line.contains('\n'), "{line}");
        for part in [
            "--min-free-memory",
            "--max-gpu-utilization",
            "at least one GPU",
            "--exclude",
            "--share",
            "--wait",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert_eq!(job("-c 2 -C 1").unwrap_err(), "--min-count 2 is more than --max-count 1");
        assert_eq!(job("--share 2 --no-lease").unwrap_err(), "--share cannot be used with --no-lease");
        assert_eq!(job("-i 0 --all-devices").unwrap_err(), "--inherit cannot be used with --all-devices");
        assert!(job("--observe 0s").is_err());
        assert!(Line::try_parse_from(["gpurun", "-c", "-1"]).is_err());
    }

    #[test]
    fn output_forms() {
        assert_eq!(typed("").output.separators(), (",", "\n"));
        assert_eq!(typed("-s :").output.separators(), (":", "\n"));
        assert_eq!(typed("--sep :").output.separators(), (":", "\n"));
        assert_eq!(typed("--newline").output.separators(), ("\n", "\n"));
        assert_eq!(typed("-0").output.separators(), ("\0", "\0"));
        assert!(Line::try_parse_from(["gpurun", "-0", "--newline"]).is_err());
    }
}
