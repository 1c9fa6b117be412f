//! The scenario: what a test or a person writes to say which GPUs there are and what they do.
//!
//! A value that a scenario does not give is answered with `NVML_ERROR_NOT_SUPPORTED`. Identity (name, UUID, PCI
//! address, minor number) is made up from the index. `README.md` beside this crate documents every key.

mod file;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::signal::{Counter, Level, Signal};

/// A whole machine. Built by hand in a test, or read from a TOML file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// `nvmlSystemGetDriverVersion`. From 580.82 on, field ids 251-273 have their new numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// `nvmlSystemGetNVMLVersion`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml_version: Option<String>,
    /// `nvmlSystemGetCudaDriverVersion`, 1000 * major + 10 * minor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<i32>,
    /// Symbols that [`install()`](crate::install()) makes unfindable, as on an old driver. A trailing `*` hides a family.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_symbols: Vec<String>,
    /// A file that holds the scripted second, read at every call: a test moves time by writing it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_file: Option<PathBuf>,
    /// A file that holds the `CLOCK_MONOTONIC` nanoseconds of second 0; the first process to need it writes it, so
    /// that all processes share one time. Without it second 0 is this process's first `nvmlInit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch_file: Option<PathBuf>,
    /// Seconds at which the driver is reloaded: every call is `UNINITIALIZED` until the next `nvmlInit`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reload_at: Vec<f64>,
    /// After so many calls (all functions together) the driver is reloaded once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reload_after_calls: Option<u64>,
    /// Bytes of one entry in `..._v3` process lists: 24, or 32 as early 535 drivers had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v3_process_stride: Option<usize>,
    /// `nvmlDeviceGetFieldValues` writes one entry too many, as some drivers do.
    pub field_values_overrun: bool,
    /// `nvmlDeviceGetPcieThroughput` takes its real 20 ms.
    pub pcie_throughput_sleeps: bool,
    /// Seconds between process utilisation samples. Default 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_period: Option<f64>,
    /// When present, [`install()`](crate::install()) also provides `libcuda.so.1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Cuda>,
    /// The GPUs in NVML (PCI bus) order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu: Vec<Gpu>,
    /// What goes wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fault: Vec<Fault>,
}

/// What `libcuda.so.1` does beyond what the GPUs say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cuda {
    /// NVML indices in the order of CUDA's `FASTEST_FIRST`. Default: NVML's order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fastest_first: Option<Vec<usize>>,
    /// What `cuInit` returns instead of success (a CUresult number).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_error: Option<i32>,
    /// `cuInit` never returns.
    pub init_hangs: bool,
}

/// Every key of a GPU is optional and absent from the file when it is: said once here.
macro_rules! gpu_struct {
    ($($(#[$doc:meta])* $key:ident : $type:ty),* $(,)?) => {
        /// One GPU. Every key is optional.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Gpu {
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $key: Option<$type>,)*
            /// Other field values by id: `"230"`, or `"138@4"` for scope 4. A number, an error name, a curve or a
            /// counter; overrides what the named keys say.
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            pub fields: BTreeMap<String, Counter>,
            /// The processes on the whole GPU.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub process: Vec<Process>,
            /// MIG slices.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub mig: Vec<Mig>,
        }
    };
}

gpu_struct! {
    /// Product name. Default `Simulated GPU`.
    name: String,
    /// Product name as bytes, for names that are not UTF-8.
    name_bytes: Vec<u8>,
    /// `GPU-...`. Default: made from the index.
    uuid: String,
    /// `00000000:07:00.0`.
    pci_bus_id: String,
    /// PCI device and vendor id, as `nvmlPciInfo_t::pciDeviceId`.
    pci_device_id: u32,
    /// The N of `/dev/nvidiaN`. Default: the index.
    minor_number: u32,
    /// Board serial number.
    serial: String,
    /// `nvmlBrandType_t`.
    brand: u32,
    /// `nvmlDeviceArchitecture_t`: 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell.
    architecture: u32,
    /// `[major, minor]`.
    compute_capability: [i32; 2],
    /// CUDA cores.
    cores: u32,
    /// `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive process.
    compute_mode: Signal,
    /// 0 or 1.
    persistence_mode: Signal,
    /// 0 or 1: a monitor is connected.
    display_mode: Signal,
    /// 0 or 1: a display is initialised.
    display_active: Signal,
    /// P-state, 0 to 15.
    performance_state: Signal,
    /// 0 or 1. Default: 1 when there are MIG slices, else not supported.
    mig_mode: u32,
    /// `nvmlDeviceGetMaxMigDeviceCount`. Default 7 where MIG is supported.
    max_mig_devices: u32,
    /// MiB.
    memory_total: Signal,
    /// MiB. Version 1 adds the reserved part to it, version 2 does not.
    memory_used: Signal,
    /// MiB held by driver and firmware. Default 0.
    memory_reserved: Signal,
    /// MiB. Default: total - used - reserved.
    memory_free: Signal,
    /// MiB of the BAR1 window.
    bar1_total: Signal,
    /// MiB.
    bar1_used: Signal,
    /// %.
    gpu_utilization: Signal,
    /// %.
    memory_utilization: Signal,
    /// %.
    encoder_utilization: Signal,
    /// %.
    decoder_utilization: Signal,
    /// Degrees Celsius.
    temperature: Signal,
    /// Degrees Celsius (field 82).
    memory_temperature: Signal,
    /// Degrees Celsius at which the GPU slows down.
    temperature_slowdown: Signal,
    /// Degrees Celsius at which the GPU shuts down.
    temperature_shutdown: Signal,
    /// W.
    power: Signal,
    /// W, the management limit.
    power_limit: Signal,
    /// W. Default: the management limit.
    enforced_power_limit: Signal,
    /// W.
    power_default_limit: Signal,
    /// J since the driver was loaded.
    energy: Energy,
    /// %.
    fan_speed: Signal,
    /// Number of fans. Default 1 when there is a fan speed.
    fans: u32,
    /// MHz.
    graphics_clock: Signal,
    /// MHz.
    sm_clock: Signal,
    /// MHz.
    memory_clock: Signal,
    /// MHz.
    video_clock: Signal,
    /// MHz.
    max_graphics_clock: Signal,
    /// MHz.
    max_sm_clock: Signal,
    /// MHz.
    max_memory_clock: Signal,
    /// MHz.
    max_video_clock: Signal,
    /// Bit mask of `nvmlClocksEventReason...`.
    throttle_reasons: Signal,
    /// Seconds so far; a rate of 0.25 is a quarter of the time.
    throttled_power: Counter,
    /// Seconds so far.
    throttled_thermal: Counter,
    /// Seconds so far.
    throttled_sync_boost: Counter,
    /// Seconds so far.
    throttled_board_limit: Counter,
    /// Seconds so far.
    throttled_low_utilization: Counter,
    /// Seconds so far.
    throttled_reliability: Counter,
    /// Seconds so far (field 251, or 269 from driver 580.82 on).
    throttled_sw_thermal: Counter,
    /// Seconds so far (field 252 or 270).
    throttled_hw_thermal: Counter,
    /// Seconds so far (field 253 or 271).
    throttled_hw_power_brake: Counter,
    /// 0 or 1: ECC is on. Default: 1 when an ECC counter is given.
    ecc_mode: Signal,
    /// Errors since the driver was loaded.
    ecc_volatile_corrected: Counter,
    /// Errors since the driver was loaded.
    ecc_volatile_uncorrected: Counter,
    /// Errors of the card's life.
    ecc_aggregate_corrected: Counter,
    /// Errors of the card's life.
    ecc_aggregate_uncorrected: Counter,
    /// 0 or 1: a remap of memory rows waits for a reset.
    row_remap_pending: Signal,
    /// 0 or 1: a remap of memory rows has failed.
    row_remap_failed: Signal,
    /// Pages taken out of use, all of them for double bit errors.
    retired_pages: Signal,
    /// Bytes sent over PCIe: field 197 counts them, `nvmlDeviceGetPcieThroughput` gives the rate.
    pcie_tx: Counter,
    /// Bytes received over PCIe (field 198).
    pcie_rx: Counter,
    /// Current PCIe generation.
    pcie_gen: Signal,
    /// Current PCIe lanes.
    pcie_width: Signal,
    /// Highest PCIe generation.
    max_pcie_gen: Signal,
    /// Most PCIe lanes.
    max_pcie_width: Signal,
    /// Replays.
    pcie_replays: Counter,
    /// One entry a link: 1 active, 0 down.
    nvlink: Vec<Signal>,
    /// Bytes sent over each link (fields 138 and 140 give KiB, of one link or of all).
    nvlink_tx: Counter,
    /// Bytes received over each link (fields 139 and 141).
    nvlink_rx: Counter,
    /// NVLink version.
    nvlink_version: u32,
    /// `nvmlDeviceAddressingModeType_t`: 0 none, 1 HMM, 2 ATS.
    addressing_mode: u32,
    /// What its profiling counters say. Absent: no GPM, as before Hopper.
    gpm: Gpm,
    /// Every call on this GPU fails with `GPU_IS_LOST` after so many successful ones.
    lost_after_calls: u64,
    /// Second from which the GPU is lost.
    lost_from: f64,
    /// Second at which it comes back.
    lost_until: f64,
}

/// The energy counter of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Energy {
    /// `"from-power"`: the exact integral of the `power` key, from 0. Any other text is an error name.
    Named(String),
    /// J.
    Counter(Counter),
}

/// What GPM says of a GPU or slice, as it is at each moment: the driver answers with the mean between two samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpm {
    /// %: a kernel ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graphics_utilization: Option<Signal>,
    /// %: SMs with work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_utilization: Option<Signal>,
    /// %: warps of the SMs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_occupancy: Option<Signal>,
    /// %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integer_active: Option<Signal>,
    /// %, any of the tensor pipes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_active: Option<Signal>,
    /// %: memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram_active: Option<Signal>,
    /// %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp64_active: Option<Signal>,
    /// %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp32_active: Option<Signal>,
    /// %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp16_active: Option<Signal>,
    /// MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_tx: Option<Signal>,
    /// MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_rx: Option<Signal>,
    /// MiB/s, all links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_tx: Option<Signal>,
    /// MiB/s, all links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_rx: Option<Signal>,
}

/// A MIG slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mig {
    /// Its MIG index on the GPU. Default: its place; give it to leave holes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// `MIG-...`. Default: made from the GPU's and the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Default: the GPU's name, `MIG` and the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Such as `1g.10gb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// GPU instance id. Default: the place + 7.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// Compute instance id. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
    /// Slices of the GPU instance. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_slices: Option<u32>,
    /// Slices of the compute instance. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_slices: Option<u32>,
    /// Multiprocessors. Default 14.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiprocessors: Option<u32>,
    /// MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total: Option<Signal>,
    /// MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<Signal>,
    /// MiB. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_reserved: Option<Signal>,
    /// MiB. Default: what is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_free: Option<Signal>,
    /// MiB of the BAR1 window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar1_total: Option<Signal>,
    /// MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar1_used: Option<Signal>,
    /// What the profiling counters of its GPU instance say. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpm: Option<Gpm>,
    /// The processes in this slice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub process: Vec<Process>,
}

/// One process, or the processes that a file names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Process {
    /// Its pid as the driver sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// A file read at every call, one process a line: `PID [MEMORY_MIB [SM_PERCENT]]`. No file, no process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// `C` compute, `G` graphics, `C+G` both, `M` MPS client, `none` in no list (utilisation only). Default `C`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// MiB; absent or `"N/A"`: not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Signal>,
    /// SM %. Absent: no utilisation sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm: Option<Signal>,
    /// Memory bandwidth %. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem: Option<Signal>,
    /// Encoder %. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enc: Option<Signal>,
    /// Decoder %. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dec: Option<Signal>,
    /// Second from which it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// Second at which it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// How many seconds old its utilisation sample always is: a stale stamp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stamp_age: Option<f64>,
}

/// Something that goes wrong. All conditions that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fault {
    /// The C name; a trailing `*` matches a family, `*` alone every function.
    pub function: String,
    /// Only on this GPU (and its MIG slices). Default: any, and functions without a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<usize>,
    /// The error to answer, by name or number. Without one the call goes on after its delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// So many matching calls pass first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Then so many are hit; later ones pass again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Second from which it is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// Second at which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// Active only while this file exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub while_exists: Option<PathBuf>,
    /// The call takes so many milliseconds longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_ms: Option<u64>,
    /// The call never returns.
    pub hang: bool,
    /// The call does not return while this file exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang_while: Option<PathBuf>,
    /// The call ends the process that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub die: Option<Die>,
}

/// How a driver library ends the process that it is loaded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Die {
    /// It reads memory that is not there.
    Segv,
    /// It calls `abort`.
    Abort,
    /// It calls `exit(1)`.
    Exit,
}

/// Why a scenario could not be used.
pub type ScenarioError = String;

impl Gpu {
    /// A GPU with total, used and free memory in MiB and a utilisation in %: the least that a choice needs.
    #[must_use]
    pub fn with_memory(total: f64, used: f64, utilization: f64) -> Self {
        Gpu {
            memory_total: Some(total.into()),
            memory_used: Some(used.into()),
            gpu_utilization: Some(utilization.into()),
            memory_utilization: Some(0.into()),
            ..Gpu::default()
        }
    }

    /// The energy counter in J, if there is one.
    #[must_use]
    pub fn energy_counter(&self) -> Option<Counter> {
        match self.energy.as_ref()? {
            Energy::Counter(counter) => Some(counter.clone()),
            Energy::Named(name) if name == "from-power" => Some(Counter::rate(self.power.clone()?)),
            Energy::Named(name) => Some(Counter::Signal(Signal::Constant(Level::Error(name.clone())))),
        }
    }

    /// Whether the GPU can be cut into MIG slices, and whether it is.
    #[must_use]
    pub fn mig_state(&self) -> Option<u32> {
        self.mig_mode.or(if self.mig.is_empty() { None } else { Some(1) })
    }
}

impl Process {
    /// A compute process with so many MiB.
    #[must_use]
    pub fn compute(pid: u32, memory: f64) -> Self {
        Process { pid: Some(pid), memory: Some(memory.into()), ..Process::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::{Ramp, Wave};

    #[test]
    fn toml_out_is_toml_in() {
        let scenario = Scenario {
            driver_version: Some("580.95.05".into()),
            missing_symbols: vec!["nvmlDeviceGetTemperatureV".into()],
            cuda: Some(Cuda { fastest_first: Some(vec![1, 0]), ..Cuda::default() }),
            gpu: vec![
                Gpu {
                    name: Some("odd \"name\" \u{7f} ü".into()),
                    name_bytes: Some(vec![0xff, 0x41]),
                    power: Some(Signal::Wave(Wave::Ramp(Ramp { from: 1.0, to: 2.0, start: 0.0, end: 4.5 }))),
                    energy: Some(Energy::Named("from-power".into())),
                    fields: BTreeMap::from([("138@4".to_owned(), Counter::rate(1e9))]),
                    gpu_utilization: Some(Signal::Steps(vec![
                        (0.0, Level::Value(3.0)),
                        (1.0, Level::Error("UNKNOWN".into())),
                    ])),
                    process: vec![Process::compute(7, 12.0)],
                    mig: vec![Mig { profile: Some("1g.10gb".into()), ..Mig::default() }],
                    ..Gpu::default()
                },
                Gpu::with_memory(81920.0, 0.0, 99.0),
            ],
            fault: vec![Fault {
                function: "*".into(),
                error: Some("TIMEOUT".into()),
                after: Some(3),
                ..Fault::default()
            }],
            ..Scenario::default()
        };
        let text = scenario.to_toml();
        assert_eq!(Scenario::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")), scenario);
    }

    #[test]
    fn defaults_and_count_are_expanded() {
        let scenario =
            Scenario::parse("[defaults]\npower = 50\nname = 'a'\n[[gpu]]\ncount = 2\n[[gpu]]\nname = 'b'\n")
                .unwrap();
        assert_eq!(scenario.gpu.len(), 3);
        assert_eq!(scenario.gpu[1].name.as_deref(), Some("a"));
        assert_eq!(scenario.gpu[2].name.as_deref(), Some("b"));
        assert_eq!(scenario.gpu[2].power, Some(50.into()));
        assert_ne!(scenario.uuid(0), scenario.uuid(1));
    }

    #[test]
    fn typing_errors_are_said() {
        for text in [
            "[[gpu]]\npwoer = 3",
            "[[gpu]]\npower = 'NOT_SUPORTED'",
            "[[gpu]]\n[[gpu.process]]\nmemory = 3",
            "[[fault]]\nfunction = '*'\nerror = 'LOST'",
            "gpus = 3",
        ] {
            assert!(Scenario::parse(text).is_err(), "{text}");
        }
    }
}
