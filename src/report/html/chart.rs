//! One chart as inline SVG: strips or lanes above each other over one time axis. Colours are classes, so
//! that the page's style decides on light, dark and print.

use std::fmt::{self, Write};

use crate::report::curve::{Curve, Point};
use crate::report::spans::{Bar, Bars, Marks};

use super::axis::{self, Time};
use super::escape::escape;

/// Space between strips.
const GAP: i32 = 12;

/// Height of the time axis.
const AXIS: i32 = 32;

/// Height of a lane of tags.
const LANE: i32 = 18;

/// Width of a figure of 10 px type, roughly.
const GLYPH: f64 = 6.0;

/// Sizes that all charts of a page share, in the units of the view box.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) width: i32,
    /// Left of the plot: names and values of the axis.
    pub(super) left: i32,
    /// Right of the plot: mean and maximum.
    pub(super) right: i32,
    /// Start of the axis, microseconds since the Unix epoch.
    pub(super) start: i64,
    /// Microseconds on the axis.
    pub(super) span: i64,
}

impl Frame {
    fn plot(&self) -> i32 {
        self.width - self.left - self.right
    }

    /// Microseconds of one pixel.
    fn pixel(&self) -> i64 {
        (self.span / i64::from(self.plot())).max(1)
    }

    /// Place of a moment in tenths of a pixel.
    fn x(&self, us: i64) -> i64 {
        let part = i128::from(us.saturating_sub(self.start)) * i128::from(self.plot()) * 10;
        let within = part / i128::from(self.span.max(1));
        i64::from(self.left) * 10 + within.clamp(0, i128::from(self.plot()) * 10) as i64
    }

    fn time(&self) -> Time {
        let wide = if self.span > 129_600_000_000 { 84 } else { 58 };
        Time::new(self.span as f64 / 1e6, usize::try_from(self.plot() / wide).unwrap_or(1))
    }
}

/// A curve in a strip.
pub(super) struct Line<'a> {
    pub(super) curve: &'a Curve,
    /// From the unit of the curve to that of the axis.
    pub(super) scale: f64,
    pub(super) dashed: bool,
}

/// What a chart is made of: one strip per GPU, or per quantity.
pub(super) struct Strip<'a> {
    /// Plain text; escaped here.
    pub(super) name: String,
    pub(super) detail: String,
    /// Class of its colour.
    pub(super) tone: String,
    pub(super) bottom: f64,
    pub(super) top: f64,
    pub(super) lines: Vec<Line<'a>>,
    /// A line across, such as a power limit.
    pub(super) limit: Option<f64>,
    /// Marked at the foot where above zero.
    pub(super) held: Vec<&'a Curve>,
    /// Counts have no halves.
    pub(super) whole: bool,
    /// The two lines at the right: mean and maximum.
    pub(super) figures: [String; 2],
}

/// A row of bars or marks.
pub(super) struct Lane<'a> {
    pub(super) name: String,
    /// Shown when the name is pointed at.
    pub(super) full: String,
    pub(super) bars: Option<&'a Bars>,
    pub(super) marks: Option<&'a Marks>,
}

/// Title and description for screen readers.
pub(super) struct AltText<'a> {
    pub(super) id: usize,
    pub(super) title: &'a str,
    pub(super) description: &'a str,
}

fn strip_height(strips: usize) -> i32 {
    match strips {
        0 | 1 => 130,
        2 => 92,
        3 | 4 => 66,
        5..=8 => 46,
        _ => 34,
    }
}

/// Draws strips above each other.
pub(super) fn strips(
    out: &mut dyn Write,
    frame: &Frame,
    alt: &AltText<'_>,
    strips: &[Strip<'_>],
) -> fmt::Result {
    let height = strip_height(strips.len());
    let count = i32::try_from(strips.len()).unwrap_or(i32::MAX / 256);
    let foot = 8 + count * height + (count - 1).max(0) * GAP;
    open(out, frame, alt, foot + AXIS)?;
    let time = frame.time();
    let mut top = 8;
    for strip in strips {
        write!(out, "<g class=\"{}\">", strip.tone)?;
        draw_strip(out, frame, &time, strip, top, height)?;
        out.write_str("</g>")?;
        top += height + GAP;
    }
    time_axis(out, frame, &time, foot)?;
    out.write_str("</svg>")
}

/// Draws lanes of tags and steps.
pub(super) fn lanes(
    out: &mut dyn Write,
    frame: &Frame,
    alt: &AltText<'_>,
    lanes: &[Lane<'_>],
) -> fmt::Result {
    let count = i32::try_from(lanes.len()).unwrap_or(i32::MAX / 256);
    let foot = 4 + count * LANE;
    open(out, frame, alt, foot + AXIS)?;
    let time = frame.time();
    vertical_grid(out, frame, &time, 4, foot)?;
    for (row, lane) in lanes.iter().enumerate() {
        let top = 4 + i32::try_from(row).unwrap_or(0) * LANE;
        let most = usize::try_from((frame.left - 8) / 6).unwrap_or(8);
        write!(
            out,
            "<g class=\"lane\"><title>{}</title><text class=\"name\" x=\"0\" y=\"{}\">{}</text>",
            escape(&lane.full),
            top + 13,
            escape(&crate::report::formatting::short_start(&lane.name, most)),
        )?;
        if let Some(bars) = lane.bars {
            for bar in bars.bars(frame.pixel() * 2) {
                draw_bar(out, frame, &bar, top)?;
            }
        }
        if let Some(marks) = lane.marks {
            draw_marks(out, frame, marks, top)?;
        }
        out.write_str("</g>")?;
    }
    time_axis(out, frame, &time, foot)?;
    out.write_str("</svg>")
}

fn open(out: &mut dyn Write, frame: &Frame, alt: &AltText<'_>, height: i32) -> fmt::Result {
    let AltText { id, title, description } = alt;
    write!(
        out,
        "<svg viewBox=\"0 0 {} {height}\" role=\"img\" aria-labelledby=\"t{id} d{id}\"><title id=\"t{id}\">{}</title><desc id=\"d{id}\">{}</desc>",
        frame.width,
        escape(title),
        escape(description),
    )
}

fn draw_strip(
    out: &mut dyn Write,
    frame: &Frame,
    time: &Time,
    strip: &Strip<'_>,
    top: i32,
    height: i32,
) -> fmt::Result {
    let y = |value: f64| {
        let range = strip.top - strip.bottom;
        let part = if range > 0.0 { (value - strip.bottom) / range } else { 0.5 };
        let tenths = f64::from(top + height) * 10.0 - part.clamp(0.0, 1.0) * f64::from(height) * 10.0;
        tenths.round() as i64
    };
    vertical_grid(out, frame, time, top, top + height)?;
    value_axis(out, frame, strip, top, height, &y)?;
    for line in &strip.lines {
        let curve = line.curve.thinned(frame.pixel());
        let value = |v: f64| y(v * line.scale);
        let mut band = String::new();
        let mut path = String::new();
        for run in curve.runs() {
            if !line.dashed {
                band_path(&mut band, frame, run, &value)?;
            }
            line_path(&mut path, frame, run, &value)?;
        }
        if !band.is_empty() {
            write!(out, "<path class=\"band\" d=\"{band}\"/>")?;
        }
        if !path.is_empty() {
            write!(out, "<path class=\"{}\" d=\"{path}\"/>", if line.dashed { "line dash" } else { "line" })?;
        }
    }
    if let Some(limit) = strip.limit {
        let at = Tenths(y(limit));
        write!(out, "<path class=\"limit\" d=\"M{} {at}h{}\"/>", frame.left, frame.plot())?;
    }
    let mut held = String::new();
    for curve in &strip.held {
        for point in curve.thinned(frame.pixel()).points() {
            if point.mean() > 0.5 {
                let (from, to) = (frame.x(point.from), frame.x(point.to));
                let high = Tenths(20 + (point.mean().min(100.0) * 0.6) as i64);
                let wide = Tenths((to - from).max(10));
                write!(held, "M{} {}v-{high}h{wide}v{high}z", Tenths(from), top + height)?;
            }
        }
    }
    if !held.is_empty() {
        write!(out, "<path class=\"held\" d=\"{held}\"/>")?;
    }
    names(out, frame, strip, top, height)
}

fn value_axis(
    out: &mut dyn Write,
    frame: &Frame,
    strip: &Strip<'_>,
    top: i32,
    height: i32,
    y: &impl Fn(f64) -> i64,
) -> fmt::Result {
    let about = usize::try_from(height / 24).unwrap_or(1).clamp(1, 4);
    let mut ticks = axis::values(strip.bottom, strip.top, about);
    if strip.whole {
        ticks.retain(|value| value.fract() == 0.0);
    }
    let mut grid = String::new();
    // From the top down, so that the scale's own end is always named.
    let mut above: Option<i64> = None;
    for value in ticks.iter().rev() {
        let at = y(*value);
        write!(grid, "M{} {}h{}", frame.left, Tenths(at), frame.plot())?;
        if above.is_none_or(|above| at - above >= 110) {
            above = Some(at);
            let label = escape(&crate::report::formatting::number(*value)).into_owned();
            write!(
                out,
                "<text class=\"tick end\" x=\"{}\" y=\"{}\">{label}</text>",
                frame.left - 6,
                Tenths(at + 35)
            )?;
        }
    }
    write!(out, "<path class=\"grid\" d=\"{grid}\"/>")?;
    write!(out, "<path class=\"base\" d=\"M{} {}h{}\"/>", frame.left, top + height, frame.plot())
}

fn names(out: &mut dyn Write, frame: &Frame, strip: &Strip<'_>, top: i32, height: i32) -> fmt::Result {
    let middle = top + height / 2;
    let two = !strip.detail.is_empty() && height >= 40;
    let most = usize::try_from((frame.left - 34) / 6).unwrap_or(6).max(5);
    let short = |text: &str| escape(&crate::report::formatting::short(text, most)).into_owned();
    let at = if two { middle - 2 } else { middle + 4 };
    write!(out, "<text class=\"name\" x=\"0\" y=\"{at}\">{}</text>", short(&strip.name))?;
    if two {
        write!(out, "<text class=\"tick\" x=\"0\" y=\"{}\">{}</text>", middle + 11, short(&strip.detail))?;
    }
    if frame.right < 40 {
        // Narrow charts have their figures in the table.
        return Ok(());
    }
    let x = frame.width - frame.right + 8;
    write!(out, "<text class=\"mean\" x=\"{x}\" y=\"{}\">{}</text>", middle - 2, escape(&strip.figures[0]))?;
    write!(out, "<text class=\"tick\" x=\"{x}\" y=\"{}\">{}</text>", middle + 11, escape(&strip.figures[1]))
}

fn vertical_grid(out: &mut dyn Write, frame: &Frame, time: &Time, top: i32, foot: i32) -> fmt::Result {
    let mut path = String::new();
    for t in time.ticks() {
        let x = frame.x(frame.start.saturating_add((t * 1e6) as i64));
        write!(path, "M{} {top}v{}", Tenths(x), foot - top)?;
    }
    write!(out, "<path class=\"grid\" d=\"{path}\"/>")
}

fn time_axis(out: &mut dyn Write, frame: &Frame, time: &Time, foot: i32) -> fmt::Result {
    let end = f64::from(frame.width);
    for t in time.ticks() {
        let at = frame.start.saturating_add((t * 1e6) as i64);
        let x = frame.x(at);
        let (label, clock) = (time.label(t), time.clock(at));
        // A label at the right edge is moved in, not cut off.
        let half = label.chars().count().max(clock.chars().count()) as f64 * GLYPH / 2.0;
        let centre = (x as f64 / 10.0).min(end - half);
        write!(out, "<text class=\"tick mid\" x=\"{centre:.1}\" y=\"{}\">{label}</text>", foot + 14)?;
        if !clock.is_empty() {
            write!(
                out,
                "<text class=\"tick mid clock\" x=\"{centre:.1}\" y=\"{}\">{clock}</text>",
                foot + 27
            )?;
        }
    }
    Ok(())
}

/// The mean as steps: each window is as wide as the time that it covers.
fn line_path(out: &mut String, frame: &Frame, run: &[Point], y: &impl Fn(f64) -> i64) -> fmt::Result {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
    let mut pen = Pen::start(out, frame.x(first.from), y(first.mean()))?;
    for point in &run[1..] {
        pen.step(out, frame.x(point.from), y(point.mean()))?;
    }
    // A single window narrower than a pixel is still seen.
    let end = frame.x(last.to).max(frame.x(first.from) + 12);
    pen.step(out, end, pen.y)?;
    pen.flush(out)
}

/// From the smallest to the largest value; nothing where they are the same all along.
fn band_path(out: &mut String, frame: &Frame, run: &[Point], y: &impl Fn(f64) -> i64) -> fmt::Result {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
    if run.iter().all(|p| (y(p.min) - y(p.max)).abs() < 5) {
        return Ok(());
    }
    let end = frame.x(last.to).max(frame.x(first.from) + 12);
    let mut pen = Pen::start(out, frame.x(first.from), y(first.max))?;
    for point in &run[1..] {
        pen.step(out, frame.x(point.from), y(point.max))?;
    }
    pen.step(out, end, y(last.min))?;
    for pair in run.windows(2).rev() {
        pen.step(out, frame.x(pair[1].from), y(pair[0].min))?;
    }
    pen.step(out, frame.x(first.from), pen.y)?;
    pen.flush(out)?;
    out.push('z');
    Ok(())
}

/// Draws horizontal and vertical moves in tenths of a pixel, without moves that change nothing.
struct Pen {
    x: i64,
    y: i64,
    /// Where the pending horizontal move ends.
    to: i64,
}

impl Pen {
    fn start(out: &mut String, x: i64, y: i64) -> Result<Self, fmt::Error> {
        write!(out, "M{} {}", Tenths(x), Tenths(y))?;
        Ok(Self { x, y, to: x })
    }

    /// Goes level to `x`, then straight to `y`.
    fn step(&mut self, out: &mut String, x: i64, y: i64) -> fmt::Result {
        self.to = x;
        if y != self.y {
            self.flush(out)?;
            write!(out, "v{}", Tenths(y - self.y))?;
            self.y = y;
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut String) -> fmt::Result {
        if self.to != self.x {
            write!(out, "h{}", Tenths(self.to - self.x))?;
            self.x = self.to;
        }
        Ok(())
    }
}

fn draw_bar(out: &mut dyn Write, frame: &Frame, bar: &Bar, top: i32) -> fmt::Result {
    let (from, to) = (frame.x(bar.from), frame.x(bar.to));
    let whole = (bar.to - bar.from).max(1);
    // Joined spans are as pale as there is time between them.
    let share = (bar.busy as f64 / whole as f64).clamp(0.0, 1.0);
    let opacity = if share > 0.97 { String::new() } else { format!(" opacity=\"{:.2}\"", 0.3 + 0.7 * share) };
    // A hair of space keeps neighbours apart.
    let width = (to - from - 4).max(10);
    write!(
        out,
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"1.5\"{opacity}/>",
        Tenths(from),
        top + 3,
        Tenths(width),
        LANE - 6,
    )
}

fn draw_marks(out: &mut dyn Write, frame: &Frame, marks: &Marks, top: i32) -> fmt::Result {
    let mut path = String::new();
    let mut labels = String::new();
    let (mut latest, mut free) = (i64::MIN, i64::MIN);
    for (time, step) in marks.marks() {
        let x = frame.x(*time);
        if x.saturating_sub(latest) < 25 {
            continue;
        }
        latest = x;
        let text = step.to_string();
        let width = (text.len() as f64 * GLYPH * 10.0) as i64 + 80;
        let fits = x + width <= i64::from(frame.width - frame.right) * 10;
        if x >= free && fits {
            free = x + width.max(600);
            write!(path, "M{} {}v{}", Tenths(x), top + 2, LANE - 4)?;
            write!(labels, "<text class=\"tick\" x=\"{}\" y=\"{}\">{text}</text>", Tenths(x + 25), top + 10)?;
        } else {
            write!(path, "M{} {}v{}", Tenths(x), top + 12, LANE - 14)?;
        }
    }
    write!(out, "<path class=\"mark\" d=\"{path}\"/>{labels}")
}

/// A length in tenths of a pixel, as SVG reads it.
struct Tenths(i64);

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10, (self.0 % 10).abs());
        match (self.0 < 0 && whole == 0, rest) {
            (_, 0) => write!(f, "{whole}"),
            (true, rest) => write!(f, "-.{rest}"),
            (false, rest) if whole == 0 => write!(f, ".{rest}"),
            (false, rest) => write!(f, "{whole}.{rest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        Frame { width: 200, left: 50, right: 50, start: 1_000_000, span: 100_000_000 }
    }

    #[test]
    fn tenths_are_as_short_as_they_can_be() {
        for (tenths, text) in [(0, "0"), (5, ".5"), (-5, "-.5"), (15, "1.5"), (-15, "-1.5"), (100, "10")] {
            assert_eq!(Tenths(tenths).to_string(), text);
        }
    }

    #[test]
    fn a_line_is_a_staircase_and_a_gap_begins_another() {
        let mut curve = Curve::default();
        for (to, value) in [(11, 10.0), (21, 10.0), (31, 20.0), (61, 5.0)] {
            curve.add(to * 1_000_000, 10.0, Some(value), None, None);
        }
        let mut path = String::new();
        for run in curve.runs() {
            line_path(&mut path, &frame(), run, &|v| (v * 10.0) as i64).unwrap();
        }
        assert_eq!(path, "M50 10h20v10h10M100 5h10");
    }

    #[test]
    fn a_band_goes_around_and_is_left_out_where_it_has_no_height() {
        let mut curve = Curve::default();
        curve.add(11_000_000, 10.0, Some(2.0), Some(1.0), Some(4.0));
        curve.add(21_000_000, 10.0, Some(2.0), Some(2.0), Some(3.0));
        let mut path = String::new();
        let run = curve.runs().next().unwrap();
        band_path(&mut path, &frame(), run, &|v| 100 - (v * 10.0) as i64).unwrap();
        assert_eq!(path, "M50 6h10v1h10v1h-10v1h-10z");
        path.clear();
        band_path(&mut path, &frame(), run, &|_| 0).unwrap();
        assert_eq!(path, "");
    }

    #[test]
    fn names_from_a_log_cannot_leave_their_place() {
        let mut out = String::new();
        let mut bars = Bars::default();
        bars.add(50_000_000, 10.0);
        let name = "</text><script>alert(1)</script>".to_owned();
        let lane = Lane { name: name.clone(), full: name.clone(), bars: Some(&bars), marks: None };
        let alt = AltText { id: 1, title: &name, description: &name };
        lanes(&mut out, &frame(), &alt, &[lane]).unwrap();
        assert!(!out.contains("<script"), "{out}");
        assert_eq!(out.matches("<rect").count(), 1);
    }
}
