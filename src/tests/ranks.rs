//! Tests: the Python package has the rules of ranks of this crate.

use std::process::Command;

use serde_json::Value;

use crate::model::rank::{self, RANK_VARIABLES};

/// gpurun, the module and `gpurun tag` must see the same rank, or rows of one process carry two.
#[test]
fn ranks_are_the_same_in_rust_and_python() {
    let environments: &[&[(&str, &str)]] = &[
        &[],
        &[("RANK", "3"), ("LOCAL_RANK", "1")],
        &[("LOCAL_RANK", "1")],
        &[("RANK", "x"), ("PMI_RANK", "2")],
        &[("RANK", "-1")],
        &[("RANK", " 5 ")],
        &[("RANK", "4294967296"), ("PMIX_RANK", "6")],
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")],
        &[("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4")],
        &[("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "1"), ("LOCAL_RANK", "0")],
        &[
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("OMPI_COMM_WORLD_RANK", "7"),
            ("PMIX_RANK", "1"),
        ],
    ];
    let ask = "import json, os, sys, gpurun
client = sys.modules['gpurun._client']
answers = []
for environment in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(environment)
    answers.append(client.rank_of_environment())
json.dump({'variables': client.RANK_VARIABLES, 'ranks': answers}, sys.stdout)";
    let dir = tempfile::tempdir().unwrap();
    let list: Vec<serde_json::Map<String, Value>> = environments
        .iter()
        .map(|variables| {
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
        })
        .collect();
    let input = dir.path().join("environments.json");
    std::fs::write(&input, serde_json::to_vec(&list).unwrap()).unwrap();
    let mut command =
        Command::new(std::env::var_os("GPURUN_TEST_PYTHON").unwrap_or_else(|| "python3".into()));
    command.args(["-c", ask]).env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
    let output = command.stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["variables"], serde_json::json!(RANK_VARIABLES));
    for (variables, theirs) in environments.iter().zip(answer["ranks"].as_array().unwrap()) {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        assert_eq!(*theirs, serde_json::json!(rank::rank(variable)), "{variables:?}");
    }
}
