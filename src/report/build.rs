//! Rows in, a report out: finds the run that each row belongs to.

use std::collections::{HashMap, HashSet};

use super::about::{Row, SourceAbout};
use super::part::{Part, PartKey};

/// Most runs that one report shows.
const RUNS: usize = 64;

/// Which log a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(usize);

/// Gathers the rows of any number of logs.
#[derive(Debug, Default)]
pub struct Builder {
    sources: Vec<Source>,
    parts: Vec<Part>,
    /// The part of the row before: rows of one run stand together.
    latest: usize,
    left_out: bool,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) about: SourceAbout,
    pub(super) dropped: Option<String>,
}

impl Builder {
    /// A report of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces a log; its rows follow.
    pub fn source(&mut self, about: SourceAbout) -> SourceId {
        self.sources.push(Source { about, dropped: None });
        SourceId(self.sources.len() - 1)
    }

    /// Adds a row of a log.
    pub fn add(&mut self, source: SourceId, row: &Row<'_>) {
        if let Some(place) = self.place(source.0, row.run, row.host, row.rank) {
            self.parts[place].add(row);
        }
    }

    /// Says that the end of a log was torn, and what was left out.
    pub fn torn(&mut self, source: SourceId, what: &str) {
        if let Some(source) = self.sources.get_mut(source.0) {
            source.dropped = Some(what.to_owned());
        }
    }

    /// Adds a fact about a run of a log, in words.
    pub fn notice(&mut self, source: SourceId, run: &str, host: &str, rank: Option<i32>, fact: String) {
        if let Some(place) = self.place(source.0, run, host, rank) {
            self.parts[place].notices.push(fact);
        }
    }

    fn place(&mut self, source: usize, run: &str, host: &str, rank: Option<i32>) -> Option<usize> {
        let same = |part: &Part| {
            let key = &part.key;
            key.source == source && key.rank == rank && key.run == run && key.host == host
        };
        if self.parts.get(self.latest).is_some_and(same) {
            return Some(self.latest);
        }
        let place = match self.parts.iter().position(same) {
            Some(place) => place,
            // Clients with ranks of their own may need a place until their run is known.
            None if self.parts.len() >= 16 * RUNS => {
                self.left_out = true;
                return None;
            }
            None => {
                let key = PartKey { source, run: run.to_owned(), host: host.to_owned(), rank };
                self.parts.push(Part::new(key));
                self.parts.len() - 1
            }
        };
        self.latest = place;
        Some(place)
    }

    /// Puts everything together.
    pub fn finish(self) -> Report {
        let Builder { sources, parts, left_out, .. } = self;
        let mut left_out = left_out;
        // A part that has only what the job itself said is a client of the run around it.
        let (mut runs, clients): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(|p| p.measured);
        for client in clients {
            let around = |p: &&mut Part| {
                p.key.source == client.key.source
                    && p.key.run == client.key.run
                    && p.key.host == client.key.host
            };
            match runs.iter_mut().filter(around).min_by_key(|p| p.key.rank) {
                Some(run) => run.adopt(client),
                None => runs.push(client),
            }
        }
        if runs.len() > RUNS {
            runs.truncate(RUNS);
            left_out = true;
        }
        for part in &mut runs {
            let source = &sources[part.key.source].about;
            let fits = |a: &&super::RunAbout| a.run == part.key.run && a.host == part.key.host;
            let about = source.runs.iter().filter(fits).find(|a| a.rank == part.key.rank);
            part.complete(about.or_else(|| source.runs.iter().find(fits)));
        }
        name_parts(&mut runs, &sources);
        Report { sources, parts: runs, left_out }
    }
}

/// Gives every run the shortest name that tells it from the others.
fn name_parts(parts: &mut [Part], sources: &[Source]) {
    let file = |part: &Part| {
        let name = &sources[part.key.source].about.name;
        name.rsplit('/').next().unwrap_or(name).to_owned()
    };
    let rank = |part: &Part| part.key.rank.map_or_else(String::new, |rank| format!("rank {rank}"));
    let candidates: [&dyn Fn(&Part) -> String; 6] = [
        &rank,
        &file,
        &|part| part.key.run.clone(),
        &|part| format!("{} on {}", rank(part), part.key.host),
        &|part| format!("{} {}", file(part), rank(part)),
        &|part| format!("{} {}", sources[part.key.source].about.name, part.key.run),
    ];
    let differ = |labels: &[String]| {
        labels.iter().all(|l| !l.is_empty()) && labels.iter().collect::<HashSet<_>>().len() == labels.len()
    };
    let labels = if parts.len() == 1 {
        parts.iter().map(file).collect()
    } else {
        let all = candidates.iter().map(|c| parts.iter().map(c).collect::<Vec<String>>());
        all.into_iter().find(|labels| differ(labels)).unwrap_or_else(|| {
            let mut seen: HashMap<String, usize> = HashMap::new();
            parts
                .iter()
                .map(|part| {
                    let name = format!("{} {} {}", file(part), part.key.run, rank(part));
                    let n = seen.entry(name.clone()).or_default();
                    *n += 1;
                    format!("{} ({n})", name.trim_end())
                })
                .collect()
        })
    };
    for (part, label) in parts.iter_mut().zip(labels) {
        part.label = label;
    }
}

/// A report, ready to be written as text or as a page.
#[derive(Debug)]
pub struct Report {
    pub(super) sources: Vec<Source>,
    pub(super) parts: Vec<Part>,
    /// Some runs were more than a report shows.
    pub(super) left_out: bool,
}

impl Report {
    /// Whether the logs had no row at all.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn source(&self, part: &Part) -> &Source {
        &self.sources[part.key.source]
    }
}
