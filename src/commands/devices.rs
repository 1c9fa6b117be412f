//! `gpurun devices`: what is read, and the form for programs.

use serde_json::{Map, Value, json};

use super::answer::{Asked, Driver, answer};
use super::print::{Standard, verbosity};
use crate::cli::args::DevicesArgs;
use crate::cli::exit::Exit;
use crate::model::device::{ComputeMode, DeviceProcess, DeviceSnapshot, ProbeRequest};
use crate::model::reading::Known;
use crate::model::selection::Patience;
use crate::selection::directory::LeaseDirectory;
use crate::selection::explain::device_label;
use crate::selection::flow::{Surroundings, holders};
use crate::selection::holder::Holder;

use crate::sys::notice::{Notices, Verbosity};
use crate::sys::{terminal, users};

mod check;
mod table;

/// Lists the devices as a table, or as JSON for programs.
pub(super) fn run(args: &DevicesArgs, out: &mut Standard<'_>) -> Exit {
    let verbosity = verbosity(&args.common);
    if args.check {
        return check::run(out, &Notices::new(verbosity));
    }
    let asked = Asked {
        patience: Patience::None,
        failed: Exit::OwnFailure,
        library: args.common.library(),
        verbosity,
    };
    let form = if args.json { Form::Json } else { Form::Table { columns: terminal::stdout_columns() } };
    answer(asked, out, |driver, output| list(&form, driver, output, verbosity))
}

fn list(form: &Form, driver: &Driver<'_>, output: &mut Vec<u8>, verbosity: Verbosity) -> Exit {
    let notices = Notices::new(verbosity);
    let verbose = verbosity == Verbosity::Verbose;
    let request = ProbeRequest { facts: verbose || matches!(form, Form::Json), ..ProbeRequest::ALL };
    let devices = match driver.probe(&request) {
        Ok(devices) => devices,
        Err(error) => {
            notices.error(&error);
            return Exit::OwnFailure;
        }
    };
    // A listing without holders is better than none.
    let surroundings = Surroundings::from_environment();
    let directory = LeaseDirectory::open_existing(&surroundings.lease_directory).unwrap_or_else(|error| {
        notices.warn(&format!("leases are not shown: {error}"));
        None
    });
    let rows: Vec<Row<'_>> = devices
        .iter()
        .map(|device| {
            let holders = holders(directory.as_deref(), device).unwrap_or_else(|error| {
                notices.warn(&format!("{}: {error}", device_label(device)));
                Vec::new()
            });
            Row { device, holders }
        })
        .collect();
    let text = match form {
        Form::Json => {
            let devices: Vec<Value> = rows.iter().map(|row| device_json(row.device, &row.holders)).collect();
            format!("{}\n", json!({ "devices": devices }))
        }
        Form::Table { columns } => table::text(&rows, verbose, *columns),
    };
    output.extend(text.into_bytes());
    Exit::Ok
}

/// How the list is printed.
enum Form {
    /// For programs.
    Json,
    /// For people, in so many columns of a terminal.
    Table { columns: Option<usize> },
}

/// A device and the holders of its lease.
struct Row<'a> {
    device: &'a DeviceSnapshot,
    holders: Vec<Holder>,
}

/// A value with its reason beside it where there is none.
fn known_json<T>(value: &Known<T>, text: impl FnOnce(&T) -> Value) -> (Value, Option<String>) {
    match value {
        Ok(value) => (text(value), None),
        Err(reason) => (Value::Null, Some(reason.to_string())),
    }
}

/// The processes of a device.
fn processes_json(processes: &[DeviceProcess]) -> Value {
    let list = processes.iter().map(|process| {
        json!({
            "pid": process.pid,
            "memory": process.memory.as_ref().ok(),
            "compute": process.compute,
            "uid": process.uid,
            "user": process.uid.and_then(users::name_of),
        })
    });
    list.collect()
}

/// Who holds the lease of a device.
fn holders_json(holders: &[Holder]) -> Value {
    let list = holders.iter().map(|holder| {
        json!({
            "process": holder.process, "pid": Some(holder.pid).filter(|pid| *pid != 0), "job": holder.job, "uid": holder.uid, "user": holder.user,
            "command": holder.command, "since": holder.since, "share": holder.share,
        })
    });
    list.collect()
}

/// One device for programs: bytes, percents, and the reason for every null.
fn device_json(device: &DeviceSnapshot, holders: &[Holder]) -> Value {
    let mut unreadable = Map::new();
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
    let processes = take("processes", known_json(&device.processes, |processes| processes_json(processes)));
    let facts: Map<String, Value> = device
        .facts
        .iter()
        .map(|(name, value)| ((*name).to_owned(), take(name, known_json(value, |value| json!(value)))))
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
        "facts": facts,
        "held_by": holders_json(holders),
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
