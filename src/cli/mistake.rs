//! What is wrong with a command line, in one line that says what to type instead.

use std::ffi::OsString;

use clap::builder::Str;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use super::duration::parse_duration;
use super::logging::is_metric;
use super::size::parse_size;
use crate::model::selection::DeviceName;

/// Options of other programs that ask for a number of GPUs.
const COUNTS: &[&str] = &["-g", "--gpu", "--gpus", "--ngpus", "--num-gpus", "--num_gpus", "--gpu-count"];

/// The line for a command line that clap refused.
pub(super) fn explain(error: &clap::Error, argv: &[OsString], root: Command) -> String {
    let before_job = argv.iter().skip(1).take_while(|word| *word != "--");
    match error.kind() {
        ErrorKind::InvalidUtf8 => {
            if let Some(word) = before_job.clone().find(|word| word.to_str().is_none()) {
                return format!("{word:?} is not UTF-8");
            }
        }
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => {
            let words: Vec<String> = before_job.map(|word| word.to_string_lossy().into_owned()).collect();
            let jobless = job_after_subcommand(&words, argv, &root);
            if let Some(unknown) = Unknown::find(error, words, argv.iter().any(|word| word == "--"), root) {
                return unknown.explain();
            }
            if let Some(line) = jobless {
                return line;
            }
        }
        _ => {}
    }
    in_one_line(&error.to_string())
}

/// The line for words that stand where only options can: without `--` they are meant to be the job.
///
/// `first` is the number of the job's first word.
fn job_line(words: &[String], first: usize) -> String {
    let (options, job) = words.split_at(first);
    let options = if options.is_empty() { "[OPTIONS]".to_owned() } else { quoted(options) };
    format!("to run a job, put it after --: gpurun {options} -- {}", quoted(job))
}

/// The line for a job after the options of a subcommand, as in `select -n 1 -- true`; `words` are those before `--`.
fn job_after_subcommand(words: &[String], argv: &[OsString], root: &Command) -> Option<String> {
    let (name, options) = words.split_first()?;
    root.find_subcommand(name)?;
    let job: Vec<String> =
        argv.iter().skip(words.len() + 2).map(|word| word.to_string_lossy().into_owned()).collect();
    // Those of the other commands are not a job's.
    let options = match name.as_str() {
        "select" if !options.is_empty() => quoted(options),
        _ => "[OPTIONS]".to_owned(),
    };
    Some(format!("'gpurun {name}' runs no job; to run one: gpurun {options} -- {}", quoted(&job)))
}

/// The line for a job that an option with an optional value has taken as its value, as in `--wait ./train.sh`.
pub(super) fn taken_as_value(argv: &[OsString]) -> Option<String> {
    let words: Vec<String> = argv.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let first = (1..words.len()).find(|&at| is_taken_by_mistake(&words, at))?;
    Some(job_line(&words, first))
}

/// Whether word `at` follows an option with an optional value, and cannot be that value.
fn is_taken_by_mistake(words: &[String], at: usize) -> bool {
    let (Some(option), Some(word)) = (at.checked_sub(1).and_then(|before| words.get(before)), words.get(at))
    else {
        return false;
    };
    match option.as_str() {
        _ if word.starts_with('-') => false,
        "--wait" => parse_duration(word).is_err(),
        "-i" | "--inherit" => !word.split(',').all(|name| name.is_empty() || DeviceName::parse(name).is_ok()),
        _ => false,
    }
}

/// A word that the grammar does not know, and where it stands.
struct Unknown {
    /// The word as clap names it: an option without its value.
    word: String,
    /// All words before `--`.
    words: Vec<String>,
    /// Number of the unknown word among them.
    at: usize,
    /// Whether there is a `--`.
    has_separator: bool,
    /// The grammar of the whole program.
    root: Command,
}

impl Unknown {
    fn find(error: &clap::Error, words: Vec<String>, has_separator: bool, root: Command) -> Option<Self> {
        let word = unknown_word(error)?;
        // The same word may stand earlier as the value of an option: the first part of the line that fails by this
        // word ends with it.
        let refused = |end: usize| {
            let part = std::iter::once("gpurun").chain(words.iter().take(end).map(String::as_str));
            root.clone().try_get_matches_from(part).err().and_then(|error| unknown_word(&error))
        };
        let at = (1..=words.len()).find(|&end| refused(end).as_ref() == Some(&word))? - 1;
        Some(Self { word, words, at, has_separator, root })
    }

    /// The subcommand that was typed, or the whole program.
    fn command(&self) -> &Command {
        self.subcommand().unwrap_or(&self.root)
    }

    fn subcommand(&self) -> Option<&Command> {
        self.root.find_subcommand(self.words.first().filter(|_| self.at > 0)?)
    }

    /// `gpurun` or `gpurun select`.
    fn name(&self) -> String {
        self.subcommand()
            .map_or_else(|| "gpurun".to_owned(), |command| format!("gpurun {}", command.get_name()))
    }

    fn explain(&self) -> String {
        if self.word.starts_with('-') { self.explain_option() } else { self.explain_word() }
    }

    fn explain_option(&self) -> String {
        let option = &self.word;
        if COUNTS.contains(&option.as_str())
            && self.command().get_arguments().any(|arg| arg.get_id() == "count")
        {
            let number = self.value().filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
            let number = number.as_deref().unwrap_or("N");
            return format!("there is no option '{option}'; for the number of GPUs use -n {number}");
        }
        let options: Vec<String> = self
            .command()
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default())
            .map(|long| format!("--{long}"))
            .collect();
        // `-log` is read as -l -o -g.
        let typed =
            self.words.get(self.at).map(|word| word.split('=').next().unwrap_or(word)).unwrap_or(option);
        let typed = if typed.starts_with("--") { typed.to_owned() } else { format!("-{typed}") };
        match near(&typed, options.iter().map(String::as_str)) {
            Some(known) => format!("there is no option '{option}'; did you mean '{known}'?"),
            None => format!("there is no option '{option}'; see '{} --help'", self.name()),
        }
    }

    /// The value of the unknown option: after `=`, or the next word.
    fn value(&self) -> Option<String> {
        let word = self.words.get(self.at)?;
        match word.split_once('=') {
            Some((_, value)) => Some(value.to_owned()),
            None if word.len() > self.word.len() => word.get(self.word.len()..).map(str::to_owned),
            None => self.words.get(self.at + 1).cloned(),
        }
    }

    fn explain_word(&self) -> String {
        let word = &self.word;
        if let Some(line) = self.divided_value() {
            return line;
        }
        if let Some(command) = self.subcommand() {
            return match command.has_subcommands() {
                true => unknown_command(word, command),
                false => format!("unexpected '{word}'; see '{} --help'", self.name()),
            };
        }
        if self.root.find_subcommand(word).is_some() {
            let (before, rest) = self.words.split_at(self.at);
            let options: Vec<String> = before.iter().chain(rest.iter().skip(1)).cloned().collect();
            return format!("options go after the command: gpurun {word} {}", quoted(&options));
        }
        let taken = self.at.checked_sub(1).filter(|before| is_taken_by_mistake(&self.words, *before));
        let job = job_line(&self.words, taken.unwrap_or(self.at));
        match near(word, self.root.get_subcommands().map(Command::get_name)) {
            Some(known) if self.has_separator => {
                format!("there is no command '{word}'; did you mean '{known}'?")
            }
            Some(known) => {
                format!("there is no command '{word}'; did you mean '{known}'? (a job goes after --)")
            }
            None if self.has_separator => {
                format!("unexpected '{word}' before --: only options go there, the job goes after --")
            }
            None => job,
        }
    }

    /// `-f 8 GiB`, `--exclude 6 7`: the unknown word belongs to the value before it.
    fn divided_value(&self) -> Option<String> {
        let (option, arg, value) = self.option_before()?;
        let rest: Vec<&str> = self
            .words
            .iter()
            .skip(self.at)
            .map(String::as_str)
            .take_while(|word| !word.starts_with('-'))
            .collect();
        let first = rest.first()?;
        let kind = arg.get_value_names().and_then(|names| names.first()).map(Str::as_str)?;
        let whole = match kind {
            "SIZE" => Some(format!("{value}{first}")).filter(|whole| parse_size(whole).is_ok()),
            "D" => Some(format!("{value}{first}")).filter(|whole| parse_duration(whole).is_ok()),
            "ID" | "LIST" | "PID" => {
                let is_entry = |word: &&str| match kind {
                    "ID" => DeviceName::parse(word).is_ok(),
                    "LIST" => is_metric(word),
                    _ => word.parse::<i32>().is_ok(),
                };
                let entries = rest.iter().map(|word| word.trim_matches(','));
                let entries: Vec<&str> = entries.take_while(is_entry).collect();
                let value = value.trim_end_matches(',');
                (!entries.is_empty()).then(|| format!("{value},{}", entries.join(",")))
            }
            _ => None,
        }?;
        Some(format!("unexpected '{first}': a value has no blanks, write {option} {whole}"))
    }

    /// The option whose value stands just before the unknown word, as typed, and that value.
    fn option_before(&self) -> Option<(String, &Arg, String)> {
        let before = self.words.get(self.at.checked_sub(1)?)?;
        let find = |name: &str| {
            self.command().get_arguments().find(|arg| match name.strip_prefix("--") {
                Some(long) => arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&long)),
                None => arg.get_short().is_some_and(|short| name == format!("-{short}")),
            })
        };
        if !before.starts_with('-') {
            let option = self.words.get(self.at.checked_sub(2)?)?;
            return Some((option.clone(), find(option)?, before.clone()));
        }
        let (option, value) = match before.split_once('=') {
            Some(parts) => parts,
            None => before.split_at_checked(2)?,
        };
        Some((option.to_owned(), find(option)?, value.to_owned()))
    }
}

/// The word that clap does not know.
fn unknown_word(error: &clap::Error) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
        return None;
    }
    match error.get(ContextKind::InvalidSubcommand).or_else(|| error.get(ContextKind::InvalidArg))? {
        ContextValue::String(word) => Some(word.clone()),
        _ => None,
    }
}

/// The line for a word that is no subcommand of `command`.
pub(super) fn unknown_command(word: &str, command: &Command) -> String {
    let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    match near(word, names.iter().copied()) {
        Some(known) => format!("there is no command '{word}'; did you mean '{known}'?"),
        None if names.is_empty() => format!("there is no command '{word}'"),
        None => format!("there is no command '{word}'; there are {}", names.join(", ")),
    }
}

/// The known name that was probably meant: one that begins with what was typed, or differs in a letter or two.
fn near<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if typed.contains(['.', '/']) {
        return None;
    }
    let letters = typed.trim_start_matches('-').chars().count();
    let allowed = (letters / 3).max(1);
    let distance = |name: &str| match name.starts_with(typed) && letters >= 3 {
        true => 0,
        false => strsim::osa_distance(typed, name),
    };
    known
        .map(|name| (distance(name), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, name)| name)
}

/// Words as a shell would read them.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// clap's text in one line, without its usage and advice: to put a value after -- would make a job of it here.
fn in_one_line(text: &str) -> String {
    let mut parts =
        text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim).filter(|line| {
            !line.is_empty() && !line.starts_with("For more information") && !line.starts_with("tip:")
        });
    let first = parts.next().unwrap_or("cannot read the command line");
    let mut line = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    for part in parts {
        if !line.ends_with(':') && !line.ends_with(',') && !part.starts_with('[') {
            line.push(',');
        }
        line.push(' ');
        line.push_str(part);
    }
    line
}
