//! Which files a run makes, when, and under which names.

use super::*;

#[test]
fn a_check_makes_nothing_and_a_run_that_never_was_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let here = || fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    let names = ["new.csv", "a/b/new.parquet", "tensorboard:c/tb"];
    let targets = names.map(|name| parse(dir.path(), name));
    let (checked, failures) = internals::check(&targets, &settings(Mode::CreateNew));
    assert!(failures.is_empty() && here().is_empty(), "{failures:?} {:?}", here());
    let (opened, failures) = checked.create();
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(opened.targets().count(), 3);
    assert!(dir.path().join("new.csv").exists() && dir.path().join("a/b/new.parquet.journal").exists());
    drop(opened);
    assert!(here().is_empty(), "{:?}", here());
}

#[test]
fn a_name_that_is_taken_stays_as_it_is_and_the_next_free_one_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    let at = |name: &str| dir.path().join(name);
    fs::write(at("m.csv"), "mine").unwrap();
    fs::write(at("m-2.csv"), "mine too").unwrap();
    fs::write(at("m.parquet"), "not even Parquet").unwrap();
    // A journal means that a run has the name, or had it when it was killed.
    fs::write(at("m-2.parquet.journal"), "").unwrap();
    let reports =
        write(&["m.csv", "m.parquet"], dir.path(), &settings(Mode::CreateNew), &run, [window(&run, 1)]);
    assert_clean(&reports);
    let names = ["m-3.csv", "m-3.parquet"].map(&at);
    for (report, name) in reports.iter().zip(&names) {
        assert_eq!(report.target.path(), name);
        assert_eq!(read(name).0.len(), run.series.len() + 1);
    }
    assert_eq!(fs::read_to_string(at("m.csv")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(at("m.parquet")).unwrap(), "not even Parquet");
    let (opened, _) = open(&[parse(dir.path(), "m.csv")], &settings(Mode::CreateNew));
    let (target, reason) = opened.names().next().unwrap();
    assert_eq!(target.path(), at("m-4.csv"));
    assert_eq!(reason.unwrap(), format!("{} exists", at("m.csv").display()));
}

#[test]
fn a_file_that_took_the_name_during_the_run_stays() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    let (opened, _) = open(&[parse(dir.path(), "m.parquet")], &settings(Mode::CreateNew));
    let fan_out = opened.start(Arc::clone(&run));
    fan_out.send(Arc::new(window(&run, 1)));
    fs::write(dir.path().join("m.parquet"), "mine").unwrap();
    let reports = fan_out.finish(run_end(), DEADLINE);
    assert_clean(&reports);
    assert_eq!(fs::read_to_string(dir.path().join("m.parquet")).unwrap(), "mine");
    assert_eq!(reports[0].target.path(), dir.path().join("m-2.parquet"));
    assert!(reports[0].note.as_ref().unwrap().contains("m-2.parquet"), "{reports:?}");
    assert_eq!(read(&dir.path().join("m-2.parquet")).0.len(), run.series.len() + 1);
    assert!(!dir.path().join("m.parquet.journal").exists());
}

#[test]
fn a_target_that_cannot_be_made_is_known_before_the_job() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    fs::create_dir(dir.path().join("x.csv")).unwrap();
    let failure = |target: Target, mode| {
        let (_, failures) = internals::check(&[target], &settings(mode));
        failures.first().map(|f| f.error.to_string()).unwrap_or_default()
    };
    let at = |name: &str| dir.path().join(name);
    for name in ["file/m.csv", "file/deeper/m.parquet", "tensorboard:file/tb", "tensorboard:file"] {
        let said = failure(parse(dir.path(), name), Mode::CreateNew);
        assert!(said.contains(at("file").to_str().unwrap()) && said.contains("ot a directory"), "{said}");
    }
    let said = failure(Target::Csv(at("x.csv")), Mode::CreateNew);
    assert!(said.contains("not a regular file"), "{said}");
    let twice = [parse(dir.path(), "a.csv"), parse(dir.path(), "./a.csv")];
    assert_eq!(internals::check(&twice, &settings(Mode::CreateNew)).1.len(), 1);
}

#[test]
fn only_a_log_of_the_same_layout_is_appended_to() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    let wide = |mode| WriterSettings { layout: Layout::Wide, ..settings(mode) };
    assert_clean(&write(
        &["l.csv", "l.parquet"],
        dir.path(),
        &settings(Mode::CreateNew),
        &run,
        [window(&run, 1)],
    ));
    assert_clean(&write(
        &["w.csv", "w.parquet"],
        dir.path(),
        &wide(Mode::CreateNew),
        &run,
        [window(&run, 1)],
    ));
    fs::write(dir.path().join("notes.csv"), "no newline, not ours").unwrap();
    for (name, settings, word) in [
        ("l.csv", wide(Mode::Append), "long layout"),
        ("l.parquet", wide(Mode::Append), "long layout"),
        ("w.csv", settings(Mode::Append), "wide layout"),
        ("w.parquet", settings(Mode::Append), "wide layout"),
        ("notes.csv", settings(Mode::Append), "other columns"),
    ] {
        let (_, failures) = internals::check(&[parse(dir.path(), name)], &settings);
        let said = failures.first().map(|f| f.error.to_string()).unwrap_or_default();
        assert!(said.contains("cannot append") && said.contains(word), "{name}: {said}");
    }
    assert_clean(&write(&["l.csv"], dir.path(), &settings(Mode::Append), &run, [window(&run, 2)]));
    assert_clean(&write(&["w.csv"], dir.path(), &wide(Mode::Append), &run, [window(&run, 2)]));
    assert_eq!(read(&dir.path().join("l.csv")).0.len(), 2 * (run.series.len() + 1));
    assert_eq!(read(&dir.path().join("w.csv")).0.len(), 2 * run.series.len());
    // Other GPUs are other columns: the rows have a file of their own, which the end names.
    let other = run_info(2, None);
    let reports = write(&["w.csv"], dir.path(), &wide(Mode::Append), &other, [window(&other, 3)]);
    assert_clean(&reports);
    assert_eq!(reports[0].target.path(), dir.path().join("w-2.csv"));
    assert_eq!(read(&dir.path().join("w-2.csv")).0.len(), other.series.len());
    assert_eq!(read(&dir.path().join("w.csv")).0.len(), 2 * run.series.len());
}

/// Runs a job under a gpurun that logs often; gives what gpurun said.
fn run_job(dir: &Path, options: &[&str], job: &str) -> String {
    let output = std::process::Command::new(support::gpurun())
        .args(["--interval", "10ms", "--window", "30ms", "--processes", "none"])
        .args(options)
        .args(["--", "sh", "-c", job])
        .env("GPURUN_NVML_LIBRARY", "/nonexistent")
        .current_dir(dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{said}");
    said
}

/// Waits in the shell until a file has at least so many lines.
const UNTIL: &str =
    "until_lines() { until [ $(wc -l 2>/dev/null <\"$1\" || echo 0) -ge $2 ]; do sleep 0.01; done; };";

fn windows_without_gap(rows: &[ReadRow]) -> usize {
    let mut ends: Vec<_> =
        rows.iter().filter(|r| &*r.kind == "window").map(|r| (r.start_us, r.time_us)).collect();
    ends.dedup();
    for pair in ends.windows(2) {
        // A window is 30 ms long.
        assert!((pair[1].0 - pair[0].1).abs() < 15_000, "{pair:?}");
    }
    ends.len()
}

#[test]
fn an_editor_on_a_live_log_loses_no_row() {
    let dir = tempfile::tempdir().unwrap();
    let job =
        format!("{UNTIL} until_lines m.csv 200; sed -i s/host/HOST/ m.csv; until_lines m-2.csv 400; exit 7");
    let said = run_job(dir.path(), &["--log", "m.csv"], &job);
    assert_eq!(
        said.matches("another file has taken the name m.csv; all rows are in m-2.csv").count(),
        1,
        "{said}"
    );
    let (rows, torn) = read(&dir.path().join("m-2.csv"));
    assert_eq!(torn, None);
    assert!(said.contains(&format!("m-2.csv ({} rows)", rows.len())), "{said}");
    assert!(windows_without_gap(&rows) > 5);
    assert!(fs::read_to_string(dir.path().join("m.csv")).unwrap().contains("HOST"));
}

#[test]
fn a_log_directory_that_is_renamed_is_written_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let job = format!(
        "{UNTIL} until_lines logs/m.csv 200; mv logs old; mkdir logs; until_lines old/m.csv 400; exit 7"
    );
    let said = run_job(dir.path(), &["--log", "logs/m.csv", "--log", "logs/m.parquet"], &job);
    let old = dir.path().join("old");
    assert!(said.contains("logs/m.csv was renamed while the job runs; its rows go to "), "{said}");
    assert!(!said.contains("deleted"), "{said}");
    assert_eq!(fs::read_dir(dir.path().join("logs")).unwrap().count(), 0);
    for name in ["m.csv", "m.parquet"] {
        let (rows, _) = read(&old.join(name));
        assert!(windows_without_gap(&rows) > 5);
        let line = format!("{} ({} rows)", old.join(name).display(), rows.len());
        assert!(said.contains(&line), "{line}: {said}");
    }
    assert_eq!(fs::read_dir(&old).unwrap().count(), 2, "no journal and no temporary file stays");
}

#[test]
fn the_rows_that_are_said_are_those_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let job = format!("{UNTIL} until_lines m.csv 10; exit 7");
    let wide = ["--layout", "wide", "--summary", "s.json"];
    let targets = ["--log", "m.csv", "--log", "m.parquet", "--log", "tensorboard:tb"];
    let said = run_job(dir.path(), &[&wide[..], &targets[..]].concat(), &job);
    let lines = fs::read_to_string(dir.path().join("m.csv")).unwrap().lines().count() - 1;
    // The first two are the version and the layout.
    let events = event_records(&only_event_file(&dir.path().join("tb/gpurun"))).0.len() - 2;
    let (rows, _) = read(&dir.path().join("m.parquet"));
    let mut ends: Vec<_> = rows.iter().map(|row| (row.time_us, Arc::clone(&row.kind))).collect();
    ends.dedup();
    let counted =
        [("m.csv", lines, "rows"), ("m.parquet", ends.len(), "rows"), ("tensorboard:tb", events, "events")];
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("s.json")).unwrap()).unwrap();
    for (n, (name, count, unit)) in counted.into_iter().enumerate() {
        assert!(
            count >= 9 && said.contains(&format!("{name} ({count} {unit})")),
            "{name} has {count}: {said}"
        );
        assert_eq!(summary["targets"][n]["rows"], count);
    }
}

/// gpurun of a user without privileges, who owns the directory.
fn unprivileged(dir: &Path) -> impl Fn(&[&str]) -> std::process::Output {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65534;
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    // Another user may be unable to reach the place that gpurun was built in.
    let copy = dir.join("gpurun");
    fs::copy(support::gpurun(), &copy).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    if is_root {
        chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let dir = dir.to_owned();
    move |args| {
        let mut command = std::process::Command::new(&copy);
        if is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.args(args).env("GPURUN_NVML_LIBRARY", "/nonexistent").current_dir(&dir).output().unwrap()
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_without_permission_is_named_before_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let gpurun = unprivileged(dir.path());
    fs::create_dir(dir.path().join("closed")).unwrap();
    set_mode(&dir.path().join("closed"), 0o555);
    for [option, name] in
        [["--log", "closed/m.csv"], ["--log", "closed/a/m.parquet"], ["--summary", "closed/s"]]
    {
        let output = gpurun(&[option, name, "--", "touch", "ran"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("closed: Permission denied") && said.lines().count() == 1, "{said}");
    }
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn recover_goes_on_past_a_directory_that_it_cannot_list() {
    let dir = tempfile::tempdir().unwrap();
    let gpurun = unprivileged(dir.path());
    fs::create_dir_all(dir.path().join("logs/closed")).unwrap();
    set_mode(&dir.path().join("logs/closed"), 0o000);
    let run = run_info(1, None);
    assert_clean(&write(&["logs/z.csv"], dir.path(), &settings(Mode::CreateNew), &run, [window(&run, 1)]));
    let log = dir.path().join("logs/z.csv");
    let torn = fs::read_to_string(&log).unwrap() + "2026-";
    fs::write(&log, torn).unwrap();
    set_mode(&log, 0o666);
    let output = gpurun(&["recover", "logs"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said, "gpurun: cannot read logs/closed: Permission denied (os error 13)\n");
    assert_eq!(read(&log).1, None, "the others are finished");
    set_mode(&dir.path().join("logs/closed"), 0o755);
}

#[test]
fn nothing_that_was_put_in_the_way_is_followed_or_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let plant = |name: &str, fifo: bool| match fifo {
        true => assert!(std::process::Command::new("mkfifo").arg(at(name)).status().unwrap().success()),
        false => std::os::unix::fs::symlink(at("victim"), at(name)).unwrap(),
    };
    for fifo in [true, false] {
        for name in [".m.parquet.tmp", "m.parquet.journal", "s.json.tmp", ".s.json.tmp", "s.json"] {
            plant(name, fifo);
        }
        // What has the name of a journal, or of the summary, is somebody's; what is no file at all is refused.
        let targets: &[&str] =
            if fifo { &["--log", "m.parquet"] } else { &["--log", "m.parquet", "--summary", "s.json"] };
        let said = run_job(dir.path(), targets, "exit 7");
        assert!(said.contains("m-2.parquet"), "{said}");
        assert!(!read(&at("m-2.parquet")).0.is_empty());
        assert_eq!(at("s-2.json").exists(), !fifo);
        assert!(!at("victim").exists());
        for entry in fs::read_dir(dir.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

#[test]
fn a_name_does_nothing_to_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name = "a\u{1b}[2J\n\u{202e}b";
    let (csv, parquet) = (format!("{name}.csv"), format!("{name}.parquet"));
    let shown = "a\\u{1b}[2J";
    let harmless = |said: &str| {
        let unsafe_ones = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!said.contains(unsafe_ones) && said.contains(shown), "{said:?}");
        assert!(said.lines().all(|line| !line.starts_with('\u{202e}')), "{said:?}");
    };
    for _ in 0..2 {
        harmless(&run_job(dir.path(), &["--log", &csv, "--log", &parquet], "exit 7"));
    }
    for (command, file) in [("recover", &csv), ("recover", &parquet), ("report", &csv), ("report", &parquet)]
    {
        let output = std::process::Command::new(support::gpurun())
            .args([command, file])
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        harmless(&String::from_utf8_lossy(&output.stdout));
    }
    fs::write(dir.path().join("x\u{1b}[2J.parquet.journal"), [7; 100]).unwrap();
    let output = recover(dir.path(), &["."]);
    assert_eq!(String::from_utf8_lossy(&output.stderr).matches("x\\u{1b}[2J").count(), 1, "{output:?}");
}
