//! A token bucket: how much a client may send. Takes the time as an argument.

use crate::model::time::Mono;

/// Tokens refill at `per_second` up to `burst`.
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
}
