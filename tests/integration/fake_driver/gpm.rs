//! GPM on the simulated driver, asked by pynvml, whose structures are the vendor's own.

use super::*;

#[test]
fn pynvml_reads_gpm_of_a_gpu_and_of_a_slice() {
    let directory = tempfile::tempdir().unwrap();
    let clock = directory.path().join("clock");
    std::fs::write(&clock, "1").unwrap();
    let scenario = format!(
        r#"
clock_file = {clock:?}
[[gpu]]
gpm = {{ sm_utilization = {{ ramp = {{ from = 0, to = 100, end = 10 }} }}, tensor_active = 37.5, pcie_tx = 1500, fp64_active = "UNKNOWN" }}
[[gpu]]
mig = [{{ gpu_instance = 3, gpm = {{ sm_occupancy = 12 }} }}, {{ gpu_instance = 5 }}]
[[gpu]]
"#
    );
    let file = directory.path().join("given.toml");
    std::fs::write(&file, scenario).unwrap();
    let installed = fake_nvml::install_file(directory.path(), &file).unwrap();
    let code = format!(
        "
import json, pynvml as n
n.nvmlInit()
whole, cut, old = (n.nvmlDeviceGetHandleByIndex(i) for i in range(3))
clock = lambda second: open({clock:?}, 'w').write(str(second))

def code(call, *arguments):
    try:
        call(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0

def metrics(first, second, ids):
    request = n.c_nvmlGpmMetricsGet_t(version=n.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(ids))
    request.sample1, request.sample2 = first, second
    for place, id in enumerate(ids):
        request.metrics[place].metricId = id
    n.nvmlGpmMetricsGet(request)
    return [[m.nvmlReturn, m.value if m.nvmlReturn == 0 else None] for m in request.metrics[:len(ids)]]

samples = [n.nvmlGpmSampleAlloc() for _ in range(4)]
said = {{'support': [n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice for h in (whole, cut, old)]}}
n.nvmlGpmSampleGet(whole, samples[0])
n.nvmlGpmMigSampleGet(cut, 3, samples[2])
clock(1.05)
n.nvmlGpmSampleGet(whole, samples[1])
said['close'] = code(metrics, samples[0], samples[1], [2])
clock(3)
n.nvmlGpmSampleGet(whole, samples[1])
n.nvmlGpmMigSampleGet(cut, 3, samples[3])
said['whole'] = metrics(samples[0], samples[1], [n.NVML_GPM_METRIC_SM_UTIL, n.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    n.NVML_GPM_METRIC_PCIE_TX_PER_SEC, n.NVML_GPM_METRIC_FP64_UTIL, n.NVML_GPM_METRIC_FP32_UTIL])
said['slice'] = metrics(samples[2], samples[3], [n.NVML_GPM_METRIC_SM_OCCUPANCY])
said['mixed'] = code(metrics, samples[0], samples[3], [2])
said['refused'] = [code(n.nvmlGpmSampleGet, old, samples[0]), code(n.nvmlGpmMigSampleGet, cut, 5, samples[0]),
    code(n.nvmlGpmMigSampleGet, cut, 4, samples[0])]
for sample in samples:
    n.nvmlGpmSampleFree(sample)
said['freed'] = [code(n.nvmlGpmSampleFree, samples[0]), code(n.nvmlGpmSampleGet, whole, samples[0])]
print(json.dumps(said))"
    );
    assert_eq!(
        python(&installed, &code),
        serde_json::json!({
            "support": [1, 1, 0],
            "close": 2,
            // The mean of a ramp from 10 to 30.
            "whole": [[0, 20.0], [0, 37.5], [0, 1500.0], [999, null], [3, null]],
            "slice": [[0, 12.0]],
            "mixed": 2,
            "refused": [3, 3, 2],
            "freed": [2, 2],
        })
    );
}
