//! What each message does: one method an operation. Knows the tag stacks and the rates, no socket.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::{ReplyFilter, ReplyHandle};
use super::event::ControlEvent;
use super::event_loop::EventLoop;
use super::limits::Refused;
use super::protocol::{self, MAX_NAME, Message, PROTOCOL_VERSION};
use super::stacks::Client;
use crate::model::id::StackId;
use crate::model::loss::Loss;
use crate::model::mark::{Mark, MarkOp, check_scalar_name, check_tag};
use crate::model::time::Mono;
use crate::sys::clock;

impl<S> EventLoop<S>
where
    S: FnMut(ControlEvent) -> Result<(), ControlEvent>,
{
    /// Carries out one line, and replies if it asks for that.
    pub(super) fn take_line(&mut self, key: u64, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let mut parsed = protocol::parse(line);
        let repaired = parsed.is_err().then(|| protocol::with_nulls(line)).flatten();
        if let Some(repaired) = &repaired {
            parsed = protocol::parse(repaired);
        }
        let (id, outcome) = match parsed {
            Ok(message) => (message.reply_id(), self.act(key, message)),
            Err(error) => (error.id, Err(Refused::rule(Loss::Messages, error.why))),
        };
        let outcome = match outcome {
            Ok(Some(result)) => Ok(result),
            Ok(None) => return,
            Err(refused) => {
                if let Some(loss) = refused.loss {
                    self.lose(loss, 1);
                }
                Err(refused.why)
            }
        };
        if let Some(id) = id {
            self.reply(key, id, outcome);
        }
    }

    /// Carries out one message. `None`: the reply comes later, from the receiver of the events.
    fn act(&mut self, key: u64, message: Message<'_>) -> Result<Option<Value>, Refused> {
        match message.op.as_str() {
            "hello" => return self.hello(key, &message).map(Some),
            "begin" => self.begin(key, &message)?,
            "end" => self.end(key, &message)?,
            "clear" => self.clear(key, &message)?,
            "epoch" => self.epoch(key, &message)?,
            "step_begin" => self.step_begin(key, &message)?,
            "step" => self.step(key, &message)?,
            "log" => self.log(key, message)?,
            "dropped" => self.lose(Loss::Unread, message.dropped.unwrap_or(0)),
            "collect" | "snapshot" => return self.request(key, message).map(|()| None),
            _ => {
                let why = format!("unknown op; this is protocol version {PROTOCOL_VERSION}");
                return Err(Refused::rule(Loss::Messages, why));
            }
        }
        Ok(Some(Value::Null))
    }

    fn hello(&mut self, key: u64, message: &Message<'_>) -> Result<Value, Refused> {
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(Value::Null) };
        if connection.stack.is_some() {
            return Err(Refused::rule(Loss::Messages, "hello must come first"));
        }
        connection.rank = message.rank;
        if let Some(name) = &message.stack {
            if name.is_empty() || name.len() > MAX_NAME {
                let why = format!("a stack's name must have 1 to {MAX_NAME} bytes");
                return Err(Refused::rule(Loss::Names, why));
            }
            if !self.stacks.may_name(name, message.rank) {
                return Err(Refused::rule(Loss::Clients, "too many named stacks"));
            }
            connection.named = Some(name.clone());
        }
        Ok(json!({
            "version": PROTOCOL_VERSION,
            "server": concat!("gpurun ", env!("CARGO_PKG_VERSION")),
            "run": &*self.settings.run,
            "pid": std::process::id(),
        }))
    }

    fn begin(&mut self, key: u64, message: &Message<'_>) -> Result<(), Refused> {
        let Some(tag) = &message.tag else { return Err(Refused::rule(Loss::Messages, "begin needs a tag")) };
        let allowed = check_tag(tag).map_err(|why| Refused::rule(Loss::Names, why));
        let allowed = allowed.and_then(|()| self.within_tag_rate(key));
        let (stack, at) = self.prepare(key, message.t)?;
        let tag: Arc<str> = Arc::from(if tag.len() <= MAX_NAME { tag.as_str() } else { "" });
        let op = self.stacks.begin(stack, &tag, message.span, allowed)?;
        self.mark(stack, at, op);
        Ok(())
    }

    fn end(&mut self, key: u64, message: &Message<'_>) -> Result<(), Refused> {
        let (stack, at) = self.prepare(key, message.t)?;
        if let Some(op) = self.stacks.end(stack, message.tag.as_deref(), message.span)? {
            self.mark(stack, at, op);
        }
        Ok(())
    }

    fn clear(&mut self, key: u64, message: &Message<'_>) -> Result<(), Refused> {
        self.within_tag_rate(key)?;
        let (stack, at) = self.prepare(key, message.t)?;
        let op = self.stacks.clear(stack, message.tag.as_deref())?;
        self.mark(stack, at, op);
        Ok(())
    }

    fn step(&mut self, key: u64, message: &Message<'_>) -> Result<(), Refused> {
        let Some(step) = message.step else { return Err(Refused::rule(Loss::Messages, "step needs a step")) };
        self.within_mark_rate(key)?;
        if message.first {
            let (stack, at) = self.prepare(key, message.began.or(message.t))?;
            self.mark(stack, at, MarkOp::Epoch { epoch: None });
        }
        let (stack, at) = self.prepare(key, message.t)?;
        let began = message.began.map(|began| self.stacks.start_of_step(began, at));
        let count = message.steps.unwrap_or(1).max(1);
        self.mark(stack, at, MarkOp::Step { step, count, began, samples: message.samples });
        Ok(())
    }

    fn step_begin(&mut self, key: u64, message: &Message<'_>) -> Result<(), Refused> {
        self.within_mark_rate(key)?;
        let (stack, at) = self.prepare(key, message.t)?;
        self.mark(stack, at, MarkOp::StepBegin { step: message.step });
        Ok(())
    }

    fn epoch(&mut self, key: u64, message: &Message<'_>) -> Result<(), Refused> {
        self.within_mark_rate(key)?;
        let (stack, at) = self.prepare(key, message.t)?;
        self.mark(stack, at, MarkOp::Epoch { epoch: message.epoch });
        Ok(())
    }

    fn log(&mut self, key: u64, message: Message<'_>) -> Result<(), Refused> {
        let Some(values) = message.values else {
            return Err(Refused::rule(Loss::Messages, "log needs values"));
        };
        self.within_mark_rate(key)?;
        let mut kept: Vec<(Arc<str>, f64)> = Vec::new();
        let mut why = None;
        for (name, value) in values.into_numbers() {
            match self.scalar(name, value) {
                Ok(scalar) => kept.push(scalar),
                Err(refused) => {
                    refused.loss.into_iter().for_each(|loss| self.lose(loss, 1));
                    why.get_or_insert(refused.why);
                }
            }
        }
        if !kept.is_empty() {
            let (stack, at) = self.prepare(key, message.t)?;
            self.mark(stack, at, MarkOp::Log { step: message.step, values: kept });
        }
        // The other scalars of the message are recorded.
        why.map_or(Ok(()), |why| Err(Refused::ignored(why)))
    }

    fn request(&mut self, key: u64, message: Message<'_>) -> Result<(), Refused> {
        let Some(id) = message.reply_id() else {
            return Err(Refused::rule(Loss::Messages, "a request needs an id"));
        };
        let allowed = self.settings.limits.requests;
        if self.connections.get(&key).is_some_and(|connection| connection.requests >= allowed) {
            return Err(Refused::ignored(format!("{allowed} requests already wait for an answer")));
        }
        let asks = if message.op == "snapshot" { None } else { Some(self.prepare(key, message.t)?) };
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.requests += 1;
        }
        let filter = ReplyFilter { parts: message.parts, metrics: message.metrics };
        let reply = ReplyHandle::new(Arc::clone(&self.shared.answers), key, id, filter);
        self.emit(match asks {
            None => ControlEvent::Snapshot { reply },
            Some((stack, at)) => ControlEvent::Collect { stack: StackId(stack), at, reply },
        });
        Ok(())
    }

    /// The stack of a connection, made and announced at its first need, and the instant of the message.
    fn prepare(&mut self, key: u64, t: Option<u64>) -> Result<(u32, Mono), Refused> {
        let now = clock::monotonic();
        let Some(connection) = self.connections.get_mut(&key) else {
            return Err(Refused::ignored("the connection is closed"));
        };
        let stack = match connection.stack {
            Some(stack) => stack,
            None => {
                let client = Client { rank: connection.rank, named: connection.named.as_deref() };
                let (stack, opened) = self.stacks.open(&client, t.map_or(now, Mono), now)?;
                connection.stack = Some(stack);
                opened.into_iter().for_each(|mark| self.emit(ControlEvent::Mark(mark)));
                stack
            }
        };
        Ok((stack, self.stacks.stamp(stack, t, now)))
    }

    fn mark(&mut self, stack: u32, at: Mono, op: MarkOp) {
        self.emit(ControlEvent::Mark(Mark { stack: StackId(stack), at, op }));
    }

    fn within_mark_rate(&mut self, key: u64) -> Result<(), Refused> {
        let now = clock::monotonic();
        let open = self.connections.get_mut(&key).is_none_or(|connection| connection.marks.take(now));
        if open { Ok(()) } else { Err(Loss::MarkRate.into()) }
    }

    fn within_tag_rate(&mut self, key: u64) -> Result<(), Refused> {
        let now = clock::monotonic();
        let open = self.connections.get_mut(&key).is_none_or(|connection| connection.tags.take(now));
        if open { Ok(()) } else { Err(Loss::TagRate.into()) }
    }

    /// A scalar as the run knows it. NaN is a value that is missing.
    fn scalar(&mut self, name: String, value: Option<f64>) -> Result<(Arc<str>, f64), Refused> {
        check_scalar_name(&name).map_err(|why| Refused::rule(Loss::Names, why))?;
        let Some(value) = value else {
            return Err(Refused::rule(Loss::Values, format!("the value of {name:?} is not a number")));
        };
        if let Some(known) = self.names.get(name.as_str()) {
            return Ok((Arc::clone(known), value));
        }
        if self.names.len() >= self.settings.limits.names {
            return Err(Loss::ScalarNames.into());
        }
        let name: Arc<str> = Arc::from(name);
        self.names.insert(Arc::clone(&name));
        Ok((name, value))
    }
}
