//! The published schemas, made from the code that writes: the pages under `schemas/` are these texts.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::model::run::SCHEMA_VERSION;

use super::columns::{Column, Content, FIXED, LONG, STATS, data_type};
use super::metadata::{JOURNAL, KEYS, MODE, WIDE_COLUMNS};
use super::tensorboard::FILE_VERSION;

/// A file under `schemas/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFile {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Every schema of the files that gpurun writes.
pub fn files() -> Vec<SchemaFile> {
    let v = SCHEMA_VERSION;
    vec![
        json_file(format!("long.v{v}.json"), &long()),
        json_file(format!("wide.v{v}.json"), &wide()),
        json_file(format!("journal.v{v}.json"), &journal()),
        SchemaFile { name: "events.proto".to_owned(), text: events() },
        SchemaFile { name: "README.md".to_owned(), text: page() },
    ]
}

fn json_file(name: String, value: &Value) -> SchemaFile {
    let text = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
    SchemaFile { name, text }
}

fn field(column: &Column) -> Value {
    json!({
        "name": column.name,
        "arrow": data_type(column.content).to_string(),
        "csv": csv_type(column.content),
        "nullable": column.nullable,
        "about": column.about,
    })
}

fn csv_type(content: Content) -> &'static str {
    match content {
        Content::Time => "RFC 3339, UTC, six digits of a second",
        Content::Text => "text",
        Content::Int32 | Content::Int64 | Content::UInt32 => "integer",
        Content::Float => "number with a point or an exponent",
    }
}

fn keys() -> Value {
    KEYS.iter().map(|(key, about)| json!({ "key": key, "about": about })).collect()
}

fn long() -> Value {
    json!({
        "schema": "gpurun long",
        "version": SCHEMA_VERSION,
        "fields": LONG.iter().map(field).collect::<Vec<_>>(),
        "parquet_metadata": keys(),
    })
}

fn wide() -> Value {
    json!({
        "schema": "gpurun wide",
        "version": SCHEMA_VERSION,
        "fields": LONG[..FIXED].iter().map(field).collect::<Vec<_>>(),
        "series": {
            "name": "ROOT/SUBJECT/METRIC (UNIT)/STATISTIC; a bare METRIC where there is no unit",
            "subjects": ["host", "cuda:N (gpu:N)", "gpu:N", "gpu:(N, N)", "job", "job/cuda:N (gpu:N)", "job/gpu:N"],
            "statistics": STATS,
            "arrow": data_type(Content::Float).to_string(),
            "nullable": true,
            "order": "as the series of the run at its start",
        },
        "parquet_metadata": keys(),
    })
}

fn journal() -> Value {
    json!({
        "schema": "gpurun journal",
        "version": SCHEMA_VERSION,
        "format": "Arrow IPC stream, metadata version 5, alignment 8",
        "name": "TARGET.journal beside TARGET",
        "fields": format!("those of long.v{SCHEMA_VERSION}.json, whatever the layout of the target"),
        "blocks": "first the schema; then for each window, tag span or step row set its dictionaries and its record batch, which need no other block but the schema",
        "frame": {
            "place": "the last 24 bytes of the metadata of a block's first message, which Arrow takes for padding",
            "bytes": [
                "8: 93 47 50 55 52 55 4e 01",
                "4: bytes of the block before the frame",
                "4: bytes of the block",
                "4: crc32c of the block without its frame",
                "4: crc32c of the frame up to here",
            ],
            "numbers": "unsigned, little endian",
        },
        "damage": "a block whose checksum is wrong is left out; the next whole one is found by its frame",
        "end": "a last block that is shorter than its frame says, or zeros, is torn and means nothing; there is no end-of-stream mark",
        "lock": "the gpurun that writes it holds flock(LOCK_EX)",
        "schema_metadata": [
            { "key": JOURNAL, "about": "name of this journal; the finished file lists it in gpurun.journals" },
            { "key": MODE, "about": "create, overwrite or append: what the target's rows are to become" },
            { "key": WIDE_COLUMNS, "about": "series columns of a wide target, a JSON array" },
            { "key": "gpurun.*", "about": "as in the Parquet file, but for end, duration_s, exit, runs and journals" },
        ],
    })
}

fn events() -> String {
    format!(
        r#"// What gpurun writes into TensorBoard event files: these fields of tensorflow's messages and no others.
// A file is a sequence of records: length (u64 LE), masked crc32c of the length (u32 LE), Event, masked
// crc32c of the Event (u32 LE); mask(crc) = rotate_right(crc, 15) + 0xa282ead8.
// The first event has file_version "{FILE_VERSION}" and source_metadata; every other one has a summary.
// The second one is the layout of the tab "Custom Scalars", of which only its kind is said here.
syntax = "proto3";
package tensorflow;

message Event {{
  double wall_time = 1;            // end of the window, seconds since the Unix epoch; always finite
  int64 step = 2;                  // window number; the training step in the tag group "steps"
  string file_version = 3;
  Summary summary = 5;
  SourceMetadata source_metadata = 10;
}}

message Summary {{
  repeated Value value = 1;

  message Value {{
    string tag = 1;                // [steps/][rank:N/][TAG PATH/]SUBJECT/METRIC (UNIT)/(mean|min|max)
    float simple_value = 2;        // always finite
    TensorProto tensor = 8;        // of the layout: a serialised tensorboard.custom_scalar.Layout
    SummaryMetadata metadata = 9;  // of the layout: names the plugin custom_scalars
  }}
}}

message TensorProto {{
  int32 dtype = 1;                 // DT_STRING
  repeated bytes string_val = 8;
}}

message SummaryMetadata {{
  PluginData plugin_data = 1;

  message PluginData {{
    string plugin_name = 1;
  }}
}}

message SourceMetadata {{
  string writer = 1;
}}
"#
    )
}

fn page() -> String {
    [head(), long_section(), wide_section(), metadata_section(), JOURNAL_SECTION.to_owned()].concat()
}

fn head() -> String {
    let v = SCHEMA_VERSION;
    format!(
        "# What gpurun writes

These pages are made from the code: `GPURUN_UPDATE_SCHEMAS=1 cargo nextest run schemas` rewrites them, and the
tests fail while they differ. A change of columns or of their meaning moves the version, now {v}.

* [`long.v{v}.json`](long.v{v}.json), [`wide.v{v}.json`](wide.v{v}.json): CSV and Parquet
* [`journal.v{v}.json`](journal.v{v}.json): the journal beside a Parquet target while the run lasts
* [`events.proto`](events.proto): TensorBoard event files

"
    )
}

fn long_section() -> String {
    let mut out = String::from(
        "## Long layout

One row for each series and window. A value that is not known is null (an empty field in CSV), never 0.

| column | Arrow | null | |
| --- | --- | --- | --- |
",
    );
    for column in LONG {
        let null = if column.nullable { "yes" } else { "" };
        let arrow = data_type(column.content).to_string();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{}` | {arrow} | {null} | {} |", column.name, column.about);
    }
    out + CSV_SECTION
}

const CSV_SECTION: &str = "
In CSV: a header, `\\n` line ends, times in RFC 3339 with six digits of a second, numbers in the shortest form that
reads back the same, fields quoted where they hold a comma or a quote. A control character inside a text (a line end, an
escape, a mark that turns the direction of writing round) becomes a blank, so that a line is a row; a last line without
its line end is torn and means nothing.

A spreadsheet runs a cell that begins with `=`, `+`, `-` or `@` as a formula, quoted or not. A *text* that begins with one
of these or with `'` therefore has a `'` in front, in the header too: the scalar `-loss` is `'-loss` in CSV, and `-loss`
in Parquet and in what gpurun reads from the CSV. Numbers are as they are.

";

fn wide_section() -> String {
    format!(
        "## Wide layout

One row for each window and tag: the first {FIXED} columns of the long layout, then a column
`ROOT/SUBJECT/METRIC (UNIT)/STATISTIC` for each series of the host, the GPUs and the job that was known at the start,
with the statistics {}: `run/cuda:0 (gpu:3)/gpu_utilization (%)/mean`.

",
        STATS.join(", ")
    )
}

fn metadata_section() -> String {
    let mut out = String::from(
        "## Metadata of Parquet files

In the key-value metadata and in the Arrow schema; all values are text.

| key | |
| --- | --- |
",
    );
    for (key, about) in KEYS {
        let _ = writeln!(out, "| `{key}` | {about} |");
    }
    out
}

const JOURNAL_SECTION: &str = "
## Journal

While gpurun runs, the rows of `metrics.parquet` are in `metrics.parquet.journal`: an Arrow IPC stream of the long layout,
one batch for each window with the dictionaries that it needs, appended whole. It can be read at any time:

    import pyarrow as pa

    with pa.OSFile(\"metrics.parquet.journal\") as file:
        batches = pa.ipc.open_stream(file)
        while True:
            try:
                batch = batches.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):
                break  # the end, or a batch that is not whole
            print(batch.to_pandas())

pyarrow does not look at the checksums of the row sets. `gpurun export` and `gpurun report`, which read a journal as well,
do. At the end of the run it becomes the Parquet file, written as a temporary file and renamed, and is removed; after a kill -9 or a
power cut `gpurun recover metrics.parquet.journal` does the same with every whole row set. Where one is damaged, `recover`
says which windows are missing, ends with status 1, and keeps the journal beside the file.
";
