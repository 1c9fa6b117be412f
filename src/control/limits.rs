//! What one client may cost: the bounds, the rates, and the count of what was refused. Decides, never acts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::limits;
use crate::model::loss::{Loss, Losses};
use crate::model::time::Mono;

/// What clients may cost. The defaults are those of [`crate::model::limits`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once, of all clients together.
    pub connections: usize,
    /// Connections at once from one process.
    pub connections_per_process: usize,
    /// Steps and scalars a second and connection, after a burst of twice as many. Further ones are dropped.
    pub marks_per_second: u32,
    /// Tags begun a second and connection, after `tag_burst`.
    pub tags_per_second: u32,
    /// Tags begun at once on one connection.
    pub tag_burst: u32,
    /// Bytes a second and connection, after a burst of twice as many. Beyond, it is not read for a while.
    pub bytes_per_second: u32,
    /// Tags open at once in one stack.
    pub depth: usize,
    /// Different scalar names in one run.
    pub names: usize,
    /// Requests of one connection that wait for an answer.
    pub requests: usize,
    /// Bytes of replies that may wait for one client to read them while another is added.
    pub reply_bytes: usize,
    /// Events that wait for the receiver; with this many, no client is read until it has taken some.
    pub waiting_events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: limits::CONNECTIONS,
            connections_per_process: limits::CONNECTIONS_PER_PROCESS,
            marks_per_second: limits::MARKS_PER_SECOND,
            tags_per_second: limits::TAGS_PER_SECOND,
            tag_burst: limits::TAG_BURST,
            bytes_per_second: limits::BYTES_PER_SECOND,
            depth: limits::TAG_DEPTH,
            names: limits::SCALAR_NAMES,
            requests: limits::REQUESTS,
            reply_bytes: 1 << 20,
            waiting_events: 65_536,
        }
    }
}

/// A token bucket: tokens refill at `per_second` up to `burst`. Takes the time as an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at: Mono,
}

impl Bucket {
    /// A full bucket.
    pub(super) fn new(per_second: u32, burst: u32, now: Mono) -> Self {
        let burst = f64::from(burst);
        Self { per_second: f64::from(per_second), burst, tokens: burst, at: now }
    }

    /// A full bucket whose burst is two seconds' worth.
    pub(super) fn of_rate(per_second: u32, now: Mono) -> Self {
        Self::new(per_second, per_second.saturating_mul(2), now)
    }

    fn refill(&mut self, now: Mono) {
        self.tokens = (self.tokens + now.seconds_since(self.at) * self.per_second).min(self.burst);
        self.at = self.at.max(now);
    }

    /// Takes one token if there is one.
    pub(super) fn take(&mut self, now: Mono) -> bool {
        self.refill(now);
        let has = self.tokens >= 1.0;
        if has {
            self.tokens -= 1.0;
        }
        has
    }

    /// Takes `amount`, going into debt if need be.
    pub(super) fn charge(&mut self, amount: usize, now: Mono) {
        self.refill(now);
        // Amounts are single reads, far below 2^52.
        self.tokens -= amount as f64;
    }

    /// Whether there is anything left.
    pub(super) fn is_open(&mut self, now: Mono) -> bool {
        self.refill(now);
        self.tokens > 0.0
    }
}

/// Why a message was not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// What is counted; `None`: nothing is lost, because the message rightly changes nothing.
    pub(super) loss: Option<Loss>,
    /// One sentence for the client.
    pub(super) why: String,
}

impl Refused {
    /// Against a rule.
    pub(super) fn rule(loss: Loss, why: impl Into<String>) -> Self {
        Self { loss: Some(loss), why: why.into() }
    }

    /// It changes nothing, as it should: a tag of this name is already open, or none is.
    pub(super) fn ignored(why: impl Into<String>) -> Self {
        Self { loss: None, why: why.into() }
    }
}

impl From<Loss> for Refused {
    fn from(loss: Loss) -> Self {
        Self::rule(loss, loss.reason())
    }
}

/// [`Losses`] that one thread counts and another reads.
#[derive(Debug, Default)]
pub(super) struct Tally([AtomicU64; Loss::ALL.len()]);

impl Tally {
    /// Counts `n` more; says whether they are the first of this reason.
    pub(super) fn add(&self, loss: Loss, n: u64) -> bool {
        self.0[loss as usize].fetch_add(n, Ordering::Relaxed) == 0
    }

    /// The counts so far.
    pub(super) fn read(&self) -> Losses {
        let mut losses = Losses::default();
        for loss in Loss::ALL {
            losses.add(loss, self.0[loss as usize].load(Ordering::Relaxed));
        }
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_then_the_rate() {
        let t0 = Mono(1_000_000_000);
        let mut bucket = Bucket::new(10, 3, t0);
        assert_eq!((0..5).filter(|_| bucket.take(t0)).count(), 3);
        let t1 = t0 + Duration::from_millis(200);
        assert_eq!((0..5).filter(|_| bucket.take(t1)).count(), 2);
        // A clock that goes back gives nothing.
        assert!(!bucket.take(t0));
    }

    #[test]
    fn debt_closes_it_until_paid() {
        let t0 = Mono(1);
        let mut bucket = Bucket::new(100, 10, t0);
        bucket.charge(60, t0);
        assert!(!bucket.is_open(t0 + Duration::from_millis(400)));
        assert!(bucket.is_open(t0 + Duration::from_millis(600)));
    }

    #[test]
    fn the_first_of_each_reason_is_told_apart() {
        let tally = Tally::default();
        assert!(tally.add(Loss::Names, 3) && !tally.add(Loss::Names, 1) && tally.add(Loss::Late, 1));
        assert_eq!((tally.read().get(Loss::Names), tally.read().get(Loss::Late)), (4, 1));
    }
}
