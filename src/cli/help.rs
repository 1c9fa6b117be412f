//! What the help pages say beside the options: the commands, the values, examples, the exit status.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};

use super::args::Cli;
use super::{exit, mistake};

/// The one-screen page of `gpurun -h`: without the headings and the list of commands that `--help` has.
const SHORT: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}Options:
{options}{after-help}
";

/// The values that options take: the word in the help, and what can be typed for it.
pub(super) const VALUES: &[(&str, &str)] = &[
    ("SIZE", "bytes: 8GiB, 500MiB (powers of 1024), 8G, 500M (powers of 1000), 10000"),
    ("D", "a duration: 500ms, 10s, 2h30m; without a unit, seconds"),
    ("TARGET", "*.csv, *.parquet, tensorboard:DIR, DIR/ or an existing directory"),
    ("PCT", "a whole number of percent"),
];

/// How gpurun ends after a job that ran.
pub(super) const JOB_STATUS: &str = "The job's own; a signal that ends the job ends gpurun too.";

/// An example: what it does, and the line to type.
pub(super) type Example = (&'static str, &'static str);

/// The grammar with everything that its help pages show. `short` is the page of `gpurun -h`; the grammar is the same.
pub(crate) fn command(short: bool) -> Command {
    let root = Cli::command().max_term_width(100).mut_args(negative).mut_subcommands(|command| {
        let examples = examples_text(Some(command.get_name()));
        command.mut_args(negative).after_long_help(examples)
    });
    if short {
        let commands = commands_text(root.get_subcommands().map(Command::get_name));
        return root
            .before_help(commands)
            .after_help("SIZE: 8GiB, 500M  D: 10s, 2h30m  TARGET: x.csv, x.parquet, tensorboard:DIR")
            .help_template(SHORT);
    }
    root.after_long_help([values_text(), examples_text(None), statuses_text(None)].join("\n\n"))
}

/// A negative number after an option is its value, and the mistake that of the value. Where a value is optional it is not:
/// `-i -0` is two options.
fn negative(arg: Arg) -> Arg {
    let takes_one = arg.get_action().takes_values() && arg.get_num_args().is_none_or(|n| n.min_values() > 0);
    if takes_one && !arg.is_positional() { arg.allow_negative_numbers(true) } else { arg }
}

/// The names of all commands, in lines that fit a terminal of 80 columns.
fn commands_text<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from("Commands:");
    let mut column = text.len();
    for name in names {
        if column + name.len() + 2 > 79 {
            text.push_str("\n         ");
            column = 9;
        }
        let _ = write!(text, " {name},");
        column += name.len() + 2;
    }
    text.trim_end_matches(',').to_owned()
}

/// The page that `gpurun help NAME...` prints.
///
/// # Errors
/// There is no such command; one line.
pub(crate) fn page(names: &[String]) -> Result<String, String> {
    let mut root = command(false);
    root.build();
    let mut found = &root;
    for name in names {
        found = found.find_subcommand(name).ok_or_else(|| mistake::unknown_command(name, found))?;
    }
    Ok(found.clone().render_long_help().to_string())
}

fn values_text() -> String {
    let lines = VALUES.iter().map(|(word, meaning)| format!("\n  {word:<7} {meaning}"));
    format!("Values:{}", lines.collect::<String>())
}

fn examples_text(command: Option<&str>) -> String {
    let lines = examples(command).iter().map(|(what, line)| format!("\n  {what}:\n    {line}"));
    format!("Examples:{}", lines.collect::<String>())
}

fn statuses_text(command: Option<&str>) -> String {
    let lines = exit::statuses(command).iter().map(|(exit, what)| format!("\n  {:<4} {what}", exit.code()));
    format!("Exit status:\n  {JOB_STATUS} Otherwise:{}", lines.collect::<String>())
}

/// Examples of a subcommand, or of a job.
pub(super) fn examples(command: Option<&str>) -> &'static [Example] {
    match command {
        None => &[
            (
                "Run a job on two GPUs with at least 8 GiB free and log to a Parquet file",
                "gpurun -n 2 -f 8GiB --log run.parquet -- python train.py",
            ),
            ("Log a job on the GPUs it sees anyway", "gpurun --log run.csv -- python train.py"),
            (
                "Wait up to two hours for four idle GPUs",
                "gpurun -n 4 --idle --wait 2h -- torchrun --nproc-per-node 4 train.py",
            ),
        ],
        Some("select") => &[
            ("Give a program the best GPU", "CUDA_VISIBLE_DEVICES=$(gpurun select -n 1) python train.py"),
            ("See why GPUs are refused", "gpurun select -n 2 -f 30GiB --explain"),
        ],
        Some("devices") => &[
            ("List the GPUs for a program", "gpurun devices --json"),
            ("Check the lease directory", "gpurun devices --check"),
        ],
        Some("record") => &[
            (
                "Log every GPU process of this host for an hour",
                "gpurun record --duration 1h --log host.parquet",
            ),
            ("Log a running process and its descendants", "gpurun record --pid 12345 --log running.csv"),
        ],
        Some("recover") => &[
            ("Finish a Parquet file from its journal", "gpurun recover run.parquet"),
            ("Finish every log in a directory", "gpurun recover logs/"),
        ],
        Some("export") => &[
            ("Convert to CSV with one row per window", "gpurun export run.parquet -o run.csv --layout wide"),
            ("Join the logs of two ranks", "gpurun export rank0.csv rank1.csv -o both.parquet"),
            ("Print JSON lines", "gpurun export run.parquet -o -"),
        ],
        Some("report") => &[
            ("Print a summary", "gpurun report run.parquet"),
            ("Write a page that compares two runs", "gpurun report a.parquet b.parquet -o report.html"),
        ],
        Some("status") => &[
            ("Ask every gpurun of this user", "gpurun status"),
            ("Ask one, for a program", "gpurun status 12345 --json"),
        ],
        Some("metrics") => &[("List the metrics for a program", "gpurun metrics --json")],
        Some("tag") => {
            &[("Mark a phase of a shell script", "gpurun tag begin load && ./load.sh; gpurun tag end")]
        }
        Some("step") => &[
            ("Mark the end of step 7", "gpurun step 7"),
            ("Mark the end of step 7, which took 64 samples", "gpurun step 7 --samples 64"),
        ],
        Some("epoch") => &[("Mark the beginning of epoch 3", "gpurun epoch 3")],
        Some("log") => &[("Log two scalars of step 7", "gpurun log loss=0.25 lr=1e-3 --step 7")],
        Some("completions") => {
            &[("Complete gpurun's options in this bash", "source <(gpurun completions bash)")]
        }
        Some("man") => &[
            ("Read the manual page of gpurun", "gpurun man | man -l -"),
            ("Read the page of gpurun select", "gpurun man select | man -l -"),
        ],
        Some("help") => &[("Read the help of gpurun select", "gpurun help select")],
        Some(_) => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn every_command_has_examples_and_every_example_is_understood() {
        let names: Vec<String> = Cli::command().get_subcommands().map(|c| c.get_name().to_owned()).collect();
        for name in [None].into_iter().chain(names.iter().map(|name| Some(name.as_str()))) {
            assert!(!examples(name).is_empty(), "{name:?}");
            for (_, line) in examples(name) {
                let start = line.find("gpurun").unwrap();
                let call = line[start..].split([')', '&', ';', '|']).next().unwrap();
                let words: Vec<OsString> = call.split_whitespace().map(OsString::from).collect();
                assert!(crate::cli::parse(words).is_ok(), "{line}");
            }
        }
    }
}
