//! A gpurun that runs while its CSV is read: started on a simulated driver, watched window by window, ended by a word.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use fake_nvml::{Installed, Scenario};

use crate::support;
pub(crate) use crate::support::{text, until};

/// A directory with simulated GPUs, a scripted clock, and whatever the runs in it write.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    pub(crate) driver: Installed,
}

impl Place {
    /// A place whose driver plays this TOML scenario; `DIR` in it stands for the directory.
    pub(crate) fn new(scenario: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = scenario.replace("DIR", dir.path().to_str().unwrap());
        let driver = fake_nvml::install(dir.path(), &Scenario::parse(&text).unwrap()).unwrap();
        Self { dir, driver }
    }

    /// A place with a ready scenario.
    pub(crate) fn ready(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = fake_nvml::scenario_file(name).unwrap();
        let driver = fake_nvml::install_file(dir.path(), &file).unwrap();
        Self { dir, driver }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file that others read at any moment: it is never half there.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let fresh = self.path(&format!("{name}.fresh"));
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, self.path(name)).unwrap();
    }

    /// gpurun with these arguments, in this directory and on these GPUs.
    pub(crate) fn gpurun<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        self.program(support::gpurun(), args)
    }

    /// Another program that may run gpurun inside.
    pub(crate) fn program<S: AsRef<std::ffi::OsStr>>(&self, program: &Path, args: &[S]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(self.dir.path())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("GPURUN_SOCKET")
            .env("GPURUN_LEASE_DIR", self.path("leases"));
        self.driver.apply(&mut command);
        command
    }

    /// Runs to the end, which must be soon.
    pub(crate) fn output(&self, args: &[&str]) -> Output {
        let output = self.gpurun(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        output
    }

    pub(crate) fn csv(&self, name: &str) -> Rows {
        Rows::read(&self.path(name))
    }
}

/// A started gpurun, whose standard error goes to a file.
pub(crate) struct Running {
    child: Child,
    stderr: PathBuf,
}

impl Running {
    pub(crate) fn start(place: &Place, args: &[&str]) -> Self {
        Self::spawn(place, place.gpurun(args))
    }

    pub(crate) fn spawn(place: &Place, mut command: Command) -> Self {
        let stderr = place.path("stderr");
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Self { child, stderr }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: signals a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Ends the job by the end of its input, and waits for gpurun.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.tell_job_to_end();
        self.wait()
    }

    /// Ends the job by the end of its input.
    pub(crate) fn tell_job_to_end(&mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            // A job that has already ended needs no word.
            let _ = input.write_all(b"\n");
        }
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("gpurun ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rows of a long CSV, complete windows only where it is still being written.
pub(crate) struct Rows {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Rows {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // A line is written by one call, and seen whole or not at all but for its end.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut reader = csv::Reader::from_reader(whole.as_bytes());
        let header = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let rows = reader.records().map(|r| r.unwrap().iter().map(str::to_owned).collect()).collect();
        Self { header, rows }
    }

    /// Rows of a series: `scope/metric`, with `key=value` words for other columns.
    pub(crate) fn of(&self, series: &str) -> Vec<Row<'_>> {
        let mut words = series.split(' ');
        let (scope, metric) = words.next().unwrap().split_once('/').unwrap();
        let mut conditions = vec![("scope", scope), ("metric", metric)];
        conditions.extend(words.map(|word| word.split_once('=').unwrap()));
        let rows = self.rows.iter().map(|row| Row { header: &self.header, row });
        rows.filter(|row| conditions.iter().all(|(column, value)| row.text(column) == *value)).collect()
    }

    /// The only row of a series.
    #[track_caller]
    pub(crate) fn only(&self, series: &str) -> Row<'_> {
        let rows = self.of(series);
        assert_eq!(rows.len(), 1, "{series}");
        rows[0]
    }

    /// Whether every row is of one of these kinds.
    pub(crate) fn only_kind(&self, kinds: &[&str]) -> bool {
        let mut rows = self.rows.iter().map(|row| Row { header: &self.header, row });
        rows.all(|row| kinds.contains(&row.text("kind")))
    }

    /// Whether any row has this scope and metric.
    pub(crate) fn has(&self, series: &str) -> bool {
        !self.of(series).is_empty()
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    header: &'a [String],
    row: &'a [String],
}

impl Row<'_> {
    pub(crate) fn text(&self, column: &str) -> &str {
        let place = self.header.iter().position(|name| name == column);
        &self.row[place.unwrap_or_else(|| panic!("no column {column} in {:?}", self.header))]
    }

    /// A number; `None` where it is null.
    pub(crate) fn get(&self, column: &str) -> Option<f64> {
        match self.text(column) {
            "" => None,
            number => Some(number.parse().unwrap()),
        }
    }

    #[track_caller]
    pub(crate) fn number(&self, column: &str) -> f64 {
        self.get(column).unwrap_or_else(|| panic!("{column} is null in {:?}", self.row))
    }

    /// Whether the window has this value throughout.
    pub(crate) fn is_steady_at(&self, value: f64) -> bool {
        ["mean", "min", "max", "last"]
            .iter()
            .all(|column| self.get(column).is_some_and(|known| (known - value).abs() < 1e-6))
    }

    /// Whether nothing is known of the series in this window, though it was looked at.
    pub(crate) fn is_null(&self) -> bool {
        ["mean", "min", "max", "last"].iter().all(|column| self.get(column).is_none())
            && self.number("samples") == 0.0
            && self.number("missing") > 0.0
    }
}
