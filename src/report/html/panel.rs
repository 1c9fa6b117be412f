//! What each chart of a page shows of a run: its strips and lanes, with their figures and colours.

use crate::report::build::Report;
use crate::report::curve::{Curve, Figures, Point, Series};
use crate::report::formatting::{self, clean, known};
use crate::report::part::{Device, Part};
use crate::report::steps::Steps;

use super::axis;
use super::chart::{Lane, Line, Strip};

/// Lanes of tags in one chart; the table has them all.
const LANES: usize = 14;

/// Strips of step times and of scalars in one chart.
const STRIPS: usize = 8;

/// What a chart is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Panel {
    Tags,
    Utilization,
    Memory,
    Power,
    Temperature,
    Job,
    Host,
    Steps,
    Scalars,
}

impl Panel {
    pub(super) const ALL: [Self; 9] = [
        Self::Tags,
        Self::Utilization,
        Self::Memory,
        Self::Power,
        Self::Temperature,
        Self::Job,
        Self::Host,
        Self::Steps,
        Self::Scalars,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Tags => "Tags and steps",
            Self::Utilization => "GPU utilisation (%)",
            Self::Memory => "GPU memory (GiB)",
            Self::Power => "GPU power (W)",
            Self::Temperature => "GPU temperature (°C)",
            Self::Job => "Job: CPU and memory",
            Self::Host => "Host: CPU and memory (%)",
            Self::Steps => "Step time (ms)",
            Self::Scalars => "Scalars of the job",
        }
    }

    /// What the marks of the chart mean; escaped already.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Tags => "When each tag was open; numbers are training steps.",
            Self::Utilization => {
                "Share of time in which a kernel ran. MIG slices: the job's share of the SMs."
            }
            Self::Memory => {
                "<span class=key></span>used by all processes<span class=\"key d\"></span>by the job"
            }
            Self::Power => {
                "<span class=key></span>board power<span class=\"key d\"></span>limit<span class=\"key h\"></span>clocks limited by power"
            }
            Self::Temperature => {
                "<span class=key></span>core<span class=\"key h\"></span>clocks limited by heat"
            }
            Self::Job => "All processes of the job together; memory is RSS.",
            Self::Host => "All cores together; memory that is not available.",
            Self::Steps => {
                "<span class=key></span>a step, with the time before it<span class=\"key d\"></span>between steps"
            }
            Self::Scalars => "As the job logged them.",
        }
    }
}

/// The colour of a GPU: its index, so that it is the same in every chart and every run; MIG slices take turns.
pub(super) fn tone((place, device): (usize, &Device)) -> String {
    let slice = device.uuid.as_deref().is_some_and(|uuid| uuid.starts_with("MIG-"));
    let number = match device.gpu.and_then(|gpu| usize::try_from(gpu).ok()) {
        Some(gpu) if !slice => gpu,
        _ => place,
    };
    format!("g{}", number % 8)
}

/// Whether a run has anything to draw in a chart.
pub(super) fn has(part: &Part, panel: Panel) -> bool {
    let any = |of: fn(&Device) -> &Series| part.devices.iter().any(|d| !of(d).curve.is_empty());
    match panel {
        Panel::Tags => !part.tags.is_empty() || !part.steps.is_empty(),
        Panel::Utilization => any(|d| &d.utilization) || any(|d| &d.job_sm),
        Panel::Memory => any(|d| &d.memory_used) || any(|d| &d.job_memory),
        Panel::Power => any(|d| &d.power),
        Panel::Temperature => any(|d| &d.temperature),
        Panel::Job => [&part.job_cpu, &part.job_rss, &part.job_processes].iter().any(|s| !s.curve.is_empty()),
        Panel::Host => [&part.host_cpu, &part.host_memory].iter().any(|s| !s.curve.is_empty()),
        Panel::Steps => part.steps.iter().any(has_times),
        Panel::Scalars => part.scalars.iter().any(|s| !s.series.curve.is_empty()),
    }
}

/// Ends of the value axes that the runs share, so that they can be compared by eye.
pub(super) struct Tops {
    power: f64,
    temperature: f64,
    cores: f64,
    rss_gib: f64,
    processes: f64,
    step_ms: f64,
    memory_gib: f64,
}

impl Tops {
    pub(super) fn of(report: &Report) -> Self {
        let parts = || report.parts.iter();
        let devices = || parts().flat_map(|p| &p.devices);
        let largest = |values: &mut dyn Iterator<Item = Option<f64>>| values.flatten().fold(0.0, f64::max);
        let power = largest(&mut devices().map(|d| d.power.curve.max()));
        let limit = largest(&mut devices().map(|d| d.power_limit));
        let steps = largest(&mut parts().flat_map(|p| &p.steps).flat_map(|s| {
            // One slow step (a checkpoint, a compilation) must not flatten all the others.
            [&s.whole, &s.inside, &s.between].map(|times| typical_top(&times.curve))
        }));
        Self {
            power: if power > limit || limit == 0.0 { round_top(power) } else { limit },
            temperature: round_top(largest(&mut devices().map(|d| d.temperature.curve.max()))).max(100.0),
            cores: round_top(largest(&mut parts().map(|p| p.job_cpu.curve.max())) / 100.0).max(0.1),
            rss_gib: round_top(largest(&mut parts().map(|p| p.job_rss.curve.max())) / 1024.0).max(0.001),
            processes: round_top(largest(&mut parts().map(|p| p.job_processes.curve.max()))).max(1.0),
            step_ms: round_top(steps),
            memory_gib: round_top(largest(&mut devices().map(|d| d.memory_used.curve.max())) / 1024.0),
        }
    }
}

/// A round value a little above the largest.
fn round_top(largest: f64) -> f64 {
    if largest <= 0.0 {
        return 1.0;
    }
    let step = axis::nice(largest / 4.0);
    (largest / step - 1e-9).ceil() * step
}

/// The largest value, unless it is far beyond what the means say is usual.
fn typical_top(curve: &Curve) -> Option<f64> {
    let mut means: Vec<f64> = curve.points().iter().map(Point::mean).collect();
    means.sort_by(f64::total_cmp);
    let usual = *means.get(means.len() * 95 / 100).or(means.last())?;
    Some(curve.max()?.min(usual * 4.0))
}

fn line(series: &Series, scale: f64) -> Line<'_> {
    Line { curve: &series.curve, scale, dashed: false }
}

fn dashed(series: &Series, scale: f64) -> Line<'_> {
    Line { curve: &series.curve, scale, dashed: true }
}

/// `87 %` and `max 100`.
fn figures(figures: &Figures, scale: f64, unit: &str) -> [String; 2] {
    let text = |v: f64| formatting::brief(rounded(v * scale));
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    [
        known(figures.mean(), |v| format!("{}{unit}", text(v))),
        known(figures.max, |v| format!("max {}", text(v))),
    ]
}

/// Three digits are enough beside a chart.
fn rounded(value: f64) -> f64 {
    if value.abs() >= 10.0 { value.round() } else { value }
}

pub(super) fn strips<'a>(part: &'a Part, panel: Panel, tops: &Tops) -> Vec<Strip<'a>> {
    match panel {
        Panel::Tags => Vec::new(),
        Panel::Utilization | Panel::Memory | Panel::Power | Panel::Temperature => {
            {
                let strips = part.devices.iter().enumerate().map(|(n, d)| gpu_strip(n, d, panel, tops));
                // A slice has no power of its own, a GPU in slices no utilisation.
                strips.filter(|strip| strip.lines.iter().any(|line| !line.curve.is_empty())).collect()
            }
        }
        Panel::Job => job_strips(part, tops),
        Panel::Host => [("CPU", &part.host_cpu), ("memory", &part.host_memory)]
            .into_iter()
            .filter(|(_, series)| !series.curve.is_empty())
            .map(|(name, series)| whole_strip(name, "%", "host", series, 1.0, 100.0))
            .collect(),
        Panel::Steps => step_strips(part, tops),
        Panel::Scalars => scalar_strips(part),
    }
}

fn gpu_strip<'a>(place: usize, device: &'a Device, panel: Panel, tops: &Tops) -> Strip<'a> {
    let mut strip = Strip {
        name: device.label(),
        detail: device.cuda.map(|cuda| format!("cuda:{cuda}")).unwrap_or_default(),
        tone: tone((place, device)),
        bottom: 0.0,
        top: 100.0,
        lines: Vec::new(),
        limit: None,
        held: Vec::new(),
        whole: false,
        figures: Default::default(),
    };
    match panel {
        Panel::Memory => {
            let gib = 1.0 / 1024.0;
            strip.top = device.memory_total.map_or(tops.memory_gib, |total| total * gib).max(1e-3);
            strip.lines = vec![line(&device.memory_used, gib), dashed(&device.job_memory, gib)];
            let used = &device.memory_used.figures;
            strip.figures = [
                known(used.mean(), formatting::mib),
                known(used.max, |m| format!("max {}", formatting::mib(m))),
            ];
        }
        Panel::Power => {
            strip.top = tops.power;
            strip.lines = vec![line(&device.power, 1.0)];
            strip.limit = device.power_limit;
            strip.held = vec![&device.throttled_power.curve];
            strip.figures = figures(&device.power.figures, 1.0, "W");
        }
        Panel::Temperature => {
            strip.top = tops.temperature;
            strip.lines = vec![line(&device.temperature, 1.0)];
            strip.held = vec![&device.throttled_thermal.curve];
            strip.figures = figures(&device.temperature.figures, 1.0, "°C");
        }
        _ => {
            let own = !device.utilization.curve.is_empty();
            let series = if own { &device.utilization } else { &device.job_sm };
            strip.lines = vec![line(series, 1.0)];
            strip.figures = figures(&series.figures, 1.0, "%");
        }
    }
    strip
}

fn whole_strip<'a>(
    name: &str,
    unit: &str,
    tone: &str,
    series: &'a Series,
    scale: f64,
    top: f64,
) -> Strip<'a> {
    Strip {
        name: name.to_owned(),
        detail: if unit == "%" { String::new() } else { unit.to_owned() },
        tone: tone.to_owned(),
        bottom: 0.0,
        top,
        lines: vec![line(series, scale)],
        limit: None,
        held: Vec::new(),
        whole: false,
        figures: figures(&series.figures, scale, unit),
    }
}

fn job_strips<'a>(part: &'a Part, tops: &Tops) -> Vec<Strip<'a>> {
    let mut strips = Vec::new();
    if !part.job_cpu.curve.is_empty() {
        let mut strip = whole_strip("CPU", "cores", "job", &part.job_cpu, 0.01, tops.cores);
        // The name at the left says the unit already.
        strip.figures = figures(&part.job_cpu.figures, 0.01, "");
        strips.push(strip);
    }
    if !part.job_rss.curve.is_empty() {
        // Small jobs read better in MiB.
        let (unit, scale, top) = match tops.rss_gib {
            gib if gib < 1.0 => ("MiB", 1.0, round_top(gib * 1024.0)),
            gib => ("GiB", 1.0 / 1024.0, gib),
        };
        strips.push(whole_strip("memory", unit, "job", &part.job_rss, scale, top));
    }
    if !part.job_processes.curve.is_empty() {
        let mut strip = whole_strip("processes", "", "job", &part.job_processes, 1.0, tops.processes);
        strip.whole = true;
        strips.push(strip);
    }
    strips
}

fn step_strips<'a>(part: &'a Part, tops: &Tops) -> Vec<Strip<'a>> {
    let drawn = part.steps.iter().filter(|steps| has_times(steps));
    drawn
        .take(STRIPS)
        .map(|steps| {
            let line = |curve, dashed| Line { curve, scale: 1.0, dashed };
            let mut lines = Vec::new();
            let mut shown = &steps.whole;
            for (name, times) in steps.times() {
                match name {
                    "step" => lines.push(line(&times.curve, false)),
                    "between" => lines.push(line(&times.curve, true)),
                    // A single step has no time before it.
                    _ if steps.whole.count() == 0 => {
                        lines.push(line(&times.curve, false));
                        shown = times;
                    }
                    _ => {}
                }
            }
            Strip {
                name: rank_and_tag(
                    steps.rank.filter(|_| steps.rank != part.key.rank),
                    &formatting::tag(&steps.path, &part.root_tag),
                ),
                detail: String::new(),
                tone: "job".to_owned(),
                bottom: 0.0,
                top: tops.step_ms,
                lines,
                limit: None,
                held: Vec::new(),
                whole: false,
                figures: [
                    known(shown.figures.mean(), formatting::millis),
                    known(shown.figures.max, |v| format!("max {}", formatting::number(rounded(v)))),
                ],
            }
        })
        .collect()
}

/// Whether any time of these steps can be drawn.
fn has_times(steps: &Steps) -> bool {
    steps.times().any(|(_, times)| !times.curve.is_empty())
}

fn scalar_strips(part: &Part) -> Vec<Strip<'_>> {
    let drawn = part.scalars.iter().filter(|s| !s.series.curve.is_empty());
    drawn
        .take(STRIPS)
        .map(|scalar| {
            let curve = &scalar.series.curve;
            let (low, high) = (curve.min().unwrap_or(0.0), curve.max().unwrap_or(0.0));
            let (bottom, top) = if low >= 0.0 { (0.0, round_top(high)) } else { scalar_range(low, high) };
            let figures = &scalar.series.figures;
            Strip {
                name: rank_and_tag(
                    scalar.rank.filter(|_| scalar.rank != part.key.rank),
                    &clean(&scalar.name),
                ),
                detail: String::new(),
                tone: "job".to_owned(),
                bottom,
                top,
                lines: vec![line(&scalar.series, 1.0)],
                limit: None,
                held: Vec::new(),
                whole: false,
                figures: [
                    known(figures.last, |v| format!("last {}", formatting::brief(v))),
                    known(figures.min, |v| format!("min {}", formatting::brief(v))),
                ],
            }
        })
        .collect()
}

/// An axis for values below zero, zero included.
fn scalar_range(low: f64, high: f64) -> (f64, f64) {
    let high = high.max(0.0);
    let step = axis::nice((high - low) / 4.0);
    ((low / step).floor() * step, ((high / step).ceil() * step).max(0.0))
}

/// Lanes of the tags that were open longest, in the order of their paths, then lanes of steps.
pub(super) fn tag_lanes(part: &Part) -> Vec<Lane<'_>> {
    let mut shown: Vec<usize> = (0..part.tags.len()).collect();
    shown.sort_by(|a, b| part.tags[*b].seconds.integral.total_cmp(&part.tags[*a].seconds.integral));
    shown.truncate(LANES);
    shown.sort_unstable();
    let other = |rank: Option<i32>| rank.filter(|_| rank != part.key.rank);
    let mut lanes: Vec<Lane<'_>> = shown
        .into_iter()
        .map(|place| {
            let tag = &part.tags[place];
            let path = formatting::tag(&tag.path, &part.root_tag);
            let times = if tag.count == 1 {
                "once".to_owned()
            } else {
                format!("{} times", formatting::count(tag.count))
            };
            Lane {
                full: format!(
                    "{}: {times}, {}",
                    rank_and_tag(other(tag.rank), &path),
                    formatting::duration(tag.seconds.integral)
                ),
                name: rank_and_tag(other(tag.rank), &path),
                bars: Some(&tag.bars),
                marks: None,
            }
        })
        .collect();
    for steps in part.steps.iter().take(STRIPS) {
        let path = formatting::tag(&steps.path, &part.root_tag);
        let name = if part.steps.len() == 1 {
            "steps".to_owned()
        } else {
            rank_and_tag(other(steps.rank), &format!("{path} steps"))
        };
        let last = known(steps.last.map(|n| n as f64), |n| format!("{n:.0}"));
        lanes.push(Lane {
            full: format!("steps of {path}, the last is {last}"),
            name,
            bars: None,
            marks: Some(&steps.marks),
        });
    }
    lanes
}

fn rank_and_tag(rank: Option<i32>, tag: &str) -> String {
    rank.map_or_else(|| tag.to_owned(), |rank| format!("{rank}: {tag}"))
}
