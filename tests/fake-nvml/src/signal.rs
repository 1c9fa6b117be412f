//! Values over time: what a scenario writes for one number, and what that number is at a second `t`.
//!
//! Pure arithmetic; it never reads a clock. Integrals are closed forms, so that a counter is exact at
//! any moment and two processes that read it agree.

use serde::{Deserialize, Serialize};

use crate::codes::{self, Ret};

/// A number, or the name of the NVML error that the call answers instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Level {
    /// The value, in the unit of the key that holds it.
    Value(f64),
    /// An NVML error name without its `NVML_ERROR_` prefix, such as `NOT_SUPPORTED`.
    Error(String),
}

impl Level {
    fn read(&self) -> Result<f64, Ret> {
        match self {
            Level::Value(value) => Ok(*value),
            Level::Error(name) => Err(codes::by_name(name).unwrap_or(codes::UNKNOWN)),
        }
    }

    /// An error adds nothing to an integral.
    fn or_zero(&self) -> f64 {
        match self {
            Level::Value(value) => *value,
            Level::Error(_) => 0.0,
        }
    }
}

/// A value as a function of scripted time, in the unit of the key that holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Signal {
    /// The same at all times: `50`, or `"NOT_SUPPORTED"`.
    Constant(Level),
    /// `[[t, value], ...]` with rising `t`: each value holds from its second on, the first one also before.
    Steps(Vec<(f64, Level)>),
    /// A named curve: `{ square = { ... } }` and so on.
    Wave(Wave),
}

/// The curves that a scenario can name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wave {
    /// High for the first `duty` of each period, low for the rest.
    Square(Square),
    /// A straight line between two moments, flat outside them.
    Ramp(Ramp),
    /// `mean + amplitude * sin(2 pi (t - shift) / period)`.
    Sine(Sine),
}

/// A square wave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Square {
    /// Value in the second part of each period.
    pub low: f64,
    /// Value in the first part of each period.
    pub high: f64,
    /// Seconds of one period; greater than zero.
    pub period: f64,
    /// Share of the period that is high, 0 to 1.
    #[serde(default = "half")]
    pub duty: f64,
    /// Seconds by which the wave starts later.
    #[serde(default)]
    pub shift: f64,
}

fn half() -> f64 {
    0.5
}

/// A straight line from `low` at `start` to `high` at `end`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ramp {
    /// Value up to `start`.
    pub from: f64,
    /// Value from `end` on.
    pub to: f64,
    /// Second at which the line leaves `from`.
    #[serde(default)]
    pub start: f64,
    /// Second at which the line reaches `to`; greater than `start`.
    pub end: f64,
}

/// A sine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sine {
    /// The middle.
    pub mean: f64,
    /// Distance from the middle to the top.
    pub amplitude: f64,
    /// Seconds of one period; greater than zero.
    pub period: f64,
    /// Seconds by which the wave starts later.
    #[serde(default)]
    pub shift: f64,
}

impl Signal {
    /// The value at second `t`.
    ///
    /// # Errors
    /// The NVML code, where the scenario names an error for this moment.
    pub fn at(&self, t: f64) -> Result<f64, Ret> {
        match self {
            Signal::Constant(level) => level.read(),
            Signal::Steps(steps) => {
                let passed = steps.partition_point(|(from, _)| *from <= t);
                match steps.get(passed.saturating_sub(1)) {
                    Some((_, level)) => level.read(),
                    None => Err(codes::NOT_SUPPORTED),
                }
            }
            Signal::Wave(Wave::Square(wave)) => {
                let inside = (t - wave.shift).rem_euclid(wave.period);
                Ok(if inside < wave.duty * wave.period { wave.high } else { wave.low })
            }
            Signal::Wave(Wave::Ramp(ramp)) => {
                let share = ((t - ramp.start) / (ramp.end - ramp.start)).clamp(0.0, 1.0);
                Ok(ramp.from + (ramp.to - ramp.from) * share)
            }
            Signal::Wave(Wave::Sine(wave)) => {
                Ok(wave.mean
                    + wave.amplitude * (std::f64::consts::TAU * (t - wave.shift) / wave.period).sin())
            }
        }
    }

    /// The area under the signal from second 0 to second `t` (unit times seconds); 0 for a `t` before 0.
    #[must_use]
    pub fn integral(&self, t: f64) -> f64 {
        if t <= 0.0 {
            return 0.0;
        }
        match self {
            Signal::Constant(level) => level.or_zero() * t,
            Signal::Steps(steps) => steps
                .iter()
                .enumerate()
                .map(|(place, (from, level))| {
                    let begin = if place == 0 { 0.0 } else { from.max(0.0) };
                    let end = steps.get(place + 1).map_or(t, |(next, _)| next.min(t));
                    level.or_zero() * (end - begin).max(0.0)
                })
                .sum(),
            Signal::Wave(Wave::Square(wave)) => {
                let up_to = |x: f64| {
                    let periods = (x / wave.period).floor();
                    let rest = x - periods * wave.period;
                    let high = wave.duty * wave.period;
                    let whole = high * wave.high + (wave.period - high) * wave.low;
                    periods * whole + rest.min(high) * wave.high + (rest - high).max(0.0) * wave.low
                };
                up_to(t - wave.shift) - up_to(-wave.shift)
            }
            Signal::Wave(Wave::Ramp(ramp)) => {
                let up_to = |x: f64| {
                    let length = ramp.end - ramp.start;
                    let inside = (x - ramp.start).clamp(0.0, length);
                    let before = x.min(ramp.start) - ramp.start;
                    let after = (x - ramp.end).max(0.0);
                    before * ramp.from
                        + ramp.from * inside
                        + (ramp.to - ramp.from) * inside * inside / (2.0 * length)
                        + after * ramp.to
                };
                up_to(t) - up_to(0.0)
            }
            Signal::Wave(Wave::Sine(wave)) => {
                let turn = std::f64::consts::TAU / wave.period;
                let up_to = |x: f64| wave.mean * x - wave.amplitude / turn * (turn * (x - wave.shift)).cos();
                up_to(t) - up_to(0.0)
            }
        }
    }
}

impl From<f64> for Signal {
    fn from(value: f64) -> Self {
        Signal::Constant(Level::Value(value))
    }
}

impl From<i32> for Signal {
    fn from(value: i32) -> Self {
        Signal::Constant(Level::Value(f64::from(value)))
    }
}

impl From<&str> for Signal {
    /// An error by name, such as `"NOT_SUPPORTED"`.
    fn from(name: &str) -> Self {
        Signal::Constant(Level::Error(name.to_owned()))
    }
}

/// A counter: something that grows with time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Counter {
    /// Grows at a rate.
    Rate(Rate),
    /// A scripted value, monotonic or not: for counters that stand still, jump or go backwards.
    Signal(Signal),
}

/// A counter that is the integral of a rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Units per second.
    pub rate: Signal,
    /// The counter at second 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start: f64,
    /// Seconds at which the counter falls back to 0, rising.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reset_at: Vec<f64>,
    /// The counter wraps to 0 when it reaches this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrap: Option<f64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl Counter {
    /// A counter that grows at `rate` units per second from 0.
    pub fn rate(rate: impl Into<Signal>) -> Self {
        Counter::Rate(Rate { rate: rate.into(), start: 0.0, reset_at: Vec::new(), wrap: None })
    }

    /// The counter at second `t`.
    ///
    /// # Errors
    /// The NVML code, where the scenario names an error for this moment.
    pub fn at(&self, t: f64) -> Result<f64, Ret> {
        match self {
            Counter::Signal(signal) => signal.at(t),
            Counter::Rate(counter) => {
                // An error named for this moment is answered, though it adds nothing to the sum.
                counter.rate.at(t)?;
                let reset = counter.reset_at.iter().copied().filter(|at| *at <= t).fold(f64::NAN, f64::max);
                let value = if reset.is_nan() {
                    counter.start + counter.rate.integral(t)
                } else {
                    counter.rate.integral(t) - counter.rate.integral(reset)
                };
                Ok(match counter.wrap {
                    Some(wrap) => value.rem_euclid(wrap),
                    None => value,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numeric_integral(signal: &Signal, t: f64) -> f64 {
        let steps = 100_000;
        let width = t / f64::from(steps);
        (0..steps).map(|step| signal.at((f64::from(step) + 0.5) * width).unwrap() * width).sum()
    }

    #[test]
    fn closed_integrals_equal_the_numeric_ones() {
        let signals = [
            Signal::from(7.0),
            Signal::Steps(vec![
                (1.0, Level::Value(5.0)),
                (3.0, Level::Value(50.0)),
                (9.0, Level::Value(0.0)),
            ]),
            Signal::Wave(Wave::Square(Square { low: 10.0, high: 90.0, period: 2.0, duty: 0.25, shift: 0.3 })),
            Signal::Wave(Wave::Ramp(Ramp { from: 5.0, to: 105.0, start: 1.0, end: 6.0 })),
            Signal::Wave(Wave::Sine(Sine { mean: 50.0, amplitude: 20.0, period: 3.0, shift: 0.2 })),
        ];
        for signal in &signals {
            for t in [0.5, 2.0, 6.5, 12.0] {
                let expected = numeric_integral(signal, t);
                assert!((signal.integral(t) - expected).abs() < 0.01, "{signal:?} at {t}: {expected}");
            }
        }
    }

    #[test]
    fn steps_hold_and_the_first_reaches_back() {
        let steps = Signal::Steps(vec![(1.0, Level::Value(5.0)), (3.0, Level::Error("GPU_IS_LOST".into()))]);
        assert_eq!(steps.at(0.0), Ok(5.0));
        assert_eq!(steps.at(2.999), Ok(5.0));
        assert_eq!(steps.at(3.0), Err(codes::GPU_IS_LOST));
    }

    #[test]
    fn a_counter_resets_and_wraps() {
        let mut rate = Rate { rate: 10.0.into(), start: 100.0, reset_at: vec![5.0], wrap: None };
        assert_eq!(Counter::Rate(rate.clone()).at(4.0), Ok(140.0));
        assert_eq!(Counter::Rate(rate.clone()).at(6.0), Ok(10.0));
        rate.wrap = Some(120.0);
        assert_eq!(Counter::Rate(rate).at(4.0), Ok(20.0));
    }
}
