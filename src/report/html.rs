//! A report as one self-contained page: style and charts inside, no script, nothing loaded from anywhere.
//! Everything that comes out of a log is escaped on its way in.

mod axis;
mod chart;
mod escape;
mod panel;

use std::fmt::{self, Write};

use chart::{AltText, Frame};
use escape::escape;
use panel::{Panel, Tops, has, strips, tag_lanes, tone};

use super::build::Report;
use super::formatting::{self, UNKNOWN, clean};
use super::part::Part;
use super::text::{self, Table};

const STYLE: &str = include_str!("html/style.css");

/// Writes one self-contained page.
pub fn write(report: &Report, out: &mut dyn Write) -> fmt::Result {
    Page { report, many: report.parts.len() > 1, ids: 0 }.write(out)
}

struct Page<'a> {
    report: &'a Report,
    many: bool,
    ids: usize,
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
                formatting::moment(part.start()),
                formatting::duration(part.duration()),
            )?;
            if part.about.argv.as_ref().is_some_and(|argv| !argv.is_empty()) {
                write!(out, "<code class=\"command\">{}</code>", escape(&formatting::job(part, describes)))?;
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
                format!("Over {}: {}", formatting::duration(frame.span as f64 / 1e6), named.join("; "));
            let alt = AltText { id: self.ids, title: &title, description: &description };
            return chart::lanes(out, frame, &alt, &lanes);
        }
        let strips = strips(part, panel, tops);
        let described: Vec<String> =
            strips.iter().map(|s| format!("{} {}, {}", s.name, s.figures[0], s.figures[1])).collect();
        let description =
            format!("Over {}. {}", formatting::duration(frame.span as f64 / 1e6), described.join("; "));
        let alt = AltText { id: self.ids, title: &title, description: &description };
        chart::strips(out, frame, &alt, &strips)
    }
}

/// The first letter of a name that the code gave.
fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// One length of axis for all runs where that leaves the shortest of them readable.
fn shared_span(report: &Report) -> Option<i64> {
    let longest = report.parts.iter().map(Part::span).max()?;
    let shortest = report.parts.iter().map(Part::span).min()?;
    (longest <= shortest.saturating_mul(3)).then_some(longest)
}
