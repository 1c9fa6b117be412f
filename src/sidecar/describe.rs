//! What a run is called and where it runs: the parts of [`RunInfo`] that are known before it starts.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use crate::cli::logging::Logging;
use crate::model::rank;
use crate::model::run::RunInfo;
use crate::model::time::{ClockPair, Wall};
use crate::writers::target::TemplateValues;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// One name for all ranks of a job: `--run`, else Slurm's job and step, else torchrun's run id, else `own`, which
/// is this gpurun's alone.
fn run_name(
    given: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
    own: impl FnOnce() -> String,
) -> String {
    if let Some(given) = given {
        return given.to_owned();
    }
    // A step with one task, such as an interactive shell, has no other rank, but may run gpurun many times.
    let alone = variable("SLURM_STEP_NUM_TASKS").as_deref() == Some("1");
    if let (Some(job), Some(step), false) = (variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID"), alone) {
        // A requeued job counts its steps from 0 again.
        return match variable("SLURM_RESTART_COUNT").filter(|count| count != "0") {
            Some(count) => format!("{job}.{step}-restart{count}"),
            None => format!("{job}.{step}"),
        };
    }
    // torchrun says "none" where no id was given.
    variable("TORCHELASTIC_RUN_ID").filter(|id| id != "none").unwrap_or_else(own)
}

/// Slurm's job id, else the base name of the command, else `record`.
fn job(argv: &[OsString]) -> String {
    if let Some(id) = variable("SLURM_JOB_ID") {
        return id;
    }
    let name =
        argv.first().and_then(|command| Path::new(command).file_name()).unwrap_or(OsStr::new("record"));
    name.to_string_lossy().into_owned()
}

/// Describes a run of the gpurun `pid` that starts at `start`; devices, driver and series come later.
pub(super) fn run(logging: &Logging, argv: &[OsString], pid: u32, start: ClockPair) -> RunInfo {
    let host = sysinfo::System::host_name().unwrap_or_else(|_| "localhost".to_owned());
    let own = || format!("{}-{host}-{}", stamp(start.wall), pid);
    let run = run_name(logging.run.as_deref(), variable, own);
    RunInfo {
        run: run.into(),
        host: host.into(),
        rank: rank::own_rank(variable),
        node_rank: rank::node_rank(variable),
        job: job(argv).into(),
        root_tag: Arc::from(logging.tag.as_str()),
        argv: argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect(),
        version: env!("CARGO_PKG_VERSION"),
        driver: None,
        devices: Vec::new(),
        interval: logging.interval,
        window: logging.window,
        start: start.wall,
        start_mono: start.mono,
        series: Vec::new(),
    }
}

/// The values of `{…}` in targets.
pub(super) fn template(run: &RunInfo, pid: u32) -> TemplateValues {
    TemplateValues {
        host: run.host.to_string(),
        // Nodes that write to one shared directory must not take the same name.
        rank: run.rank.or(run.node_rank),
        pid,
        run: run.run.to_string(),
        time: run.start,
        job: run.job.to_string(),
    }
}

/// `20261130T044500Z`.
fn stamp(wall: Wall) -> String {
    jiff::Timestamp::from_microsecond(wall.0)
        .map_or_else(|_| wall.0.to_string(), |t| t.strftime("%Y%m%dT%H%M%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_is_utc_and_sorts() {
        assert_eq!(stamp(Wall(0)), "19700101T000000Z");
        assert_eq!(stamp(Wall(1_790_000_000_123_456)), "20260921T141320Z");
    }

    #[test]
    fn ranks_of_one_job_share_a_name() {
        let name = |given: Option<&str>, variables: &'static [(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            };
            run_name(given, variable, || "own".to_owned())
        };
        let step = &[("SLURM_JOB_ID", "4711"), ("SLURM_STEP_ID", "0"), ("TORCHELASTIC_RUN_ID", "x")];
        assert_eq!(name(None, step), "4711.0");
        assert_eq!(name(Some("mine"), step), "mine");
        let again = &[("SLURM_JOB_ID", "4711"), ("SLURM_STEP_ID", "0"), ("SLURM_RESTART_COUNT", "2")];
        assert_eq!(name(None, again), "4711.0-restart2");
        let shell = &[("SLURM_JOB_ID", "4711"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(name(None, shell), "own");
        assert_eq!(name(None, &[("SLURM_JOB_ID", "4711")]), "own", "a batch script");
        assert_eq!(name(None, &[("TORCHELASTIC_RUN_ID", "e0f3")]), "e0f3");
        assert_eq!(name(None, &[("TORCHELASTIC_RUN_ID", "none")]), "own");
    }

    #[test]
    fn the_job_is_named_after_its_command() {
        if std::env::var_os("SLURM_JOB_ID").is_none() {
            assert_eq!(job(&["/usr/bin/python3".into(), "train.py".into()]), "python3");
            assert_eq!(job(&[]), "record");
        }
    }
}
