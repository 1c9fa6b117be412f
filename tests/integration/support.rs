//! What every integration test needs: the program under test and the Python that reads its files.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The gpurun that Cargo built for this test run.
#[allow(dead_code, reason = "the first subject here does not run gpurun")]
pub(crate) fn gpurun() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_gpurun"))
}

/// A Python that has the packages of `tests/requirements.txt`: `GPURUN_TEST_PYTHON`, else the one of `target/test-venv`.
///
/// A test that cannot have it fails: a skipped check looks like a passed one.
pub(crate) fn python() -> PathBuf {
    if let Some(path) = std::env::var_os("GPURUN_TEST_PYTHON") {
        return path.into();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-venv/bin/python");
    assert!(path.exists(), "{} is missing: run `tests/run`, which makes it", path.display());
    path
}

/// Process id of the sidecar of the gpurun `minder`: its first child that is gpurun too.
pub(crate) fn sidecar_of(minder: u32) -> i32 {
    let children = format!("/proc/{minder}/task/{minder}/children");
    let children = std::fs::read_to_string(children).expect("gpurun runs");
    let is_sidecar = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("gpurun"))
    };
    let found = children.split_ascii_whitespace().find(is_sidecar);
    found.and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("no sidecar among {children:?}"))
}

/// Kills the sidecar of the gpurun `minder` as the kernel would for lack of memory.
pub(crate) fn kill_sidecar(minder: u32) {
    let pid = sidecar_of(minder);
    // SAFETY: the pid of a child of a process that the test started.
    let sent = unsafe { libc::kill(pid, libc::SIGKILL) };
    assert_eq!(sent, 0, "kill {pid}: {}", std::io::Error::last_os_error());
}

/// A shared library made of C source, for a preload or a driver; `links` are libraries that it needs.
pub(crate) fn shared_library(dir: &Path, name: &str, source: &str, links: &[&Path]) -> PathBuf {
    let (file, library) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.so")));
    std::fs::write(&file, format!("#define _GNU_SOURCE\n{source}")).expect("the directory takes files");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-pthread", "-Wl,--no-as-needed", "-o"]).args([&library, &file]);
    let output = compiler.args(links).arg("-ldl").output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// The directories of the sockets of the gpurun `minder` that are there.
pub(crate) fn sockets_of(minder: i32) -> Vec<PathBuf> {
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    let Ok(entries) = std::fs::read_dir(format!("/tmp/gpurun-{user}")) else { return Vec::new() };
    let minder = minder.to_string();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_stem().is_some_and(|name| *name == *minder)).collect()
}

/// Bounds how long a broken program can hang a test; nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `look` finds something.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until_holds(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || holds().then_some(()));
}

/// Output of a program as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
