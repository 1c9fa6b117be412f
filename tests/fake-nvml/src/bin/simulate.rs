//! Runs a command on simulated GPUs: `simulate SCENARIO -- COMMAND [ARG...]`.
//!
//! SCENARIO is the name of a ready one (`idle-8xa100`) or a path. The command sees the library through
//! `LD_LIBRARY_PATH` and `GPURUN_NVML_LIBRARY`.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let sentence = match run() {
        Err(sentence) => sentence,
        Ok(never) => match never {},
    };
    let _ = writeln!(std::io::stderr(), "simulate: {sentence}");
    ExitCode::from(125)
}

fn run() -> Result<std::convert::Infallible, String> {
    let mut words = std::env::args_os().skip(1);
    let usage = || "usage: simulate SCENARIO -- COMMAND [ARG...]".to_owned();
    let scenario = words.next().ok_or_else(usage)?;
    if words.next().is_none_or(|word| word != "--") {
        return Err(usage());
    }
    let program = words.next().ok_or_else(usage)?;
    let scenario = if Path::new(&scenario).is_file() {
        PathBuf::from(scenario)
    } else {
        fake_nvml::scenario_file(&scenario.to_string_lossy())?
    };
    // One directory per scenario and user, reused: nothing is left to clean up after `exec`.
    let name = scenario.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    // SAFETY: only returns a number.
    let user = unsafe { libc::getuid() };
    let directory = std::env::temp_dir().join(format!("simulated-gpus-{user}-{name}"));
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let installed = fake_nvml::install_file(&directory, &scenario)?;
    let mut command = Command::new(&program);
    let error = installed.apply(command.args(words)).exec();
    Err(format!("{}: {error}", program.to_string_lossy()))
}
