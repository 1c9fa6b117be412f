//! TensorBoard: event files in a run directory of our own, one event for each window.
//! The messages are those that scalars and one layout of charts need, with the field numbers of tensorflow's protos.

mod layout;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::{RowKind, WindowBatch};

use super::directory::{Directory, make_directories};
use super::format::{Finished, Format, Writer};
use super::log_file::{LogFile, lock};
use super::target::Target;
use super::{Mode, WriterError, WriterSettings};

/// `tensorflow.Event`, what scalars need of it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// Seconds since the Unix epoch.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    /// The x axis.
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    /// Set in the first event of a file only.
    #[prost(string, optional, tag = "3")]
    pub(super) file_version: Option<String>,
    /// The values.
    #[prost(message, optional, tag = "5")]
    pub(super) summary: Option<Summary>,
    /// The program that wrote the file; in the first event only.
    #[prost(message, optional, tag = "10")]
    pub(super) source_metadata: Option<SourceMetadata>,
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    /// One for each scalar.
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<Value>,
}

/// `tensorflow.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    /// Name of the series.
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    /// The value.
    #[prost(float, optional, tag = "2")]
    pub(super) simple_value: Option<f32>,
    /// A value of another kind.
    #[prost(message, optional, tag = "8")]
    pub(super) tensor: Option<Tensor>,
    /// What kind that is.
    #[prost(message, optional, tag = "9")]
    pub(super) metadata: Option<SummaryMetadata>,
}

/// `tensorflow.TensorProto`, with text in it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    /// `DT_STRING` is 7.
    #[prost(int32, tag = "1")]
    pub(super) dtype: i32,
    /// The text.
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub(super) string_val: Vec<Vec<u8>>,
}

/// `tensorflow.SummaryMetadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SummaryMetadata {
    /// The plugin that the value is for.
    #[prost(message, optional, tag = "1")]
    pub(super) plugin_data: Option<PluginData>,
}

/// `tensorflow.SummaryMetadata.PluginData`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PluginData {
    /// Its name.
    #[prost(string, tag = "1")]
    pub(super) plugin_name: String,
}

/// `tensorflow.SourceMetadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SourceMetadata {
    /// Name of the program.
    #[prost(string, tag = "1")]
    pub(super) writer: String,
}

/// The event-file version that readers neither purge nor guess about.
pub(super) const FILE_VERSION: &str = "brain.Event:2";

const LARGEST_RECORD: u64 = 64 << 20;

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Length, its checksum, data, its checksum.
fn put_record(out: &mut Vec<u8>, event: &Event) {
    let data = event.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc(&length).to_le_bytes());
    out.extend_from_slice(&data);
    out.extend_from_slice(&masked_crc(&data).to_le_bytes());
}

/// The whole records of an event file, up to the first that is torn.
struct Records<R> {
    reader: R,
}

impl<R: Read> Records<R> {
    fn next(&mut self) -> Option<Event> {
        let mut head = [0u8; 12];
        self.reader.read_exact(&mut head).ok()?;
        let (length, crc) = head.split_at(8);
        if masked_crc(length).to_le_bytes() != *crc {
            return None;
        }
        let length = u64::from_le_bytes(length.try_into().ok()?);
        if length > LARGEST_RECORD {
            return None;
        }
        let mut data = vec![0u8; usize::try_from(length).ok()? + 4];
        self.reader.read_exact(&mut data).ok()?;
        let (data, crc) = data.split_at(data.len() - 4);
        if masked_crc(data).to_le_bytes() != *crc {
            return None;
        }
        Event::decode(data).ok()
    }
}

/// Group of tags whose step is the training step.
const STEPS: &str = "steps";

/// The last step of our own files in a directory, training steps excluded; 0 where there is none.
fn last_step(files: &[PathBuf]) -> i64 {
    let mut last = 0;
    for path in files {
        let Ok(file) = File::open(path) else { continue };
        let mut records = Records { reader: BufReader::with_capacity(256 << 10, file) };
        while let Some(event) = records.next() {
            let ours = event
                .summary
                .as_ref()
                .is_some_and(|s| s.value.first().is_some_and(|v| v.tag.split('/').next() != Some(STEPS)));
            if ours {
                last = last.max(event.step);
            }
        }
    }
    last
}

fn event_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().contains("tfevents") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Makes the run directory and takes it; `None` while another gpurun has it.
fn take_directory(dir: &Path, made: &mut Vec<PathBuf>) -> Result<Option<File>, WriterError> {
    made.extend(make_directories(dir).map_err(|(path, error)| WriterError::io("make", path)(error))?);
    let handle = File::open(dir).map_err(WriterError::io("open", dir))?;
    match lock(&handle, dir) {
        Ok(()) => Ok(Some(handle)),
        Err(WriterError::Busy(_)) => Ok(None),
        Err(e) => Err(e),
    }
}

struct TensorBoardFormat {
    run: Option<Arc<RunInfo>>,
    /// Steps continue above this one.
    base: i64,
    /// Every metric, not only the most important ones.
    all: bool,
    /// Last window number of each tag group.
    windows: HashMap<String, i64>,
    /// Last training step of each tag.
    steps: HashMap<String, i64>,
    /// Event files of an earlier run, to be deleted at the start.
    replaced: Vec<PathBuf>,
    backwards: Option<String>,
    told_backwards: bool,
    /// Keeps the run directory ours.
    _held: File,
}

/// Makes an event file in a run directory of its own; the directories that did not exist are added to `made`.
pub(super) fn open(
    target: &Target,
    dir: &Path,
    settings: &WriterSettings,
    made: &mut Vec<PathBuf>,
) -> Result<Writer, WriterError> {
    let name = match settings.rank {
        Some(rank) => format!("gpurun-{}-{rank}", settings.host.replace('/', "_")),
        None => "gpurun".to_owned(),
    };
    // A second gpurun in the same log directory gets a run of its own.
    let mut n = 1;
    let (run_dir, held) = loop {
        let run_dir = if n == 1 { dir.join(&name) } else { dir.join(format!("{name}-{n}")) };
        if let Some(held) = take_directory(&run_dir, made)? {
            break (run_dir, held);
        }
        n += 1;
    };
    let files = event_files(&run_dir).map_err(WriterError::io("read", &run_dir))?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let pid = std::process::id();
    let host =
        if settings.host.is_empty() { "localhost".to_owned() } else { settings.host.replace('/', "_") };
    let directory = Directory::open(&run_dir).map_err(WriterError::io("open", &run_dir))?;
    let mut k = 0;
    let file = loop {
        let path = run_dir.join(format!("events.out.tfevents.{seconds:010}.{host}.{pid}.{k}"));
        match LogFile::create(&directory, &path) {
            Err(WriterError::Exists(_)) => k += 1,
            other => break other?,
        }
    };
    let replace = settings.mode == Mode::Overwrite;
    let base = if replace { 0 } else { last_step(&files) };
    let format = Box::new(TensorBoardFormat {
        run: None,
        base,
        all: settings.tensorboard_all,
        windows: HashMap::new(),
        steps: HashMap::new(),
        replaced: if replace { files } else { Vec::new() },
        backwards: None,
        told_backwards: false,
        _held: held,
    });
    Ok(Writer::new(target.clone(), file, format, true))
}

impl TensorBoardFormat {
    /// The tag path in front of every tag of the batch; empty for the root's windows.
    fn group(run: &RunInfo, batch: &WindowBatch) -> String {
        let mut parts: Vec<String> = Vec::new();
        let by_step = batch.kind == RowKind::Step || batch.step.is_some();
        if by_step {
            parts.push(STEPS.to_owned());
        }
        if batch.rank != run.rank
            && let Some(rank) = batch.rank
        {
            parts.push(format!("rank:{rank}"));
        }
        let root = &*run.root_tag;
        match batch.tag.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')) {
            Some(path) => parts.push(path.to_owned()),
            // The span of the whole run stands beside the windows that it is made of.
            None if batch.kind == RowKind::Tag => parts.push(root.to_owned()),
            None => {}
        }
        parts.join("/")
    }

    /// The number of a window or of the span of a tag, above every earlier one of its group.
    fn window_number(&mut self, group: &str, batch: &WindowBatch) -> i64 {
        let ordinal = i64::try_from(batch.ordinal).unwrap_or(i64::MAX);
        let last = self.windows.get(group).map_or(i64::MIN, |last| last.saturating_add(1));
        let number = self.base.saturating_add(ordinal).max(last);
        self.windows.insert(group.to_owned(), number);
        number
    }

    /// Whether a series may have a point at this training step: TensorBoard drops what goes back.
    fn goes_forward(&mut self, tag: &str, step: i64) -> bool {
        match self.steps.get_mut(tag) {
            Some(last) if step <= *last => {
                if !std::mem::replace(&mut self.told_backwards, true) {
                    self.backwards = Some(format!(
                        "{tag}: training step {step} came after step {last}: TensorBoard shows steps forward only and \
                         leaves such points out"
                    ));
                }
                false
            }
            Some(last) => {
                *last = step;
                true
            }
            None => {
                self.steps.insert(tag.to_owned(), step);
                true
            }
        }
    }

    /// The points of a batch, without those that would go back.
    fn values(&mut self, group: &str, batch: &WindowBatch) -> Vec<Value> {
        let mut values = Vec::with_capacity(batch.rows.len() * 3);
        for row in &batch.rows {
            if !self.all && !layout::is_important(&row.series) {
                continue;
            }
            let key = layout::key(&row.series);
            let key = if group.is_empty() { key } else { format!("{group}/{key}") };
            let stats = [("mean", row.stats.mean), ("min", row.stats.min), ("max", row.stats.max)];
            for (stat, number) in stats {
                // Beyond the range of f32 a value is no longer finite: no point then.
                let Some(number) = number.map(|v| v as f32).filter(|v| v.is_finite()) else { continue };
                let tag = format!("{key}/{stat}");
                if batch.step.is_none_or(|step| self.goes_forward(&tag, step)) {
                    values.push(Value { tag, simple_value: Some(number), ..Value::default() });
                }
            }
        }
        values
    }
}

impl Format for TensorBoardFormat {
    fn begin(&mut self, run: &Arc<RunInfo>, _file: &mut LogFile) -> Result<Option<String>, WriterError> {
        for path in self.replaced.drain(..) {
            fs::remove_file(&path).map_err(WriterError::io("remove", &path))?;
        }
        self.run = Some(Arc::clone(run));
        Ok(None)
    }

    fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let start = self.run.as_ref().map_or(0, |run| run.start.0);
        let event = Event {
            wall_time: start as f64 / 1e6,
            file_version: Some(FILE_VERSION.to_owned()),
            source_metadata: Some(SourceMetadata {
                writer: concat!("gpurun ", env!("CARGO_PKG_VERSION")).to_owned(),
            }),
            ..Event::default()
        };
        put_record(out, &event);
        if let Some(run) = &self.run {
            let value = vec![layout::value(run)];
            let wall_time = start as f64 / 1e6;
            put_record(out, &Event { wall_time, summary: Some(Summary { value }), ..Event::default() });
        }
        Ok(())
    }

    fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<u64> {
        let run = self.run.clone().ok_or_else(|| io::Error::other("the run has not begun"))?;
        let group = Self::group(&run, batch);
        let value = self.values(&group, batch);
        if value.is_empty() {
            return Ok(0);
        }
        let step = batch.step.unwrap_or_else(|| self.window_number(&group, batch));
        put_record(
            out,
            &Event {
                wall_time: batch.time.0 as f64 / 1e6,
                step,
                summary: Some(Summary { value }),
                ..Event::default()
            },
        );
        Ok(1)
    }

    fn finish(&mut self, file: &mut LogFile, _end: &RunEnd) -> Result<Finished, WriterError> {
        let path = file.path().to_owned();
        file.sync().map_err(WriterError::io("sync", path))?;
        Ok(Finished::default())
    }

    fn notice(&mut self) -> Option<String> {
        self.backwards.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_tensorflows() {
        assert_eq!(masked_crc(b"hello"), 0x191c_1fbb);
    }

    #[test]
    fn records_end_at_the_first_torn_one() {
        let mut bytes = Vec::new();
        for step in 1..=3 {
            put_record(&mut bytes, &Event { step, wall_time: 1.0, ..Event::default() });
        }
        let whole = |bytes: &[u8]| {
            let mut records = Records { reader: bytes };
            std::iter::from_fn(|| records.next()).map(|e| e.step).collect::<Vec<_>>()
        };
        assert_eq!(whole(&bytes), [1, 2, 3]);
        for cut in 0..bytes.len() {
            let got = whole(&bytes[..cut]);
            assert!(got.len() < 3 && got.iter().eq([1, 2, 3].iter().take(got.len())));
        }
        let mut flipped = bytes.clone();
        let at = bytes.len() / 3 + 14;
        flipped[at] ^= 1;
        assert_eq!(whole(&flipped), [1]);
    }
}
