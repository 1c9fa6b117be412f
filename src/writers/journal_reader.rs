//! Journals back into record batches: every whole block, also after damaged ones. What could not be read is reported.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_ipc::reader::StreamReader;
use arrow_schema::SchemaRef;
use memchr::memmem;

use crate::model::time::Wall;

use super::columns::{long_schema, rfc3339};
use super::decode::decode;
use super::journal::{CONTINUATION, FRAME, Frame, MAGIC, schema_block};
use super::metadata::{self, Metadata};

/// Bytes that are searched together for the next frame.
const SEARCHED: usize = 256 << 10;

/// The first message of a row set is never as long: a torn block that is longer has its frame.
const LONGEST_START: u64 = 4096;

/// A part of a journal that could not be read although more follows, or although it is as long as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// End of the last window before it, in microseconds since the Unix epoch.
    pub after_us: Option<i64>,
    /// End of the first window after it, in microseconds since the Unix epoch.
    pub before_us: Option<i64>,
}

/// What a journal has and a reader could not give, in words.
pub(super) fn losses(torn_bytes: u64, damage: &[Damage]) -> Vec<String> {
    let mut out: Vec<String> = damage.iter().map(Damage::words).collect();
    if torn_bytes > 0 {
        out.push(format!("an incomplete last row set of {torn_bytes} bytes was left out"));
    }
    out
}

impl Damage {
    fn words(&self) -> String {
        let time = |us: i64| rfc3339(Wall(us));
        let rows = match (self.after_us, self.before_us) {
            (Some(after), Some(before)) => {
                format!(
                    "rows of windows that ended after {} and before {} are missing",
                    time(after),
                    time(before)
                )
            }
            (Some(after), None) => format!("rows of windows that ended after {} are missing", time(after)),
            (None, Some(before)) => {
                format!("what the run was and rows of windows that ended before {} are missing", time(before))
            }
            (None, None) => "all rows are missing".to_owned(),
        };
        format!("{} bytes at offset {} are damaged: {rows}", self.bytes, self.offset)
    }
}

/// The whole blocks of a journal, in order.
pub(super) struct JournalReader {
    bytes: Bytes,
    schema: SchemaRef,
    metadata: Metadata,
    /// The schema without metadata: what is in front of each block when it is decoded.
    prefix: Vec<u8>,
    /// Where the next block should begin.
    at: u64,
    /// Where bytes that could not be read begin, while it is open what follows them.
    unread: Option<u64>,
    /// End of the last window that was read.
    last_us: Option<i64>,
    damage: Vec<Damage>,
    torn: u64,
}

impl JournalReader {
    /// Reads the start. Where that is damaged, what the run was is unknown, but its rows can be read.
    ///
    /// Fails with [`io::ErrorKind::InvalidData`] where there is not one whole block.
    pub(super) fn open(file: Arc<File>, size: u64) -> io::Result<JournalReader> {
        let bytes = Bytes { file, size };
        let (at, schema_block) = match bytes.block_at(0)? {
            Some(block) => (block.len() as u64, block),
            None if bytes.find_block(0)?.is_none() => return Err(invalid("no part of it is whole")),
            None => (0, schema_block(&unknown_run(bytes.checksum()?, size))?),
        };
        let schema = decode(|| StreamReader::try_new(schema_block.as_slice(), None))
            .map_err(|error| invalid(&error))?
            .schema();
        if schema.fields() != long_schema().fields() {
            return Err(invalid("it was written by another version of gpurun"));
        }
        let metadata = schema.metadata().clone().into_iter().collect();
        Ok(JournalReader {
            bytes,
            schema,
            metadata,
            prefix: super::journal::schema_block(&Metadata::new())?,
            at,
            unread: None,
            last_us: None,
            damage: Vec::new(),
            torn: 0,
        })
    }

    /// What the journal says about its run.
    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Bytes of a last block that was not written to its end; known when the batches are used up.
    pub(super) fn torn_bytes(&self) -> u64 {
        self.torn
    }

    /// What could not be read; known when the batches are used up.
    pub(super) fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// The batch of the next whole block.
    pub(super) fn next_batch(&mut self) -> io::Result<Option<RecordBatch>> {
        while self.at < self.bytes.size {
            let block = match self.bytes.block_at(self.at)? {
                Some(block) => block,
                None => {
                    self.unread.get_or_insert(self.at);
                    let Some(next) = self.bytes.find_block(self.at)? else { break };
                    self.at = next;
                    continue;
                }
            };
            let start = self.at;
            self.at += block.len() as u64;
            match self.decode(&block) {
                Some(batch) => {
                    let (first, last) = ends(&batch);
                    self.close_damage(start, first);
                    self.last_us = last.or(self.last_us);
                    return Ok(Some(batch));
                }
                None => drop(self.unread.get_or_insert(start)),
            }
        }
        self.at = self.bytes.size;
        if let Some(start) = self.unread
            && self.bytes.is_torn(start)?
        {
            self.torn = self.bytes.size - start;
            self.unread = None;
        }
        self.close_damage(self.bytes.size, None);
        Ok(None)
    }

    fn close_damage(&mut self, end: u64, before_us: Option<i64>) {
        if let Some(offset) = self.unread.take() {
            self.damage.push(Damage { offset, bytes: end - offset, after_us: self.last_us, before_us });
        }
    }

    /// `None` for what is whole by its checksum and is no row set all the same.
    fn decode(&self, block: &[u8]) -> Option<RecordBatch> {
        let stream = self.prefix.chain(block);
        let batch = decode(|| StreamReader::try_new(stream, None)?.next().transpose());
        batch.ok().flatten().filter(|batch| batch.num_rows() > 0)
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What is said about a run whose journal has lost its start. The name tells this journal from any other.
fn unknown_run(checksum: u32, size: u64) -> Metadata {
    let pairs = [
        (metadata::VERSION, crate::model::run::SCHEMA_VERSION.to_string()),
        (metadata::LAYOUT, "long".to_owned()),
        (metadata::JOURNAL, format!("damaged-{checksum:08x}-{size}")),
        (metadata::MODE, "create".to_owned()),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// When the windows of the first and of the last row ended.
fn ends(batch: &RecordBatch) -> (Option<i64>, Option<i64>) {
    let times = batch.column(0).as_primitive_opt::<TimestampMicrosecondType>();
    let end = |row: usize| times.map(|times| times.value(row));
    (end(0), end(batch.num_rows() - 1))
}

/// The file, read at offsets so that its writer's place in it stays.
struct Bytes {
    file: Arc<File>,
    size: u64,
}

impl Bytes {
    /// Fills the buffer; `false` where the file ends before.
    fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<bool> {
        let end = at.checked_add(buffer.len() as u64).filter(|end| *end <= self.size);
        if end.is_none() {
            return Ok(false);
        }
        match self.file.read_exact_at(buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Ok(true),
        }
    }

    /// The frame at an offset, if there is a whole one.
    fn frame_at(&self, at: u64) -> io::Result<Option<Frame>> {
        let mut bytes = [0; FRAME];
        Ok(if self.read(&mut bytes, at)? { Frame::read(&bytes) } else { None })
    }

    /// The block that begins at an offset, if it is whole.
    fn block_at(&self, at: u64) -> io::Result<Option<Vec<u8>>> {
        let mut start = [0; 8];
        if !self.read(&mut start, at)? || !start.starts_with(&CONTINUATION) {
            return Ok(None);
        }
        let [_, _, _, _, length @ ..] = start;
        let Some(place) = (8 + u64::from(u32::from_le_bytes(length))).checked_sub(FRAME as u64) else {
            return Ok(None);
        };
        let frame = self.frame_at(at + place)?.filter(|frame| u64::from(frame.place) == place);
        match frame {
            Some(frame) => self.block_of(at, frame),
            None => Ok(None),
        }
    }

    fn block_of(&self, at: u64, frame: Frame) -> io::Result<Option<Vec<u8>>> {
        if at + u64::from(frame.length) > self.size {
            return Ok(None);
        }
        let mut block = vec![0; frame.length as usize];
        let whole = self.read(&mut block, at)? && frame.fits(&block);
        Ok(whole.then_some(block))
    }

    /// Where the first whole block after an offset begins.
    fn find_block(&self, from: u64) -> io::Result<Option<u64>> {
        let mut at = from;
        while let Some(found) = self.find_magic(at)? {
            if let Some(frame) = self.frame_at(found)?
                && let Some(start) = found.checked_sub(u64::from(frame.place)).filter(|start| *start >= from)
                && self.block_of(start, frame)?.is_some()
            {
                return Ok(Some(start));
            }
            at = found + 1;
        }
        Ok(None)
    }

    fn find_magic(&self, from: u64) -> io::Result<Option<u64>> {
        let finder = memmem::Finder::new(&MAGIC);
        let mut buffer = vec![0; SEARCHED];
        let mut at = from;
        while at < self.size {
            let want = usize::try_from(self.size - at).map_or(SEARCHED, |left| left.min(SEARCHED));
            if !self.read(&mut buffer[..want], at)? {
                return Ok(None);
            }
            if let Some(found) = finder.find(&buffer[..want]) {
                return Ok(Some(at + found as u64));
            }
            if want < SEARCHED {
                return Ok(None);
            }
            at += (want - MAGIC.len() + 1) as u64;
        }
        Ok(None)
    }

    /// Whether what stands from an offset to the end is a block that was being written when its gpurun died: one that
    /// should be longer, or nothing but the zeros of a file that grew before its content came to the disk.
    fn is_torn(&self, from: u64) -> io::Result<bool> {
        match self.find_magic(from)? {
            Some(found) if found + FRAME as u64 > self.size => Ok(true),
            Some(found) => Ok(self.frame_at(found)?.is_some_and(|frame| {
                found - from == u64::from(frame.place) && from + u64::from(frame.length) > self.size
            })),
            None => Ok(self.size - from < LONGEST_START || self.is_zero(from)?),
        }
    }

    fn is_zero(&self, from: u64) -> io::Result<bool> {
        let mut zero = true;
        self.each(from, |bytes| zero &= bytes.iter().all(|b| *b == 0))?;
        Ok(zero)
    }

    fn checksum(&self) -> io::Result<u32> {
        let mut crc = 0;
        self.each(0, |bytes| crc = crc32c::crc32c_append(crc, bytes))?;
        Ok(crc)
    }

    fn each(&self, from: u64, mut see: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = vec![0; SEARCHED];
        let mut at = from;
        while at < self.size {
            let want = usize::try_from(self.size - at).map_or(SEARCHED, |left| left.min(SEARCHED));
            if !self.read(&mut buffer[..want], at)? {
                break;
            }
            see(&buffer[..want]);
            at += want as u64;
        }
        Ok(())
    }
}
