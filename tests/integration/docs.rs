//! The documents against the program: every command block of the README and of every page of the book runs, every option
//! that is named exists and every option is named, links lead somewhere, and the table of metrics is the catalogue.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;

use super::support::{gpurun, python};

/// Stands before a block that the tests cannot run, with the reason.
const NOT_RUN: &str = "<!-- not run by the tests: ";

/// Where the generated part of `docs/metrics.md` begins.
const MADE: &str = "<!-- made by the tests, GPURUN_UPDATE_SCHEMAS=1 renews it -->\n";

/// Options of other programs that the documents mention.
const FOREIGN: &[&str] = &[
    "--release",
    "--path",
    "--workspace",
    "--test",
    "--lib",
    "--create",
    // examples/train_steps.py, examples/train.py, benches/nvitop_side_by_side.py
    "--seconds",
    "--show",
    "--bench",
    // torchrun, Slurm, Docker, TensorBoard
    "--nproc-per-node",
    "--nnodes",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--nodes",
    "--ntasks-per-node",
    "--gpus-per-node",
    "--signal",
    "--gpus",
    "--init",
    // systemd-tmpfiles
    "--create",
    // scancel, timeout
    "--batch",
    "--foreground",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The documents with their texts: the README first.
fn documents() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].iter().map(|name| root().join(name)).collect();
    let mut docs: Vec<PathBuf> =
        fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    docs.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    docs.sort();
    paths.extend(docs);
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// A fenced block.
struct Block {
    /// What stands after the fence.
    language: String,
    /// Line of the fence, from 1.
    line: usize,
    text: String,
    /// Marked as one that cannot be run here.
    marked: bool,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<Block> = None;
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                open = Some(Block {
                    language: language.to_owned(),
                    line: number + 1,
                    text: String::new(),
                    marked: before.starts_with(NOT_RUN),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
        if !line.trim().is_empty() {
            before = line;
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    blocks
}

/// A directory that looks like a clone with gpurun and the simulated GPUs built, and what stands beside a clone.
struct Clone {
    directory: tempfile::TempDir,
}

impl Clone {
    /// What of the repository the documents use.
    const TRACKED: [&str; 2] = ["examples", "python"];

    fn new() -> Self {
        let clone = Self { directory: tempfile::tempdir().unwrap() };
        let bin = clone.path().join("target/debug");
        fs::create_dir_all(&bin).unwrap();
        let simulate = gpurun().with_file_name("simulate");
        assert!(simulate.is_file(), "{} is missing: `cargo build --workspace` makes it", simulate.display());
        symlink(gpurun(), bin.join("gpurun")).unwrap();
        symlink(simulate, bin.join("simulate")).unwrap();
        for name in Clone::TRACKED {
            symlink(root().join(name), clone.path().join(name)).unwrap();
        }
        // Everything is built: `cargo run` runs it.
        let cargo = "#!/bin/sh\n[ \"$1\" = run ] || exit 0\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec gpurun \"$@\"\n";
        fs::write(bin.join("cargo"), cargo).unwrap();
        fs::set_permissions(bin.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
        clone
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("clone")
    }

    /// Runs a script in a shell with leases, sockets and temporary files of its own; what it printed.
    fn run(&self, script: &str) -> (String, String) {
        let beside = |name: &str| {
            let path = self.directory.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let mut path = std::ffi::OsString::from(self.path().join("target/debug"));
        path.push(":");
        path.push(python().parent().unwrap());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        command.current_dir(self.path()).env("PATH", path);
        command.env("GPURUN_LEASE_DIR", beside("leases")).env("XDG_RUNTIME_DIR", beside("run"));
        command.env("TMPDIR", beside("tmp"));
        for name in ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPURUN_SOCKET", "GPURUN_LEASES", "RANK"] {
            command.env_remove(name);
        }
        let output = command.args(["-c", script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "the last block named failed ({}):\n{said}", output.status);
        // A job that succeeds does not show that what stands around it did.
        assert!(!said.contains("panicked"), "{said}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), said)
    }

    /// Runs the blocks of one document in order, as one shell would; how many there are.
    fn run_blocks(&self, name: &str) -> usize {
        let text = fs::read_to_string(root().join(name)).unwrap();
        // gpurun's own module, as after `pip install .`.
        let mut script = String::from("set -eu\nexport PYTHONPATH=$PWD/python\n");
        let mut run = 0;
        for block in blocks(&text) {
            if block.marked || !matches!(block.language.as_str(), "sh" | "python") {
                continue;
            }
            run += 1;
            script.push_str(&format!("echo '== {name}:{}' >&2\n", block.line));
            match block.language.as_str() {
                "sh" => script.push_str(&block.text),
                _ => script.push_str(&format!("python3 - <<'END_OF_BLOCK'\n{}END_OF_BLOCK\n", block.text)),
            }
        }
        self.run(&script);
        run
    }
}

#[test]
fn the_readme_runs_as_it_stands_and_leaves_the_clone_clean() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 200, "a README that is read fits 200 lines");
    let clone = Clone::new();
    assert!(clone.run_blocks("README.md") > 7);
    // The first command once more: it finds the log of its first run, and runs.
    let first = blocks(&text).into_iter().find(|block| block.language == "sh").unwrap();
    assert!(first.text.starts_with("cargo run "), "{}", first.text);
    clone.run(&first.text);
    assert!(clone.path().join("logs/metrics-2.csv").is_file());
    let ignored = fs::read_to_string(root().join(".gitignore")).unwrap();
    for entry in fs::read_dir(clone.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let expected =
            Clone::TRACKED.contains(&name.as_str()) || ignored.lines().any(|line| line == format!("/{name}"));
        assert!(expected, "the README's commands leave {name} in the clone, and .gitignore does not name it");
    }
}

/// The pages of the book, as its table of contents names them.
fn pages() -> Vec<String> {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let link = Regex::new(r"\]\(([^)]+)\)").unwrap();
    link.captures_iter(&summary).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_page_is_in_the_book() {
    let listed: BTreeSet<String> = pages().into_iter().collect();
    let names = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut there: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
    there.retain(|name| name.ends_with(".md") && name != "SUMMARY.md");
    assert_eq!(listed, there, "left: in docs/SUMMARY.md, right: in docs/");
}

#[test]
fn the_pages_run_as_they_stand() {
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let run = |page: String| {
            let name = format!("docs/{page}");
            scope.spawn(move || Clone::new().run_blocks(&name))
        };
        let threads: Vec<_> = pages().into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(counts.iter().filter(|count| **count > 0).count() > 7, "{counts:?}");
}

/// mdBook leaves out silently what it cannot include.
#[test]
fn what_a_page_includes_is_there() {
    let include = Regex::new(r"\{\{#include ([^:}]+):([0-9]+):\}\}").unwrap();
    let mut seen = 0;
    for page in pages() {
        let path = root().join("docs").join(&page);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("{{#").count(), include.find_iter(&text).count(), "{page}");
        for found in include.captures_iter(&text) {
            seen += 1;
            let included = fs::read_to_string(path.parent().unwrap().join(&found[1])).unwrap();
            let first = found[2].parse::<usize>().unwrap() - 1;
            let heading = included.lines().nth(first).unwrap();
            assert!(heading.starts_with("## "), "{page} includes {} from {heading:?} on", &found[1]);
            assert!(!included.lines().skip(first).any(|line| line.contains("](")), "a link out of the book");
        }
    }
    assert_eq!(seen, 2, "the pattern has gone blind");
}

/// What cannot be run is at least a script, and says why it is not run.
#[test]
fn blocks_that_are_not_run_are_shell_all_the_same() {
    for (path, text) in documents() {
        for block in blocks(&text) {
            let place = format!("{}:{}", path.display(), block.line);
            if block.language == "sh" {
                let checked = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
                assert!(checked.status.success(), "{place}: {}", String::from_utf8_lossy(&checked.stderr));
            }
            assert!(
                !(block.marked && block.language.is_empty()),
                "{place}: a marked block says its language"
            );
        }
    }
}

fn help(words: &[&str]) -> String {
    let output = Command::new(gpurun()).args(words).arg("--help").env("COLUMNS", "80").output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The subcommands by their help.
fn subcommands() -> BTreeSet<String> {
    let text = help(&[]);
    let list = text.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let named = Regex::new("(?m)^  ([a-z]+) ").unwrap();
    named.captures_iter(list).map(|found| found[1].to_owned()).collect()
}

fn long_options(text: &str) -> BTreeSet<String> {
    let option = Regex::new("(?:^|[^-a-zA-Z0-9])(--[a-z][a-z0-9-]*[a-z0-9])").unwrap();
    option.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// Every option of every command.
fn options() -> BTreeSet<String> {
    let mut all = long_options(&help(&[]));
    for command in subcommands() {
        all.extend(long_options(&help(&[&command])));
    }
    for action in ["begin", "end"] {
        all.extend(long_options(&help(&["tag", action])));
    }
    all
}

#[test]
fn every_option_is_described_and_every_described_option_exists() {
    let exist = options();
    let described: BTreeSet<String> = documents()
        .iter()
        .filter(|(path, _)| !path.ends_with("CHANGELOG.md"))
        .flat_map(|(_, text)| long_options(text))
        .collect();
    // `--markdown` is there for one table and in no help.
    let known: BTreeSet<&str> = FOREIGN.iter().copied().chain(["--markdown"]).collect();
    let invented: Vec<&String> = described
        .iter()
        .filter(|option| !exist.contains(*option) && !known.contains(option.as_str()))
        .collect();
    assert!(invented.is_empty(), "the documents name options that do not exist: {invented:?}");
    let stale: Vec<&&str> = FOREIGN.iter().filter(|option| !described.contains(**option)).collect();
    assert!(stale.is_empty(), "no document names {stale:?} any more");
    let plain = |option: &&String| *option != "--help" && *option != "--version";
    let silent: Vec<&String> = exist.difference(&described).filter(plain).collect();
    assert!(silent.is_empty(), "no document names {silent:?}");
}

#[test]
fn every_command_is_described_and_every_described_command_exists() {
    let exist = subcommands();
    let code = Regex::new("`([^`\n]+)`").unwrap();
    let call = Regex::new("(?m)(?:^|[ $(`'\"])gpurun ([a-z]+)").unwrap();
    let mut described = BTreeSet::new();
    for (_, text) in documents() {
        let runnable: Vec<Block> = blocks(&text).into_iter().filter(|block| block.language == "sh").collect();
        let spans = code.captures_iter(&text).map(|span| span[1].to_owned());
        for part in runnable.into_iter().map(|block| block.text).chain(spans) {
            described.extend(call.captures_iter(&part).map(|found| found[1].to_owned()));
        }
    }
    assert_eq!(described, exist, "left: named in the documents, right: in the help");
}

/// The help is read on a terminal of 80 columns.
#[test]
fn the_help_fits_a_terminal() {
    let mut pages = vec![help(&[])];
    pages.extend(subcommands().iter().map(|command| help(&[command])));
    for line in pages.iter().flat_map(|page| page.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// A heading as GitHub names its anchor.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let fenced: String = blocks(text).into_iter().map(|block| block.text).collect();
    let comments: BTreeSet<&str> = fenced.lines().collect();
    text.lines().filter(|line| line.starts_with('#') && !comments.contains(line)).map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut pages = documents();
    for name in
        ["schemas/README.md", "schemas/control.md", "examples/tensorboard.md", "tests/fake-nvml/README.md"]
    {
        pages.push((root().join(name), fs::read_to_string(root().join(name)).unwrap()));
    }
    let mut seen = 0;
    for (path, text) in &pages {
        for found in link.captures_iter(text) {
            let target = &found[1];
            if target.contains("://") {
                continue;
            }
            seen += 1;
            // The book holds nothing from outside its directory.
            let in_book = path.parent() == Some(&root().join("docs"));
            assert!(!(in_book && target.starts_with("..")), "{}: {target} leaves the book", path.display());
            let (file, place) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(linked.exists(), "{}: {target} leads nowhere", path.display());
            if !place.is_empty() {
                let headings = anchors(&fs::read_to_string(&linked).unwrap());
                assert!(headings.contains(place), "{}: {target}: no such heading", path.display());
            }
        }
    }
    assert!(seen > 20, "{seen} links: the pattern has gone blind");
}

#[test]
fn the_table_of_metrics_is_the_catalogue() {
    let path = root().join("docs/metrics.md");
    let text = fs::read_to_string(&path).unwrap();
    let (head, table) = text.split_once(MADE).expect("docs/metrics.md has its marker");
    let output = Command::new(gpurun()).args(["metrics", "--markdown"]).output().unwrap();
    let made = format!("\n{}", String::from_utf8(output.stdout).unwrap());
    if std::env::var_os("GPURUN_UPDATE_SCHEMAS").is_some() {
        fs::write(&path, format!("{head}{MADE}{made}")).unwrap();
        return;
    }
    assert!(
        table == made,
        "docs/metrics.md is stale: GPURUN_UPDATE_SCHEMAS=1 cargo nextest run metrics schemas"
    );
}

/// Every exit status of the manual pages is in the book.
#[test]
fn exit_statuses_are_described() {
    let page = fs::read_to_string(root().join("docs/running.md")).unwrap();
    let section = page.split("## Exit status").nth(1).unwrap().split("\n## ").next().unwrap();
    let number = Regex::new("[0-9]+").unwrap();
    let described: BTreeSet<&str> = number.find_iter(section).map(|n| n.as_str()).collect();
    let status = Regex::new(r"(?m)^\\fB([0-9]+)\\fR$").unwrap();
    let mut documented = BTreeSet::new();
    for page in [vec!["man"], vec!["man", "select"], vec!["man", "status"]] {
        let page = Command::new(gpurun()).args(page).output().unwrap();
        let page = String::from_utf8(page.stdout).unwrap();
        let section = page.split(".SH \"EXIT STATUS\"").nth(1).unwrap().split("\n.SH").next().unwrap();
        documented.extend(status.captures_iter(section).map(|found| found[1].to_owned()));
    }
    assert!(documented.len() > 7, "{documented:?}");
    for status in documented {
        assert!(described.contains(status.as_str()), "{status} is not in docs/running.md");
    }
}
