//! How figures, times and names read. What comes out of a log is untrusted: it is cleaned here.

use jiff::Timestamp;

use crate::model::signal;

use super::about::Exit;
use super::curve::Figures;
use super::part::Part;

/// What stands where nothing is known.
pub(super) const UNKNOWN: &str = "–";

/// A text from a log on one line, harmless to a terminal: control characters and marks that turn the
/// direction of writing become `�`.
pub(super) fn clean(text: &str) -> String {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if odd(c) { '\u{fffd}' } else { c }).collect()
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
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    let words: Vec<String> = argv
        .iter()
        .map(|word| match word {
            word if !word.is_empty() && word.chars().all(plain) => word.clone(),
            word => format!("'{}'", word.replace('\'', r"'\''")),
        })
        .collect();
    clean(&words.join(" "))
}

/// Seconds as people read them: `9.8 s`, `2 min 5 s`, `3 h 12 min`, `2 d 4 h`.
pub(super) fn duration(seconds: f64) -> String {
    let tenths = (seconds * 10.0).round() / 10.0;
    if tenths < 60.0 {
        return if tenths > 0.0 || seconds == 0.0 { format!("{tenths:.1} s") } else { millis(seconds * 1e3) };
    }
    let whole = seconds.round() as u64;
    match whole {
        0..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..172_800 => {
            let minutes = (whole + 30) / 60;
            format!("{} h {} min", minutes / 60, minutes % 60)
        }
        _ => {
            let hours = (whole + 1800) / 3600;
            format!("{} d {} h", hours / 24, hours % 24)
        }
    }
}

/// Milliseconds of a step: `3.42 ms`, `128 ms`, `2.5 s`.
pub(super) fn millis(ms: f64) -> String {
    match ms {
        ms if ms >= 60_000.0 => duration(ms / 1e3),
        ms if ms >= 1000.0 => format!("{:.2} s", ms / 1e3),
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 10.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.2} ms"),
    }
}

/// MiB with the unit that fits: `512 MiB`, `71.3 GiB`.
pub(super) fn mib(mib: f64) -> String {
    match mib {
        m if m >= 1024.0 * 1024.0 => format!("{:.1} TiB", m / 1024.0 / 1024.0),
        m if m >= 10_000.0 => format!("{:.1} GiB", m / 1024.0),
        m if m >= 10.0 || m == 0.0 => format!("{m:.0} MiB"),
        m if m >= 0.1 => format!("{m:.1} MiB"),
        m => format!("{:.0} KiB", m * 1024.0),
    }
}

/// Joules: `840 J`, `12.5 kJ`, `1.24 kWh`.
pub(super) fn joules(energy: f64) -> String {
    match energy {
        e if e >= 3.6e6 => format!("{:.2} kWh", e / 3.6e6),
        e if e >= 3.6e5 => format!("{:.0} Wh", e / 3.6e3),
        e if e >= 1e3 => format!("{:.1} kJ", e / 1e3),
        e => format!("{e:.0} J"),
    }
}

/// A percentage: whole from 10 on, one digit below.
pub(super) fn percent(value: f64) -> String {
    if value >= 9.95 || value == 0.0 { format!("{value:.0} %") } else { format!("{value:.1} %") }
}

/// A plain number with about three digits.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        s if s == 0.0 => "0".to_owned(),
        s if !(1e-3..1e7).contains(&s) => format!("{value:.2e}"),
        s if s >= 100.0 || (s >= 10.0 && value.fract() == 0.0) => format!("{value:.0}"),
        s if s >= 10.0 => format!("{value:.1}"),
        s if s >= 1.0 => trim(format!("{value:.2}")),
        _ => trim(format!("{value:.4}")),
    }
}

/// A plain number in at most five characters or so, for beside a chart.
pub(super) fn brief(value: f64) -> String {
    let size = value.abs();
    if size >= 1e4 || (size > 0.0 && size < 1e-2) {
        format!("{value:.0e}")
    } else {
        number((value * 100.0).round() / 100.0)
    }
}

fn trim(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A count with thin gaps between thousands.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Applies `words` to what is known.
pub(super) fn known(value: Option<f64>, words: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), words)
}

/// `mean 87 %, max 100 %`.
pub(super) fn mean_max(figures: &Figures, words: impl Fn(f64) -> String) -> String {
    match (figures.mean(), figures.max) {
        (Some(mean), Some(max)) => format!("mean {}, max {}", words(mean), words(max)),
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
        |(e, estimate)| format!("{}{}", if estimate { "≈ " } else { "" }, joules(e)),
    )
}

/// Peak of the job's memory of capacity, or of what was in use by whoever where the job's is unknown.
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
    fn durations_read_like_people_say_them() {
        let cases = [
            (0.0, "0.0 s"),
            (0.0021, "2.10 ms"),
            (9.84, "9.8 s"),
            (59.96, "1 min 0 s"),
            (125.0, "2 min 5 s"),
            (3599.6, "1 h 0 min"),
            (11_520.0, "3 h 12 min"),
            (86_399.0, "24 h 0 min"),
            (86_400.0, "24 h 0 min"),
            (187_200.0, "2 d 4 h"),
        ];
        for (seconds, words) in cases {
            assert_eq!(duration(seconds), words, "{seconds}");
        }
    }

    #[test]
    fn amounts_take_the_unit_that_fits() {
        assert_eq!(mib(0.0), "0 MiB");
        assert_eq!(mib(512.0), "512 MiB");
        assert_eq!(mib(73_011.0), "71.3 GiB");
        assert_eq!(joules(840.0), "840 J");
        assert_eq!(joules(4_464_000.0), "1.24 kWh");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(3.26), "3.3 %");
        assert_eq!(percent(87.4), "87 %");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(number(0.000_012_3), "1.23e-5");
        assert_eq!(number(2.5), "2.5");
        assert_eq!(number(-1234.5), "-1234");
    }

    #[test]
    fn commands_are_quoted_and_cleaned() {
        let argv = ["python", "a b.py", "it's", "", "\u{1b}[31m"].map(str::to_owned);
        assert_eq!(command(&argv), r"python 'a b.py' 'it'\''s' '' '�[31m'");
        assert_eq!(clean("a\u{202e}b\nc"), "a�b�c");
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(short_start("abcdef", 4), "…def");
    }
}
