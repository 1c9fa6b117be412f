//! What a device has to satisfy to be chosen, and how a selection was asked for. Only values.

use std::fmt;
use std::time::Duration;

use super::device::{DeviceSnapshot, ProbeRequest};

/// Utilisation in percent up to which `--idle` takes a device for idle.
pub const IDLE_UTILIZATION: u32 = 5;

/// How many devices are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Fewer than this is a failure.
    pub min: u32,
    /// More than this are not taken; `None` takes all.
    pub max: Option<u32>,
}

/// A device as `--exclude` names it: an index, or a UUID or the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// NVML index of a physical GPU, its slices included.
    Index(u32),
    /// A UUID or a prefix of one, as typed.
    Uuid(String),
}

impl DeviceName {
    /// Reads one name.
    ///
    /// # Errors
    /// A text that is neither a number nor begins with `GPU-` or `MIG-`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Self::Index).map_err(|_| format!("no GPU has the index {text}"));
        }
        let upper = text.to_ascii_uppercase();
        if upper.starts_with("GPU-") || upper.starts_with("MIG-") {
            return Ok(Self::Uuid(text.to_owned()));
        }
        Err(format!("{text:?} is neither an index nor the beginning of a UUID (GPU-..., MIG-...)"))
    }

    /// Whether `device` goes by this name; the name of a GPU covers its slices.
    pub fn covers(&self, device: &DeviceSnapshot) -> bool {
        match self {
            Self::Index(index) => device.index == *index,
            Self::Uuid(prefix) => device
                .uuid
                .iter()
                .chain(device.parent_uuid.iter())
                .any(|uuid| starts_with_ignoring_case(uuid.as_str(), prefix)),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Uuid(prefix) => f.write_str(prefix),
        }
    }
}

/// Whether `text` begins with `prefix`, letters of either case alike.
fn starts_with_ignoring_case(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// A compiled `--gpu-name`: case-insensitive, anywhere in the name.
#[derive(Clone, Debug)]
pub struct NamePattern {
    typed: String,
    regex: regex_lite::Regex,
}

impl NamePattern {
    /// Compiles the pattern.
    ///
    /// # Errors
    /// The regex engine's words.
    pub fn new(typed: &str) -> Result<Self, String> {
        let regex = regex_lite::RegexBuilder::new(typed)
            .case_insensitive(true)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { typed: typed.to_owned(), regex })
    }

    /// As it was typed.
    pub fn as_str(&self) -> &str {
        &self.typed
    }

    /// Whether the name contains a match.
    pub fn is_match(&self, name: &str) -> bool {
        self.regex.is_match(name)
    }
}

/// Everything a device, and the set of devices, has to satisfy.
#[derive(Clone, Debug)]
pub struct Constraints {
    /// How many.
    pub count: Count,
    /// At least this many bytes free (free accounts' memory counts as free).
    pub min_free_memory: Option<u64>,
    /// At least this many bytes in all.
    pub min_total_memory: Option<u64>,
    /// At most this GPU utilisation in percent.
    pub max_gpu_utilization: Option<u32>,
    /// At most this memory-bandwidth utilisation in percent.
    pub max_memory_utilization: Option<u32>,
    /// By how many percent the four limits above may be loosened to reach the minimum count.
    pub tolerance: u32,
    /// Real uids whose memory counts as free.
    pub free_accounts: Vec<u32>,
    /// Devices never taken.
    pub exclude: Vec<DeviceName>,
    /// What the marketing name must contain.
    pub gpu_name: Option<NamePattern>,
    /// No compute process and at most [`IDLE_UTILIZATION`].
    pub idle: bool,
    /// At most this many compute processes.
    pub max_processes: Option<u32>,
    /// Refuse devices whose compute mode forbids a job.
    pub for_job: bool,
    /// Best first; otherwise in the order of enumeration.
    pub sort: bool,
}

impl Default for Constraints {
    fn default() -> Self {
        Self {
            count: Count { min: 0, max: None },
            min_free_memory: None,
            min_total_memory: None,
            max_gpu_utilization: None,
            max_memory_utilization: None,
            tolerance: 0,
            free_accounts: Vec::new(),
            exclude: Vec::new(),
            gpu_name: None,
            idle: false,
            max_processes: None,
            for_job: false,
            sort: true,
        }
    }
}

impl Constraints {
    /// What has to be read to judge a device by these constraints and to rank it.
    pub fn probe(&self) -> ProbeRequest {
        ProbeRequest {
            facts: false,
            name: self.gpu_name.is_some(),
            memory: self.sort || self.min_free_memory.is_some() || self.min_total_memory.is_some(),
            utilization: self.sort || self.limits_utilization(),
            compute_mode: self.for_job,
            processes: self.idle || self.max_processes.is_some() || !self.free_accounts.is_empty(),
        }
    }

    /// Whether a device without readable utilisation can satisfy them.
    pub fn limits_utilization(&self) -> bool {
        self.max_gpu_utilization.is_some() || self.max_memory_utilization.is_some() || self.idle
    }
}

/// How devices are named in what gpurun prints and in `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameFormat {
    /// NVML index, UUIDs where a MIG slice is among the chosen.
    #[default]
    Index,
    /// UUID.
    Uuid,
}

/// From which devices to choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// All of the host.
    All,
    /// Those that `CUDA_VISIBLE_DEVICES` names, all where it is unset.
    Inherited,
    /// Those that this text names, read as `CUDA_VISIBLE_DEVICES`.
    Named(String),
}

/// How a chosen device is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Alone.
    Exclusive,
    /// As one of this many sharers.
    Shared(u32),
    /// Not at all; leases of others are not looked at.
    None,
}

/// Whether and how long to wait for the constraints to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Take what there is now.
    None,
    /// At most this long.
    For(Duration),
    /// Forever.
    Forever,
}

/// One selection as it was asked for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the devices must satisfy.
    pub constraints: Constraints,
    /// Users whose memory counts as free, by name or uid; none named means the current one.
    pub accounts: Option<Vec<String>>,
    /// From which to choose.
    pub candidates: Candidates,
    /// How they are named.
    pub format: NameFormat,
    /// Judge utilisation by its maximum over this long.
    pub observe: Option<Duration>,
    /// How they are held.
    pub hold: Hold,
    /// How long to wait.
    pub patience: Patience,
    /// Print the verdicts.
    pub explain: bool,
    /// Print them as JSON.
    pub json: bool,
}
