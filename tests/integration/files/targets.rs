//! Which files a run makes, when, and under which names.

use super::*;

#[test]
fn a_check_makes_nothing_and_a_run_that_never_was_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let here = || fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    let names = ["new.csv", "a/b/new.parquet", "tensorboard:c/tb"];
    let targets = names.map(|name| parse(dir.path(), name));
    let (checked, failures) = writers::check(&targets, &settings(Mode::CreateNew));
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
        let (_, failures) = writers::check(&[target], &settings(mode));
        failures.first().map(|f| f.error.to_string()).unwrap_or_default()
    };
    let at = |name: &str| dir.path().join(name);
    for name in ["file/m.csv", "file/deeper/m.parquet", "tensorboard:file/tb", "tensorboard:file"] {
        let said = failure(parse(dir.path(), name), Mode::CreateNew);
        assert!(said.contains(at("file").to_str().unwrap()) && said.contains("ot a directory"), "{said}");
    }
    let said = failure(Target::Csv(at("x.csv")), Mode::CreateNew);
    assert!(said.contains("no regular file"), "{said}");
    let twice = [parse(dir.path(), "a.csv"), parse(dir.path(), "./a.csv")];
    assert_eq!(writers::check(&twice, &settings(Mode::CreateNew)).1.len(), 1);
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
        let (_, failures) = writers::check(&[parse(dir.path(), name)], &settings);
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
