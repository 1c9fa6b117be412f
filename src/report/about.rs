//! What a report is made of: the rows of logs, and what the logs say about their runs.

/// Which clock a row follows; the `kind` column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// A periodic window.
    Window,
    /// The span of a closed tag.
    Tag,
    /// A number of training steps.
    Step,
}

impl RowKind {
    /// The kind that the word of the `kind` column means.
    pub fn of(word: &str) -> Option<Self> {
        match word {
            "window" => Some(Self::Window),
            "tag" => Some(Self::Tag),
            "step" => Some(Self::Step),
            _ => None,
        }
    }
}

/// One row of a log: a series over one span.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// End of the span, microseconds since the Unix epoch.
    pub time_us: i64,
    /// Length of the span in seconds, suspended time excluded.
    pub window_s: f64,
    /// Name of the run.
    pub run: &'a str,
    /// Host name.
    pub host: &'a str,
    /// Rank.
    pub rank: Option<i32>,
    /// Window, tag or step.
    pub kind: RowKind,
    /// Tag path, root tag first.
    pub tag: &'a str,
    /// Training step.
    pub step: Option<i64>,
    /// The `scope` column.
    pub scope: &'a str,
    /// NVML index.
    pub gpu: Option<i32>,
    /// Ordinal in the job.
    pub cuda: Option<i32>,
    /// UUID of the GPU or MIG slice.
    pub uuid: Option<&'a str>,
    /// Process id.
    pub pid: Option<i64>,
    /// Process name.
    pub process: Option<&'a str>,
    /// Name of the metric.
    pub metric: &'a str,
    /// Time-weighted mean; `None` is unknown.
    pub mean: Option<f64>,
    /// Smallest value.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Value at the end of the span.
    pub last: Option<f64>,
    /// Reads that gave a value; `None` where the log does not say.
    pub samples: Option<u32>,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Its exit code.
    Code(i32),
    /// The signal that ended it.
    Signal(i32),
}

/// A GPU as a log describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceAbout {
    /// UUID of the GPU or MIG slice.
    pub uuid: String,
    /// Marketing name.
    pub name: Option<String>,
    /// Capacity in bytes.
    pub memory_total: Option<f64>,
    /// `cuda:0 (gpu:3)`, `gpu:(3, 1)`.
    pub label: Option<String>,
}

/// What a log says about one of its runs; whatever it does not say is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunAbout {
    /// Name of the run.
    pub run: String,
    /// Host name.
    pub host: String,
    /// Rank of gpurun's own environment.
    pub rank: Option<i32>,
    /// gpurun's version.
    pub version: Option<String>,
    /// The job's command line; empty for `record`, `None` where the log does not say.
    pub argv: Option<Vec<String>>,
    /// NVIDIA driver.
    pub driver: Option<String>,
    /// The devices that were watched.
    pub devices: Vec<DeviceAbout>,
    /// Seconds between samples.
    pub interval_s: Option<f64>,
    /// Seconds of a window.
    pub window_s: Option<f64>,
    /// Start, microseconds since the Unix epoch.
    pub start_us: Option<i64>,
    /// End, microseconds since the Unix epoch; `None` when gpurun was killed.
    pub end_us: Option<i64>,
    /// Length in seconds, suspended time excluded.
    pub duration_s: Option<f64>,
    /// How the job ended.
    pub exit: Option<Exit>,
}

/// One log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceAbout {
    /// Its path, as the user gave it.
    pub name: String,
    /// Whether the format can say anything about its runs (CSV cannot).
    pub describes: bool,
    /// What it says about its runs.
    pub runs: Vec<RunAbout>,
}
