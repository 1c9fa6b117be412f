//! The wide layout: what its columns are called, and how long rows gather into its rows.

use std::collections::HashMap;
use std::sync::Arc;

use super::columns::{ReadRow, STATS, has_wide_columns};
use super::metadata::{self, Metadata};

/// What a wide column is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) scope: &'static str,
    pub(super) gpu: Option<i32>,
    pub(super) cuda: Option<i32>,
    pub(super) metric: String,
    pub(super) unit: String,
    /// `cuda:0 (gpu:3)`, where the column is about a device.
    pub(super) label: Option<String>,
}

/// Reads `run/cuda:0 (gpu:3)/gpu_utilization (%)/mean` back; `None` for any other column.
pub(super) fn parse_column(column: &str) -> Option<(Key, usize)> {
    let (_, rest) = column.split_once('/')?;
    let (rest, stat) = rest.rsplit_once('/')?;
    let stat = STATS.iter().position(|s| *s == stat)?;
    let (scope, rest) = if let Some(rest) = rest.strip_prefix("host/") {
        ("host", rest)
    } else if let Some(rest) = rest.strip_prefix("job/") {
        ("job", rest)
    } else {
        ("gpu", rest)
    };
    let mut key =
        Key { scope, gpu: None, cuda: None, metric: String::new(), unit: String::new(), label: None };
    let mut name = rest;
    if rest.starts_with("cuda:") || rest.starts_with("gpu:") {
        let (label, after) = rest.split_once('/')?;
        key.label = Some(label.to_owned());
        if let Some(cuda) = label.strip_prefix("cuda:") {
            key.cuda = leading_number(cuda);
        }
        let at = label.find("gpu:")?;
        key.gpu = leading_number(label[at + 4..].trim_start_matches('('));
        name = after;
    } else if scope == "gpu" {
        return None;
    }
    match name.strip_suffix(')').and_then(|n| n.split_once(" (")) {
        Some((metric, unit)) => (key.metric, key.unit) = (metric.to_owned(), unit.to_owned()),
        None => name.clone_into(&mut key.metric),
    }
    Some((key, stat))
}

fn leading_number(text: &str) -> Option<i32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Labels of the devices by UUID, as the metadata of a log names them.
pub(super) fn device_labels(metadata: &Metadata) -> HashMap<String, String> {
    let devices: Vec<serde_json::Value> =
        metadata.get(metadata::DEVICES).and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default();
    devices
        .iter()
        .filter_map(|d| Some((d.get("uuid")?.as_str()?.to_owned(), d.get("label")?.as_str()?.to_owned())))
        .collect()
}

/// The column of a row without its statistic; `None` for scopes without wide columns.
pub(super) fn column_of(row: &ReadRow, labels: &HashMap<String, String>) -> Option<String> {
    if !has_wide_columns(&row.scope) {
        return None;
    }
    let root = row.tag.split('/').next().unwrap_or_default();
    let label = row.gpu.map(|gpu| {
        let known = row.uuid.as_deref().and_then(|uuid| labels.get(uuid)).cloned();
        known.unwrap_or_else(|| {
            let gpu = match row.uuid.as_deref().filter(|u| u.starts_with("MIG-")) {
                Some(uuid) => format!("gpu:({gpu}, {uuid})"),
                None => format!("gpu:{gpu}"),
            };
            row.cuda.map_or_else(|| gpu.clone(), |cuda| format!("cuda:{cuda} ({gpu})"))
        })
    });
    let subject = match (&*row.scope, label) {
        ("gpu", Some(label)) => label,
        (scope, Some(label)) => format!("{scope}/{label}"),
        (scope, None) => scope.to_owned(),
    };
    let name =
        if row.unit.is_empty() { row.metric.to_string() } else { format!("{} ({})", row.metric, row.unit) };
    Some(format!("{root}/{subject}/{name}"))
}

/// Columns in the order of their first use.
#[derive(Default)]
pub(super) struct Columns {
    places: HashMap<String, usize>,
    names: Vec<String>,
}

impl Columns {
    pub(super) fn from_names(names: &[String]) -> Columns {
        let mut columns = Columns::default();
        for name in names {
            if let Some((column, _)) = name.rsplit_once('/') {
                columns.add(column.to_owned());
            }
        }
        columns
    }

    pub(super) fn add(&mut self, column: String) {
        if !self.places.contains_key(&column) {
            self.places.insert(column.clone(), self.names.len());
            self.names.extend(STATS.iter().map(|stat| format!("{column}/{stat}")));
        }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}

/// Gathers rows of one window and tag; a new window, or a value that is there already, begins a new row.
pub(super) struct Pivot {
    columns: Columns,
    labels: HashMap<String, String>,
    current: Option<(ReadRow, Vec<Option<f64>>, Vec<bool>)>,
}

/// The shared columns, and a value for each series column.
pub(super) type WideRow = (ReadRow, Vec<Option<f64>>);

impl Pivot {
    pub(super) fn new(columns: Columns, labels: HashMap<String, String>) -> Pivot {
        Pivot { columns, labels, current: None }
    }

    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    pub(super) fn add_labels(&mut self, labels: HashMap<String, String>) {
        self.labels.extend(labels);
    }

    /// Takes a row; gives the wide row that it ends, if it does.
    pub(super) fn push(&mut self, row: &ReadRow) -> Option<WideRow> {
        let place = column_of(row, &self.labels).and_then(|c| self.columns.places.get(&c).copied());
        let same = self.current.as_ref().is_some_and(|(first, _, filled)| {
            same_window(first, row) && place.is_none_or(|place| !filled[place])
        });
        let done = if same { None } else { self.flush() };
        let width = self.columns.names.len();
        let (_, values, filled) =
            self.current.get_or_insert_with(|| (row.clone(), vec![None; width], vec![false; width]));
        if let Some(place) = place {
            values[place..place + STATS.len()].copy_from_slice(&[row.mean, row.min, row.max, row.last]);
            filled[place] = true;
        }
        done
    }

    /// The wide row that is not ended yet.
    pub(super) fn flush(&mut self) -> Option<WideRow> {
        self.current.take().map(|(row, values, _)| (row, values))
    }
}

fn same_window(a: &ReadRow, b: &ReadRow) -> bool {
    let texts = |r: &ReadRow| [&r.run, &r.host, &r.kind, &r.tag].map(Arc::clone);
    a.time_us == b.time_us
        && a.window_s.to_bits() == b.window_s.to_bits()
        && a.rank == b.rank
        && (a.occurrence, a.epoch, a.step) == (b.occurrence, b.epoch, b.step)
        && texts(a) == texts(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_read_back() {
        let (key, stat) = parse_column("run/cuda:0 (gpu:3)/gpu_utilization (%)/max").unwrap();
        assert_eq!((key.scope, key.gpu, key.cuda), ("gpu", Some(3), Some(0)));
        assert_eq!((&*key.metric, &*key.unit, stat), ("gpu_utilization", "%", 2));
        let (key, _) = parse_column("run/job/cuda:11 (gpu:(2, 5))/gpu_memory (MiB)/mean").unwrap();
        assert_eq!((key.scope, key.gpu, key.cuda), ("job", Some(2), Some(11)));
        let (key, _) = parse_column("run/host/disk_read (MiB/s)/mean").unwrap_or_else(|| panic!());
        assert_eq!((&*key.metric, &*key.unit, key.gpu), ("disk_read", "MiB/s", None));
        let (key, _) = parse_column("run/host/load_average_1m/last").unwrap();
        assert_eq!((&*key.metric, &*key.unit), ("load_average_1m", ""));
        let (key, _) = parse_column("run/job/processes/last").unwrap();
        assert_eq!((key.scope, &*key.metric), ("job", "processes"));
        assert!(parse_column("time").is_none());
        assert!(parse_column("run/elsewhere/x/mean").is_none());
    }
}
