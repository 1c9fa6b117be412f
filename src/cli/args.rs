//! Exactly what was typed: clap's view of the command line, before it means anything.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use super::duration::parse_duration;
use super::logging::LoggingArgs;
use super::selection::SelectionArgs;

/// Choose GPUs, hold them, run a job on them, and log what it does.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "gpurun",
    version,
    about = "Choose GPUs, hold them, run a job on them, and log what it does",
    override_usage = "gpurun [OPTIONS] -- COMMAND [ARG...]\n       gpurun SUBCOMMAND [OPTIONS]",
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
                  gpurun -n 2 -f 8GiB --log run.parquet -- python train.py\n  \
                  gpurun --log run.csv -- python train.py\n  \
                  gpurun select -n 1 --idle --explain\n\n\
                  Exit status: the job's own; death by signal is passed on. 2 usage, 75 not enough GPUs now, \
                  124 waited too long, 125 gpurun failed before the job ran, 126 cannot execute, 127 not found."
)]
pub struct Cli {
    /// Words before `--`.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Options of a run.
    #[command(flatten)]
    pub run: RunArgs,
}

/// `gpurun [OPTIONS] -- COMMAND [ARG...]`.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArgs {
    /// Which GPUs.
    #[command(flatten)]
    pub selection: SelectionArgs,

    /// What is logged where.
    #[command(flatten)]
    pub logging: LoggingArgs,

    /// What happens to the job's processes.
    #[command(flatten)]
    pub job: JobArgs,

    /// Everything both kinds of command share.
    #[command(flatten)]
    pub common: CommonArgs,

    /// The command to run, after `--`
    #[arg(last = true, value_name = "COMMAND", hide = true)]
    pub command: Vec<OsString>,
}

/// Options about the job's processes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Job")]
pub struct JobArgs {
    /// When the job has not ended D after a signal that asks it to, kill all of its processes
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub kill_after: Option<Duration>,

    /// End the processes that the job leaves behind, politely, then surely
    #[arg(long)]
    pub kill_tree: bool,

    /// If gpurun is killed, the kernel kills the job's main process too
    #[arg(long)]
    pub die_together: bool,
}

/// Options of every command that reads the driver or speaks to a person.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "General")]
pub struct CommonArgs {
    /// NVML library to load [env: GPURUN_NVML_LIBRARY]
    #[arg(long, value_name = "FILE")]
    pub nvml_library: Option<PathBuf>,

    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

impl CommonArgs {
    /// The library that was asked for, on the command line or in the environment.
    pub fn library(&self) -> Option<PathBuf> {
        self.nvml_library
            .clone()
            .or_else(|| std::env::var_os("GPURUN_NVML_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from))
    }
}

/// The subcommands.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Print the chosen GPUs; a drop-in for nvisel
    Select(Box<SelectArgs>),
    /// List the GPUs: memory, utilisation, processes, who holds them
    Devices(DevicesArgs),
    /// Log without launching: the processes under --pid, or every GPU process of the host
    Record(Box<RecordArgs>),
    /// Finish the logs of a gpurun that was killed
    Recover(RecoverArgs),
    /// Convert or concatenate logs
    Export(ExportArgs),
    /// Summarise logs as text, or as one HTML page
    Report(ReportArgs),
    /// Show the current window of a running gpurun
    Status(StatusArgs),
    /// List the metrics: names, units, sources, cost
    Metrics(MetricsArgs),
    /// Begin or end a tag of the surrounding gpurun
    Tag(TagArgs),
    /// Mark the end of a training step
    Step(StepArgs),
    /// Log scalars of your own
    Log(LogArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// `gpurun select`.
#[derive(Args, Clone, Debug)]
pub struct SelectArgs {
    /// Which GPUs.
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// How they are printed.
    #[command(flatten)]
    pub output: super::selection::SelectOutputArgs,
    /// Library.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `gpurun devices`.
#[derive(Args, Clone, Debug)]
pub struct DevicesArgs {
    /// Print JSON for programs
    #[arg(long)]
    pub json: bool,
    /// Library.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `gpurun record`.
#[derive(Args, Clone, Debug, Default)]
pub struct RecordArgs {
    /// Follow the tree under PID (repeatable); ends when all of them have ended
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub pid: Vec<i32>,
    /// Follow every GPU process of the host (the default)
    #[arg(long, conflicts_with = "pid")]
    pub all: bool,
    /// End after D
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// What is logged where.
    #[command(flatten)]
    pub logging: LoggingArgs,
    /// Library.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `gpurun recover`.
#[derive(Args, Clone, Debug)]
pub struct RecoverArgs {
    /// Journals, their targets, or directories of them
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// `gpurun export`.
#[derive(Args, Clone, Debug)]
pub struct ExportArgs {
    /// Logs to read: CSV, Parquet or journal; several are concatenated
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// File to write: *.csv, *.parquet, *.jsonl, or - for JSON lines on standard output
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Layout of the output: `long` or `wide` [default: long]
    #[arg(long, value_enum, hide_possible_values = true)]
    pub layout: Option<super::logging::LayoutArg>,
    /// Replace an existing file
    #[arg(long)]
    pub overwrite: bool,
    /// No progress bar
    #[arg(short, long)]
    pub quiet: bool,
}

/// `gpurun report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Logs to read: CSV, Parquet or journal; several are compared
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Write one self-contained HTML page
    #[arg(short, long, value_name = "report.html")]
    pub output: Option<PathBuf>,
}

/// `gpurun status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Process id of the gpurun to ask [default: every one of this user]
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
    /// Print JSON for programs
    #[arg(long)]
    pub json: bool,
}

/// `gpurun metrics`.
#[derive(Args, Clone, Debug)]
pub struct MetricsArgs {
    /// Print JSON for programs
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print a Markdown table
    #[arg(long, hide = true)]
    pub markdown: bool,
}

/// `gpurun tag`.
#[derive(Args, Clone, Debug)]
pub struct TagArgs {
    /// Begin or end.
    #[command(subcommand)]
    pub action: TagAction,
}

/// What `gpurun tag` does.
#[derive(Subcommand, Clone, Debug)]
pub enum TagAction {
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
pub struct StepArgs {
    /// Number of the training step
    #[arg(value_name = "N", allow_negative_numbers = true)]
    pub step: i64,
}

/// `gpurun log`.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// KEY=VALUE pairs
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub values: Vec<String>,
    /// Training step they belong to
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub step: Option<i64>,
}

/// `gpurun completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_enum)]
    pub shell: Shell,
}
