//! `gpurun devices`: one line a GPU, with its processes and who holds its lease.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Value, json};

use super::Standard;
use super::answer::{Asked, Driver, answer};
use crate::cli::args::DevicesArgs;
use crate::cli::exit::Exit;
use crate::model::device::{ComputeMode, DeviceSnapshot, ProbeRequest};
use crate::model::reading::Known;
use crate::model::selection::Patience;
use crate::selection::explain::device_label;
use crate::selection::flow::{Surroundings, holders};
use crate::selection::holder::Holder;
use crate::selection::lease::LeaseDirectory;
use crate::sys::escape::printable;
use crate::sys::stderr::NonBlockingStderr;
use crate::sys::{format, users};

/// Lists the devices as a table, or as JSON for programs.
pub(super) fn run(args: &DevicesArgs, out: &mut Standard<'_>) -> Exit {
    let asked = Asked {
        patience: Patience::None,
        failed: Exit::OwnFailure,
        library: args.common.library(),
        quiet: args.common.quiet,
    };
    answer(asked, out, |driver, output| list(args.json, driver, output, &mut NonBlockingStderr::new()))
}

fn list(as_json: bool, driver: &Driver<'_>, output: &mut Vec<u8>, stderr: &mut dyn Write) -> Exit {
    let request =
        ProbeRequest { name: true, memory: true, utilization: true, compute_mode: true, processes: true };
    let devices = match driver.probe(&request) {
        Ok(devices) => devices,
        Err(error) => {
            let _ = writeln!(stderr, "gpurun: {error}");
            return Exit::OwnFailure;
        }
    };
    // A listing without holders is better than none.
    let surroundings = Surroundings::from_environment();
    let directory = LeaseDirectory::open_existing(&surroundings.lease_directory).unwrap_or_else(|error| {
        let _ = writeln!(stderr, "gpurun: holders are not shown: {error}");
        None
    });
    let rows: Vec<(&DeviceSnapshot, Vec<Holder>)> = devices
        .iter()
        .map(|device| {
            let holders = holders(directory.as_ref(), device).unwrap_or_else(|error| {
                let _ = writeln!(stderr, "gpurun: {}: {error}", device_label(device));
                Vec::new()
            });
            (device, holders)
        })
        .collect();
    let text = if as_json {
        let devices: Vec<Value> = rows.iter().map(|(device, holders)| device_json(device, holders)).collect();
        format!("{}\n", json!({ "devices": devices }))
    } else {
        table(&rows)
    };
    output.extend(text.into_bytes());
    Exit::Ok
}

/// The value, or a dash: the reason is in the JSON form.
fn shown<T>(value: &Known<T>, text: impl FnOnce(&T) -> String) -> String {
    value.as_ref().map_or_else(|_| "-".to_owned(), text)
}

/// One line a device; processes and holders in words at its end.
fn table(rows: &[(&DeviceSnapshot, Vec<Holder>)]) -> String {
    let mut cells: Vec<[String; 7]> =
        vec![["GPU", "UUID", "NAME", "MEMORY USED/TOTAL", "UTIL", "PROCESSES", "HELD BY"].map(str::to_owned)];
    for (device, holders) in rows {
        let place = match device.mig {
            None => device.index.to_string(),
            Some(place) => format!("{}:{}", device.index, place.index),
        };
        let processes = shown(&device.processes, |processes| {
            let compute = processes.iter().filter(|process| process.compute).count();
            let mut owners: Vec<String> = processes
                .iter()
                .filter(|process| process.compute)
                .filter_map(|process| process.uid)
                .map(|uid| users::name_of(uid).unwrap_or_else(|| uid.to_string()))
                .collect();
            owners.sort_unstable();
            owners.dedup();
            if owners.is_empty() { compute.to_string() } else { format!("{compute} ({})", owners.join(", ")) }
        });
        let held = match holders.as_slice() {
            [] => "nobody".to_owned(),
            holders => {
                let words: Vec<String> = holders.iter().map(ToString::to_string).collect();
                printable(&words.join("; ")).into_owned()
            }
        };
        cells.push([
            place,
            match &device.uuid {
                Ok(uuid) => uuid.to_string(),
                Err(reason) => format!("({reason})"),
            },
            shown(&device.name, |name| printable(name).into_owned()),
            shown(&device.memory, |m| format!("{} / {}", format::bytes(m.used), format::bytes(m.total))),
            shown(&device.gpu_utilization, |percent| format!("{percent} %")),
            processes,
            held,
        ]);
    }
    let mut widths = [0_usize; 7];
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &cells {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// A value with its reason beside it where there is none.
fn known_json<T>(value: &Known<T>, text: impl FnOnce(&T) -> Value) -> (Value, Option<String>) {
    match value {
        Ok(value) => (text(value), None),
        Err(reason) => (Value::Null, Some(reason.to_string())),
    }
}

/// One device for programs: bytes, percents, and the reason for every null.
fn device_json(device: &DeviceSnapshot, holders: &[Holder]) -> Value {
    let mut unreadable = serde_json::Map::new();
    let mut take = |name: &str, (value, reason): (Value, Option<String>)| {
        if let Some(reason) = reason {
            unreadable.insert(name.to_owned(), json!(reason));
        }
        value
    };
    let uuid = take("uuid", known_json(&device.uuid, |uuid| json!(uuid.as_str())));
    let name = take("name", known_json(&device.name, |name| json!(name)));
    let memory = take(
        "memory",
        known_json(&device.memory, |memory| {
            json!({
                "total": memory.total, "free": memory.free, "used": memory.used, "unified": memory.unified,
            })
        }),
    );
    let gpu_utilization =
        take("gpu_utilization", known_json(&device.gpu_utilization, |percent| json!(percent)));
    let memory_utilization =
        take("memory_utilization", known_json(&device.memory_utilization, |percent| json!(percent)));
    let compute_mode = take("compute_mode", known_json(&device.compute_mode, |mode| json!(mode_word(*mode))));
    let processes = take(
        "processes",
        known_json(&device.processes, |processes| {
            let list = processes.iter().map(|process| {
                json!({
                    "pid": process.pid,
                    "memory": process.memory.as_ref().ok(),
                    "compute": process.compute,
                    "uid": process.uid,
                    "user": process.uid.and_then(users::name_of),
                })
            });
            json!(list.collect::<Vec<_>>())
        }),
    );
    let holders: Vec<Value> = holders
        .iter()
        .map(|holder| {
            json!({
                "process": holder.process, "pid": Some(holder.pid).filter(|pid| *pid != 0), "job": holder.job, "uid": holder.uid, "user": holder.user,
                "command": holder.command, "since": holder.since, "share": holder.share,
            })
        })
        .collect();
    json!({
        "index": device.index,
        "mig": device.mig.map(|place| json!({
            "index": place.index,
            "gpu_instance": place.gpu_instance,
            "compute_instance": place.compute_instance,
            "parent_uuid": device.parent_uuid.as_ref().map(|uuid| uuid.as_str()),
        })),
        "uuid": uuid,
        "name": name,
        "memory": memory,
        "gpu_utilization": gpu_utilization,
        "memory_utilization": memory_utilization,
        "compute_mode": compute_mode,
        "processes": processes,
        "held_by": holders,
        "unreadable": unreadable,
    })
}

/// The word for a compute mode.
fn mode_word(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive_thread",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveProcess => "exclusive_process",
    }
}
