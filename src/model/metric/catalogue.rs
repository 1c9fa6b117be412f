//! The list itself: every metric that gpurun can record.

use super::{Kind, Metric, Scope, Subject, Tier};

macro_rules! catalogue {
    ($($id:ident {
        $scope:ident, $name:literal, $unit:literal, $kind:ident, $tier:ident, $group:literal, $subject:ident,
        source: $source:literal,
        $(absent: $absent:literal,)?
        about: $about:literal,
    })*) => {
        /// A metric, as a dense number into [`CATALOGUE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum MetricId {
            $(#[doc = $about] $id,)*
        }

        impl MetricId {
            /// Every metric, in catalogue order.
            pub const ALL: &'static [MetricId] = &[$(MetricId::$id,)*];
        }

        /// Every metric that gpurun can record.
        pub static CATALOGUE: &[Metric] = &[$(Metric {
            scope: Scope::$scope,
            name: $name,
            unit: $unit,
            kind: Kind::$kind,
            tier: Tier::$tier,
            group: $group,
            subject: Subject::$subject,
            source: $source,
            absent: concat!("" $(, $absent)?),
            about: $about,
        },)*];
    };
}

catalogue! {
    HostCpuPercent {
        Host, "cpu_percent", "%", Counter, Cheap, "cpu", Whole,
        source: "/proc/stat",
        about: "busy time of all CPUs; 100 = every core",
    }
    HostMemoryPercent {
        Host, "memory_percent", "%", Gauge, Cheap, "memory", Whole,
        source: "/proc/meminfo, cgroup",
        about: "(total - available) / total; inside a memory cgroup, of its limit",
    }
    HostMemoryUsed {
        Host, "memory_used", "GiB", Gauge, Cheap, "memory", Whole,
        source: "/proc/meminfo, cgroup",
        about: "total - available; inside a memory cgroup, its working set",
    }
    HostMemoryAvailable {
        Host, "memory_available", "GiB", Gauge, Cheap, "memory", Whole,
        source: "/proc/meminfo, cgroup",
        about: "MemAvailable, bounded by what the cgroup leaves",
    }
    HostSwapPercent {
        Host, "swap_percent", "%", Gauge, Cheap, "memory", Whole,
        source: "/proc/meminfo",
        absent: "hosts without swap",
        about: "used swap / total swap",
    }
    HostLoadAverage1m {
        Host, "load_average_1m", "", Gauge, Cheap, "load", Whole,
        source: "/proc/loadavg",
        about: "run queue length, mean of 1 minute; not a percentage",
    }
    HostLoadAverage5m {
        Host, "load_average_5m", "", Gauge, Cheap, "load", Whole,
        source: "/proc/loadavg",
        about: "run queue length, mean of 5 minutes",
    }
    HostLoadAverage15m {
        Host, "load_average_15m", "", Gauge, Cheap, "load", Whole,
        source: "/proc/loadavg",
        about: "run queue length, mean of 15 minutes",
    }
    HostDiskRead {
        Host, "disk_read", "MiB/s", Counter, Cheap, "disk", Whole,
        source: "/proc/diskstats",
        about: "read from whole block devices",
    }
    HostDiskWrite {
        Host, "disk_write", "MiB/s", Counter, Cheap, "disk", Whole,
        source: "/proc/diskstats",
        about: "written to whole block devices",
    }
    HostNetRx {
        Host, "net_rx", "MiB/s", Counter, Cheap, "net", Whole,
        source: "/proc/net/dev",
        about: "received on the interfaces of network cards, each once; without any (in a container) on all but loopback",
    }
    HostNetTx {
        Host, "net_tx", "MiB/s", Counter, Cheap, "net", Whole,
        source: "/proc/net/dev",
        about: "sent on the interfaces of network cards, each once; without any (in a container) on all but loopback",
    }
    HostCpuPressure {
        Host, "cpu_pressure", "%", Counter, Cheap, "pressure", Whole,
        source: "/proc/pressure/cpu; cpu.pressure of a limited cgroup",
        absent: "kernels without PSI",
        about: "share of time in which some task of the host (of a limited cgroup: its own) waited for a CPU",
    }
    HostMemoryPressure {
        Host, "memory_pressure", "%", Counter, Cheap, "pressure", Whole,
        source: "/proc/pressure/memory; memory.pressure of a limited cgroup",
        absent: "kernels without PSI",
        about: "share of time in which some task of the host (of a limited cgroup: its own) waited for memory",
    }
    HostIoPressure {
        Host, "io_pressure", "%", Counter, Cheap, "pressure", Whole,
        source: "/proc/pressure/io; io.pressure of a limited cgroup",
        absent: "kernels without PSI",
        about: "share of time in which some task of the host (of a limited cgroup: its own) waited for I/O",
    }
    HostCgroupCpuLimit {
        Host, "cgroup_cpu_limit", "", Gauge, Static, "cgroup", Whole,
        source: "cpu.max",
        absent: "outside a limited cgroup",
        about: "cores that the cgroup allows",
    }
    HostCgroupMemoryLimit {
        Host, "cgroup_memory_limit", "GiB", Gauge, Static, "cgroup", Whole,
        source: "memory.max",
        absent: "outside a limited cgroup",
        about: "memory that the cgroup allows",
    }
    HostCpuPower {
        Host, "cpu_power", "W", Counter, Cheap, "powercap", Whole,
        source: "/sys/class/powercap, package",
        absent: "hosts without the counters; users who may not read them",
        about: "power of all CPU packages",
    }
    HostCpuEnergyUsed {
        Host, "cpu_energy_used", "J", Amount, Cheap, "powercap", Whole,
        source: "/sys/class/powercap, package",
        absent: "hosts without the counters; users who may not read them",
        about: "energy that all CPU packages used in the window: the sum over windows is that of the run",
    }
    HostDramPower {
        Host, "dram_power", "W", Counter, Cheap, "powercap", Whole,
        source: "/sys/class/powercap, dram",
        absent: "hosts without the counters; users who may not read them",
        about: "power of the memory modules, where the CPU counts it apart",
    }
    HostDramEnergyUsed {
        Host, "dram_energy_used", "J", Amount, Cheap, "powercap", Whole,
        source: "/sys/class/powercap, dram",
        absent: "hosts without the counters; users who may not read them",
        about: "energy that the memory modules used in the window",
    }
    GpuGpuUtilization {
        Gpu, "gpu_utilization", "%", Gauge, Cheap, "utilization", Device,
        source: "nvmlDeviceGetUtilizationRates",
        absent: "MIG",
        about: "share of the driver's last window in which a kernel ran",
    }
    GpuMemoryUtilization {
        Gpu, "memory_utilization", "%", Gauge, Cheap, "utilization", Device,
        source: "nvmlDeviceGetUtilizationRates",
        absent: "MIG",
        about: "share of the driver's last window in which device memory was read or written",
    }
    GpuMemoryUsed {
        Gpu, "memory_used", "MiB", Gauge, Cheap, "memory", Device,
        source: "nvmlDeviceGetMemoryInfo_v2, v1",
        absent: "no permission",
        about: "memory used by all processes",
    }
    GpuMemoryFree {
        Gpu, "memory_free", "MiB", Gauge, Cheap, "memory", Device,
        source: "nvmlDeviceGetMemoryInfo_v2, v1",
        absent: "no permission",
        about: "memory a new allocation can have",
    }
    GpuMemoryTotal {
        Gpu, "memory_total", "MiB", Gauge, Cheap, "memory", Device,
        source: "nvmlDeviceGetMemoryInfo_v2, v1",
        absent: "no permission",
        about: "capacity of the device or slice",
    }
    GpuMemoryPercent {
        Gpu, "memory_percent", "%", Gauge, Cheap, "memory", Device,
        source: "nvmlDeviceGetMemoryInfo_v2, v1",
        absent: "no permission",
        about: "memory_used / memory_total",
    }
    GpuTemperature {
        Gpu, "temperature", "C", Gauge, Cheap, "temperature", Device,
        source: "nvmlDeviceGetTemperatureV, nvmlDeviceGetTemperature",
        absent: "MIG slices: it is in the rows of the parent GPU",
        about: "core temperature",
    }
    GpuMemoryTemperature {
        Gpu, "memory_temperature", "C", Gauge, Cheap, "temperature", Device,
        source: "field 82",
        absent: "cards without HBM",
        about: "memory temperature",
    }
    GpuPowerUsage {
        Gpu, "power_usage", "W", Gauge, Cheap, "power", Device,
        source: "nvmlDeviceGetPowerUsage",
        absent: "old laptops",
        about: "board power, as the driver averages it",
    }
    GpuPowerLimit {
        Gpu, "power_limit", "W", Gauge, Expensive, "power", Device,
        source: "nvmlDeviceGetEnforcedPowerLimit",
        absent: "laptops",
        about: "limit in force",
    }
    GpuEnergy {
        Gpu, "energy", "J", Gauge, Cheap, "power", Device,
        source: "field 83, nvmlDeviceGetTotalEnergyConsumption",
        absent: "before Volta",
        about: "energy since the first sample of the run, from the card's counter",
    }
    GpuEnergyFromPower {
        Gpu, "energy_from_power", "J", Gauge, Cheap, "power", Device,
        source: "integral of power_usage",
        absent: "where the counter answers",
        about: "energy since the first sample of the run, estimated; only where there is no counter",
    }
    GpuEnergyUsed {
        Gpu, "energy_used", "J", Amount, Cheap, "power", Device,
        source: "as energy, else as energy_from_power",
        absent: "where neither is known",
        about: "energy used in the window: the sum over windows is that of the run",
    }
    GpuFanSpeed {
        Gpu, "fan_speed", "%", Gauge, Expensive, "fan", Device,
        source: "nvmlDeviceGetFanSpeed",
        absent: "passively cooled cards",
        about: "intended speed of the first fan",
    }
    GpuSmClock {
        Gpu, "sm_clock", "MHz", Gauge, Cheap, "clocks", Device,
        source: "nvmlDeviceGetClockInfo",
        about: "SM clock",
    }
    GpuMemoryClock {
        Gpu, "memory_clock", "MHz", Gauge, Cheap, "clocks", Device,
        source: "nvmlDeviceGetClockInfo",
        about: "memory clock",
    }
    GpuEncoderUtilization {
        Gpu, "encoder_utilization", "%", Gauge, Expensive, "codec", Device,
        source: "nvmlDeviceGetEncoderUtilization",
        absent: "MIG",
        about: "video encoder",
    }
    GpuDecoderUtilization {
        Gpu, "decoder_utilization", "%", Gauge, Expensive, "codec", Device,
        source: "nvmlDeviceGetDecoderUtilization",
        absent: "MIG",
        about: "video decoder",
    }
    GpuThrottledPower {
        Gpu, "throttled_power", "%", Counter, Cheap, "throttle", Device,
        source: "field 74, else nvmlDeviceGetViolationStatus",
        absent: "old drivers",
        about: "share of time in which the power cap held the clocks down",
    }
    GpuThrottledThermal {
        Gpu, "throttled_thermal", "%", Counter, Cheap, "throttle", Device,
        source: "field 75, else nvmlDeviceGetViolationStatus",
        absent: "old drivers",
        about: "share of time in which heat held the clocks down",
    }
    GpuEccUncorrected {
        Gpu, "ecc_uncorrected", "count", Gauge, Expensive, "ecc", Device,
        source: "nvmlDeviceGetTotalEccErrors",
        absent: "cards without ECC",
        about: "uncorrected errors since the driver was loaded",
    }
    GpuEccCorrected {
        Gpu, "ecc_corrected", "count", Gauge, Expensive, "ecc", Device,
        source: "nvmlDeviceGetTotalEccErrors",
        absent: "cards without ECC",
        about: "corrected errors since the driver was loaded",
    }
    GpuPcieRx {
        Gpu, "pcie_rx", "MiB/s", Counter, Cheap, "pcie", Device,
        source: "field 198",
        absent: "drivers without field 198",
        about: "received over PCIe, from the byte counter; where that wraps at 4 GiB, more between two samples cannot be seen",
    }
    GpuPcieTx {
        Gpu, "pcie_tx", "MiB/s", Counter, Cheap, "pcie", Device,
        source: "field 197",
        absent: "drivers without field 197",
        about: "sent over PCIe, from the byte counter; where that wraps at 4 GiB, more between two samples cannot be seen",
    }
    GpuNvlinkRx {
        Gpu, "nvlink_rx", "MiB/s", Counter, Cheap, "nvlink", Device,
        source: "field 139, all links",
        absent: "cards without NVLink",
        about: "received over all NVLinks, from the byte counter",
    }
    GpuNvlinkTx {
        Gpu, "nvlink_tx", "MiB/s", Counter, Cheap, "nvlink", Device,
        source: "field 138, all links",
        absent: "cards without NVLink",
        about: "sent over all NVLinks, from the byte counter",
    }
    GpuPcieRxSampled {
        Gpu, "pcie_rx_sampled", "MiB/s", Gauge, OptIn, "pcie_sampled", Device,
        source: "nvmlDeviceGetPcieThroughput",
        absent: "MIG",
        about: "receive rate of one 20 ms window; the call blocks for that long",
    }
    GpuPcieTxSampled {
        Gpu, "pcie_tx_sampled", "MiB/s", Gauge, OptIn, "pcie_sampled", Device,
        source: "nvmlDeviceGetPcieThroughput",
        absent: "MIG",
        about: "send rate of one 20 ms window; the call blocks for that long",
    }
    GpuSmUtilization {
        Gpu, "sm_utilization", "%", Gauge, Cheap, "gpm", Device,
        source: "GPM metric 2",
        absent: "before Hopper; while a profiler holds the counters",
        about: "share of the SMs' time in which they had work; mean between two samples",
    }
    GpuSmOccupancy {
        Gpu, "sm_occupancy", "%", Gauge, Cheap, "gpm", Device,
        source: "GPM metric 3",
        absent: "before Hopper; while a profiler holds the counters",
        about: "resident warps, of those that the SMs can hold; mean between two samples",
    }
    GpuTensorActive {
        Gpu, "tensor_active", "%", Gauge, Cheap, "gpm", Device,
        source: "GPM metric 5",
        absent: "before Hopper; while a profiler holds the counters",
        about: "share of time in which the tensor pipes worked, all kinds; mean between two samples",
    }
    GpuDramActive {
        Gpu, "dram_active", "%", Gauge, Cheap, "gpm", Device,
        source: "GPM metric 10",
        absent: "before Hopper; while a profiler holds the counters",
        about: "device memory bandwidth used, of its peak; mean between two samples",
    }
    GpuFp64Active {
        Gpu, "fp64_active", "%", Gauge, Cheap, "gpm", Device,
        source: "GPM metric 11",
        absent: "before Hopper; while a profiler holds the counters",
        about: "share of time in which the FP64 pipe worked; mean between two samples",
    }
    GpuFp32Active {
        Gpu, "fp32_active", "%", Gauge, Cheap, "gpm", Device,
        source: "GPM metric 12",
        absent: "before Hopper; while a profiler holds the counters",
        about: "share of time in which the FP32 pipe worked; mean between two samples",
    }
    GpuFp16Active {
        Gpu, "fp16_active", "%", Gauge, Cheap, "gpm", Device,
        source: "GPM metric 13",
        absent: "before Hopper; while a profiler holds the counters",
        about: "share of time in which the FP16 pipe worked; half precision on tensor pipes is in tensor_active; mean between two samples",
    }
    GpuIntegerActive {
        Gpu, "integer_active", "%", Gauge, Cheap, "gpm", Device,
        source: "GPM metric 4",
        absent: "before Hopper; while a profiler holds the counters",
        about: "share of time in which the integer pipe worked; mean between two samples",
    }
    JobProcesses {
        Job, "processes", "count", Gauge, Cheap, "tree", Whole,
        source: "/proc/PID/task/TID/children",
        about: "live processes of the tree",
    }
    JobThreads {
        Job, "threads", "count", Gauge, Cheap, "tree", Whole,
        source: "/proc/PID/stat",
        about: "threads of the live processes",
    }
    JobCpuPercent {
        Job, "cpu_percent", "%", Counter, Cheap, "cpu", Whole,
        source: "/proc/PID/stat, wait4",
        about: "CPU time of the tree, ended processes included; 100 = one core",
    }
    JobCpuAffinity {
        Job, "cpu_affinity", "count", Gauge, Cheap, "cpu_limits", Whole,
        source: "/proc/PID/status",
        about: "CPUs that the processes of the tree may run on, all together",
    }
    JobCpuThrottled {
        Job, "cpu_throttled", "%", Counter, Cheap, "cpu_limits", Whole,
        source: "cpu.stat of the cgroup",
        absent: "outside a cgroup with a CPU quota",
        about: "time for which the quota of the cgroup held CPUs back; 100 = one CPU all the time",
    }
    JobCpuThrottledPeriods {
        Job, "cpu_throttled_periods", "count", Amount, Cheap, "cpu_limits", Whole,
        source: "cpu.stat of the cgroup",
        absent: "outside a cgroup with a CPU quota",
        about: "periods of the quota, normally of 100 ms, in which the cgroup used it up",
    }
    JobMemoryRss {
        Job, "memory_rss", "MiB", Gauge, Cheap, "memory", Whole,
        source: "/proc/PID/status, ru_maxrss",
        about: "resident memory summed over the tree; shared pages count once per process",
    }
    JobMemoryPss {
        Job, "memory_pss", "MiB", Gauge, OptIn, "pss", Whole,
        source: "/proc/PID/smaps_rollup",
        absent: "unless asked for",
        about: "proportional set size; shared pages count once",
    }
    JobIoRead {
        Job, "io_read", "MiB/s", Counter, Cheap, "io", Whole,
        source: "/proc/PID/io",
        absent: "other users' processes",
        about: "read from storage by the tree, ended processes included",
    }
    JobIoWrite {
        Job, "io_write", "MiB/s", Counter, Cheap, "io", Whole,
        source: "/proc/PID/io",
        absent: "other users' processes",
        about: "written towards storage by the tree, ended processes included",
    }
    JobGpuMemory {
        Job, "gpu_memory", "MiB", Gauge, Expensive, "gpu_processes", WholeAndDevice,
        source: "nvmlDeviceGetComputeRunningProcesses_v3, v2, v1",
        absent: "WSL; other PID namespaces",
        about: "device memory of the tree, per GPU and in total",
    }
    JobGpuSmUtilization {
        Job, "gpu_sm_utilization", "%", Gauge, Expensive, "gpu_processes", Device,
        source: "nvmlDeviceGetProcessUtilization",
        absent: "MIG; other PID namespaces",
        about: "SM share of the tree, per GPU",
    }
    ProcessCpuPercent {
        Process, "cpu_percent", "%", Counter, Cheap, "cpu", Whole,
        source: "/proc/PID/stat",
        about: "CPU time of the process; 100 = one core",
    }
    ProcessCpuAffinity {
        Process, "cpu_affinity", "count", Gauge, Cheap, "cpu_limits", Whole,
        source: "/proc/PID/status",
        about: "CPUs that the process may run on",
    }
    ProcessMemoryRss {
        Process, "memory_rss", "MiB", Gauge, Cheap, "memory", Whole,
        source: "/proc/PID/status",
        about: "resident memory; max is the kernel's own peak",
    }
    ProcessMemoryPercent {
        Process, "memory_percent", "%", Gauge, Cheap, "memory", Whole,
        source: "/proc/PID/status, /proc/meminfo",
        about: "resident memory / host memory",
    }
    ProcessThreads {
        Process, "threads", "count", Gauge, Cheap, "tree", Whole,
        source: "/proc/PID/stat",
        about: "threads",
    }
    ProcessIoRead {
        Process, "io_read", "MiB/s", Counter, Cheap, "io", Whole,
        source: "/proc/PID/io",
        absent: "other users' processes",
        about: "read from storage, reaped children included",
    }
    ProcessIoWrite {
        Process, "io_write", "MiB/s", Counter, Cheap, "io", Whole,
        source: "/proc/PID/io",
        absent: "other users' processes",
        about: "written towards storage, reaped children included",
    }
    ProcessRunningTime {
        Process, "running_time", "min", Gauge, Cheap, "cpu", Whole,
        source: "/proc/PID/stat",
        about: "time since the process started",
    }
    ProcessGpuMemory {
        Process, "gpu_memory", "MiB", Gauge, Expensive, "gpu_processes", Device,
        source: "nvmlDeviceGetComputeRunningProcesses_v3, v2, v1",
        absent: "WSL; other PID namespaces",
        about: "device memory of the process",
    }
    ProcessGpuMemoryPercent {
        Process, "gpu_memory_percent", "%", Gauge, Expensive, "gpu_processes", Device,
        source: "nvmlDeviceGetComputeRunningProcesses_v3, v2, v1",
        absent: "WSL; other PID namespaces",
        about: "gpu_memory / memory_total of the GPU",
    }
    ProcessGpuSmUtilization {
        Process, "gpu_sm_utilization", "%", Gauge, Expensive, "gpu_processes", Device,
        source: "nvmlDeviceGetProcessUtilization",
        absent: "MIG; other PID namespaces",
        about: "SM share",
    }
    ProcessGpuMemoryUtilization {
        Process, "gpu_memory_utilization", "%", Gauge, Expensive, "gpu_processes", Device,
        source: "nvmlDeviceGetProcessUtilization",
        absent: "MIG; other PID namespaces",
        about: "share of time in which it used device memory",
    }
    GpurunCpuPercent {
        Gpurun, "cpu_percent", "%", Counter, Cheap, "own", Whole,
        source: "clock_gettime",
        about: "CPU time of gpurun itself; 100 = one core",
    }
    GpurunMemoryRss {
        Gpurun, "memory_rss", "MiB", Gauge, Cheap, "own", Whole,
        source: "/proc/PID/status",
        about: "resident memory of gpurun itself",
    }
    GpurunSampleTime {
        Gpurun, "sample_time", "ms", Gauge, Cheap, "own", Whole,
        source: "CLOCK_MONOTONIC",
        about: "time that one sample took",
    }
    GpurunLateSamples {
        Gpurun, "late_samples", "count", Gauge, Cheap, "own", Whole,
        source: "sampler",
        about: "samples taken more than half an interval late, since the run began",
    }
    GpurunDroppedSamples {
        Gpurun, "dropped_samples", "count", Gauge, Cheap, "own", Whole,
        source: "sampler",
        about: "samples that were due and not taken, since the run began",
    }
    UserValue {
        User, "value", "", Gauge, Cheap, "user", Whole,
        source: "the job",
        about: "scalar logged by the job under its own name",
    }
    BatchTimeStep {
        BatchTime, "step", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "the first step of a tag or an epoch",
        about: "from the end of the step before to the end of a step, less the time of tags in between",
    }
    BatchTimeStepP50 {
        BatchTime, "step_p50", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "the first step of a tag or an epoch",
        about: "median of step",
    }
    BatchTimeStepP95 {
        BatchTime, "step_p95", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "the first step of a tag or an epoch",
        about: "95th percentile of step",
    }
    BatchTimeIntraStep {
        BatchTime, "intra_step", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "steps marked at one end only",
        about: "from the start to the end of a step, by the job's clock",
    }
    BatchTimeIntraStepP50 {
        BatchTime, "intra_step_p50", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "steps marked at one end only",
        about: "median of intra_step",
    }
    BatchTimeIntraStepP95 {
        BatchTime, "intra_step_p95", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "steps marked at one end only",
        about: "95th percentile of intra_step",
    }
    BatchTimeInterStep {
        BatchTime, "inter_step", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "the first step of a tag or an epoch",
        about: "from the end of a step to the start of the next, less the time of tags in between; for steps marked at one end, the whole step",
    }
    BatchTimeInterStepP50 {
        BatchTime, "inter_step_p50", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "the first step of a tag or an epoch",
        about: "median of inter_step",
    }
    BatchTimeInterStepP95 {
        BatchTime, "inter_step_p95", "ms", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "the first step of a tag or an epoch",
        about: "95th percentile of inter_step",
    }
    BatchTimeThroughput {
        BatchTime, "throughput", "samples/s", Gauge, Cheap, "steps", Whole,
        source: "the job",
        absent: "steps that do not say how many samples they take",
        about: "samples of all steps by the seconds of all steps; min and max of single steps",
    }
}
