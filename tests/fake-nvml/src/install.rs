//! Lays the driver library out for a test: finds what Cargo built, hides symbols, writes the scenario.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::runtime::{LOG_VARIABLE, SCENARIO_VARIABLE};
use crate::scenario::Scenario;

/// Why the library could not be laid out: a sentence for the test's output.
pub type InstallError = String;

/// A directory that holds a `libnvidia-ml.so.1` and its scenario.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The directory: fit for `LD_LIBRARY_PATH`.
    pub directory: PathBuf,
    /// The library: fit for `--nvml-library`.
    pub library: PathBuf,
    /// The scenario file. A test may write a new one before a driver reload.
    pub scenario: PathBuf,
    /// Where calls are logged when the command was given [`Installed::log_calls`].
    pub log: PathBuf,
}

impl Installed {
    /// Lets a command see these GPUs: `LD_LIBRARY_PATH`, `GPURUN_NVML_LIBRARY` and `GPURUN_FAKE_NVML`.
    pub fn apply<'command>(&self, command: &'command mut Command) -> &'command mut Command {
        let mut path = OsString::from(&self.directory);
        if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        command
            .env("LD_LIBRARY_PATH", path)
            .env("GPURUN_NVML_LIBRARY", &self.library)
            .env(SCENARIO_VARIABLE, &self.scenario)
    }

    /// Lets a command log its calls to [`Installed::log`].
    pub fn log_calls<'command>(&self, command: &'command mut Command) -> &'command mut Command {
        command.env(LOG_VARIABLE, &self.log)
    }

    /// The calls logged so far, in the order in which they ended.
    #[must_use]
    pub fn calls(&self) -> Vec<LoggedCall> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter_map(LoggedCall::read).collect()
    }
}

/// One line of the call log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedCall {
    /// `CLOCK_MONOTONIC` at its end.
    pub monotonic_ns: i64,
    /// Who called.
    pub pid: u32,
    /// Which thread.
    pub tid: u32,
    /// The C name.
    pub function: String,
    /// NVML index, where the call was about one GPU.
    pub gpu: Option<usize>,
    /// The return code; absent for the line that is written when a call begins to hang.
    pub code: Option<u32>,
}

impl LoggedCall {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(LoggedCall {
            monotonic_ns: words.next()?.parse().ok()?,
            pid: words.next()?.parse().ok()?,
            tid: words.next()?.parse().ok()?,
            function: words.next()?.to_owned(),
            gpu: words.next()?.parse().ok(),
            code: words.next()?.parse().ok(),
        })
    }
}

/// The library that Cargo built beside the running test.
///
/// # Errors
/// It is in neither place; the sentence names the command that builds it.
pub fn library() -> Result<PathBuf, InstallError> {
    let exe = std::env::current_exe().map_err(|error| format!("the test's own path: {error}"))?;
    let mut places = Vec::new();
    for directory in exe.ancestors().skip(1).take(2) {
        places.push(directory.join("deps/libfake_nvml.so"));
        places.push(directory.join("libfake_nvml.so"));
    }
    // `target/debug` may keep one of an earlier build: the newest is the one that was built with this test.
    let newest =
        places.iter().filter_map(|path| Some((fs::metadata(path).ok()?.modified().ok()?, path))).max();
    match newest {
        Some((_, path)) => Ok(path.clone()),
        None => Err(format!(
            "no libfake_nvml.so beside {}; build it with `cargo build -p fake-nvml`",
            exe.display()
        )),
    }
}

/// A ready scenario by its name, such as `idle-8xa100`.
///
/// # Errors
/// There is none of that name; the sentence lists those that there are.
pub fn scenario_file(name: &str) -> Result<PathBuf, InstallError> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let path = directory.join(format!("{name}.toml"));
    if path.is_file() {
        return Ok(path);
    }
    let mut known: Vec<String> = fs::read_dir(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    known.sort();
    Err(format!("no scenario {name:?}; there are: {}", known.join(", ")))
}

/// Lays out a library that plays `scenario` in `directory`, which must exist.
///
/// # Errors
/// A sentence: the library was not built, or a file cannot be written.
pub fn install(directory: &Path, scenario: &Scenario) -> Result<Installed, InstallError> {
    let path = directory.join("scenario.toml");
    fs::write(&path, scenario.to_toml()).map_err(|error| format!("{}: {error}", path.display()))?;
    lay_out(directory, scenario, path)
}

/// Lays out a library that plays a scenario file, which is copied: a test may change its copy.
///
/// # Errors
/// As [`install`]; also when the scenario has a mistake.
pub fn install_file(directory: &Path, scenario: &Path) -> Result<Installed, InstallError> {
    let read = Scenario::load(scenario)?;
    let path = directory.join("scenario.toml");
    // Aside and renamed: of two that install at once, neither reads half of the other's.
    let fresh = directory.join(format!(".scenario.{}", std::process::id()));
    fs::copy(scenario, &fresh)
        .and_then(|_| fs::rename(&fresh, &path))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    lay_out(directory, &read, path)
}

fn lay_out(directory: &Path, scenario: &Scenario, path: PathBuf) -> Result<Installed, InstallError> {
    let say = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let built = library()?;
    let mut bytes = fs::read(&built).map_err(|error| say(&built, error))?;
    if !scenario.missing_symbols.is_empty() {
        hide_symbols(&mut bytes, &scenario.missing_symbols)?;
    }
    let library = directory.join("libnvidia-ml.so.1");
    // A copy, not a link: a rebuild must not change a library under a running test. A new file, not an overwritten one:
    // another process may have the old one mapped.
    let fresh = directory.join(format!(".libnvidia-ml.{}", std::process::id()));
    fs::write(&fresh, &bytes).map_err(|error| say(&fresh, error))?;
    fs::rename(&fresh, &library).map_err(|error| say(&library, error))?;
    if scenario.cuda.is_some() {
        let cuda = directory.join("libcuda.so.1");
        let _ = fs::remove_file(&cuda);
        std::os::unix::fs::symlink("libnvidia-ml.so.1", &cuda).map_err(|error| say(&cuda, error))?;
    }
    Ok(Installed {
        directory: directory.to_owned(),
        library,
        scenario: path,
        log: directory.join("calls.log"),
    })
}

/// Makes symbols of a shared library unfindable: renames them in the dynamic string table. `dlsym` compares names
/// after it has found a hash, so the stale hash does no harm.
fn hide_symbols(library: &mut [u8], hidden: &[String]) -> Result<(), InstallError> {
    let damaged =
        || "the library is not a 64-bit little-endian ELF file with a dynamic symbol table".to_owned();
    let number = |library: &[u8], at: usize, length: usize| -> Option<usize> {
        let bytes = library.get(at..at.checked_add(length)?)?;
        let value = bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value).ok()
    };
    if library.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(damaged());
    }
    let sections = || -> Option<(usize, usize, usize, usize)> {
        let (start, size, count) =
            (number(library, 40, 8)?, number(library, 58, 2)?, number(library, 60, 2)?);
        let header = |index: usize| start + index * size;
        // SHT_DYNSYM
        let symbols = (0..count).map(header).find(|at| number(library, at + 4, 4) == Some(11))?;
        let strings = header(number(library, symbols + 40, 4)?);
        Some((
            number(library, symbols + 24, 8)?,
            number(library, symbols + 32, 8)?,
            number(library, strings + 24, 8)?,
            number(library, strings + 32, 8)?,
        ))
    };
    let (symbols, symbols_size, strings, strings_size) = sections().ok_or_else(damaged)?;
    let mut found = vec![false; hidden.len()];
    for entry in (symbols..symbols + symbols_size).step_by(24) {
        let name_at = strings + number(library, entry, 4).ok_or_else(damaged)?;
        let rest = library.get(name_at..strings + strings_size).ok_or_else(damaged)?;
        let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        let matching = hidden.iter().position(|pattern| match pattern.strip_suffix('*') {
            Some(family) => name.starts_with(family.as_bytes()),
            None => name == pattern.as_bytes(),
        });
        // The entry is pointed at its own name without the first letters: "vmlDevice..." is nobody's symbol, and a name
        // that shares its tail with another one stays as it is.
        if let Some(place) = matching
            && name.len() > 2
        {
            found[place] = true;
            let moved = u32::try_from(name_at - strings + 1).map_err(|_| damaged())?;
            library[entry..entry + 4].copy_from_slice(&moved.to_le_bytes());
        }
    }
    match found.iter().position(|found| !found) {
        Some(place) => Err(format!("missing_symbols: the library has no symbol {:?} to hide", hidden[place])),
        None => Ok(()),
    }
}
