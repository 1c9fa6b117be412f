//! What every integration test needs: the program under test and the Python that reads its files.

use std::path::{Path, PathBuf};

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
