//! What a run is called and where it runs: the parts of [`RunInfo`] that are known before it starts.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use crate::cli::logging::Logging;
use crate::model::run::RunInfo;
use crate::model::time::{ClockPair, Wall};
use crate::writers::target::TemplateValues;

/// Variables that name the rank of this process, the surest first.
const RANKS: &[&str] = &["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];

/// The rank of gpurun's own environment: torchrun's and MPI's variables; Slurm's only where a step has several tasks.
fn rank() -> Option<i32> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    RANKS.iter().find_map(|name| number(name)).or_else(|| {
        let tasks = number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS")).unwrap_or(1);
        number("SLURM_PROCID").filter(|_| tasks > 1)
    })
}

/// Slurm's job id, else the base name of the command, else `record`.
fn job(argv: &[OsString]) -> String {
    if let Some(id) = std::env::var("SLURM_JOB_ID").ok().filter(|id| !id.is_empty()) {
        return id;
    }
    let name =
        argv.first().and_then(|command| Path::new(command).file_name()).unwrap_or(OsStr::new("record"));
    name.to_string_lossy().into_owned()
}

/// Describes a run of the gpurun `pid` that starts at `start`; devices, driver and series come later.
pub(super) fn run(logging: &Logging, argv: &[OsString], pid: u32, start: ClockPair) -> RunInfo {
    let host = sysinfo::System::host_name().unwrap_or_else(|_| "localhost".to_owned());
    let run = logging.run.clone().unwrap_or_else(|| format!("{}-{host}-{pid}", stamp(start.wall)));
    RunInfo {
        run: run.into(),
        host: host.into(),
        rank: rank(),
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
        rank: run.rank,
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
    fn the_job_is_named_after_its_command() {
        if std::env::var_os("SLURM_JOB_ID").is_none() {
            assert_eq!(job(&["/usr/bin/python3".into(), "train.py".into()]), "python3");
            assert_eq!(job(&[]), "record");
        }
    }
}
