//! The short way to understand a command line without a mistake: by the options of the one command that it names.
//!
//! To make all commands with all of their options takes several times as long as to read one, and it is paid before
//! every job. What is not understood here, help and mistakes above all, is read once more by the whole, and only the
//! whole has words for it.

use std::ffi::OsString;

use clap::{Args, FromArgMatches};

use super::Invocation;
use super::args::{Command, RunArgs};

/// The meaning of a command line, program name first, where one command's own options give it.
pub(super) fn parse(argv: &[OsString]) -> Option<Invocation> {
    let (_, words) = argv.split_first()?;
    let (first, rest) = words.split_first()?;
    if first.as_encoded_bytes().starts_with(b"-") {
        let run: RunArgs = read(words)?;
        return (!run.command.is_empty()).then(|| Invocation::Job(Box::new(run)));
    }
    let command = match first.to_str()? {
        "select" => Command::Select(read(rest)?),
        "devices" => Command::Devices(read(rest)?),
        "record" => Command::Record(read(rest)?),
        "recover" => Command::Recover(read(rest)?),
        "export" => Command::Export(read(rest)?),
        "report" => Command::Report(read(rest)?),
        "status" => Command::Status(read(rest)?),
        "metrics" => Command::Metrics(read(rest)?),
        "tag" => Command::Tag(read(rest)?),
        "step" => Command::Step(read(rest)?),
        "log" => Command::Log(read(rest)?),
        _ => return None,
    };
    Some(Invocation::Other(Box::new(command)))
}

/// Reads the words after a command's name.
fn read<T: Args + FromArgMatches>(words: &[OsString]) -> Option<T> {
    let command = T::augment_args(clap::Command::new("gpurun").no_binary_name(true));
    let mut matches = command.try_get_matches_from(words).ok()?;
    T::from_arg_matches_mut(&mut matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse_whole;

    /// Command lines of every kind: whole and broken, of every command, in odd orders.
    const LINES: &[&str] = &[
        "",
        "--",
        "-- true",
        "-- select",
        "true",
        "-n 2 -f 8GiB -- python train.py",
        "-n2 -f8GiB --log a.csv --log b.parquet -- a -b --c -- d",
        "-n 2 python train.py",
        "-n 2 select",
        "-n 2",
        "-n",
        "--count=2 -- x",
        "--log select -- x",
        "--log x.csv",
        "--log x.csv select",
        "--account-as-free select -- x",
        "--account-as-free -- x",
        "--account-as-free a,b c -- x",
        "-i select -- x",
        "-i -- x",
        "-i select",
        "--inherit=1,2 -n 1 -- x",
        "--kill-after 5s --kill-tree --die-together -q -- x",
        "--kill-after nonsense -- x",
        "--no-such -- x",
        "-q -q -- x",
        "-n 1 -n 2 -- x",
        "-n 1 -- x -n 2",
        "-x -- x",
        "--log a.csv -- ",
        "-h",
        "--help",
        "-h -- x",
        "--version",
        "-V",
        "-V -- x",
        "help",
        "selec",
        "select",
        "select --",
        "select -- x",
        "select x",
        "select -n 2 -f 8GiB",
        "select -n 2 -f 8GiB --explain --json",
        "select --json -q --nvml-library /a",
        "select -n 2 -n 3",
        "select --help",
        "select -h",
        "select --version",
        "select help",
        "select --no-such",
        "select select",
        "select --account-as-free a b -n 1",
        "select -i",
        "select -i 0,1 --sep , -0",
        "select --log x.csv",
        "select --hold=none --wait 5s",
        "select --wait",
        "select --format uuid",
        "select --format nonsense",
        "devices",
        "devices --json",
        "devices --json --json",
        "devices -q --nvml-library=x",
        "devices extra",
        "record",
        "record --all --pid 3",
        "record --pid 3,4 --duration 5s --log x.csv",
        "record --pid -3",
        "record -- x",
        "recover",
        "recover a b",
        "recover -- -a",
        "recover -a",
        "export a -o b",
        "export a b -o - --layout wide --overwrite -q",
        "export a",
        "export -o b",
        "export a -o b --layout nonsense",
        "report",
        "report a b -o c.html",
        "status",
        "status 12 --json",
        "status x",
        "status 1 2",
        "metrics",
        "metrics --json",
        "metrics --json --markdown",
        "metrics --markdown",
        "tag",
        "tag begin",
        "tag begin a",
        "tag begin a b",
        "tag begin -a",
        "tag begin -- -a",
        "tag end",
        "tag end a",
        "tag help",
        "tag --help",
        "tag begin --help",
        "tag other",
        "step",
        "step 3",
        "step -3",
        "step x",
        "step 3 4",
        "step -- -3",
        "log",
        "log a=1 b=2",
        "log a=1 --step -4",
        "log --step 4 a=1",
        "log a=1 --step x",
        "completions",
        "completions bash",
        "completions nonsense",
        "man",
        "man x",
    ];

    fn words(line: &str) -> Vec<OsString> {
        std::iter::once("gpurun").chain(line.split_whitespace()).map(OsString::from).collect()
    }

    #[test]
    fn the_short_way_understands_nothing_otherwise_than_the_whole() {
        let mut short = 0;
        for line in LINES {
            let argv = words(line);
            if let Some(invocation) = parse(&argv) {
                short += 1;
                let whole = parse_whole(argv).map(|whole| format!("{whole:?}"));
                assert_eq!(whole, Ok(format!("{invocation:?}")), "{line}");
            }
        }
        assert!(short > 30, "{short} command lines are read the short way");
    }

    #[test]
    fn what_runs_often_is_read_the_short_way() {
        for line in [
            "-n 2 -f 8GiB -- x",
            "--log a.csv -- x",
            "select -n 2 -f 8GiB",
            "devices",
            "step 3",
            "tag end",
            "log a=1",
        ] {
            let argv = words(line);
            assert!(parse(&argv).is_some(), "{line}");
        }
    }

    #[test]
    fn every_command_that_does_something_is_read_the_short_way() {
        use clap::CommandFactory as _;
        let understood = |name: &str| {
            LINES
                .iter()
                .filter(|line| line.split(' ').next() == Some(name))
                .any(|line| parse(&words(line)).is_some())
        };
        for command in crate::cli::args::Cli::command().get_subcommands() {
            let name = command.get_name();
            assert_eq!(understood(name), !["completions", "man"].contains(&name), "{name}");
        }
    }
}
