//! How durations, sizes and other amounts are written for people.

use std::time::Duration;

/// Seconds as people read them: `9.8 s`, `2 min 5 s`, `3 h 12 min`, `2 d 4 h`.
pub fn duration(seconds: f64) -> String {
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

/// Whole seconds of something that goes on: `12 s`, `3 min 4 s`, `2 h 5 min`.
pub fn elapsed(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A span that somebody typed: `0.5 s`, `10 s`, `2 h 5 min`.
pub fn span(span: Duration) -> String {
    match span.as_secs() {
        0..60 => format!("{} s", span.as_secs_f64()),
        seconds => elapsed(seconds),
    }
}

/// Milliseconds of a step: `3.42 ms`, `128 ms`, `2.5 s`.
pub fn millis(ms: f64) -> String {
    match ms {
        ms if ms >= 60_000.0 => duration(ms / 1e3),
        ms if ms >= 1000.0 => format!("{:.2} s", ms / 1e3),
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 10.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.2} ms"),
    }
}

/// Bytes: `7.5 GiB`, exact below 1 MiB.
pub fn bytes(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0x4000_0000.. => (0x4000_0000, "GiB"),
        0x0010_0000.. => (0x0010_0000, "MiB"),
        _ => return format!("{bytes} B"),
    };
    // Cut, not rounded: 7.96 GiB free must not read as the 8.0 GiB that were asked for.
    let tenths = u128::from(bytes) * 10 / unit;
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// Exactly so many bytes in the shortest way to write them: `39.9 GiB` for what `39.9GiB` was read as.
pub fn exact_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u128); 9] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
        ("B", 1),
    ];
    let exact = UNITS.iter().filter_map(|(name, unit)| Some((decimal(bytes.into(), *unit)?, *name)));
    let shortest = exact.min_by_key(|(number, _)| number.len());
    shortest.map_or_else(|| format!("{bytes} B"), |(number, name)| format!("{number} {name}"))
}

/// The number of `unit`s with at most three decimals that stands for exactly `bytes`, where a fraction of a byte is
/// cut, as it is when a size is read.
fn decimal(bytes: u128, unit: u128) -> Option<String> {
    if bytes < unit {
        return None;
    }
    (0..=3_usize).find_map(|decimals| {
        let scale = 10_u128.pow(u32::try_from(decimals).ok()?);
        let number = (bytes * scale).div_ceil(unit);
        let is_exact = number * unit / scale == bytes;
        is_exact.then(|| match decimals {
            0 => number.to_string(),
            _ => format!("{}.{:0decimals$}", number / scale, number % scale),
        })
    })
}

/// MiB with the unit that fits: `512 MiB`, `71.3 GiB`.
pub fn mib(mib: f64) -> String {
    match mib {
        m if m >= 1024.0 * 1024.0 => format!("{:.1} TiB", m / 1024.0 / 1024.0),
        m if m >= 4096.0 => format!("{:.1} GiB", m / 1024.0),
        m if m >= 10.0 || m == 0.0 => format!("{m:.0} MiB"),
        m if m >= 0.1 => format!("{m:.1} MiB"),
        m => format!("{:.0} KiB", m * 1024.0),
    }
}

/// Energy in joules as people read it: `0.23 Wh`, `8.8 Wh`, `261 Wh`, `1.24 kWh`.
pub fn energy(joules: f64) -> String {
    match joules / 3.6e3 {
        wh if wh >= 1e3 => format!("{:.2} kWh", wh / 1e3),
        wh if wh >= 100.0 => format!("{wh:.0} Wh"),
        wh if wh >= 1.0 => format!("{wh:.1} Wh"),
        wh => format!("{wh:.2} Wh"),
    }
}

/// A percentage: whole from 10 on, one digit below.
pub fn percent(value: f64) -> String {
    if value >= 9.95 || value == 0.0 { format!("{value:.0} %") } else { format!("{value:.1} %") }
}

/// A plain number with about three digits.
pub fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".to_owned(),
        s if !(1e-3..1e7).contains(&s) => format!("{value:.2e}"),
        s if s >= 100.0 || (s >= 10.0 && value.fract() == 0.0) => format!("{value:.0}"),
        s if s >= 10.0 => format!("{value:.1}"),
        s if s >= 1.0 => trim(format!("{value:.2}")),
        _ => trim(format!("{value:.4}")),
    }
}

/// A plain number in at most five characters or so, for beside a chart.
pub fn brief(value: f64) -> String {
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

/// A number of things that are named in the plural: `1 row`, `2 rows`.
pub fn counted(n: u64, plural: &str) -> String {
    if n != 1 {
        return format!("{n} {plural}");
    }
    match (plural.strip_suffix("ies"), plural.strip_suffix("sses")) {
        (Some(stem), _) => format!("1 {stem}y"),
        (_, Some(stem)) => format!("1 {stem}ss"),
        _ => format!("1 {}", plural.strip_suffix('s').unwrap_or(plural)),
    }
}

/// A count with thin gaps between thousands.
pub fn count(n: u64) -> String {
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
    fn elapsed_time_is_in_whole_seconds() {
        for (seconds, words) in [(0, "0 s"), (59, "59 s"), (65, "1 min 5 s"), (7_503, "2 h 5 min")] {
            assert_eq!(elapsed(seconds), words);
        }
    }

    #[test]
    fn a_typed_span_keeps_its_fraction() {
        for (millis, words) in
            [(0, "0 s"), (500, "0.5 s"), (1500, "1.5 s"), (10_000, "10 s"), (65_000, "1 min 5 s")]
        {
            assert_eq!(span(Duration::from_millis(millis)), words);
        }
    }

    #[test]
    fn one_thing_is_in_the_singular() {
        let cases =
            [("rows", "1 row"), ("processes", "1 process"), ("replies", "1 reply"), ("bytes", "1 byte")];
        for (plural, one) in cases {
            assert_eq!(counted(1, plural), one);
            assert_eq!(counted(0, plural), format!("0 {plural}"));
            assert_eq!(counted(21, plural), format!("21 {plural}"));
        }
    }

    #[test]
    fn bytes_are_cut_to_a_tenth() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        assert_eq!(bytes((8 << 30) - 1), "7.9 GiB");
    }

    #[test]
    fn amounts_take_the_unit_that_fits() {
        assert_eq!(mib(0.0), "0 MiB");
        assert_eq!(mib(512.0), "512 MiB");
        assert_eq!(mib(73_011.0), "71.3 GiB");
        assert_eq!(energy(840.0), "0.23 Wh");
        assert_eq!(energy(31_680.0), "8.8 Wh");
        assert_eq!(energy(4_464_000.0), "1.24 kWh");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(3.26), "3.3 %");
        assert_eq!(percent(87.4), "87 %");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(number(0.000_012_3), "1.23e-5");
        assert_eq!(number(2.5), "2.5");
        assert_eq!(number(-1234.5), "-1234");
    }
}
