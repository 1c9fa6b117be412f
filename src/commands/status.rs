//! `gpurun status`: asks running gpuruns for their current window and prints it.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::print::printed;
use crate::cli::args::StatusArgs;
use crate::cli::exit::Exit;
use crate::control::{self, Client, ClientError};
use crate::sys::escape::printable;
use crate::sys::format;
use crate::sys::notice::Notices;

/// How long one gpurun may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks the gpurun with the given pid, or every one of this user, and prints what they answer.
pub(super) fn run(args: &StatusArgs, out: &mut impl Write, notices: &Notices) -> Exit {
    let wanted = args.pid.and_then(|pid| i32::try_from(pid).ok());
    let sockets =
        control::find_sockets().into_iter().filter(|found| args.pid.is_none() || Some(found.pid) == wanted);
    let mut answers = Vec::new();
    let mut silent = 0;
    for found in sockets {
        match ask(&found.path) {
            Ok(answer) => answers.push((found.pid, answer)),
            // Left behind by a gpurun that was killed; the next one to start clears it away.
            Err(ClientError::Unreachable(_)) => {}
            Err(error) => {
                silent += 1;
                notices.error(&format!("gpurun {}: {error}", found.pid));
            }
        }
    }
    if answers.is_empty() && silent == 0 {
        match args.pid {
            Some(pid) => notices.error(&format!("no gpurun of this user has the process id {pid}")),
            None => notices.error("no gpurun of this user is running"),
        }
    }
    let failed = answers.is_empty() || silent > 0;
    let written = if args.json { print_json(answers, out) } else { print_text(&answers, out) };
    printed(written, out, if failed { Exit::Failed } else { Exit::Ok }, notices)
}

fn ask(path: &std::path::Path) -> Result<Value, ClientError> {
    Client::connect(path)?.ask(json!({"op": "snapshot"}), PATIENCE)
}

/// A JSON array with one snapshot (`schemas/control.md`) and `pid` for each gpurun.
fn print_json(answers: Vec<(i32, Value)>, out: &mut impl Write) -> io::Result<()> {
    let all: Vec<Value> = answers
        .into_iter()
        .map(|(pid, mut answer)| {
            answer["pid"] = pid.into();
            answer
        })
        .collect();
    serde_json::to_writer_pretty(&mut *out, &all)?;
    writeln!(out)
}

fn print_text(answers: &[(i32, Value)], out: &mut impl Write) -> io::Result<()> {
    for (n, (pid, answer)) in answers.iter().enumerate() {
        if n > 0 {
            writeln!(out)?;
        }
        let argv: Vec<&str> = answer["argv"]
            .as_array()
            .map(|a| a.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let job =
            if argv.is_empty() { "recording".to_owned() } else { printable(&argv.join(" ")).into_owned() };
        let run = printable(answer["run"].as_str().unwrap_or("?"));
        let age = match (answer["time"].as_f64(), answer["start"].as_f64()) {
            (Some(time), Some(start)) => format::elapsed((time - start) as u64),
            _ => "?".to_owned(),
        };
        writeln!(out, "gpurun {pid}  {run}  running {age}")?;
        writeln!(out, "  {job}")?;
        writeln!(out, "  window of {:.1} s: mean (min .. max)", answer["window_s"].as_f64().unwrap_or(0.0))?;
        for gpu in answer["gpus"].as_array().into_iter().flatten() {
            let metric = |name| cell(&gpu["metrics"][name]);
            writeln!(
                out,
                "  {}  {}  util {} %  memory {} MiB  power {} W  temperature {} C",
                gpu_label(gpu),
                printable(gpu["name"].as_str().unwrap_or("?")),
                metric("gpu_utilization (%)"),
                metric("memory_used (MiB)"),
                metric("power_usage (W)"),
                metric("temperature (C)"),
            )?;
        }
        let job = |name| cell(&answer["job"]["metrics"][name]);
        writeln!(
            out,
            "  job  cpu {} %  rss {} MiB  processes {}",
            job("cpu_percent (%)"),
            job("memory_rss (MiB)"),
            answer["job"]["metrics"]["processes (count)"]["last"]
                .as_f64()
                .map_or_else(|| "-".to_owned(), |count| format!("{count:.0}")),
        )?;
        let host = |name| cell(&answer["host"]["metrics"][name]);
        writeln!(out, "  host  cpu {} %  memory {} %", host("cpu_percent (%)"), host("memory_percent (%)"))?;
    }
    Ok(())
}

fn gpu_label(gpu: &Value) -> String {
    let number = |name: &str| gpu[name].as_u64();
    let index = number("gpu").map_or("?".to_owned(), |index| index.to_string());
    let place = match number("mig") {
        Some(mig) => format!("gpu:({index}, {mig})"),
        None => format!("gpu:{index}"),
    };
    match number("cuda") {
        Some(cuda) => format!("cuda:{cuda} ({place})"),
        None => place,
    }
}

/// `53.1 (0 .. 97)`, or `-` for what is unknown.
fn cell(metric: &Value) -> String {
    match (metric["mean"].as_f64(), metric["min"].as_f64(), metric["max"].as_f64()) {
        (Some(mean), Some(min), Some(max)) if min < max => format!("{mean:.1} ({min:.0} .. {max:.0})"),
        (Some(mean), _, _) => format!("{mean:.1}"),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_shows_unknown_as_a_dash_and_hides_control_characters() {
        let answer = json!({
            "run": "r", "argv": ["python", "a\u{1b}[2Jb"], "time": 75.5, "start": 10.0, "window_s": 3.25,
            "gpus": [{"gpu": 3, "mig": null, "cuda": 0, "uuid": "GPU-1", "name": "Test GPU", "metrics": {
                "gpu_utilization (%)": {"mean": 50.0, "min": 0.0, "max": 100.0},
                "memory_used (MiB)": {"mean": 512.0, "min": 512.0, "max": 512.0},
                "power_usage (W)": {"mean": null, "min": null, "max": null},
            }}],
            "job": {"metrics": {}}, "host": {"metrics": {}},
        });
        let mut out = Vec::new();
        print_text(&[(7, answer)], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("gpurun 7  r  running 1 min 5 s\n"), "{text}");
        assert!(
            text.contains("cuda:0 (gpu:3)  Test GPU  util 50.0 (0 .. 100) %  memory 512.0 MiB  power - W")
        );
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn json_is_an_array_even_of_nothing() {
        let mut out = Vec::new();
        print_json(Vec::new(), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "[]\n");
    }
}
