//! How figures, times and names read. What comes out of a log is untrusted: it is cleaned here.

pub(super) use crate::sys::format::{brief, count, duration, mib, millis, number, percent};

use crate::sys::format;
use jiff::Timestamp;

use crate::model::signal;
use crate::sys::escape::{printable, shell_words};

use super::about::Exit;
use super::curve::Figures;
use super::part::Part;

/// What stands where nothing is known.
pub(super) const UNKNOWN: &str = "–";

/// A text from a log on one line, harmless to a terminal.
pub(super) fn clean(text: &str) -> String {
    printable(text).into_owned()
}

/// A text shortened to `most` characters.
pub(super) fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(most.saturating_sub(1)).collect();
    out.push('…');
    out
}

/// The end of a path-like text, shortened to `most` characters.
pub(super) fn short_start(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let tail: String = text.chars().skip(count - most.saturating_sub(1)).collect();
    format!("…{tail}")
}

/// A command line as a shell would take it.
pub(super) fn command(argv: &[String]) -> String {
    clean(&shell_words(argv))
}

/// The text of a known value.
pub(super) fn known(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

/// `mean 87 %, max 100 %`.
pub(super) fn mean_max(figures: &Figures, text: impl Fn(f64) -> String) -> String {
    match (figures.mean(), figures.max) {
        (Some(mean), Some(max)) => format!("mean {}, max {}", text(mean), text(max)),
        _ => UNKNOWN.to_owned(),
    }
}

/// A moment in UTC: `2026-11-30 05:00:00 UTC`.
pub(super) fn moment(us: i64) -> String {
    strftime(us, "%Y-%m-%d %H:%M:%S UTC")
}

/// A moment by a format of `strftime`, in UTC.
pub(super) fn strftime(us: i64, format: &str) -> String {
    Timestamp::from_microsecond(us).map_or_else(|_| UNKNOWN.to_owned(), |t| t.strftime(format).to_string())
}

/// How a run ended, as far as its log knows.
pub(super) fn ending(part: &Part, describes: bool) -> String {
    match part.about.exit {
        Some(Exit::Code(0)) => "exit status 0".to_owned(),
        Some(Exit::Code(code)) => format!("exit status {code}"),
        Some(Exit::Signal(number)) => format!("killed by {}", signal::name(number)),
        None if !describes => UNKNOWN.to_owned(),
        None if part.about.end_us.is_some() => "recorded, not launched".to_owned(),
        None => "unknown: the log was not finished".to_owned(),
    }
}

/// What a run ran.
pub(super) fn job(part: &Part, describes: bool) -> String {
    match &part.about.argv {
        Some(argv) if argv.is_empty() => "none, gpurun record".to_owned(),
        Some(argv) => command(argv),
        None if describes => UNKNOWN.to_owned(),
        None => "not in a CSV file".to_owned(),
    }
}

/// Seconds that a percentage of time adds up to.
pub(super) fn held_seconds(figures: &Figures) -> Option<f64> {
    figures.amount().map(|percent_s| percent_s / 100.0)
}

/// `power 12.0 s, heat 3.1 s`; `none`; unknown.
pub(super) fn throttled(device: &super::part::Device) -> String {
    let causes = [("power", &device.throttled_power.figures), ("heat", &device.throttled_thermal.figures)];
    let mut parts = Vec::new();
    let mut any = false;
    for (cause, figures) in causes {
        if let Some(seconds) = held_seconds(figures) {
            any = true;
            if seconds >= 0.05 {
                parts.push(format!("{cause} {}", duration(seconds)));
            }
        }
    }
    match (any, parts.is_empty()) {
        (false, _) => UNKNOWN.to_owned(),
        (true, true) => "none".to_owned(),
        (true, false) => parts.join(", "),
    }
}

/// Energy, with a mark where it is an estimate.
pub(super) fn energy(device: &super::part::Device) -> String {
    device.energy().map_or_else(
        || UNKNOWN.to_owned(),
        |(e, estimate)| format!("{}{}", if estimate { "≈ " } else { "" }, format::energy(e)),
    )
}

/// Peak of the job's memory of capacity, or of what all processes used where the job's is unknown.
pub(super) fn memory_peak(device: &super::part::Device) -> String {
    let (peak, whose) = match (device.job_memory.figures.max, device.memory_used.figures.max) {
        (Some(job), used) if job > 0.0 || used.is_none_or(|used| used == 0.0) => (job, ""),
        (_, Some(used)) => (used, " in use"),
        (_, None) => return UNKNOWN.to_owned(),
    };
    match device.memory_total {
        Some(total) => format!("{} of {}{whose}", mib(peak), mib(total)),
        None => format!("{}{whose}", mib(peak)),
    }
}

/// The tag path without the root, which every path has.
pub(super) fn tag(path: &str, root: &str) -> String {
    let inner = path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/'));
    clean(inner.unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_quoted_and_cleaned() {
        let argv = ["python", "a b.py", "it's", "", "\u{1b}[31m"].map(str::to_owned);
        assert_eq!(command(&argv), r"python 'a b.py' 'it'\''s' '' '\u{1b}[31m'");
        assert_eq!(clean("a\u{202e}b\nc"), "a\\u{202e}b\\nc");
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(short_start("abcdef", 4), "…def");
    }
}
