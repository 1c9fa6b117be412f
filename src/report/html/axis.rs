//! Where ticks stand and what they say. Pure arithmetic.

use crate::report::formatting;

/// Steps of a time axis from a second on, in seconds.
const STEPS: [f64; 24] = [
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1800.0,
    3600.0,
    7200.0,
    10_800.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    1_209_600.0,
    2_592_000.0,
    5_184_000.0,
];

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `least`.
pub(super) fn nice(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let close = |factor: &&f64| **factor * power >= least * (1.0 - 1e-9);
    [1.0, 2.0, 2.5, 5.0, 10.0].iter().find(close).map_or(10.0 * power, |factor| factor * power)
}

/// Values of a value axis from `bottom` to `top`: multiples of a round step, and `top` itself.
pub(super) fn values(bottom: f64, top: f64, about: usize) -> Vec<f64> {
    let range = top - bottom;
    if !(range.is_finite() && range > 0.0) {
        return vec![bottom];
    }
    let step = nice(range / about.max(1) as f64);
    let first = (bottom / step - 1e-9).ceil() as i64;
    let mut ticks: Vec<f64> =
        (first..).map(|n| n as f64 * step).take_while(|v| *v <= top + step * 1e-9).take(50).collect();
    if ticks.last().is_none_or(|last| top - last > 0.35 * step) {
        ticks.push(top);
    }
    ticks
}

/// A time axis.
pub(super) struct Time {
    /// Seconds between ticks.
    step: f64,
    /// Seconds on the whole axis.
    span: f64,
}

impl Time {
    /// An axis of `span` seconds with room for about `most` labels.
    pub(super) fn new(span: f64, most: usize) -> Self {
        let least = span / most.max(1) as f64;
        let step = if least <= 0.5 {
            nice(least)
        } else {
            STEPS.iter().copied().find(|s| *s >= least).unwrap_or_else(|| nice(least / 86_400.0) * 86_400.0)
        };
        Self { step, span }
    }

    /// Seconds since the start.
    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> {
        let (step, span) = (self.step, self.span);
        (0..200).map(move |n| f64::from(n) * step).take_while(move |t| *t <= span * (1.0 + 1e-9))
    }

    /// `30 s`, `5 min`, `1 h 30`, `2 d`.
    pub(super) fn label(&self, t: f64) -> String {
        if t == 0.0 {
            return "0".to_owned();
        }
        if self.step < 1.0 {
            return if self.span < 0.1 {
                format!("{} ms", formatting::number(t * 1e3))
            } else {
                format!("{} s", formatting::number(t))
            };
        }
        let t = t.round() as u64;
        let two = |a: u64, unit: &str, b: u64| {
            if b == 0 { format!("{a} {unit}") } else { format!("{a} {unit} {b:02}") }
        };
        match t {
            0..60 => format!("{t} s"),
            _ if self.span < 180.0 && self.step < 60.0 => format!("{t} s"),
            60..3600 => two(t / 60, "min", t % 60),
            3600..172_801 if self.step < 86_400.0 => two(t / 3600, "h", t % 3600 / 60),
            _ => match (t / 86_400, t % 86_400 / 3600) {
                (days, 0) => format!("{days} d"),
                (days, hours) => format!("{days} d {hours} h"),
            },
        }
    }

    /// The wall clock at a tick; nothing where ticks are closer than a second.
    pub(super) fn clock(&self, at_us: i64) -> String {
        let format = match self.step {
            s if s < 1.0 => return String::new(),
            s if s < 60.0 => "%H:%M:%S",
            _ if self.span <= 129_600.0 => "%H:%M",
            s if s < 86_400.0 => "%-d %b %H:%M",
            _ => "%-d %b",
        };
        formatting::strftime(at_us, format)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn value_ticks_are_round_and_end_at_the_top() {
        assert_eq!(values(0.0, 100.0, 2), [0.0, 50.0, 100.0]);
        assert_eq!(values(0.0, 100.0, 4), [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert_eq!(values(0.0, 79.6, 2), [0.0, 50.0, 79.6]);
        assert_eq!(values(0.0, 700.0, 2), [0.0, 500.0, 700.0]);
        assert_eq!(values(3.0, 3.0, 2), [3.0]);
    }

    #[test]
    fn time_labels_are_short_and_human() {
        let labels = |span: f64, most| {
            let axis = Time::new(span, most);
            axis.ticks().map(|t| axis.label(t)).collect::<Vec<_>>()
        };
        assert_eq!(labels(3.2, 6), ["0", "1 s", "2 s", "3 s"]);
        assert_eq!(labels(0.004, 4), ["0", "1 ms", "2 ms", "3 ms", "4 ms"]);
        assert_eq!(labels(1.0, 4), ["0", "0.25 s", "0.5 s", "0.75 s", "1 s"]);
        assert_eq!(labels(1800.0, 6), ["0", "5 min", "10 min", "15 min", "20 min", "25 min", "30 min"]);
        assert_eq!(labels(7200.0, 4), ["0", "30 min", "1 h", "1 h 30", "2 h"]);
        assert_eq!(labels(86_400.0, 6), ["0", "6 h", "12 h", "18 h", "24 h"]);
        assert_eq!(labels(432_000.0, 5), ["0", "1 d", "2 d", "3 d", "4 d", "5 d"]);
    }

    proptest! {
        #[test]
        fn any_axis_is_finite_and_in_order(bottom in -1e9f64..1e9, range in 1e-9f64..1e9, n in 1usize..8, span in 0.0f64..1e9) {
            let ticks = values(bottom, bottom + range, n);
            prop_assert!(!ticks.is_empty() && ticks.len() <= 51);
            prop_assert!(ticks.windows(2).all(|w| w[0] < w[1]));
            let axis = Time::new(span, n);
            let count = axis.ticks().count();
            prop_assert!((1..=2 * n + 3).contains(&count), "{count} ticks on {span} s, asked for {n}");
        }
    }
}
