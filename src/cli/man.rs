//! The manual pages of `gpurun man`: one for gpurun and one for each subcommand, made from the grammar.

use clap::{Arg, Command};
use roff::{Inline, Roff, bold, italic, roman};

use super::help::{self, JOB_STATUS, VALUES};
use super::{exit, mistake};

/// A name with its meaning, as FILES and ENVIRONMENT list them.
type Entry = (&'static str, &'static str);

/// In place of the date of a page.
const NO_DATE: &str = "\"\"";

/// The page of a subcommand, or of gpurun itself.
///
/// # Errors
/// There is no such subcommand; one line.
pub(crate) fn page(name: Option<&str>) -> Result<String, String> {
    let mut root = help::command(false);
    root.build();
    let command = match name {
        None => &root,
        Some(name) => root.find_subcommand(name).ok_or_else(|| mistake::unknown_command(name, &root))?,
    };
    let mut page = Roff::new();
    let title = title(name);
    let version = format!("gpurun {}", root.get_version().unwrap_or_default());
    page.control("TH", [title.to_uppercase().as_str(), "1", NO_DATE, &version, "User Commands"]);
    // Names of files and options are not to be hyphenated.
    page.control("nh", []);
    page.control("ad", ["l"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{title} - {}", about(command)))]);
    synopsis(&mut page, command);
    description(&mut page, command);
    options(&mut page, command);
    commands(&mut page, command, name.is_none());
    exit_status(&mut page, name);
    entries(&mut page, "ENVIRONMENT", environment(name));
    entries(&mut page, "FILES", files(name));
    examples(&mut page, name);
    see_also(&mut page, &root, name);
    Ok(page.render())
}

fn title(name: Option<&str>) -> String {
    name.map_or_else(|| "gpurun".to_owned(), |name| format!("gpurun-{name}"))
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// The usage as `--help` has it, one form per line.
fn synopsis(page: &mut Roff, command: &Command) {
    page.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    for (number, form) in usage.trim_start_matches("Usage:").lines().map(str::trim).enumerate() {
        if number > 0 {
            page.control("br", []);
        }
        page.text([roman(form)]);
    }
}

fn description(page: &mut Roff, command: &Command) {
    page.control("SH", ["DESCRIPTION"]);
    let short = about(command);
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    // The first paragraph of the long text is the short one, which stands in NAME.
    let long = long.strip_prefix(&short).map_or("", str::trim_start);
    paragraphs(page, if long.is_empty() { &short } else { long }, "PP");
}

/// Writes a help text; between two paragraphs stands the macro `between`.
fn paragraphs(page: &mut Roff, text: &str, between: &str) {
    for (number, paragraph) in text.split("\n\n").enumerate() {
        if number > 0 {
            page.control(between, []);
        }
        page.text(sentence(paragraph));
    }
}

/// A text as a sentence, what stands in backticks in bold. The name of the program keeps its small letter.
fn sentence(text: &str) -> Vec<Inline> {
    let end = if text.ends_with(['.', ']', ':']) { "" } else { "." };
    let mut text = format!("{text}{end}");
    if !text.starts_with("gpurun")
        && let Some(first) = text.get_mut(..1)
    {
        first.make_ascii_uppercase();
    }
    let parts = text.split('`').enumerate();
    parts.map(|(number, part)| if number % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// Arguments and options, under the headings that `--help` has.
fn options(page: &mut Roff, command: &Command) {
    let shown: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for heading in shown.iter().map(|arg| arg.get_help_heading()) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    if shown.is_empty() {
        return;
    }
    page.control("SH", ["OPTIONS"]);
    for heading in headings {
        if let Some(heading) = heading {
            page.control("SS", [heading]);
        }
        for arg in shown.iter().filter(|arg| arg.get_help_heading() == heading) {
            option(page, arg);
        }
    }
    let values: Vec<Entry> = VALUES
        .iter()
        .copied()
        .filter(|(word, _)| shown.iter().any(|arg| value_name(arg) == Some(word)))
        .collect();
    if !values.is_empty() {
        page.control("SS", ["Values"]);
        list(page, &values);
    }
}

fn option(page: &mut Roff, arg: &Arg) {
    let mut head = Vec::new();
    let names = arg.get_short().map(|short| format!("-{short}")).into_iter();
    let longs = arg.get_long_and_visible_aliases().unwrap_or_default();
    for name in names.chain(longs.into_iter().map(|long| format!("--{long}"))) {
        if !head.is_empty() {
            head.push(roman(", "));
        }
        head.push(bold(name));
    }
    let takes = arg.get_num_args().unwrap_or_default();
    if takes.takes_values() {
        let value = value_name(arg).unwrap_or_default();
        let several = if takes.max_values() > 1 { "..." } else { "" };
        let (open, close) = if takes.min_values() == 0 { ("[", "]") } else { ("", "") };
        let space = if head.is_empty() { "" } else { " " };
        head.extend([roman(format!("{space}{open}")), italic(value), roman(format!("{several}{close}"))]);
    }
    page.control("TP", []);
    page.text(head);
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string);
    paragraphs(page, &help.unwrap_or_default(), "IP");
}

fn value_name(arg: &Arg) -> Option<&str> {
    arg.get_value_names().and_then(|names| names.first()).map(AsRef::as_ref)
}

/// The subcommands: those of gpurun have pages of their own.
fn commands(page: &mut Roff, command: &Command, have_pages: bool) {
    if !command.has_subcommands() {
        return;
    }
    page.control("SH", ["COMMANDS"]);
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        page.control("TP", []);
        if have_pages {
            page.text([bold(title(Some(command.get_name()))), roman("(1)")]);
        } else {
            let usage = command.clone().render_usage().to_string();
            page.text([roman(usage.trim_start_matches("Usage:").trim())]);
        }
        page.text(sentence(&about(command)));
    }
}

fn exit_status(page: &mut Roff, name: Option<&str>) {
    page.control("SH", ["EXIT STATUS"]);
    if name.is_none() {
        page.text([roman(format!(
            "{JOB_STATUS} As the first process of a container, gpurun exits with 128 + the number of the signal \
             instead. Otherwise:"
        ))]);
    }
    for (exit, meaning) in exit::statuses(name) {
        page.control("TP", []);
        page.text([bold(exit.code().to_string())]);
        page.text(sentence(meaning));
    }
}

fn entries(page: &mut Roff, heading: &str, entries: &[Entry]) {
    if !entries.is_empty() {
        page.control("SH", [heading]);
        list(page, entries);
    }
}

fn list(page: &mut Roff, entries: &[Entry]) {
    for (name, meaning) in entries {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text(sentence(meaning));
    }
}

fn examples(page: &mut Roff, name: Option<&str>) {
    page.control("SH", ["EXAMPLES"]);
    for (number, (what, line)) in help::examples(name).iter().enumerate() {
        if number > 0 {
            page.control("PP", []);
        }
        page.text([roman(format!("{what}:"))]);
        page.control("PP", []);
        page.control("RS", ["4"]);
        page.control("nf", []);
        page.text([bold(*line)]);
        page.control("fi", []);
        page.control("RE", []);
    }
}

/// gpurun names all of its pages, a subcommand's page the first.
fn see_also(page: &mut Roff, root: &Command, name: Option<&str>) {
    page.control("SH", ["SEE ALSO"]);
    let pages: Vec<String> = match name {
        None => root.get_subcommands().map(|command| title(Some(command.get_name()))).collect(),
        Some(_) => vec![title(None)],
    };
    let last = pages.len().saturating_sub(1);
    for (number, title) in pages.into_iter().enumerate() {
        let after = if number < last { "(1)," } else { "(1)" };
        page.control("BR", [title.replace('-', r"\-").as_str(), after]);
    }
}

const VISIBLE: Entry = (
    "CUDA_VISIBLE_DEVICES",
    "if set, GPUs are chosen among those it names; the job gets it with the chosen GPUs",
);
const LIBRARY: Entry = ("GPURUN_NVML_LIBRARY", "the NVML library to load, as with --nvml-library");
const LEASES: Entry = ("GPURUN_LEASE_DIR", "the directory of the leases");
const RUNTIME: Entry =
    ("XDG_RUNTIME_DIR", "the directory of the sockets by which gpurun status finds a running gpurun");

/// The variables that a command reads, and those it sets for the job.
fn environment(name: Option<&str>) -> &'static [Entry] {
    match name {
        None => &[
            VISIBLE,
            (
                "CUDA_DEVICE_ORDER",
                "set to PCI_BUS_ID for the job, so that indices mean the same to CUDA and NVML",
            ),
            LIBRARY,
            LEASES,
            ("GPURUN_LEASES", "set for the job: the GPUs that are held for it, for a gpurun inside the job"),
            ("GPURUN_SOCKET", "set for the job: the socket that takes tags, steps and scalars"),
            RUNTIME,
            (
                "RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, SLURM_PROCID",
                "the rank of the process, for the column rank and {rank} in names of targets",
            ),
            ("SLURM_JOB_ID", "the value of {job} in names of targets, instead of the name of the command"),
        ],
        Some("select") => {
            &[("CUDA_VISIBLE_DEVICES", "with -i, GPUs are chosen among those it names"), LIBRARY, LEASES]
        }
        Some("devices") => &[LIBRARY, LEASES],
        Some("record") => &[LIBRARY, RUNTIME],
        Some("status") => &[RUNTIME],
        Some("tag" | "step" | "epoch" | "log") => {
            &[("GPURUN_SOCKET", "the socket of the surrounding gpurun")]
        }
        Some(_) => &[],
    }
}

const JOURNAL: Entry =
    ("NAME.parquet.journal", "the rows of NAME.parquet until the run ends; gpurun recover finishes it");
const LEASE_FILES: Entry = (
    "/run/lock/gpurun, /tmp/gpurun-leases",
    "one lock per GPU, by UUID; the second where /run/lock cannot be written by every user",
);
const SOCKETS: Entry = (
    "$XDG_RUNTIME_DIR/gpurun, /tmp/gpurun-UID",
    "the sockets of running gpurun; the second without XDG_RUNTIME_DIR",
);

/// The files that a command uses beside those that it was given.
fn files(name: Option<&str>) -> &'static [Entry] {
    match name {
        None => &[JOURNAL, LEASE_FILES, SOCKETS],
        Some("select" | "devices") => &[LEASE_FILES],
        Some("record") => &[JOURNAL, SOCKETS],
        Some("status") => &[SOCKETS],
        Some("recover" | "export" | "report") => &[JOURNAL],
        Some(_) => &[],
    }
}
