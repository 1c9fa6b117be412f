//! The table of `gpurun devices`: one line a device, which fits the terminal; with `--verbose` the details below it.

use super::Row;
use crate::model::device::{DeviceMemory, DeviceProcess, DeviceSnapshot};
use crate::model::reading::Known;

use crate::selection::holder::Holder;
use crate::sys::escape::printable;
use crate::sys::{format, process, users};

const COLUMNS: usize = 7;

/// The columns whose texts are cut where a line is too long, with the characters that stay: name, users, holder.
const FLEXIBLE: [(usize, usize); 3] = [(2, 8), (5, 5), (6, 20)];

/// One line for each device, of at most `columns` characters where that is given; with `verbose` its details below.
pub(super) fn text(rows: &[Row<'_>], verbose: bool, columns: Option<usize>) -> String {
    let heading = ["GPU", "UUID", "NAME", "MEMORY", "UTIL", "USERS", "HELD BY"].map(str::to_owned);
    let mut cells: Vec<[String; COLUMNS]> = vec![heading];
    cells.extend(rows.iter().map(cells_of));
    if let Some(columns) = columns {
        fit(&mut cells, columns);
    }
    let widths = widths(&cells);
    let mut text = String::new();
    for (place, row) in cells.iter().enumerate() {
        let line: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(printable(&line.join("  ")).trim_end());
        text.push('\n');
        let device = place.checked_sub(1).filter(|_| verbose).and_then(|place| rows.get(place));
        for detail in device.iter().flat_map(|row| details(row)) {
            text.push_str(&format!("     {}\n", printable(&detail)));
        }
    }
    text
}

fn widths(cells: &[[String; COLUMNS]]) -> [usize; COLUMNS] {
    std::array::from_fn(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
}

/// Cuts the longest of the flexible columns until a line fits, or nothing more can be cut.
fn fit(cells: &mut [[String; COLUMNS]], columns: usize) {
    loop {
        let widths = widths(cells);
        let total = widths.iter().sum::<usize>() + 2 * (COLUMNS - 1);
        let widest = FLEXIBLE
            .iter()
            .filter(|(column, least)| widths[*column] > *least)
            .max_by_key(|(c, _)| widths[*c]);
        let (true, Some((column, least))) = (total > columns, widest) else { return };
        let width = (widths[*column] - 1).max(*least);
        for row in cells.iter_mut() {
            shorten(&mut row[*column], width);
        }
    }
}

/// A text of at most `width` characters; `+` stands for what was cut, as in `ps`.
fn shorten(text: &mut String, width: usize) {
    if text.chars().count() > width {
        *text = text.chars().filter(|c| *c != '+').take(width - 1).chain(['+']).collect();
    }
}

fn cells_of(row: &Row<'_>) -> [String; COLUMNS] {
    let device = row.device;
    let index = match device.mig {
        None => device.index.to_string(),
        Some(place) => format!("{}:{}", device.index, place.index),
    };
    let (uuid, name) = match &device.uuid {
        Ok(uuid) => {
            (uuid.short().to_owned(), shown(&device.name, |name| printable(short_name(name)).into_owned()))
        }
        // What does not answer to its UUID has no name either: the reason is worth more.
        Err(reason) => ("-".to_owned(), reason.to_string()),
    };
    [
        index,
        uuid,
        name,
        shown(&device.memory, memory_text),
        shown(&device.gpu_utilization, |percent| format!("{percent} %")),
        shown(&device.processes, |processes| users_text(processes)),
        printable(&holders_text(&row.holders)).into_owned(),
    ]
}

/// The value, or a dash: the reason is in the JSON form.
fn shown<T>(value: &Known<T>, text: impl FnOnce(&T) -> String) -> String {
    value.as_ref().map_or_else(|_| "-".to_owned(), text)
}

/// All are NVIDIA's.
fn short_name(name: &str) -> &str {
    name.strip_prefix("NVIDIA ").unwrap_or(name)
}

/// `38.2/80 GiB`: used of total.
fn memory_text(memory: &DeviceMemory) -> String {
    const GIB: f64 = (1_u64 << 30) as f64;
    format!("{:.1}/{:.0} GiB", memory.used as f64 / GIB, memory.total as f64 / GIB)
}

fn user_of(process: &DeviceProcess) -> Option<String> {
    process.uid.map(|uid| users::name_of(uid).unwrap_or_else(|| uid.to_string()))
}

/// The users of the compute processes; their number where the users are not known.
fn users_text(processes: &[DeviceProcess]) -> String {
    let compute: Vec<&DeviceProcess> = processes.iter().filter(|process| process.compute).collect();
    let mut names: Vec<String> = compute.iter().filter_map(|process| user_of(process)).collect();
    names.sort_unstable();
    names.dedup();
    match (compute.len(), names.is_empty()) {
        (0, _) => "none".to_owned(),
        (number, true) => format::counted(number as u64, "processes"),
        (_, false) => names.join(","),
    }
}

/// `alice 4711 14:05 CET`: user, a process that is there, since when.
fn holders_text(holders: &[Holder]) -> String {
    let Some(first) = holders.first() else { return "none".to_owned() };
    let user = if first.user.is_empty() { "another gpurun" } else { &first.user };
    let mut text = user.to_owned();
    if let Some(pid) = first.process {
        text.push_str(&format!(" {pid}"));
    }
    if let Some(since) = first.since_text(jiff::Timestamp::now()) {
        text.push_str(&format!(" {since}"));
    }
    match holders.len() - 1 {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Everything that the line has no room for.
fn details(row: &Row<'_>) -> Vec<String> {
    let DeviceSnapshot { uuid, name, memory, processes, facts, .. } = row.device;
    let mut lines = vec![format!(
        "{}, {}, {} free",
        shown(uuid, ToString::to_string),
        shown(name, |name| printable(name).into_owned()),
        shown(memory, |memory| format::bytes(memory.free))
    )];
    let known = facts.iter().filter_map(|(name, value)| Some(format!("{name} {}", value.as_ref().ok()?)));
    let known: Vec<String> = known.collect();
    if !known.is_empty() {
        lines.push(known.join(", "));
    }
    lines.extend(processes.iter().flatten().map(process_text));
    lines.extend(row.holders.iter().map(|holder| printable(&format!("held by {holder}")).into_owned()));
    lines
}

/// `pid 4242 of alice, 70.1 GiB: python train.py`
fn process_text(process: &DeviceProcess) -> String {
    let user = user_of(process).map(|user| format!(" of {user}")).unwrap_or_default();
    let memory = shown(&process.memory, |bytes| format::bytes(*bytes));
    let command = i32::try_from(process.pid).ok().and_then(process::command_of);
    let command = command.map(|command| format!(": {command}")).unwrap_or_default();
    let kind = if process.compute { "" } else { ", graphics" };
    let line = format!("pid {}{user}, {memory}{kind}{command}", process.pid);
    printable(&line).into_owned()
}
