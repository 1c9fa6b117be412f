//! A report as text: for a terminal, and for grep.

use std::fmt::{self, Write};

use super::build::Report;
use super::formatting::{self, UNKNOWN, clean, known, mean_max, short};
use super::part::Part;

/// Width at which columns of runs are put into another block.
const WIDTH: usize = 140;

/// Most rows of the process table, per run.
const PROCESSES: usize = 5;

/// Most characters of a cell in the side-by-side table when there is more than one run.
const CELL: usize = 44;

/// Writes the text: facts of the runs side by side, then GPUs, tags, steps, processes.
pub fn write(report: &Report, out: &mut dyn Write) -> fmt::Result {
    if report.is_empty() {
        return writeln!(out, "no rows");
    }
    facts(report, out)?;
    let many = report.parts.len() > 1;
    section(out, "GPUs", &gpus(report, many))?;
    if report.parts.iter().all(|p| p.devices.is_empty()) {
        writeln!(out, "\nGPUs\n  none recorded")?;
    }
    section(out, "Tags", &tags(report, many))?;
    section(out, "Steps", &steps(report, many))?;
    section(out, "Scalars of the job", &scalars(report, many))?;
    section(out, "Processes with the most CPU time", &processes(report, many))?;
    let notes = notes(report);
    if !notes.is_empty() {
        writeln!(out, "\nNotes")?;
        for note in notes {
            writeln!(out, "  {note}")?;
        }
    }
    Ok(())
}

/// What is to be said besides the figures.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let many = report.parts.len() > 1;
    let of = |part: &Part| if many { format!("{}: ", clean(&part.label)) } else { String::new() };
    for part in &report.parts {
        notes.extend(part.notices.iter().map(|fact| format!("{}{}", of(part), clean(fact))));
        for what in &part.beyond {
            notes.push(format!("{}there are more {what} than a report shows", of(part)));
        }
    }
    for source in &report.sources {
        if let Some(what) = &source.dropped {
            notes.push(format!("{}: {}", clean(&source.about.name), clean(what)));
        }
        if !report.parts.iter().any(|p| std::ptr::eq(report.source(p), source)) {
            notes.push(format!("{}: no rows", clean(&source.about.name)));
        }
    }
    if report.left_out {
        notes.push("there are more runs than a report shows".to_owned());
    }
    notes
}

/// Name and value of every fact about a run, the same names for all.
pub(super) fn run_facts(report: &Report, part: &Part) -> Vec<(&'static str, String)> {
    let source = report.source(part);
    let describes = source.about.describes;
    let host = match part.key.rank {
        Some(rank) => format!("{}, rank {rank}", clean(&part.key.host)),
        None => clean(&part.key.host),
    };
    let cpu = match part.job_cpu.figures.amount() {
        Some(percent_s) => {
            let cores = |percent: f64| format!("{:.2}", percent / 100.0);
            let figures = &part.job_cpu.figures;
            format!(
                "{} ({} cores, max {})",
                formatting::duration(percent_s / 100.0),
                known(figures.mean(), cores),
                known(figures.max, cores)
            )
        }
        None => UNKNOWN.to_owned(),
    };
    let io = match (part.job_read.amount(), part.job_write.amount()) {
        (None, None) => UNKNOWN.to_owned(),
        (read, write) => {
            format!("read {}, written {}", known(read, formatting::mib), known(write, formatting::mib))
        }
    };
    let windows = match part.about.window_s {
        Some(window) => format!("{} of {}", formatting::count(part.windows), formatting::duration(window)),
        None => formatting::count(part.windows),
    };
    let late = part.late.unwrap_or(0.0) + part.dropped.unwrap_or(0.0);
    let late = if late > 0.0 { format!("; {late:.0} samples late or not taken") } else { String::new() };
    let own = match (part.own_cpu.mean(), part.own_rss.max) {
        (None, None) => UNKNOWN.to_owned(),
        (cpu, rss) => {
            let core = known(cpu, |p| format!("{p:.2} % of a core"));
            format!("{core}, {}{late}", known(rss, formatting::mib))
        }
    };
    vec![
        ("log", clean(&source.about.name)),
        ("run", clean(&part.key.run)),
        ("host", host),
        ("job", formatting::job(part, describes)),
        ("started", formatting::moment(part.start())),
        ("duration", formatting::duration(part.duration())),
        ("ended", formatting::ending(part, describes)),
        ("CPU of the job", cpu),
        ("memory peak", known(part.job_rss.figures.max, |m| format!("{} RSS", formatting::mib(m)))),
        ("PSS peak", known(part.job_pss.max, formatting::mib)),
        ("processes", known(part.job_processes.figures.max, |n| format!("at most {n:.0}"))),
        ("storage", io),
        ("host CPU", mean_max(&part.host_cpu.figures, formatting::percent)),
        ("host memory", mean_max(&part.host_memory.figures, formatting::percent)),
        ("driver", part.about.driver.as_deref().map_or_else(|| UNKNOWN.to_owned(), clean)),
        ("windows", windows),
        ("own cost", own),
    ]
}

/// The facts of all runs: rows of a name and a value for each run; rows without any value are left out.
pub(super) fn fact_table(report: &Report) -> Vec<(&'static str, Vec<String>)> {
    let columns: Vec<_> = report.parts.iter().map(|part| run_facts(report, part)).collect();
    let Some(first) = columns.first() else { return Vec::new() };
    (0..first.len())
        .map(|row| (first[row].0, columns.iter().map(|c| c[row].1.clone()).collect::<Vec<_>>()))
        .filter(|(_, values)| values.iter().any(|v| v != UNKNOWN))
        .collect()
}

fn facts(report: &Report, out: &mut dyn Write) -> fmt::Result {
    let table = fact_table(report);
    let name = table.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let many = report.parts.len() > 1;
    let cell = |text: &str| if many { short(text, CELL) } else { text.to_owned() };
    let widths: Vec<usize> = (0..report.parts.len())
        .map(|column| {
            let values = table.iter().map(|(_, values)| width(&cell(&values[column])));
            values.chain([width(&cell(&clean(&report.parts[column].label)))]).max().unwrap_or(0)
        })
        .collect();
    let mut from = 0;
    while from < widths.len() {
        let mut to = from + 1;
        let mut line = name + 2 + widths[from];
        while to < widths.len() && line + 2 + widths[to] <= WIDTH {
            line += 2 + widths[to];
            to += 1;
        }
        if from > 0 {
            writeln!(out)?;
        }
        if many {
            let labels = (from..to).map(|c| cell(&clean(&report.parts[c].label)));
            write_line(
                out,
                &std::iter::once(String::new()).chain(labels).collect::<Vec<_>>(),
                name,
                &widths[from..to],
            )?;
        }
        for (fact, values) in &table {
            let cells = (from..to).map(|c| cell(&values[c]));
            write_line(
                out,
                &std::iter::once((*fact).to_owned()).chain(cells).collect::<Vec<_>>(),
                name,
                &widths[from..to],
            )?;
        }
        from = to;
    }
    Ok(())
}

fn write_line(out: &mut dyn Write, cells: &[String], name: usize, widths: &[usize]) -> fmt::Result {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(std::iter::once(&name).chain(widths)) {
        pad(&mut line, cell, *width, false);
        line.push_str("  ");
    }
    writeln!(out, "{}", line.trim_end())
}

/// A table: its columns, and which of them hold figures.
pub(super) struct Table {
    pub(super) header: Vec<(&'static str, bool)>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    fn new(many: bool, header: &[(&'static str, bool)]) -> Self {
        let run = many.then_some(("run", false));
        Self { header: run.into_iter().chain(header.iter().copied()).collect(), rows: Vec::new() }
    }

    fn push(&mut self, part: &Part, many: bool, cells: impl IntoIterator<Item = String>) {
        let run = many.then(|| short(&clean(&part.label), CELL));
        self.rows.push(run.into_iter().chain(cells).collect());
    }

    /// Without the columns that have no value.
    fn trimmed(mut self) -> Self {
        let mut column = 0;
        while column < self.header.len() {
            if self.rows.iter().all(|row| row[column] == UNKNOWN) {
                self.header.remove(column);
                for row in &mut self.rows {
                    row.remove(column);
                }
            } else {
                column += 1;
            }
        }
        self
    }
}

/// One row per run and GPU.
pub(super) fn gpus(report: &Report, many: bool) -> Table {
    let header = [
        ("GPU", false),
        ("name", false),
        ("util. mean", true),
        ("max", true),
        ("memory peak", true),
        ("power mean", true),
        ("max", true),
        ("energy", true),
        ("temp. max", true),
        ("throttled", true),
    ];
    let mut table = Table::new(many, &header);
    for part in &report.parts {
        for device in &part.devices {
            let watts = |w: f64| format!("{w:.0} W");
            // A MIG slice has no utilisation of its own; the job's share stands in for it.
            let utilization = match device.utilization.figures.mean() {
                Some(_) => &device.utilization.figures,
                None => &device.job_sm.figures,
            };
            let cells = [
                device.label(),
                device.name.as_deref().map_or_else(|| UNKNOWN.to_owned(), clean),
                known(utilization.mean(), formatting::percent),
                known(utilization.max, formatting::percent),
                formatting::memory_peak(device),
                known(device.power.figures.mean(), watts),
                known(device.power.figures.max, watts),
                formatting::energy(device),
                known(device.temperature.figures.max, |c| format!("{c:.0} °C")),
                formatting::throttled(device),
            ];
            table.push(part, many, cells);
        }
    }
    table.trimmed()
}

/// One row per run, rank and tag.
pub(super) fn tags(report: &Report, many: bool) -> Table {
    let header = [
        ("tag", false),
        ("rank", true),
        ("times", true),
        ("total", true),
        ("mean", true),
        ("shortest", true),
        ("longest", true),
        ("GPU util. mean", true),
        ("job CPU mean", true),
    ];
    let mut table = Table::new(many, &header);
    for part in &report.parts {
        for tag in &part.tags {
            let cells = [
                short(&formatting::tag(&tag.path, &part.root_tag), 60),
                known_rank(tag.rank),
                formatting::count(tag.count),
                formatting::duration(tag.seconds.integral),
                known(tag.seconds.mean(), formatting::duration),
                known(tag.seconds.min, formatting::duration),
                known(tag.seconds.max, formatting::duration),
                known(tag.utilization.mean(), formatting::percent),
                known(tag.cpu.mean(), formatting::percent),
            ];
            table.push(part, many, cells);
        }
    }
    table.trimmed()
}

/// For each run, rank and tag with steps in it, a row for each kind of time: whole steps, in and between them.
pub(super) fn steps(report: &Report, many: bool) -> Table {
    let header = [
        ("tag", false),
        ("rank", true),
        ("last step", true),
        ("time", false),
        ("steps", true),
        ("mean", true),
        ("median", true),
        ("p95", true),
        ("max", true),
        ("samples/s", true),
        ("GPU util. mean", true),
    ];
    let mut table = Table::new(many, &header);
    for part in &report.parts {
        for steps in &part.steps {
            let of_series = |name: &str, count: Option<u64>, times: [Option<f64>; 4], whole: bool| {
                let only = |text: String| if whole { text } else { UNKNOWN.to_owned() };
                [
                    short(&formatting::tag(&steps.path, &part.root_tag), 60),
                    known_rank(steps.rank),
                    known(steps.last.map(|last| last as f64), |last| format!("{last:.0}")),
                    name.to_owned(),
                    count.map_or_else(|| UNKNOWN.to_owned(), formatting::count),
                ]
                .into_iter()
                .chain(times.map(|ms| known(ms, formatting::millis)))
                .chain([
                    only(known(steps.samples_per_second(), formatting::number)),
                    only(known(steps.utilization.mean(), formatting::percent)),
                ])
                .collect::<Vec<_>>()
            };
            let mut first = true;
            for (name, times) in steps.times() {
                let quantile = |share| times.distribution.quantile(share);
                let all = [times.figures.mean(), quantile(0.5), quantile(0.95), times.figures.max];
                table.push(part, many, of_series(name, Some(times.count()), all, first));
                first = false;
            }
            if first {
                table.push(part, many, of_series(UNKNOWN, None, [None; 4], true));
            }
        }
    }
    table.trimmed()
}

/// One row per run and scalar that the job logged.
pub(super) fn scalars(report: &Report, many: bool) -> Table {
    let header =
        [("name", false), ("rank", true), ("mean", true), ("min", true), ("max", true), ("last", true)];
    let mut table = Table::new(many, &header);
    for part in &report.parts {
        for scalar in &part.scalars {
            let f = &scalar.series.figures;
            let cells = [f.mean(), f.min, f.max, f.last].map(|v| known(v, formatting::number));
            let name = [short(&clean(&scalar.name), 60), known_rank(scalar.rank)];
            table.push(part, many, name.into_iter().chain(cells));
        }
    }
    table.trimmed()
}

/// The processes of each run that used most CPU time.
pub(super) fn processes(report: &Report, many: bool) -> Table {
    let header =
        [("pid", true), ("name", false), ("CPU time", true), ("RSS peak", true), ("GPU memory peak", true)];
    let mut table = Table::new(many, &header);
    for part in &report.parts {
        for process in part.processes.iter().take(PROCESSES) {
            let cells = [
                process.pid.to_string(),
                short(&clean(&process.name), 40),
                known(process.cpu.amount(), |percent_s| formatting::duration(percent_s / 100.0)),
                known(process.rss.max, formatting::mib),
                known(process.gpu_memory.max, formatting::mib),
            ];
            table.push(part, many, cells);
        }
    }
    table.trimmed()
}

fn known_rank(rank: Option<i32>) -> String {
    rank.map_or_else(|| UNKNOWN.to_owned(), |rank| rank.to_string())
}

fn section(out: &mut dyn Write, title: &str, table: &Table) -> fmt::Result {
    if table.rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    let widths: Vec<usize> = (0..table.header.len())
        .map(|c| {
            let cells = table.rows.iter().map(|row| width(&row[c]));
            cells.chain([width(table.header[c].0)]).max().unwrap_or(0)
        })
        .collect();
    let header: Vec<String> = table.header.iter().map(|(name, _)| (*name).to_owned()).collect();
    for row in std::iter::once(&header).chain(&table.rows) {
        let mut line = String::new();
        for ((cell, width), (_, right)) in row.iter().zip(&widths).zip(&table.header) {
            line.push_str("  ");
            pad(&mut line, cell, *width, *right);
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn pad(line: &mut String, text: &str, to: usize, right: bool) {
    let gap = to.saturating_sub(width(text));
    if right {
        line.extend(std::iter::repeat_n(' ', gap));
    }
    line.push_str(text);
    if !right {
        line.extend(std::iter::repeat_n(' ', gap));
    }
}
