//! `nvml-wrapper` on the simulated driver, in a process that has loaded it.

use super::*;

/// What nvml-wrapper sees, in a process of its own: the library reads its scenario from the environment.
pub(super) fn nvml_in_child(installed: &Installed, child: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let out = installed.directory.join("seen");
    command
        .args(["--exact", &format!("fake_driver::wrapper::{child}"), "--nocapture", "--ignored"])
        .env(CHILD, &out);
    succeeded(installed.apply(&mut command));
    std::fs::read_to_string(out).unwrap()
}

/// Where a child writes what it saw. Unset: it is not a child.
const CHILD: &str = "FAKE_DRIVER_OUT";

fn in_child(look: impl FnOnce(&Nvml, &mut String)) {
    let Some(out) = std::env::var_os(CHILD) else { return };
    let nvml = Nvml::builder().lib_path(&std::env::var_os("GPURUN_NVML_LIBRARY").unwrap()).init().unwrap();
    let mut seen = String::new();
    look(&nvml, &mut seen);
    std::fs::write(out, seen).unwrap();
}

#[test]
#[ignore = "run by nvml_in_child, in an environment of its own"]
fn child_lists_slices() {
    in_child(|nvml, seen| {
        writeln!(seen, "{} gpus", nvml.device_count().unwrap()).unwrap();
        let device = nvml.device_by_index(0).unwrap();
        writeln!(seen, "{} mig {}", device.uuid().unwrap(), device.mig_mode().unwrap().current == 1).unwrap();
        for index in 0..4 {
            match device.mig_device_by_index(index) {
                Ok(slice) => {
                    let total = slice.memory_info().unwrap().total >> 20;
                    let mut ids = (0, 0);
                    // SAFETY: a live handle and two valid places.
                    unsafe {
                        (nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref().unwrap())(
                            slice.handle(),
                            &raw mut ids.0,
                        );
                        (nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref().unwrap())(
                            slice.handle(),
                            &raw mut ids.1,
                        );
                    }
                    writeln!(seen, "{index} {} {total} {}/{}", slice.uuid().unwrap(), ids.0, ids.1).unwrap();
                }
                Err(NvmlError::NotFound) => writeln!(seen, "{index} NotFound").unwrap(),
                Err(other) => panic!("{other}"),
            }
        }
        for process in device.running_compute_processes().unwrap() {
            let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { panic!("no memory") };
            writeln!(seen, "{} {} {}", process.pid, bytes >> 20, process.gpu_instance_id.unwrap()).unwrap();
        }
    });
}

#[test]
fn nvml_wrapper_reads_every_value_of_a_new_driver() {
    let file = Scenario::load(&fake_nvml::scenario_file("h100-8").unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let clock = directory.path().join("clock");
    std::fs::write(&clock, "30").unwrap();
    let mut scenario = Scenario { clock_file: Some(clock), ..file };
    scenario.gpu[7].process = vec![
        Process { sm: Some(61.into()), mem: Some(20.into()), ..Process::compute(4321, 512.0) },
        Process { kind: Some("G".into()), memory: None, ..Process::compute(99, 0.0) },
    ];
    let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
    // At second 30: memory has grown to 71680 MiB; temperatures are half way; 30 s are seven and a half periods of power.
    let joules = 7.0 * (3.6 * 690.0 + 0.4 * 250.0) + 2.0 * 690.0;
    let expected = format!(
        "\
uuid {}
name NVIDIA H100 80GB HBM3
pci 00000000:BD:00.0 bus 189
memory {} {} {} {}
utilization 100 58
temperature 50
power 690000 limit 700000 enforced 700000
energy {}
clocks 1755 1755 2619 1545 max 1980 1980 2619 1545
throttle SW_POWER_CAP
violation 6600000000 300000000
ecc 0 0 2 0
pcie 5 16 5 16 {} {}
encoder 0 decoder 0
capability 9.0 cores 16896 arch Hopper brand Nvidia
mode Default persistence true P Zero
links 18 true v4
mig false fan NotSupported
compute 4321 512 graphics 99 unavailable
use 4321 61 20 0 0 then NotFound
fields 82:62 83:{energy} 186:690000 197:{} 74:6600000000 251:300000000
",
        scenario.uuid(7),
        81559_u64 << 20,
        473_u64 << 20,
        71680_u64 << 20,
        (81559_u64 - 473 - 71680) << 20,
        joules * 1000.0,
        (1_500_000_000.0_f64 / 1024.0).round(),
        (6_000_000_000.0_f64 / 1024.0).round(),
        (45_000_000_000_u64) % (1 << 32),
        energy = joules * 1000.0,
    );
    assert_eq!(nvml_in_child(&installed, "child_reads_every_value"), expected);
}

#[test]
#[ignore = "run by nvml_in_child, in an environment of its own"]
fn child_reads_every_value() {
    use nvml_wrapper::enum_wrappers::device::{
        Clock, EccCounter, MemoryError, PcieUtilCounter, PerformancePolicy, TemperatureSensor,
    };
    use nvml_wrapper::enums::device::SampleValue;
    use nvml_wrapper::structs::device::FieldId;
    in_child(|nvml, out| {
        let gpu = nvml.device_by_index(7).unwrap();
        let memory = gpu.memory_info().unwrap();
        let pci = gpu.pci_info().unwrap();
        let load = gpu.utilization_rates().unwrap();
        writeln!(out, "uuid {}\nname {}", gpu.uuid().unwrap(), gpu.name().unwrap()).unwrap();
        writeln!(out, "pci {} bus {}", pci.bus_id, pci.bus).unwrap();
        writeln!(out, "memory {} {} {} {}", memory.total, memory.reserved, memory.used, memory.free).unwrap();
        writeln!(out, "utilization {} {}", load.gpu, load.memory).unwrap();
        writeln!(out, "temperature {}", gpu.temperature(TemperatureSensor::Gpu).unwrap()).unwrap();
        let (power, limit) = (gpu.power_usage().unwrap(), gpu.power_management_limit().unwrap());
        writeln!(out, "power {power} limit {limit} enforced {}", gpu.enforced_power_limit().unwrap())
            .unwrap();
        writeln!(out, "energy {}", gpu.total_energy_consumption().unwrap()).unwrap();
        let kinds = [Clock::Graphics, Clock::SM, Clock::Memory, Clock::Video];
        let [a, b, c, d] = kinds.map(|kind| gpu.clock_info(kind).unwrap());
        let [e, f, g, h] = kinds.map(|kind| gpu.max_clock_info(kind).unwrap());
        writeln!(out, "clocks {a} {b} {c} {d} max {e} {f} {g} {h}").unwrap();
        let reasons = gpu.current_throttle_reasons().unwrap();
        writeln!(
            out,
            "throttle {}",
            reasons.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join("+")
        )
        .unwrap();
        let violation = |policy| gpu.violation_status(policy).unwrap().violation_time;
        let (by_power, by_heat) =
            (violation(PerformancePolicy::Power), violation(PerformancePolicy::Thermal));
        writeln!(out, "violation {by_power} {by_heat}").unwrap();
        let ecc = |error, counter| gpu.total_ecc_errors(error, counter).unwrap();
        writeln!(
            out,
            "ecc {} {} {} {}",
            ecc(MemoryError::Corrected, EccCounter::Volatile),
            ecc(MemoryError::Uncorrected, EccCounter::Volatile),
            ecc(MemoryError::Corrected, EccCounter::Aggregate),
            ecc(MemoryError::Uncorrected, EccCounter::Aggregate)
        )
        .unwrap();
        writeln!(
            out,
            "pcie {} {} {} {} {} {}",
            gpu.current_pcie_link_gen().unwrap(),
            gpu.current_pcie_link_width().unwrap(),
            gpu.max_pcie_link_gen().unwrap(),
            gpu.max_pcie_link_width().unwrap(),
            gpu.pcie_throughput(PcieUtilCounter::Send).unwrap(),
            gpu.pcie_throughput(PcieUtilCounter::Receive).unwrap()
        )
        .unwrap();
        let coders = (gpu.encoder_utilization().unwrap(), gpu.decoder_utilization().unwrap());
        writeln!(out, "encoder {} decoder {}", coders.0.utilization, coders.1.utilization).unwrap();
        let capability = gpu.cuda_compute_capability().unwrap();
        writeln!(
            out,
            "capability {}.{} cores {} arch {:?} brand {:?}",
            capability.major,
            capability.minor,
            gpu.num_cores().unwrap(),
            gpu.architecture().unwrap(),
            gpu.brand().unwrap()
        )
        .unwrap();
        writeln!(
            out,
            "mode {:?} persistence {} P {:?}",
            gpu.compute_mode().unwrap(),
            gpu.is_in_persistent_mode().unwrap(),
            gpu.performance_state().unwrap()
        )
        .unwrap();
        let links = (0..32).take_while(|link| gpu.link_wrapper_for(*link).is_active().is_ok()).count();
        let first = gpu.link_wrapper_for(0);
        writeln!(out, "links {links} {} v{}", first.is_active().unwrap(), first.version().unwrap()).unwrap();
        let fan = gpu.fan_speed(0).unwrap_err();
        let fan = if matches!(fan, NvmlError::NotSupported) { "NotSupported" } else { "?" };
        writeln!(out, "mig {} fan {fan}", gpu.mig_mode().unwrap().current == 1).unwrap();
        let (compute, graphics) =
            (gpu.running_compute_processes().unwrap(), gpu.running_graphics_processes().unwrap());
        let UsedGpuMemory::Used(bytes) = compute[0].used_gpu_memory else { panic!("no memory") };
        assert!(matches!(graphics[0].used_gpu_memory, UsedGpuMemory::Unavailable));
        writeln!(out, "compute {} {} graphics {} unavailable", compute[0].pid, bytes >> 20, graphics[0].pid)
            .unwrap();
        let samples = gpu.process_utilization_stats(None).unwrap();
        let [one] = samples.as_slice() else { panic!("{samples:?}") };
        let newer = gpu.process_utilization_stats(one.timestamp).unwrap_err();
        assert!(matches!(newer, NvmlError::NotFound));
        writeln!(
            out,
            "use {} {} {} {} {} then NotFound",
            one.pid, one.sm_util, one.mem_util, one.enc_util, one.dec_util
        )
        .unwrap();
        // nvml-wrapper takes the old number of a field and asks a new driver for the new one.
        let ids = [82, 83, 186, 197, 74, 251];
        let values = gpu.field_values_for(&ids.map(FieldId)).unwrap();
        let values = ids.iter().zip(values).map(|(id, value)| match value.unwrap().value.unwrap() {
            SampleValue::U32(value) => format!("{id}:{value}"),
            SampleValue::U64(value) => format!("{id}:{value}"),
            other => panic!("{id}: {other:?}"),
        });
        writeln!(out, "fields {}", values.collect::<Vec<_>>().join(" ")).unwrap();
    });
}
