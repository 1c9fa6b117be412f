//! `gpurun metrics`: the catalogue as a table, as JSON, or as the README's Markdown.

use std::io::{self, Write};

use crate::cli::args::MetricsArgs;
use crate::model::metric::{CATALOGUE, Metric};

/// Prints the catalogue.
pub fn run(args: &MetricsArgs, out: &mut dyn Write) -> io::Result<()> {
    if args.json {
        return json(out);
    }
    if args.markdown {
        return markdown(out);
    }
    let width = |f: fn(&Metric) -> &str| CATALOGUE.iter().map(|m| f(m).len()).max().unwrap_or(0);
    let (names, units, groups) = (width(|m| m.name), width(|m| m.unit), width(|m| m.group));
    let mut scope = "";
    for metric in CATALOGUE {
        if metric.scope.name() != scope {
            scope = metric.scope.name();
            writeln!(out, "{scope}")?;
        }
        writeln!(
            out,
            "  {:names$}  {:units$}  {:7}  {:9}  {:groups$}  {}",
            metric.name,
            metric.unit,
            metric.kind.name(),
            metric.tier.name(),
            metric.group,
            metric.about
        )?;
    }
    Ok(())
}

fn json(out: &mut dyn Write) -> io::Result<()> {
    let list: Vec<_> = CATALOGUE
        .iter()
        .map(|m| {
            serde_json::json!({
                "scope": m.scope.name(),
                "name": m.name,
                "unit": m.unit,
                "kind": m.kind.name(),
                "tier": m.tier.name(),
                "group": m.group,
                "source": m.source,
                "absent": m.absent,
                "about": m.about,
            })
        })
        .collect();
    serde_json::to_writer_pretty(&mut *out, &list)?;
    writeln!(out)
}

fn markdown(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "| scope | metric | unit | kind | cost | source | always null | meaning |")?;
    writeln!(out, "| --- | --- | --- | --- | --- | --- | --- | --- |")?;
    for m in CATALOGUE {
        let code = if m.unit.is_empty() { String::new() } else { format!("`{}`", m.unit) };
        writeln!(
            out,
            "| {} | `{}` | {code} | {} | {} | {} | {} | {} |",
            m.scope.name(),
            m.name,
            m.kind.name(),
            m.tier.name(),
            m.source,
            m.absent,
            m.about
        )?;
    }
    Ok(())
}
