//! Facts about GPUs, through the binary: in `gpurun devices`, in the summary and in the metadata of files.

use serde_json::{Value, json};

use crate::logged::{Place, text};

const MACHINE: &str = r#"
[[gpu]]
memory_total = 81920
persistence_mode = 1
ecc_mode = 0
row_remap_pending = 1
row_remap_failed = 0
retired_pages = 3
pcie_gen = 1
max_pcie_gen = 5
pcie_width = 8
max_pcie_width = 16
fields = { "38" = 2, "45" = 3, "52" = 10 }

[[gpu]]
memory_total = 40960
pcie_width = 4000000
pcie_gen = "UNKNOWN"
"#;

/// What is known of the first GPU, by name.
fn first() -> Value {
    json!({
        "persistence_mode": true,
        "ecc_mode": false,
        "row_remap_pending": true,
        "row_remap_failed": false,
        "retired_pages": 3,
        "pcie_generation": 1,
        "pcie_generation_max": 5,
        "pcie_width": 8,
        "pcie_width_max": 16,
        // Of the four kinds the driver counts three.
        "nvlink_errors": 15,
    })
}

#[test]
fn devices_lists_them_with_the_reason_of_every_null() {
    let place = Place::new(MACHINE);
    let said: Value = serde_json::from_slice(&place.output(&["devices", "--json"]).stdout).unwrap();
    let devices = said["devices"].as_array().unwrap();
    assert_eq!(devices[0]["facts"], first());
    assert!(devices[0]["unreadable"].get("retired_pages").is_none());
    let (facts, unreadable) = (&devices[1]["facts"], &devices[1]["unreadable"]);
    for (name, reason) in [
        ("retired_pages", "not supported"),
        ("nvlink_errors", "not supported"),
        ("row_remap_failed", "not supported"),
        ("pcie_width", "an impossible value"),
        ("pcie_generation", "an internal driver error occurred"),
    ] {
        assert_eq!(facts[name], Value::Null, "{name}");
        let said = unreadable[name].as_str().unwrap();
        assert!(said.contains(reason), "{name}: {said}");
    }
    let verbose = text(&place.output(&["devices", "-v"]).stdout);
    assert!(
        verbose.contains("ecc_mode no, row_remap_pending yes, row_remap_failed no, retired_pages 3"),
        "{verbose}"
    );
    assert!(
        verbose.contains("pcie_generation 1, pcie_generation_max 5, pcie_width 8, pcie_width_max 16"),
        "{verbose}"
    );
    assert!(!text(&place.output(&["devices"]).stdout).contains("pcie"));
}

#[test]
fn the_summary_and_the_files_hold_them() {
    let place = Place::new(MACHINE);
    place.output(&["--summary", "x.json", "--log", "x.parquet", "--", "true"]);
    let summary: Value = serde_json::from_slice(&std::fs::read(place.path("x.json")).unwrap()).unwrap();
    let facts = |gpu: usize| summary["gpus"][gpu]["device_facts"].as_array().unwrap();
    let values: serde_json::Map<String, Value> = facts(0)
        .iter()
        .map(|fact| (fact["name"].as_str().unwrap().to_owned(), fact["value"].clone()))
        .collect();
    assert_eq!(Value::Object(values), first());
    let unknown = facts(1).iter().find(|fact| fact["name"] == "retired_pages").unwrap();
    assert_eq!(unknown, &json!({ "name": "retired_pages", "value": null, "reason": "not supported" }));

    let file = std::fs::File::open(place.path("x.parquet")).unwrap();
    let reader = parquet::file::reader::SerializedFileReader::new(file).unwrap();
    let metadata = parquet::file::reader::FileReader::metadata(&reader).file_metadata();
    let devices = metadata.key_value_metadata().unwrap().iter().find(|pair| pair.key == "gpurun.devices");
    let devices: Value = serde_json::from_str(devices.unwrap().value.as_ref().unwrap()).unwrap();
    assert_eq!(devices[0]["facts"], first());
    assert_eq!(devices[1]["facts"]["pcie_width"], Value::Null);
}

#[test]
fn a_slice_has_none_and_its_gpu_has_them() {
    let place = Place::ready("mig-a100");
    let said: Value = serde_json::from_slice(&place.output(&["devices", "--json"]).stdout).unwrap();
    assert_eq!(said["devices"][0]["facts"], json!({}));
}
