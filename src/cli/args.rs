//! Exactly what was typed: clap's view of the command line, before it means anything.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;

use super::duration::parse_duration;
use super::logging::LoggingArgs;
use super::number::whole;
use super::selection::SelectionArgs;

/// What gpurun does, for `--help` and the manual page.
const ABOUT: &str = "\
Choose GPUs, hold them, run a job on them, and log its metrics

gpurun chooses GPUs by constraints, holds them until the job ends, and starts COMMAND on them. It follows every \
process of the job and writes mean, minimum and maximum of host, GPU and process metrics to CSV, Parquet or \
TensorBoard files. The job's exit status, signals, terminal and output stay its own.

Without selection options gpurun leaves CUDA_VISIBLE_DEVICES alone. `gpurun --log TARGET` without a job is \
`gpurun record --all --log TARGET`.";

/// The whole command line; [`super::help::command`] adds what help pages say beside the options.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "gpurun",
    version,
    about = "Choose GPUs, hold them, run a job on them, and log its metrics",
    long_about = ABOUT,
    override_usage = "gpurun [OPTIONS] -- COMMAND [ARG...]\n       gpurun SUBCOMMAND [OPTIONS]",
    args_conflicts_with_subcommands = true,
    disable_help_flag = true,
    disable_help_subcommand = true,
    disable_version_flag = true
)]
pub(crate) struct Cli {
    /// The first word, where it names a subcommand.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Options of a run.
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// Print help: a summary (-h) or all (--help)
    #[arg(short, long, action = ArgAction::Help, global = true, help_heading = "General")]
    help: Option<bool>,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = "General", hide_short_help = true)]
    version: Option<bool>,
}

/// `gpurun [OPTIONS] -- COMMAND [ARG...]`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RunArgs {
    /// Which GPUs.
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    /// What is logged where.
    #[command(flatten)]
    pub(crate) logging: LoggingArgs,

    /// What happens to the job's processes.
    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// Everything both kinds of command share.
    #[command(flatten)]
    pub(crate) common: CommonArgs,

    /// The command to run, after `--`
    #[arg(last = true, value_name = "COMMAND", hide = true)]
    pub(crate) command: Vec<OsString>,
}

/// Options about the job's processes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Job")]
pub(crate) struct JobArgs {
    /// Send SIGKILL if the job still runs D after it got SIGTERM, SIGINT or SIGHUP
    ///
    /// SIGKILL goes to every process of the job. Without this option gpurun passes signals on and never kills the job.
    #[arg(long, value_name = "D", value_parser = parse_duration, hide_short_help = true)]
    pub(crate) kill_after: Option<Duration>,

    /// End processes that the job leaves behind, with SIGTERM, then SIGKILL
    ///
    /// SIGKILL follows after the time of --kill-after, by default after 5s. Without this option such processes are
    /// named on standard error and left running.
    #[arg(long, hide_short_help = true)]
    pub(crate) kill_tree: bool,

    /// Have the kernel kill the job's main process if gpurun is killed
    ///
    /// Without this option the job keeps running, and keeps its GPUs.
    #[arg(long, hide_short_help = true)]
    pub(crate) die_together: bool,
}

/// Options of every command that reads the driver or prints notices.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "General")]
pub(crate) struct CommonArgs {
    /// Load the NVML library from FILE [env: GPURUN_NVML_LIBRARY]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) nvml_library: Option<PathBuf>,

    /// Print errors only
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Print more details
    #[arg(short, long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

impl CommonArgs {
    /// The library that was asked for, on the command line or in the environment.
    pub(crate) fn library(&self) -> Option<PathBuf> {
        self.nvml_library
            .clone()
            .or_else(|| std::env::var_os("GPURUN_NVML_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from))
    }
}

/// The subcommands.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// Print the chosen GPUs; a drop-in replacement for nvisel
    ///
    /// The GPUs are printed on standard output, best first, as CUDA_VISIBLE_DEVICES takes them. They are not held. If
    /// too few GPUs satisfy the constraints, nothing is printed.
    Select(Box<SelectArgs>),
    /// List the GPUs: memory, utilisation, processes, lease holder
    ///
    /// On a terminal lines are cut to its width, in a pipe they are whole. --json is the form for programs.
    Devices(DevicesArgs),
    /// Log running processes or the whole host without starting a job
    ///
    /// Needs --log or --summary. Ends when the processes of --pid have ended, after --duration, or on SIGINT or SIGTERM.
    Record(Box<RecordArgs>),
    /// Finish the logs of a gpurun that was killed
    ///
    /// Turns the journal NAME.parquet.journal, which is left then, into NAME.parquet, with every window that was
    /// written completely.
    Recover(RecoverArgs),
    /// Convert logs to another format or layout, or concatenate them
    ///
    /// Journals are read as they are, also while the job runs.
    Export(ExportArgs),
    /// Summarise logs as text or as an HTML page
    ///
    /// The page is one file that needs nothing else. Journals are read as they are, also while the job runs.
    Report(ReportArgs),
    /// Print the current window of a running gpurun
    Status(StatusArgs),
    /// List the metrics with units, sources and cost
    Metrics(MetricsArgs),
    /// Begin or end a tag, from inside a job
    ///
    /// The log gets a row for each metric and tag, with the values from the beginning to the end of the tag. Tags nest.
    /// Outside gpurun the command does nothing and succeeds.
    Tag(TagArgs),
    /// Mark the end of a training step, from inside a job
    ///
    /// Outside gpurun the command does nothing and succeeds.
    Step(StepArgs),
    /// Mark the beginning of an epoch, from inside a job
    ///
    /// The rows from here on have its number in the column `epoch`. Outside gpurun the command does nothing and succeeds.
    Epoch(EpochArgs),
    /// Log scalars, from inside a job
    ///
    /// A value that is not a number is left out, with a line on standard error; the others count.
    /// Outside gpurun the command does nothing and succeeds.
    Log(LogArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print a manual page, for man -l -
    Man(ManArgs),
    /// Print the help of a command
    Help(HelpArgs),
}

/// `gpurun select`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SelectArgs {
    /// Which GPUs.
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// How they are printed.
    #[command(flatten)]
    pub(crate) output: super::selection::SelectOutputArgs,
    /// Driver library and notices.
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// `gpurun devices`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Check the lease directory instead, for administrators
    ///
    /// Prints what is wrong with its owner, its mode and its files, each with the command that mends it. The status is 1 if
    /// anything is.
    #[arg(long, conflicts_with = "json")]
    pub(crate) check: bool,
    /// Driver library and notices.
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// `gpurun record`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RecordArgs {
    /// Log the process PID and its descendants; stop when they have ended
    ///
    /// Repeatable, or several separated by commas.
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = whole::<i32>)]
    pub(crate) pid: Vec<i32>,
    /// Log every process that uses a GPU of this host (the default)
    #[arg(long, conflicts_with = "pid")]
    pub(crate) all: bool,
    /// Stop after D
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// What is logged where.
    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
    /// Driver library and notices.
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// `gpurun recover`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecoverArgs {
    /// Journals, the Parquet files they belong to, or directories that hold them
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

/// `gpurun export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArgs {
    /// Logs to read: CSV, Parquet or journal; several are concatenated
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Write to OUT: *.csv, *.parquet, *.jsonl, or - for JSON lines on standard output
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Write `long` or `wide` rows [default: long]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) layout: Option<super::logging::LayoutArg>,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Do not show a progress bar
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `gpurun report`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// Logs to read: CSV, Parquet or journal; several are compared
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Write an HTML page to FILE (*.html, or - for standard output) instead of text
    #[arg(short, long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(html_page))]
    pub(crate) output: Option<PathBuf>,
}

/// `gpurun status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// Process id of the gpurun to ask [default: every gpurun of this user]
    #[arg(value_name = "PID", value_parser = whole::<u32>)]
    pub(crate) pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `gpurun metrics`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MetricsArgs {
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print a Markdown table
    #[arg(long, hide = true)]
    pub(crate) markdown: bool,
}

/// `gpurun tag`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TagArgs {
    /// Begin or end.
    #[command(subcommand)]
    pub(crate) action: TagAction,
}

/// What `gpurun tag` does.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum TagAction {
    /// Begin a tag inside the open ones
    Begin {
        /// Name of the tag
        name: String,
    },
    /// End a tag and those inside it
    End {
        /// Name of the tag [default: the innermost]
        name: Option<String>,
    },
}

/// `gpurun step`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StepArgs {
    /// Number of the training step
    #[arg(value_name = "N", allow_negative_numbers = true)]
    pub(crate) step: String,
    /// Training samples in the step, for samples a second
    #[arg(long, value_name = "M", allow_negative_numbers = true)]
    pub(crate) samples: Option<String>,
}

/// `gpurun epoch`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EpochArgs {
    /// Number of the epoch [default: the column `epoch` keeps what it had]
    #[arg(value_name = "N", allow_negative_numbers = true)]
    pub(crate) epoch: Option<String>,
}

/// `gpurun log`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// Scalars to log, such as loss=0.25
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub(crate) values: Vec<String>,
    /// Training step they belong to
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) step: Option<String>,
}

/// `gpurun completions`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `gpurun man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// Subcommand to describe [default: gpurun itself]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}

/// `gpurun help`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HelpArgs {
    /// Command to describe [default: gpurun itself]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// The name of an HTML page, or `-`.
fn html_page(path: PathBuf) -> Result<PathBuf, &'static str> {
    let is_html =
        path.extension().is_some_and(|e| e.eq_ignore_ascii_case("html") || e.eq_ignore_ascii_case("htm"));
    if is_html || path.as_os_str() == "-" {
        Ok(path)
    } else {
        Err("a report is an HTML page: use a name that ends in .html, or - for standard output")
    }
}
