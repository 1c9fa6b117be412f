//! `docs/when-killed.md`, row by row: the real gpurun, held in each phase of a run, gets each signal.

mod run;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::logged::Place;
use crate::support::sidecar_of;
use crate::transparency::harness::{alive, kill};
use run::{JOB, JOB_STATUS, Phase, Run, SCENARIO, ends, hold_library};

/// How many runs there are at once.
const AT_ONCE: usize = 4;

const PHASES: [(Phase, &str); 6] = [
    (Phase::BeforeTheChoice, "before the choice"),
    (Phase::Choosing, "while choosing"),
    (Phase::Waiting, "while waiting"),
    (Phase::BeforeTheFirstSample, "before the first sample"),
    (Phase::InTheMiddle, "in the middle"),
    (Phase::FinishingFiles, "while files are finished"),
];

const PROCESSES: [&str; 4] = ["minder", "sidecar", "both", "job"];

const SIGNALS: [&str; 3] = ["TERM", "KILL", "STOP, then CONT"];

/// One case of the tables.
#[derive(Clone, Debug)]
struct Case {
    phase: Phase,
    process: String,
    signal: String,
    gpurun: String,
    job: String,
    log: String,
    gpus: String,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {} {}", self.phase, self.signal, self.process)
    }
}

/// The cases of the document: those of each table hold in the phases that its section names.
fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/when-killed.md");
    let text = fs::read_to_string(path).unwrap();
    let mut cases = Vec::new();
    for section in text.split("\n## ") {
        let words = section.split_whitespace().collect::<Vec<_>>().join(" ");
        let phases = PHASES.iter().filter(|(_, name)| words.contains(&format!("*{name}*")));
        let rows: Vec<Vec<String>> = section.lines().filter_map(cells).collect();
        for (phase, _) in phases {
            for row in &rows {
                let [processes, signal, gpurun, job, log, gpus] = row.clone().try_into().unwrap();
                cases.extend(processes.split(", ").map(|process| Case {
                    phase: *phase,
                    process: process.to_owned(),
                    signal: signal.clone(),
                    gpurun: gpurun.clone(),
                    job: job.clone(),
                    log: log.clone(),
                    gpus: gpus.clone(),
                }));
            }
        }
    }
    cases
}

/// The cells of a row of a table of cases; `None` for any other line.
fn cells(line: &str) -> Option<Vec<String>> {
    let cells: Vec<String> =
        line.strip_prefix("| ")?.split(" |").map(|cell| cell.trim().to_owned()).collect();
    let is_row = cells.len() == 7 && !["process", "---"].contains(&cells[0].as_str());
    is_row.then(|| cells[..6].to_vec())
}

#[test]
fn every_case_is_in_the_document_once() {
    let mut wanted = Vec::new();
    for (phase, _) in PHASES {
        for process in PROCESSES {
            let there = process != "job" || matches!(phase, Phase::BeforeTheFirstSample | Phase::InTheMiddle);
            wanted.extend(SIGNALS.iter().filter(|_| there).map(|signal| (phase, process, *signal)));
        }
    }
    let cases = cases();
    let mut found: Vec<_> = cases.iter().map(|c| (c.phase, c.process.as_str(), c.signal.as_str())).collect();
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
}

/// Proves the cases of one phase.
fn prove(phase: Phase) {
    let directory = tempfile::tempdir().unwrap();
    let library = &hold_library(directory.path());
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.phase == phase).collect();
    assert!(!cases.is_empty());
    for some in cases.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for case in some {
                // A failure names its thread.
                let thread = std::thread::Builder::new().name(case.to_string());
                thread.spawn_scoped(scope, || case.prove(library)).unwrap();
            }
        });
    }
}

#[test]
fn before_the_choice() {
    prove(Phase::BeforeTheChoice);
}

#[test]
fn while_choosing() {
    prove(Phase::Choosing);
}

#[test]
fn while_waiting() {
    prove(Phase::Waiting);
}

#[test]
fn before_the_first_sample() {
    prove(Phase::BeforeTheFirstSample);
}

#[test]
fn in_the_middle() {
    prove(Phase::InTheMiddle);
}

#[test]
fn while_files_are_finished() {
    prove(Phase::FinishingFiles);
}

impl Case {
    fn is(&self, process: &str, signal: &str) -> bool {
        self.process == process && self.signal == signal
    }

    /// Brings a run into the phase, sends the signal, and looks at everything that the row says.
    fn prove(&self, library: &Path) {
        let (mut run, job_ended) = Run::held_in(self.phase, library);
        if job_ended.is_some() {
            assert!(run.holders().is_empty(), "the files are not finished, the hold has ended");
        }
        self.send(&mut run);
        let sent = run::now();
        let end = match self.job.as_str() {
            "not started" => {
                self.expect_gpurun(&mut run);
                None
            }
            "had ended" => {
                self.expect_gpurun(&mut run);
                job_ended
            }
            "runs to its end" => Some(self.expect_job_to_run_on(&mut run)),
            _ => {
                ends(run.started());
                self.expect_gpurun(&mut run);
                Some(sent.clone())
            }
        };
        if self.phase == Phase::FinishingFiles && self.log == "all rows" {
            run.release(self.phase);
        }
        run.nobody_is_left();
        assert_eq!(run.has_started(), self.job != "not started");
        assert_eq!(run.job_has_ended(), matches!(self.job.as_str(), "runs to its end" | "had ended"));
        self.expect_log(&run, end.as_deref(), &sent);
        expect_gpu_free(&run);
        self.expect_nothing_left(&run);
    }

    /// Sends the signal, and lets the run go on where that does not change the row.
    fn send(&self, run: &mut Run) {
        let targets = match self.process.as_str() {
            "minder" => vec![run.minder()],
            "sidecar" => vec![run.sidecar()],
            "both" => vec![run.minder(), run.sidecar()],
            _ => vec![run.started()],
        };
        match self.signal.as_str() {
            "STOP, then CONT" => {
                run.stop(&targets);
                if self.is("minder", &self.signal) && self.phase == Phase::InTheMiddle {
                    // The sidecar goes on meanwhile.
                    run.next_window();
                }
            }
            "TERM" => targets.iter().for_each(|pid| kill(*pid, libc::SIGTERM)),
            _ => targets.iter().for_each(|pid| kill(*pid, libc::SIGKILL)),
        }
        // Files that can be finished now are not given up.
        if self.log != "all rows" {
            run.release(self.phase);
        }
        if self.signal.starts_with("STOP") {
            targets.iter().for_each(|pid| kill(*pid, libc::SIGCONT));
        }
    }

    fn expect_gpurun(&self, run: &mut Run) {
        let status = run.status();
        let (code, signal) = match (self.gpurun.as_str(), self.job.as_str()) {
            ("killed by SIGTERM", _) | ("as the job", "killed by SIGTERM") => (None, Some(libc::SIGTERM)),
            ("killed by SIGKILL", _) | ("as the job", "killed by SIGKILL") => (None, Some(libc::SIGKILL)),
            ("as the job", _) => (Some(JOB_STATUS), None),
            ("status 125", _) => (Some(125), None),
            other => panic!("{other:?}"),
        };
        assert_eq!((status.code(), status.signal()), (code, signal), "{}", run.running.stderr());
        if self.gpurun == "status 125" {
            let said = run.running.stderr();
            assert!(said.contains("was killed by SIGKILL before the job started"), "{said}");
        }
    }

    /// The job runs and has its GPU, whatever happened to gpurun; when it was told to end.
    fn expect_job_to_run_on(&self, run: &mut Run) -> String {
        let job = run.started();
        let was_killed = self.gpurun == "killed by SIGKILL";
        if was_killed {
            self.expect_gpurun(run);
        }
        if self.is("sidecar", "KILL") {
            crate::logged::until("it is said", || {
                run.running.stderr().contains("gpurun recover m.parquet").then_some(())
            });
        }
        assert_eq!(self.gpus, "held");
        assert!(alive(job));
        crate::logged::until("the GPU is the job's", || {
            let holders = run.holders();
            (holders.len() == 1 && holders[0]["job"] == job).then_some(())
        });
        let end = run.end_job();
        if !was_killed {
            self.expect_gpurun(run);
        }
        end
    }

    /// The files that are there, and the rows in them. `end` is just before the job's, `sent` just after the signal.
    fn expect_log(&self, run: &Run, end: Option<&str>, sent: &str) {
        let reaches_the_end =
            |times: &BTreeSet<String>| times.last().is_some_and(|last| Some(last.as_str()) >= end);
        let files = run.log_files();
        let times = run.times("m.csv");
        match self.log.as_str() {
            "none" => assert_eq!(files, Vec::<String>::new()),
            "whole" => {
                assert_eq!(files, ["m.csv", "m.parquet"]);
                assert!(reaches_the_end(&times), "{times:?}, end {end:?}");
                assert_eq!(run.parquet_lines(), run.lines("m.csv"));
            }
            "all rows" => {
                assert!(reaches_the_end(&times), "{times:?}, end {end:?}");
                self.recover(run);
                assert_eq!(run.parquet_lines(), run.lines("m.csv"));
            }
            "until then" => {
                assert!(times.iter().all(|time| time.as_str() < sent), "{times:?}, sent {sent}");
                self.recover(run);
                if self.phase == Phase::BeforeTheFirstSample {
                    assert!(times.is_empty(), "{times:?}");
                    assert_eq!(run.log_files(), ["m.csv"]);
                } else {
                    assert!(times.len() > 1);
                    assert!(run.parquet_lines().len() > 1);
                }
            }
            other => panic!("{other}"),
        }
    }

    /// What the user is told to do leads to whole files.
    fn recover(&self, run: &Run) {
        if self.gpurun != "killed by SIGKILL" {
            let said = run.running.stderr();
            let lines: Vec<&str> = said.lines().filter(|line| line.contains("gpurun recover")).collect();
            assert_eq!(lines.len(), 1, "{said}");
        }
        assert!(run.log_files().contains(&"m.parquet.journal".to_owned()));
        run.place.output(&["recover", "m.parquet"]);
        let left = run.log_files();
        assert!(left.iter().all(|name| ["m.csv", "m.parquet"].contains(&name.as_str())), "{left:?}");
    }

    /// No socket, no temporary file.
    fn expect_nothing_left(&self, run: &Run) {
        let sockets = run.sockets();
        if self.is("both", "KILL") && self.job == "runs to its end" {
            let [socket] = &sockets[..] else { panic!("{sockets:?}") };
            let old = SystemTime::now() - Duration::from_secs(60);
            fs::File::open(socket).unwrap().set_modified(old).unwrap();
            run.place.output(&["-q", "--", "true"]);
            assert!(!socket.exists(), "the next gpurun removes it");
        } else {
            assert!(sockets.is_empty(), "{sockets:?}");
        }
    }
}

/// Others get the GPU, and the next that may wait removes the ticket of a killed one.
fn expect_gpu_free(run: &Run) {
    crate::logged::until("the GPU is free", || run.holders().is_empty().then_some(()));
    run.place.output(&["-q", "-n1", "--wait", "--", "true"]);
    let leases = run.leases();
    assert!(!leases.contains("wait.") && !leases.contains(".new."), "{leases}");
}

#[test]
fn a_sidecar_that_is_stopped_is_not_waited_for_and_finishes_the_log_when_it_is_continued() {
    let directory = tempfile::tempdir().unwrap();
    let (mut run, _) = Run::held_in(Phase::InTheMiddle, &hold_library(directory.path()));
    run.stop(&[run.sidecar()]);
    let end = run.end_job();
    assert_eq!(run.status().code(), Some(JOB_STATUS));
    let said = run.running.stderr();
    assert!(
        said.contains("does not answer: gpurun ends without it") && said.contains("recover m.parquet"),
        "{said}"
    );
    assert!(run.holders().is_empty(), "the hold ends with the job");
    kill(run.sidecar(), libc::SIGCONT);
    run.nobody_is_left();
    assert_eq!(run.log_files(), ["m.csv", "m.parquet"]);
    assert!(run.times("m.csv").last() >= Some(&end));
    assert_eq!(run.parquet_lines(), run.lines("m.csv"));
    assert!(run.sockets().is_empty());
}

#[test]
fn a_minder_that_is_stopped_while_the_job_ends_ends_like_it_when_it_is_continued() {
    let directory = tempfile::tempdir().unwrap();
    let (mut run, _) = Run::held_in(Phase::InTheMiddle, &hold_library(directory.path()));
    run.stop(&[run.minder()]);
    let job = run.started();
    let end = run.end_job();
    ends(job);
    run.next_window();
    assert_eq!(run.holders().len(), 1);
    kill(run.minder(), libc::SIGCONT);
    assert_eq!(run.status().code(), Some(JOB_STATUS));
    run.nobody_is_left();
    assert_eq!(run.log_files(), ["m.csv", "m.parquet"]);
    assert!(run.times("m.csv").last() >= Some(&end));
    expect_gpu_free(&run);
    assert!(run.sockets().is_empty());
}

#[test]
fn the_log_goes_on_where_gpurun_is_killed_beside_a_job_that_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let (mut run, _) = Run::held_in(Phase::InTheMiddle, &hold_library(directory.path()));
    run.stop(&[run.started()]);
    kill(run.minder(), libc::SIGKILL);
    run.status();
    run.next_window();
    kill(run.started(), libc::SIGCONT);
    let end = run.end_job();
    run.nobody_is_left();
    assert!(run.job_has_ended());
    assert_eq!(run.log_files(), ["m.csv", "m.parquet"]);
    assert!(run.times("m.csv").last() >= Some(&end));
}

#[test]
fn a_minder_that_is_killed_as_the_job_is_executed_leaves_a_sidecar_that_follows_the_job() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::new(SCENARIO);
    fs::write(place.path("hold-execve"), "").unwrap();
    let mut run = Run::start(place, &hold_library(directory.path()), &["-n1"], &JOB);
    run.reaches("hold-execve");
    kill(run.minder(), libc::SIGKILL);
    assert_eq!(run.status().signal(), Some(libc::SIGKILL));
    fs::remove_file(run.place.path("hold-execve")).unwrap();
    let job = run.started();
    run.next_window();
    assert_eq!(run.holders()[0]["job"], job);
    let end = run.end_job();
    run.nobody_is_left();
    assert!(run.job_has_ended());
    assert_eq!(run.log_files(), ["m.csv", "m.parquet"]);
    assert!(run.times("m.csv").last() >= Some(&end));
    expect_gpu_free(&run);
    assert!(run.sockets().is_empty());
}

#[test]
fn a_job_that_cannot_be_executed_leaves_no_log_also_where_the_minder_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    for kills in [true, false] {
        let place = Place::new(SCENARIO);
        fs::write(place.path("hold-execve"), "").unwrap();
        let mut run = Run::start(place, &hold_library(directory.path()), &["-n1"], &["./nothing"]);
        run.reaches("hold-execve");
        if kills {
            kill(run.minder(), libc::SIGKILL);
            run.status();
        }
        fs::remove_file(run.place.path("hold-execve")).unwrap();
        assert_eq!(run.status().code(), (!kills).then_some(127));
        run.nobody_is_left();
        assert_eq!(run.log_files(), Vec::<String>::new());
        expect_gpu_free(&run);
        assert!(run.sockets().is_empty());
    }
}

#[test]
fn a_job_without_a_choice_runs_without_a_sidecar() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::new(SCENARIO);
    fs::write(place.path("hold-fork"), "").unwrap();
    let mut run = Run::start(place, &hold_library(directory.path()), &[], &JOB);
    run.reaches("hold-fork");
    kill(sidecar_of(run.minder().unsigned_abs()), libc::SIGKILL);
    run.started();
    run.end_job();
    assert_eq!(run.status().code(), Some(JOB_STATUS));
    let said = run.running.stderr();
    assert!(said.contains("nothing is logged") && said.contains("SIGKILL"), "{said}");
    run.nobody_is_left();
    assert_eq!(run.log_files(), Vec::<String>::new());
    assert!(run.sockets().is_empty());
}
