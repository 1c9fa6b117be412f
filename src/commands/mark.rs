//! `gpurun tag`, `step`, `epoch` and `log`: sends one mark of a script to the gpurun around it.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cli::exit::Exit;
use crate::cli::mark::{Mark, MarkRequest};
use crate::control::{self, Client, ClientError};
use crate::model::rank;
use crate::sys::notice::Notices;

/// The stack that all commands of one rank share; it lives as long as the run, not as one command.
const STACK: &str = "shell";

/// How long a script waits for gpurun's reply.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sends the mark. It always succeeds: a script must not fail because nothing records it, or because a value of it is
/// wrong. Outside gpurun it is silent; inside, what is left out or refused is said in one line.
pub(super) fn run(mark: Mark, notices: &Notices) -> Exit {
    let now = Client::now();
    let Some(socket) = std::env::var_os(control::SOCKET_VARIABLE).filter(|path| !path.is_empty()) else {
        return Exit::Ok;
    };
    let mut ignored = mark.ignored;
    if let Some(request) = mark.request
        && let Err(ClientError::Refused(why)) = send(&PathBuf::from(socket), message(request, now))
    {
        ignored.push(why);
    }
    if !ignored.is_empty() {
        notices.say(&format!("ignored: {}", ignored.join("; ")));
    }
    Exit::Ok
}

fn send(socket: &std::path::Path, message: Value) -> Result<(), ClientError> {
    let mut client = Client::connect(socket)?;
    let mut hello = json!({
        "op": "hello",
        "version": control::PROTOCOL_VERSION,
        "pid": std::process::id(),
        "stack": STACK,
    });
    if let Some(rank) = rank::rank(|name| std::env::var(name).ok()) {
        hello["rank"] = rank.into();
    }
    client.ask(hello, PATIENCE)?;
    client.ask(message, PATIENCE).map(drop)
}

fn message(request: MarkRequest, now: u64) -> Value {
    let mut message = match request {
        MarkRequest::Begin(tag) => json!({"op": "begin", "tag": tag}),
        MarkRequest::End(Some(tag)) => json!({"op": "end", "tag": tag}),
        MarkRequest::End(None) => json!({"op": "end"}),
        MarkRequest::Step { step, samples } => {
            let mut message = json!({"op": "step", "step": step});
            if let Some(samples) = samples {
                message["samples"] = samples.into();
            }
            message
        }
        MarkRequest::Epoch(None) => json!({"op": "epoch"}),
        MarkRequest::Epoch(Some(epoch)) => json!({"op": "epoch", "epoch": epoch}),
        MarkRequest::Log { values, step } => {
            let values: Map<String, Value> =
                values.into_iter().map(|(name, value)| (name, value.into())).collect();
            let mut message = json!({"op": "log", "values": values});
            if let Some(step) = step {
                message["step"] = step.into();
            }
            message
        }
    };
    message["t"] = now.into();
    message
}
