//! What a journal and a Parquet file say about their run, as key-value metadata.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::model::run::{JobExit, RunEnd, RunInfo, SCHEMA_VERSION};

use super::columns::{self, rfc3339};
use super::{Layout, Mode};

/// Key-value metadata, sorted by key.
pub type Metadata = BTreeMap<String, String>;

/// Keys and what they hold; the order is that of the schema page.
pub(super) const KEYS: [(&str, &str); 21] = [
    ("gpurun.schema_version", "version of this layout"),
    ("gpurun.layout", "long or wide"),
    ("gpurun.version", "version of gpurun"),
    ("gpurun.run", "name of the run"),
    ("gpurun.host", "host name"),
    ("gpurun.rank", "rank of gpurun's environment; absent without one, and for the launcher of a node"),
    ("gpurun.node_rank", "number of the node in the job; absent where no launcher says it"),
    ("gpurun.job", "the job's name"),
    ("gpurun.root_tag", "root tag"),
    ("gpurun.argv", "command line of the job, a JSON array; empty for record"),
    ("gpurun.driver", "NVIDIA driver version; absent without one"),
    (
        "gpurun.devices",
        "JSON array of index, cuda, uuid, name, memory_total (bytes), label, and facts: name to value, or null where the driver does not say",
    ),
    ("gpurun.interval_s", "seconds between samples"),
    ("gpurun.window_s", "seconds of a window"),
    ("gpurun.start", "start of the run, RFC 3339"),
    ("gpurun.end", "end of the run, RFC 3339; absent when gpurun was killed"),
    ("gpurun.duration_s", "length of the run in seconds, suspended time excluded; absent as end"),
    ("gpurun.exit", "exit code, or the word signal and a number; absent as end, and for record"),
    ("gpurun.runs", "JSON array: the keys above of every run whose rows the file holds, oldest first"),
    ("gpurun.journals", "JSON array: names of the journals that the file was made of"),
    (
        "gpurun.crc32c",
        "crc32c of the file with eight zeros, as text, in the place of this value; hexadecimal, in the key-value \
         metadata only; it means nothing where another program wrote the file again",
    ),
];

/// Keys of a journal that say how to finish it; they do not reach the Parquet file.
pub(super) const JOURNAL: &str = "gpurun.journal";
pub(super) const MODE: &str = "gpurun.mode";
pub(super) const WIDE_COLUMNS: &str = "gpurun.wide_columns";
pub(super) const LAYOUT: &str = "gpurun.layout";
pub(super) const RUNS: &str = "gpurun.runs";
pub(super) const JOURNALS: &str = "gpurun.journals";
pub(super) const DEVICES: &str = "gpurun.devices";
pub(super) const VERSION: &str = "gpurun.schema_version";

pub(super) fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::Long => "long",
        Layout::Wide => "wide",
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::CreateNew => "create",
        Mode::Overwrite => "overwrite",
        Mode::Append => "append",
    }
}

/// What a journal says at its start.
pub(super) fn of_run(run: &RunInfo, layout: Layout, mode: Mode, journal: &str) -> Metadata {
    let devices: Vec<Value> = run
        .devices
        .iter()
        .map(|d| {
            json!({
                "index": d.index,
                "cuda": d.cuda,
                "uuid": d.uuid.as_str(),
                "name": d.name,
                "memory_total": d.memory_total,
                "label": d.scope_label(),
                "facts": d.facts.iter().map(|(name, value)| (*name, value.as_ref().ok())).collect::<BTreeMap<_, _>>(),
            })
        })
        .collect();
    let mut out = Metadata::new();
    let mut put = |key: &str, value: String| out.insert(key.to_owned(), value);
    put(VERSION, SCHEMA_VERSION.to_string());
    put(LAYOUT, layout_name(layout).to_owned());
    put("gpurun.version", run.version.to_owned());
    put("gpurun.run", run.run.to_string());
    put("gpurun.host", run.host.to_string());
    put("gpurun.job", run.job.to_string());
    put("gpurun.root_tag", run.root_tag.to_string());
    put("gpurun.argv", json!(run.argv).to_string());
    put(DEVICES, json!(devices).to_string());
    put("gpurun.interval_s", run.interval.as_secs_f64().to_string());
    put("gpurun.window_s", run.window.as_secs_f64().to_string());
    put("gpurun.start", rfc3339(run.start));
    put(JOURNAL, journal.to_owned());
    put(MODE, mode_name(mode).to_owned());
    if let Some(rank) = run.rank {
        put("gpurun.rank", rank.to_string());
    }
    if let Some(node) = run.node_rank {
        put("gpurun.node_rank", node.to_string());
    }
    if let Some(driver) = &run.driver {
        put("gpurun.driver", driver.clone());
    }
    if layout == Layout::Wide {
        put(WIDE_COLUMNS, json!(columns::wide_columns(run)).to_string());
    }
    out
}

/// Adds how the run ended.
pub(super) fn add_end(metadata: &mut Metadata, end: &RunEnd) {
    metadata.insert("gpurun.end".to_owned(), rfc3339(end.end));
    metadata.insert("gpurun.duration_s".to_owned(), end.duration_s.to_string());
    let exit = match end.exit {
        Some(JobExit::Code(code)) => code.to_string(),
        Some(JobExit::Signal { signal, .. }) => format!("signal {signal}"),
        None => return,
    };
    metadata.insert("gpurun.exit".to_owned(), exit);
}

/// A JSON array of texts; empty for anything else.
pub(super) fn texts(metadata: &Metadata, key: &str) -> Vec<String> {
    metadata.get(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// What the finished file says: the journal's run is the latest of those that `earlier` already lists.
pub(super) fn of_file(earlier: Option<&Metadata>, mut journal: Metadata) -> Metadata {
    let mut runs: Vec<Value> = Vec::new();
    let mut journals: Vec<String> = Vec::new();
    if let Some(earlier) = earlier {
        runs = earlier.get(RUNS).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        journals = texts(earlier, JOURNALS);
    }
    let name = journal.remove(JOURNAL);
    journal.remove(MODE);
    journal.remove(WIDE_COLUMNS);
    let run: serde_json::Map<String, Value> = journal
        .iter()
        .filter_map(|(key, value)| {
            let key = key.strip_prefix("gpurun.")?;
            let value = match key {
                "argv" | "devices" => serde_json::from_str(value).unwrap_or(Value::Null),
                _ => Value::String(value.clone()),
            };
            Some((key.to_owned(), value))
        })
        .collect();
    runs.push(Value::Object(run));
    journals.extend(name);
    journal.insert(RUNS.to_owned(), json!(runs).to_string());
    journal.insert(JOURNALS.to_owned(), json!(journals).to_string());
    journal
}
