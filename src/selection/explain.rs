//! The verdicts in words: a line for each device, the table of `--explain --verbose`, the JSON form.
//! Only formats what [`super::choose`] decided.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::choose::{Choice, Constraint, Judged, Outcome, Quantity, Verdict};
use crate::model::device::DeviceSnapshot;
use crate::model::selection::NameFormat;
use crate::sys::{format, users};

/// `GPU 3`, or `GPU 0 slice 1`.
pub fn device_label(device: &DeviceSnapshot) -> String {
    match device.mig {
        None => format!("GPU {}", device.index),
        Some(place) => format!("GPU {} slice {}", device.index, place.index),
    }
}

/// A limit for people: as exact as it was typed.
fn limit_text(limit: &Quantity) -> String {
    match limit {
        Quantity::Bytes(bytes) => format::exact_bytes(*bytes),
        other => quantity_text(other),
    }
}

/// A value for people.
fn quantity_text(quantity: &Quantity) -> String {
    match quantity {
        Quantity::Bytes(bytes) => format::bytes(*bytes),
        Quantity::Percent(percent) => format!("{percent} %"),
        Quantity::Number(number) => number.to_string(),
        Quantity::Text(text) => text.clone(),
    }
}

/// The word for a verdict.
fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "pass",
        Outcome::Loosened => "loosened",
        Outcome::Fail => "fail",
        Outcome::Unreadable(_) => "unreadable",
    }
}

/// How value and limit relate where the constraint holds.
fn relation(constraint: Constraint) -> &'static str {
    match constraint {
        Constraint::FreeMemory | Constraint::TotalMemory => "at least",
        Constraint::GpuUtilization
        | Constraint::MemoryUtilization
        | Constraint::IdleUtilization
        | Constraint::IdleProcesses
        | Constraint::Processes => "at most",
        Constraint::Name => "matches",
        _ => "",
    }
}

/// What a constraint judges.
fn subject(constraint: Constraint) -> &'static str {
    match constraint {
        Constraint::Reachable => "the GPU",
        Constraint::NotExcluded | Constraint::Name => "the name",
        Constraint::ComputeMode => "the compute mode",
        Constraint::Lease => "the lease",
        Constraint::FreeMemory => "free memory",
        Constraint::TotalMemory => "total memory",
        Constraint::GpuUtilization | Constraint::IdleUtilization => "utilisation",
        Constraint::MemoryUtilization => "memory utilisation",
        Constraint::IdleProcesses | Constraint::Processes => "the list of processes",
    }
}

/// One refusal or loosening in a few words.
pub fn verdict_text(verdict: &Verdict) -> String {
    let value = verdict.value.as_ref().map(quantity_text).unwrap_or_default();
    let limit = verdict.limit.as_ref().map(limit_text).unwrap_or_default();
    match (&verdict.outcome, verdict.constraint) {
        (Outcome::Unreadable(reason), Constraint::Reachable) => reason.to_string(),
        (Outcome::Unreadable(reason), constraint) => {
            format!("{} cannot be read: {reason}", subject(constraint))
        }
        (_, Constraint::Reachable) => "reachable".to_owned(),
        (_, Constraint::NotExcluded) => format!("excluded by --exclude {value}"),
        (_, Constraint::Lease) => format!("held by {value}"),
        (_, Constraint::ComputeMode) => format!("compute mode {value}"),
        (_, Constraint::Name) => format!("its name, {value}, does not match {limit:?}"),
        (_, Constraint::FreeMemory) => format!("{value} free, needs {limit}"),
        (_, Constraint::TotalMemory) => format!("{value} in total, needs {limit}"),
        (_, Constraint::IdleProcesses | Constraint::Processes) => {
            format!("compute processes {value}, at most {limit} allowed")
        }
        (_, constraint) => format!("{} {value}, at most {limit} allowed", subject(constraint)),
    }
}

/// Why a device was refused: the first constraint that it fails, the processes that use the device, and how many
/// more it fails.
pub fn refusal(judged: &Judged, device: &DeviceSnapshot) -> Option<String> {
    let mut refusals = judged.verdicts.iter().filter(|verdict| verdict.refuses());
    let first = refusals.next()?;
    let mut text = verdict_text(first);
    if matches!(first.outcome, Outcome::Fail) && is_about_use(first.constraint) {
        text.push_str(&used_by(device));
    }
    match refusals.count() {
        0 => {}
        more => {
            let _ = write!(text, " (and {more} more)");
        }
    }
    Some(text)
}

/// Whether a constraint fails because of the processes on the device.
fn is_about_use(constraint: Constraint) -> bool {
    matches!(
        constraint,
        Constraint::FreeMemory
            | Constraint::GpuUtilization
            | Constraint::MemoryUtilization
            | Constraint::IdleProcesses
            | Constraint::IdleUtilization
            | Constraint::Processes
    )
}

/// The largest process on a device: `; used by alice (pid 4242, 70.1 GiB) and 2 more`.
fn used_by(device: &DeviceSnapshot) -> String {
    let Ok(processes) = &device.processes else { return String::new() };
    let Some(largest) = processes.iter().max_by_key(|process| process.memory.as_ref().ok()) else {
        return String::new();
    };
    let user = largest.uid.map(|uid| users::name_of(uid).unwrap_or_else(|| uid.to_string()));
    let memory =
        largest.memory.as_ref().map(|bytes| format!(", {}", format::bytes(*bytes))).unwrap_or_default();
    let mut text = match user {
        Some(user) => format!("; used by {user} (pid {}{memory})", largest.pid),
        None => format!("; used by pid {}{memory}", largest.pid),
    };
    if processes.len() > 1 {
        let _ = write!(text, " and {} more", processes.len() - 1);
    }
    text
}

/// One line for each device: what became of it, and why.
pub fn lines(choice: &Choice, candidates: &[DeviceSnapshot]) -> Vec<String> {
    let judged = choice.judged.iter().filter_map(|judged| Some((judged, candidates.get(judged.candidate)?)));
    judged
        .map(|(judged, device)| {
            let result = match refusal(judged, device) {
                Some(why) => format!("refused: {why}"),
                None => result(choice, judged),
            };
            format!("{} {result}", device_label(device))
        })
        .collect()
}

/// The whole table: device, constraint, value, limit, verdict.
pub fn table(choice: &Choice, candidates: &[DeviceSnapshot]) -> Vec<String> {
    let mut rows: Vec<[String; 5]> =
        vec![["DEVICE", "CONSTRAINT", "VALUE", "LIMIT", "VERDICT"].map(str::to_owned)];
    for judged in &choice.judged {
        let Some(device) = candidates.get(judged.candidate) else { continue };
        for verdict in &judged.verdicts {
            let limit = verdict.limit.as_ref().map(limit_text);
            rows.push([
                device_label(device),
                verdict.constraint.label().to_owned(),
                verdict.value.as_ref().map_or_else(|| "-".to_owned(), quantity_text),
                limit.map_or_else(
                    || "-".to_owned(),
                    |limit| format!("{} {limit}", relation(verdict.constraint)).trim().to_owned(),
                ),
                match &verdict.outcome {
                    Outcome::Unreadable(reason) => format!("unreadable: {reason}"),
                    outcome => outcome_word(outcome).to_owned(),
                },
            ]);
        }
        let result = result(choice, judged);
        rows.push([device_label(device), "result".to_owned(), String::new(), String::new(), result]);
    }
    let mut widths = [0_usize; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// What became of one device.
fn result(choice: &Choice, judged: &Judged) -> String {
    match choice.chosen.iter().position(|&chosen| chosen == judged.candidate) {
        Some(place) if choice.enough => format!("chosen as cuda:{place}"),
        Some(_) => "satisfies the constraints".to_owned(),
        None if !judged.passes() => "refused".to_owned(),
        None if choice.dropped_for_mig.contains(&judged.candidate) => {
            "not used: a job gets either whole GPUs or one MIG slice".to_owned()
        }
        None if judged.loosened() > 0 => {
            "not used: satisfies the constraints only with the tolerance".to_owned()
        }
        None => "not used: other GPUs rank higher".to_owned(),
    }
}

/// The names of the chosen: indices, or UUIDs where asked for or where a MIG slice is among them.
pub fn names(chosen: &[&DeviceSnapshot], format: NameFormat) -> Vec<String> {
    let by_uuid = format == NameFormat::Uuid || chosen.iter().any(|device| device.mig.is_some());
    chosen
        .iter()
        .map(|device| match &device.uuid {
            Ok(uuid) if by_uuid => uuid.to_string(),
            _ => device.index.to_string(),
        })
        .collect()
}

/// The whole choice as JSON.
pub fn json(choice: &Choice, candidates: &[DeviceSnapshot], format: NameFormat) -> Value {
    let chosen: Vec<&DeviceSnapshot> =
        choice.chosen.iter().filter_map(|&index| candidates.get(index)).collect();
    let devices: Vec<Value> = choice
        .judged
        .iter()
        .filter_map(|judged| Some((judged, candidates.get(judged.candidate)?)))
        .map(|(judged, device)| {
            json!({
                "index": device.index,
                "mig": device.mig.map(|place| place.index),
                "uuid": device.uuid.as_ref().ok().map(|uuid| uuid.as_str()),
                "satisfies": judged.passes(),
                "loosened": judged.loosened(),
                "chosen": choice.enough && choice.chosen.contains(&judged.candidate),
                "result": result(choice, judged),
                "verdicts": judged.verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "enough": choice.enough,
        "wanted": choice.wanted,
        "chosen": if choice.enough { names(&chosen, format) } else { Vec::new() },
        "cuda_visible_devices": choice.enough.then(|| names(&chosen, format).join(",")),
        "devices": devices,
    })
}

/// One verdict as JSON: bytes and percents are plain numbers.
fn verdict_json(verdict: &Verdict) -> Value {
    let number = |quantity: &Quantity| match quantity {
        Quantity::Bytes(number) | Quantity::Number(number) => json!(number),
        Quantity::Percent(percent) => json!(percent),
        Quantity::Text(text) => json!(text),
    };
    let reason = match &verdict.outcome {
        Outcome::Unreadable(reason) => Some(reason.to_string()),
        _ => None,
    };
    json!({
        "constraint": verdict.constraint.label(),
        "value": verdict.value.as_ref().map(number),
        "limit": verdict.limit.as_ref().map(number),
        "verdict": outcome_word(&verdict.outcome),
        "reason": reason,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits_read_as_they_were_typed() {
        for (bytes, text) in [
            (42_842_298_777, "39.9 GiB"),
            (8 << 30, "8 GiB"),
            (8_000_000_000, "8 GB"),
            (500 << 20, "500 MiB"),
            (1 << 40, "1 TiB"),
            (1_610_612_736, "1.5 GiB"),
            (8, "8 B"),
            (0, "0 B"),
            (12_345_678_901, "12345678901 B"),
            (u64::MAX, "18446744073709551615 B"),
        ] {
            assert_eq!(format::exact_bytes(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_the_limit(thousandths in 1_u64..99_999_999, gib in any::<bool>()) {
            let unit: u128 = if gib { 1 << 30 } else { 1_000_000 };
            let bytes = u64::try_from(u128::from(thousandths) * unit / 1000).unwrap();
            let text = format::exact_bytes(bytes);
            let (number, name) = text.split_once(' ').unwrap();
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            let digits: u128 = format!("{whole}{fraction}").parse().unwrap();
            let (letter, base) = match name.strip_suffix("iB") {
                Some(letter) => (letter, 1024_u128),
                None => (name.strip_suffix('B').unwrap(), 1000),
            };
            let power = ["", "k", "m", "g", "t"].iter().position(|l| *l == letter.to_lowercase()).unwrap();
            let unit = base.pow(power.try_into().unwrap());
            prop_assert_eq!(digits * unit / 10_u128.pow(fraction.len().try_into().unwrap()), u128::from(bytes));
        }
    }
}
