//! `gpurun devices --check`: each finding, and whether its command mends it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use super::hostile::{Locker, leases, mkfifo};
use super::*;

/// What was found: the sentence, and the command below it.
fn findings(output: &Output) -> Vec<(String, String)> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .chunks(2)
        .map(|pair| (pair[0].to_owned(), pair[1].strip_prefix("    ").unwrap().to_owned()))
        .collect()
}

fn check(host: &Host) -> Output {
    run(host, &["devices", "--check"])
}

fn in_order(host: &Host) {
    let output = check(host);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, format!("{}: in order\n", leases(host).display()));
    assert_eq!(output.status.code(), Some(0));
}

/// Expects these findings, does what they say, and expects the rest to be in order.
fn mended(host: &Host, expected: &[&str]) {
    let output = check(host);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = findings(&output);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for words in expected {
        assert!(found.iter().any(|(what, _)| what.contains(words)), "{words}: {found:#?}");
    }
    for (what, mend) in found {
        let done = Command::new("sh").args(["-c", &mend]).output().unwrap();
        assert!(done.status.success(), "{what}: {done:?}");
    }
}

#[test]
fn each_finding_is_mended_by_its_command() {
    let host = idle(1);
    mended(&host, &["is not there: it will belong to the first user"]);
    in_order(&host);
    // What gpurun leaves behind is in order too, and so are leases and waiters.
    let mut holder = Running::start(&host, &["-n", "1"]);
    assert_eq!(holder.line(), "0");
    let mut waiter = Running::start(&host, &["-n", "1", "--wait"]);
    until("its ticket", || (waiting(&host) == 1).then_some(()));
    in_order(&host);
    waiter.child.kill().unwrap();
    waiter.child.wait().unwrap();
    until("a dead ticket", || {
        let text = String::from_utf8_lossy(&check(&host).stdout).into_owned();
        text.contains("the place in the queue of a process that has ended").then_some(())
    });
    holder.succeed();
    mended(&host, &["the place in the queue of a process that has ended"]);
    in_order(&host);

    let root = leases(&host);
    chown(&root, Some(54_321), None).unwrap();
    fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
    let named = |words: &str| {
        let names = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
        names.into_iter().find(|path| path.to_string_lossy().contains(words)).unwrap()
    };
    chown(named("GPU-"), Some(54_321), None).unwrap();
    fs::set_permissions(named("GPU-"), Permissions::from_mode(0o600)).unwrap();
    mkfifo(&root.join("GPU-a b'c.lock"));
    symlink("/etc/passwd", root.join("GPU-x.lock")).unwrap();
    fs::create_dir(root.join("wait.0.x.lock")).unwrap();
    fs::write(root.join(".new.0123"), "").unwrap();
    mended(
        &host,
        &[
            "belongs to 54321, who can remove the leases of others",
            "has the mode 0777: without the sticky bit every user can",
            "belongs to 54321, who can remove it while others hold it",
            "has the mode 0600: some users cannot hold",
            "GPU-a b'c.lock is not a file of gpurun",
            "GPU-x.lock is not a file of gpurun",
            "wait.0.x.lock is not a file of gpurun",
            ".new.0123 is not a file of gpurun",
        ],
    );
    in_order(&host);
    assert!(fs::metadata("/etc/passwd").unwrap().is_file());

    fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    mended(&host, &["has the mode 0755: some users cannot hold a GPU"]);
    in_order(&host);

    fs::remove_dir_all(&root).unwrap();
    fs::write(&root, "").unwrap();
    mended(&host, &["is not a directory: no GPU can be held"]);
    assert!(!root.exists());
}

#[test]
fn locks_in_the_hands_of_others_are_found_and_named() {
    let host = idle(1);
    assert!(run(&host, &["-n", "1", "--", "true"]).status.success());
    let device = fs::read_dir(leases(&host))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("GPU-"))
        .unwrap();
    let on_device = Locker::start(&device);
    let on_select = Locker::start(&leases(&host).join("select.lock"));
    let device_words = format!("is held by pid {}, which is not the process of its note", on_device.pid());
    let select_words = format!("is kept by pid {} of root (sleep 1000): nobody else", on_select.pid());
    mended(&host, &[&device_words, &select_words]);
    drop((on_device, on_select));
    in_order(&host);
}
