//! What the argument of `--log` means, the templates in it, and what files beside a target are called. Touches nothing
//! but to ask whether a directory of that name exists.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::model::time::Wall;

/// Where rows go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A CSV file.
    Csv(PathBuf),
    /// A Parquet file, with its journal beside it while the run lasts.
    Parquet(PathBuf),
    /// A TensorBoard log directory; event files go to a run directory of ours inside it.
    TensorBoard(PathBuf),
}

/// Why an argument of `--log` means nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TargetError {
    /// There is no name.
    #[error("--log needs a file or directory name")]
    Empty,
    /// Standard output.
    #[error(
        "--log -: standard output belongs to the job; log to FILE and print it with 'gpurun export FILE -o -'"
    )]
    StandardOutput,
    /// No suffix, and no directory of that name.
    #[error("--log {0}: no suffix, and no such directory; use {0}.csv, {0}.parquet, tensorboard:{0} or {0}/")]
    NoForm(String),
    /// A device, a FIFO or a socket.
    #[error("--log {0}: not a regular file; use a file name that ends in .csv or .parquet")]
    NotAFile(String),
    /// The suffix says neither CSV nor Parquet.
    #[error("--log {name}: unknown suffix {suffix}; use .csv, .parquet, or tensorboard:DIR")]
    UnknownSuffix {
        /// The argument.
        name: String,
        /// Its suffix with the dot.
        suffix: String,
    },
    /// A template names nothing.
    #[error(
        "--log {name}: unknown placeholder {{{template}}}; use {{host}} {{rank}} {{pid}} {{run}} {{time}} {{job}}"
    )]
    UnknownTemplate {
        /// The argument.
        name: String,
        /// The word between the braces.
        template: String,
    },
    /// A brace is not closed.
    #[error("--log {0}: an unclosed {{; write {{{{ for a literal {{")]
    OpenBrace(String),
    /// A directory has the name of a file target.
    #[error("--log {0}: is a directory; for TensorBoard event files use tensorboard:{0}")]
    IsDirectory(String),
}

/// The values that templates in a target's name stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateValues {
    /// `{host}`.
    pub host: String,
    /// `{rank}`; a run without rank is rank 0.
    pub rank: Option<i32>,
    /// `{pid}` of gpurun.
    pub pid: u32,
    /// `{run}`.
    pub run: String,
    /// `{time}`: the start, as `YYYYMMDDThhmmssZ`.
    pub time: Wall,
    /// `{job}`.
    pub job: String,
}

const TEMPLATES: [&str; 6] = ["host", "rank", "pid", "run", "time", "job"];

impl Target {
    /// Reads one argument of `--log`.
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        if let Some(dir) = text.strip_prefix("tensorboard:") {
            if dir.is_empty() {
                return Err(TargetError::Empty);
            }
            check_templates(dir)?;
            return Ok(Target::TensorBoard(PathBuf::from(dir)));
        }
        match text {
            "" => return Err(TargetError::Empty),
            "-" => return Err(TargetError::StandardOutput),
            _ => {}
        }
        check_templates(text)?;
        let path = PathBuf::from(text);
        // A name that is nothing but a suffix is a hidden file of that kind.
        let hidden =
            || path.file_name()?.to_str()?.strip_prefix('.').filter(|s| ["csv", "parquet"].contains(s));
        let suffix = path
            .extension()
            .map(|s| s.to_string_lossy().to_ascii_lowercase())
            .or_else(|| hidden().map(str::to_owned));
        let is_directory = text.ends_with('/') || path.is_dir();
        match suffix.as_deref() {
            Some("csv" | "parquet") if is_directory => Err(TargetError::IsDirectory(text.to_owned())),
            Some("csv") => Ok(Target::Csv(path)),
            Some("parquet") => Ok(Target::Parquet(path)),
            _ if is_directory => Ok(Target::TensorBoard(path)),
            None if path.exists() && !path.is_file() => Err(TargetError::NotAFile(text.to_owned())),
            None => Err(TargetError::NoForm(text.to_owned())),
            Some(suffix) => {
                Err(TargetError::UnknownSuffix { name: text.to_owned(), suffix: format!(".{suffix}") })
            }
        }
    }

    /// The file, or the log directory.
    pub fn path(&self) -> &Path {
        match self {
            Target::Csv(path) | Target::Parquet(path) | Target::TensorBoard(path) => path,
        }
    }

    /// The same kind of target at another path.
    pub(crate) fn at(&self, path: PathBuf) -> Target {
        match self {
            Target::Csv(_) => Target::Csv(path),
            Target::Parquet(_) => Target::Parquet(path),
            Target::TensorBoard(_) => Target::TensorBoard(path),
        }
    }

    /// The target with its templates filled in.
    pub fn resolve(&self, values: &TemplateValues) -> Target {
        match self.path().to_str() {
            Some(text) => self.at(PathBuf::from(fill_templates(text, values))),
            None => self.clone(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Csv(path) | Target::Parquet(path) => write!(f, "{}", path.display()),
            Target::TensorBoard(path) => write!(f, "tensorboard:{}", path.display()),
        }
    }
}

/// `metrics.parquet.journal` of `metrics.parquet`.
pub fn journal_path(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(JOURNAL);
    PathBuf::from(name)
}

/// The target of a journal; `None` for another file.
pub fn target_of_journal(journal: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let name = journal.file_name()?.as_bytes().strip_suffix(JOURNAL.as_bytes())?;
    (!name.is_empty()).then(|| journal.with_file_name(std::ffi::OsStr::from_bytes(name)))
}

const JOURNAL: &str = ".journal";

/// The name of the `n`th file of a path, for names that are taken: `metrics.parquet`, `metrics-2.parquet`,
/// `metrics-3.parquet`; a journal's is that of its target.
pub(crate) fn numbered(path: &Path, n: u32) -> PathBuf {
    if n <= 1 {
        return path.to_owned();
    }
    if let Some(target) = target_of_journal(path) {
        return journal_path(&numbered(&target, n));
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{n}"));
    if let Some(suffix) = path.extension() {
        name.push(".");
        name.push(suffix);
    }
    path.with_file_name(name)
}

fn check_templates(text: &str) -> Result<(), TargetError> {
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('{') {
            rest = after;
            continue;
        }
        let end = rest.find('}').ok_or_else(|| TargetError::OpenBrace(text.to_owned()))?;
        let word = &rest[..end];
        if !TEMPLATES.contains(&word) {
            return Err(TargetError::UnknownTemplate { name: text.to_owned(), template: word.to_owned() });
        }
        rest = &rest[end + 1..];
    }
    Ok(())
}

fn fill_templates(text: &str, values: &TemplateValues) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        match rest.split_once('}') {
            Some((word, after)) if brace == "{" && TEMPLATES.contains(&word) => {
                out.push_str(&value_of(word, values));
                rest = after;
            }
            _ => out.push_str(brace),
        }
    }
    out.push_str(rest);
    out
}

fn value_of(word: &str, values: &TemplateValues) -> String {
    let value = match word {
        "host" => values.host.clone(),
        "rank" => values.rank.unwrap_or(0).to_string(),
        "pid" => values.pid.to_string(),
        "run" => values.run.clone(),
        "time" => compact_time(values.time),
        _ => values.job.clone(),
    };
    // A value is one component of a name: it must not reach into another directory.
    let value = value.replace(['/', '\0'], "_");
    if value == "." || value == ".." { "_".to_owned() } else { value }
}

/// `YYYYMMDDThhmmssZ`; the epoch for instants outside the calendar.
fn compact_time(time: Wall) -> String {
    let stamp = jiff::Timestamp::from_microsecond(time.0).unwrap_or_default();
    stamp.strftime("%Y%m%dT%H%M%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values() -> TemplateValues {
        TemplateValues {
            host: "n/1".into(),
            rank: Some(3),
            pid: 42,
            run: "r".into(),
            time: Wall(1_700_000_000_000_000),
            job: "..".into(),
        }
    }

    #[test]
    fn the_suffix_decides() {
        assert_eq!(Target::parse("a/b.csv"), Ok(Target::Csv("a/b.csv".into())));
        assert_eq!(Target::parse("B.PARQUET"), Ok(Target::Parquet("B.PARQUET".into())));
        assert_eq!(Target::parse("tensorboard:runs/x.csv"), Ok(Target::TensorBoard("runs/x.csv".into())));
        assert_eq!(Target::parse("a/.csv"), Ok(Target::Csv("a/.csv".into())));
        assert_eq!(Target::parse(".runs"), Err(TargetError::NoForm(".runs".into())));
        assert_eq!(Target::parse("runs/exp1"), Err(TargetError::NoForm("runs/exp1".into())));
        assert_eq!(Target::parse("runs/exp1/"), Ok(Target::TensorBoard("runs/exp1/".into())));
        assert_eq!(Target::parse("src"), Ok(Target::TensorBoard("src".into())));
        assert_eq!(Target::parse("-"), Err(TargetError::StandardOutput));
        assert_eq!(Target::parse("runs/v1.5/"), Ok(Target::TensorBoard("runs/v1.5/".into())));
        assert!(matches!(Target::parse("m.json"), Err(TargetError::UnknownSuffix { .. })));
        assert!(matches!(Target::parse("m.csv.gz"), Err(TargetError::UnknownSuffix { .. })));
        assert_eq!(Target::parse(""), Err(TargetError::Empty));
        assert_eq!(Target::parse("tensorboard:"), Err(TargetError::Empty));
        assert_eq!(Target::parse("out/there"), Err(TargetError::NoForm("out/there".into())));
        assert_eq!(Target::parse("-"), Err(TargetError::StandardOutput));
    }

    #[test]
    fn the_next_name_keeps_the_suffix() {
        let name = |path: &str, n| numbered(Path::new(path), n).to_str().unwrap().to_owned();
        assert_eq!(name("a/m.parquet", 1), "a/m.parquet");
        assert_eq!(name("a/m.parquet", 2), "a/m-2.parquet");
        assert_eq!(name("a/m.parquet.journal", 3), "a/m-3.parquet.journal");
        assert_eq!(name("v1.5.csv", 12), "v1.5-12.csv");
        assert_eq!(name("m", 2), "m-2");
    }

    #[test]
    fn a_directory_named_like_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("x.csv");
        std::fs::create_dir(&name).unwrap();
        assert!(matches!(Target::parse(name.to_str().unwrap()), Err(TargetError::IsDirectory(_))));
    }

    #[test]
    fn templates_are_filled_and_stay_inside_one_component() {
        let target = Target::parse("{host}/{rank}-{pid}-{run}-{time}-{job}.csv").unwrap();
        assert_eq!(target.resolve(&values()), Target::Csv("n_1/3-42-r-20231114T221320Z-_.csv".into()));
        assert_eq!(Target::parse("{{x}}.csv").unwrap().resolve(&values()), Target::Csv("{x}.csv".into()));
        assert!(matches!(Target::parse("{hots}.csv"), Err(TargetError::UnknownTemplate { .. })));
        assert!(matches!(Target::parse("{host.csv"), Err(TargetError::OpenBrace(_))));
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_names_without_braces_stay(text in "[^\0]{0,40}") {
            if let Ok(target) = Target::parse(&text) {
                let resolved = target.resolve(&values());
                if !text.contains(['{', '}']) {
                    prop_assert_eq!(target, resolved);
                }
            }
        }
    }
}
