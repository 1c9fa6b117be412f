//! The way of an answer: from the thread that has the numbers back to the client that asked.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::os;

/// An answer on its way to a client.
#[derive(Debug)]
pub(super) struct Answer {
    /// Number of the connection.
    pub(super) connection: u64,
    /// The request's id.
    pub(super) id: Value,
    /// The result, or why there is none.
    pub(super) outcome: Result<Value, String>,
}

/// Answers that wait for the thread of the socket, and the means to wake it.
#[derive(Debug)]
pub(super) struct Answers {
    waiting: Mutex<VecDeque<Answer>>,
    wake: UnixStream,
}

impl Answers {
    /// None yet; `wake` is non-blocking, and its other end wakes the thread.
    pub(super) fn new(wake: UnixStream) -> Self {
        Self { waiting: Mutex::default(), wake }
    }

    /// Wakes the thread of the socket.
    pub(super) fn wake(&self) {
        // A full pipe means that a wake-up is already on its way.
        let _ = os::send_now(&self.wake, &[1]);
    }

    /// Everything that waits.
    pub(super) fn take(&self) -> VecDeque<Answer> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, answer: Answer) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(answer);
        self.wake();
    }
}

/// Which parts of a reply the client wants; the rest is not sent.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyFilter {
    /// Parts of a snapshot, such as `gpus`.
    pub(super) parts: Option<Vec<String>>,
    /// Names of metrics.
    pub(super) metrics: Option<Vec<String>>,
}

/// Where the answer to one request goes. Dropped without an answer, it tells the client so.
#[derive(Debug)]
pub struct ReplyHandle {
    answers: Arc<Answers>,
    connection: u64,
    id: Value,
    filter: ReplyFilter,
    answered: bool,
}

impl ReplyHandle {
    /// A handle for the request `id` of a connection.
    pub(super) fn new(answers: Arc<Answers>, connection: u64, id: Value, filter: ReplyFilter) -> Self {
        Self { answers, connection, id, filter, answered: false }
    }

    /// Answers. Never blocks: the thread of the socket formats and writes it.
    pub fn send(mut self, mut json: Value) {
        self.filter.apply(&mut json);
        self.answer(Ok(json));
    }

    fn answer(&mut self, outcome: Result<Value, String>) {
        if !std::mem::replace(&mut self.answered, true) {
            self.answers.put(Answer { connection: self.connection, id: self.id.take(), outcome });
        }
    }
}

impl Drop for ReplyHandle {
    fn drop(&mut self) {
        self.answer(Err("gpurun cannot answer this now".to_owned()));
    }
}

impl ReplyFilter {
    /// Removes from a snapshot what the client did not ask for.
    fn apply(&self, result: &mut Value) {
        if let (Some(parts), Some(object)) = (&self.parts, result.as_object_mut()) {
            let whole = ["gpus", "host", "job", "gpurun", "processes"];
            object.retain(|key, _| !whole.contains(&key.as_str()) || parts.iter().any(|part| part == key));
        }
        if let Some(metrics) = &self.metrics {
            retain_metrics(result, metrics);
        }
    }
}

fn retain_metrics(value: &mut Value, wanted: &[String]) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object.iter_mut() {
                match inner {
                    Value::Object(metrics) if key == "metrics" => {
                        metrics.retain(|name, _| wanted.iter().any(|w| w == name));
                    }
                    _ => retain_metrics(inner, wanted),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|inner| retain_metrics(inner, wanted)),
        _ => {}
    }
}
