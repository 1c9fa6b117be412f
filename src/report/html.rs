//! A report as one self-contained page: style and charts inside, no script, nothing loaded from anywhere.
//! Everything that comes out of a log is escaped on its way in.

mod axis;
mod chart;

use std::borrow::Cow;
use std::fmt::{self, Write};

use chart::{Frame, Lane, Line, Strip, Words};

use super::build::Report;
use super::curve::{Curve, Figures, Series};
use super::part::{Device, Part};
use super::text::{self, Table};
use super::words::{self, UNKNOWN, clean, known};

const STYLE: &str = include_str!("html/style.css");

/// Lanes of tags in one chart; the table has them all.
const LANES: usize = 14;

/// Strips of step times and of scalars in one chart.
const STRIPS: usize = 8;

/// Text for an HTML page: cleaned, and without a character that means anything to a browser.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    let text = clean(text);
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out.into()
}

pub(super) fn write(report: &Report, out: &mut dyn Write) -> fmt::Result {
    Page { report, many: report.parts.len() > 1, ids: 0 }.write(out)
}

struct Page<'a> {
    report: &'a Report,
    many: bool,
    ids: usize,
}

/// What a chart is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Panel {
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
    const ALL: [Self; 9] = [
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

    fn title(self) -> &'static str {
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
    fn key(self) -> &'static str {
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
            Self::Steps => "<span class=key></span>in a step<span class=\"key d\"></span>between steps",
            Self::Scalars => "As the job logged them.",
        }
    }
}

impl Page<'_> {
    fn write(mut self, out: &mut dyn Write) -> fmt::Result {
        let title = self.title();
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta name=\"generator\" content=\"gpurun {}\"><title>{}</title><style>\n{STYLE}</style></head>\n<body><main{}>\n",
            env!("CARGO_PKG_VERSION"),
            escape(&title),
            if self.many { " class=\"many\"" } else { "" },
        )?;
        self.head(out, &title)?;
        self.notes(out)?;
        self.table(out, "GPUs", &text::gpus(self.report, self.many))?;
        if !self.report.is_empty() && self.report.parts.iter().all(|p| p.devices.is_empty()) {
            out.write_str("<h2>GPUs</h2><p class=\"soft\">No GPU was recorded.</p>\n")?;
        }
        self.charts(out)?;
        self.table(out, "Tags", &text::tags(self.report, self.many))?;
        self.table(out, "Steps", &text::steps(self.report, self.many))?;
        self.table(out, "Scalars of the job", &text::scalars(self.report, self.many))?;
        self.table(out, "Processes with the most CPU time", &text::processes(self.report, self.many))?;
        write!(
            out,
            "<footer>Made by gpurun {} from {}. Times on axes count from the start of each run; the clock below them is UTC.</footer>\n</main></body></html>\n",
            env!("CARGO_PKG_VERSION"),
            match self.report.sources.len() {
                1 => "one log".to_owned(),
                n => format!("{n} logs"),
            },
        )
    }

    fn title(&self) -> String {
        match self.report.parts.as_slice() {
            [] => "No rows".to_owned(),
            [part] => clean(&part.key.run),
            parts => format!("{} runs side by side", parts.len()),
        }
    }

    fn head(&self, out: &mut dyn Write, title: &str) -> fmt::Result {
        writeln!(out, "<header><h1>{}</h1>", escape(title))?;
        let facts = text::fact_table(self.report);
        if let [part] = self.report.parts.as_slice() {
            let describes = self.report.source(part).about.describes;
            write!(
                out,
                "<p class=\"soft\">{} · {} · {}</p>",
                escape(&part.key.host),
                words::moment(part.start()),
                words::duration(part.duration()),
            )?;
            if part.about.argv.as_ref().is_some_and(|argv| !argv.is_empty()) {
                write!(out, "<code class=\"command\">{}</code>", escape(&words::job(part, describes)))?;
            }
            out.write_str("</header>\n<dl class=\"facts\">")?;
            for (name, values) in facts.iter().filter(|(name, _)| !matches!(*name, "run" | "job")) {
                let value = values.first().map_or(UNKNOWN, String::as_str);
                write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", capital(name), escape(value))?;
            }
            return out.write_str("</dl>\n");
        }
        out.write_str("</header>\n<div class=\"scroll\"><table class=\"wrap\"><thead><tr><td></td>")?;
        for part in &self.report.parts {
            write!(out, "<th scope=\"col\">{}</th>", escape(&part.label))?;
        }
        out.write_str("</tr></thead><tbody>\n")?;
        for (name, values) in &facts {
            write!(out, "<tr><th scope=\"row\">{}</th>", capital(name))?;
            for value in values {
                write!(out, "<td>{}</td>", escape(value))?;
            }
            out.write_str("</tr>\n")?;
        }
        out.write_str("</tbody></table></div>\n")
    }

    fn notes(&self, out: &mut dyn Write) -> fmt::Result {
        let notes = text::notes(self.report);
        if notes.is_empty() {
            return Ok(());
        }
        out.write_str("<ul class=\"notes\" aria-label=\"Notes\">")?;
        for note in notes {
            write!(out, "<li>{}</li>", escape(&note))?;
        }
        out.write_str("</ul>\n")
    }

    fn table(&self, out: &mut dyn Write, title: &str, table: &Table) -> fmt::Result {
        if table.rows.is_empty() {
            return Ok(());
        }
        write!(out, "<h2>{title}</h2><div class=\"scroll\"><table><thead><tr>")?;
        for (name, figure) in &table.header {
            write!(
                out,
                "<th scope=\"col\"{}>{}</th>",
                if *figure { " class=\"n\"" } else { "" },
                capital(name)
            )?;
        }
        out.write_str("</tr></thead><tbody>\n")?;
        let gpu = table.header.iter().position(|(name, _)| *name == "GPU");
        let mut tones = self.report.parts.iter().flat_map(|part| part.devices.iter().enumerate().map(tone));
        for row in &table.rows {
            out.write_str("<tr>")?;
            for (column, cell) in row.iter().enumerate() {
                let figure = table.header[column].1;
                write!(out, "<td{}>", if figure { " class=\"n\"" } else { "" })?;
                if Some(column) == gpu {
                    // Rows of this table are the devices in their order.
                    write!(out, "<span class=\"dot {}\"></span>", tones.next().unwrap_or_default())?;
                }
                write!(out, "{}</td>", escape(cell))?;
            }
            out.write_str("</tr>\n")?;
        }
        out.write_str("</tbody></table></div>\n")
    }

    fn charts(&mut self, out: &mut dyn Write) -> fmt::Result {
        let report = self.report;
        let drawn: Vec<Panel> = Panel::ALL
            .into_iter()
            .filter(|panel| report.parts.iter().any(|part| has(part, *panel)))
            .collect();
        if drawn.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "<h2>Over time</h2><p class=\"soft\"><span class=key></span>mean of each window\
             <span class=\"key b\"></span>from its smallest to its largest value; a gap is time in which nothing was measured.</p>\
             <div class=\"panels\">",
        )?;
        let (width, left, right) = match report.parts.len() {
            0..=2 => (580, 92, 80),
            3 => (440, 84, 76),
            _ => (380, 78, 12),
        };
        let shared = shared_span(report);
        for panel in drawn {
            let whole = panel == Panel::Tags;
            write!(
                out,
                "<section class=\"panel{}\"><h3>{}</h3><p>{}</p>",
                if whole { " whole" } else { "" },
                panel.title(),
                panel.key()
            )?;
            write!(out, "<div class=\"row\" style=\"--least:{}px\">", (f64::from(width) * 0.78) as i32)?;
            let tops = Tops::of(report);
            for part in &report.parts {
                out.write_str("<figure>")?;
                if self.many {
                    write!(out, "<figcaption>{}</figcaption>", escape(&part.label))?;
                }
                let span = shared.unwrap_or_else(|| part.span()).max(1000);
                let mut frame = Frame { width, left, right, start: part.start(), span };
                if whole && !self.many {
                    // One run has the whole width for its tags.
                    (frame.width, frame.left, frame.right) = (1200, 160, 14);
                }
                self.chart(out, &frame, part, panel, &tops)?;
                out.write_str("</figure>\n")?;
            }
            out.write_str("</div></section>\n")?;
        }
        out.write_str("</div>\n")
    }

    fn chart(
        &mut self,
        out: &mut dyn Write,
        frame: &Frame,
        part: &Part,
        panel: Panel,
        tops: &Tops,
    ) -> fmt::Result {
        if !has(part, panel) {
            return out.write_str("<div class=\"none\">not recorded</div>");
        }
        self.ids += 1;
        let title =
            if self.many { format!("{}, {}", panel.title(), part.label) } else { panel.title().to_owned() };
        if panel == Panel::Tags {
            let lanes = tag_lanes(part);
            let named: Vec<&str> = lanes.iter().map(|l| l.full.as_str()).collect();
            let description =
                format!("Over {}: {}", words::duration(frame.span as f64 / 1e6), named.join("; "));
            let words = Words { id: self.ids, title: &title, description: &description };
            return chart::lanes(out, frame, &words, &lanes);
        }
        let strips = strips(part, panel, tops);
        let described: Vec<String> =
            strips.iter().map(|s| format!("{} {}, {}", s.name, s.figures[0], s.figures[1])).collect();
        let description =
            format!("Over {}. {}", words::duration(frame.span as f64 / 1e6), described.join("; "));
        let words = Words { id: self.ids, title: &title, description: &description };
        chart::strips(out, frame, &words, &strips)
    }
}

/// The first letter of a name that the code gave.
fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The colour of a GPU: its index, so that it is the same in every chart and every run; MIG slices take turns.
fn tone((place, device): (usize, &Device)) -> String {
    let slice = device.uuid.as_deref().is_some_and(|uuid| uuid.starts_with("MIG-"));
    let number = match device.gpu.and_then(|gpu| usize::try_from(gpu).ok()) {
        Some(gpu) if !slice => gpu,
        _ => place,
    };
    format!("g{}", number % 8)
}

/// Whether a run has anything to draw in a chart.
fn has(part: &Part, panel: Panel) -> bool {
    let any = |of: fn(&Device) -> &Series| part.devices.iter().any(|d| !of(d).curve.is_empty());
    match panel {
        Panel::Tags => !part.tags.is_empty() || !part.steps.is_empty(),
        Panel::Utilization => any(|d| &d.utilization) || any(|d| &d.job_sm),
        Panel::Memory => any(|d| &d.memory_used) || any(|d| &d.job_memory),
        Panel::Power => any(|d| &d.power),
        Panel::Temperature => any(|d| &d.temperature),
        Panel::Job => [&part.job_cpu, &part.job_rss, &part.job_processes].iter().any(|s| !s.curve.is_empty()),
        Panel::Host => [&part.host_cpu, &part.host_memory].iter().any(|s| !s.curve.is_empty()),
        Panel::Steps => part.steps.iter().any(|s| !s.intra_curve.is_empty() || !s.inter_curve.is_empty()),
        Panel::Scalars => part.scalars.iter().any(|s| !s.series.curve.is_empty()),
    }
}

/// One length of axis for all runs where that leaves the shortest of them readable.
fn shared_span(report: &Report) -> Option<i64> {
    let longest = report.parts.iter().map(Part::span).max()?;
    let shortest = report.parts.iter().map(Part::span).min()?;
    (longest <= shortest.saturating_mul(3)).then_some(longest)
}

/// Ends of the value axes that the runs share, so that they can be compared by eye.
struct Tops {
    power: f64,
    temperature: f64,
    cores: f64,
    rss_gib: f64,
    processes: f64,
    step_ms: f64,
    memory_gib: f64,
}

impl Tops {
    fn of(report: &Report) -> Self {
        let parts = || report.parts.iter();
        let devices = || parts().flat_map(|p| &p.devices);
        let largest = |values: &mut dyn Iterator<Item = Option<f64>>| values.flatten().fold(0.0, f64::max);
        let power = largest(&mut devices().map(|d| d.power.curve.max()));
        let limit = largest(&mut devices().map(|d| d.power_limit));
        let steps = largest(&mut parts().flat_map(|p| &p.steps).flat_map(|s| {
            // One slow step (a checkpoint, a compilation) must not flatten all the others.
            [typical_top(&s.intra_curve), typical_top(&s.inter_curve)]
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
    let mut means: Vec<f64> = curve.points().iter().map(super::curve::Point::mean).collect();
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
    let words = |v: f64| words::brief(rounded(v * scale));
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    [
        known(figures.mean(), |v| format!("{}{unit}", words(v))),
        known(figures.max, |v| format!("max {}", words(v))),
    ]
}

/// Three digits are enough beside a chart.
fn rounded(value: f64) -> f64 {
    if value.abs() >= 10.0 { value.round() } else { value }
}

fn strips<'a>(part: &'a Part, panel: Panel, tops: &Tops) -> Vec<Strip<'a>> {
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
            strip.figures =
                [known(used.mean(), words::mib), known(used.max, |m| format!("max {}", words::mib(m)))];
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
    let drawn = part.steps.iter().filter(|s| !s.intra_curve.is_empty() || !s.inter_curve.is_empty());
    drawn
        .take(STRIPS)
        .map(|steps| {
            let only_inter = steps.intra_curve.is_empty();
            let lines = vec![
                Line { curve: &steps.intra_curve, scale: 1.0, dashed: false },
                Line { curve: &steps.inter_curve, scale: 1.0, dashed: !only_inter },
            ];
            let longest = if only_inter { steps.inter.max } else { steps.intra.max };
            Strip {
                name: rank_and_tag(
                    steps.rank.filter(|_| steps.rank != part.key.rank),
                    &words::tag(&steps.path, &part.root_tag),
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
                    known(steps.mean(), words::millis),
                    known(longest, |v| format!("max {}", words::number(rounded(v)))),
                ],
            }
        })
        .collect()
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
                name: clean(&scalar.name),
                detail: String::new(),
                tone: "job".to_owned(),
                bottom,
                top,
                lines: vec![line(&scalar.series, 1.0)],
                limit: None,
                held: Vec::new(),
                whole: false,
                figures: [
                    known(figures.last, |v| format!("last {}", words::brief(v))),
                    known(figures.min, |v| format!("min {}", words::brief(v))),
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
fn tag_lanes(part: &Part) -> Vec<Lane<'_>> {
    let mut shown: Vec<usize> = (0..part.tags.len()).collect();
    shown.sort_by(|a, b| part.tags[*b].seconds.integral.total_cmp(&part.tags[*a].seconds.integral));
    shown.truncate(LANES);
    shown.sort_unstable();
    let other = |rank: Option<i32>| rank.filter(|_| rank != part.key.rank);
    let mut lanes: Vec<Lane<'_>> = shown
        .into_iter()
        .map(|place| {
            let tag = &part.tags[place];
            let path = words::tag(&tag.path, &part.root_tag);
            let times =
                if tag.count == 1 { "once".to_owned() } else { format!("{} times", words::count(tag.count)) };
            Lane {
                full: format!(
                    "{}: {times}, {}",
                    rank_and_tag(other(tag.rank), &path),
                    words::duration(tag.seconds.integral)
                ),
                name: rank_and_tag(other(tag.rank), &path),
                bars: Some(&tag.bars),
                marks: None,
            }
        })
        .collect();
    for steps in part.steps.iter().take(STRIPS) {
        let path = words::tag(&steps.path, &part.root_tag);
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
