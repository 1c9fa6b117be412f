//! The journal of a Parquet target: an Arrow IPC stream of the long layout, appended batch by batch.
//! It can be read while it grows; a torn tail costs the batch it tore, never what stands before it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::MetadataVersion;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{DictionaryHandling, IpcWriteOptions, StreamWriter};
use arrow_schema::{ArrowError, Schema};

use crate::model::run::RunInfo;
use crate::model::window::WindowBatch;

use super::columns::{LongBuilder, LongRow, long_schema};
use super::metadata::Metadata;

/// Turns batches into the bytes of an IPC stream.
pub(super) struct JournalEncoder {
    builder: LongBuilder,
    stream: Option<StreamWriter<Vec<u8>>>,
    metadata: Metadata,
}

fn other(e: ArrowError) -> io::Error {
    io::Error::other(e)
}

impl JournalEncoder {
    pub(super) fn new(metadata: Metadata) -> JournalEncoder {
        JournalEncoder { builder: LongBuilder::new(), stream: None, metadata }
    }

    /// Starts a new stream: schema, metadata, no dictionaries yet.
    pub(super) fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let metadata: HashMap<String, String> = self.metadata.clone().into_iter().collect();
        let schema = Schema::new_with_metadata(long_schema().fields().clone(), metadata);
        // Small batches: padding to 64 bytes would be half the file.
        let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5)
            .map_err(other)?
            .with_dictionary_handling(DictionaryHandling::Delta);
        let mut stream = StreamWriter::try_new_with_options(Vec::new(), &schema, options).map_err(other)?;
        out.append(stream.get_mut());
        self.builder = LongBuilder::new();
        self.stream = Some(stream);
        Ok(())
    }

    pub(super) fn encode(&mut self, run: &RunInfo, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<()> {
        if batch.rows.is_empty() {
            return Ok(());
        }
        for row in &batch.rows {
            self.builder.push(&LongRow::of(run, batch, row));
        }
        let batch = self.builder.finish().map_err(other)?;
        let stream = self.stream.as_mut().ok_or_else(|| io::Error::other("the journal has no start"))?;
        stream.write(&batch).map_err(other)?;
        out.append(stream.get_mut());
        Ok(())
    }
}

/// Reads a file from its start without moving the offset that its writer uses.
pub(super) struct ReadAt {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl ReadAt {
    pub(super) fn new(file: Arc<File>, end: u64) -> ReadAt {
        ReadAt { file, at: 0, end }
    }
}

impl Read for ReadAt {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let got = self.file.read_at(&mut buffer[..want], self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}

/// The whole batches of a journal, in order; what follows a torn one is unreachable and counted.
pub(super) struct JournalReader {
    stream: StreamReader<Counting<BufReader<ReadAt>>>,
    whole: u64,
    size: u64,
    done: bool,
}

struct Counting<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buffer)?;
        self.bytes += got as u64;
        Ok(got)
    }
}

impl JournalReader {
    /// Fails where not even the start of the stream is whole.
    pub(super) fn open(file: Arc<File>, size: u64) -> Result<JournalReader, ArrowError> {
        let reader = BufReader::with_capacity(256 << 10, ReadAt::new(file, size));
        let stream = StreamReader::try_new(Counting { inner: reader, bytes: 0 }, None)?;
        let whole = stream.get_ref().bytes;
        Ok(JournalReader { stream, whole, size, done: false })
    }

    pub(super) fn metadata(&self) -> Metadata {
        self.stream.schema().metadata().clone().into_iter().collect()
    }

    pub(super) fn schema(&self) -> arrow_schema::SchemaRef {
        self.stream.schema()
    }

    /// Bytes after the last whole batch; meaningful when the batches are used up.
    pub(super) fn torn_bytes(&self) -> u64 {
        self.size.saturating_sub(self.whole)
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.stream.get_ref().bytes
    }

    /// The next whole batch. A torn one is the end.
    pub(super) fn next_batch(&mut self) -> Option<RecordBatch> {
        if self.done {
            return None;
        }
        match self.stream.next() {
            Some(Ok(batch)) => {
                self.whole = self.stream.get_ref().bytes;
                Some(batch)
            }
            // A clean end may be a tail of zeros: only whole batches count.
            Some(Err(_)) | None => {
                self.done = true;
                None
            }
        }
    }
}
