//! `gpurun tag`, `step` and `log`: sends one mark of a script to the gpurun around it.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cli::exit::Exit;
use crate::cli::mark::MarkRequest;
use crate::control::{self, Client, ClientError};
use crate::model::rank;
use crate::sys::notice::Notices;

/// The stack that all commands of one rank share; it lives as long as the run, not as one command.
const STACK: &str = "shell";

/// How long a script waits for gpurun's reply.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sends the mark. Outside gpurun, and when gpurun is gone, it succeeds silently: a script must not fail because
/// nothing records it. A mark that gpurun refuses is reported, and is a success as well.
pub(super) fn run(request: Result<MarkRequest, String>, notices: &Notices) -> Exit {
    let now = Client::now();
    let request = match request {
        Ok(request) => request,
        Err(line) => {
            notices.error(&line);
            return Exit::Usage;
        }
    };
    let socket = std::env::var_os(control::SOCKET_VARIABLE).filter(|path| !path.is_empty());
    if let Some(socket) = socket.map(PathBuf::from)
        && let Err(ClientError::Refused(why)) = send(&socket, message(request, now))
    {
        notices.say(&format!("ignored: {why}"));
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
        MarkRequest::Step(step) => json!({"op": "step", "step": step}),
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
