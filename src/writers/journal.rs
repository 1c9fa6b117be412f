//! The journal of a Parquet target: an Arrow IPC stream of the long layout, appended block by block.
//!
//! A block is the schema, or the dictionaries and the record batch of one row set. It needs no other block but the schema,
//! and the metadata of its first message ends with a frame (in what Arrow takes for padding): where the block begins, its
//! length and its checksum. So a damaged block costs its own rows, and the next whole one can be found.

use std::collections::HashMap;
use std::io;

use arrow_array::RecordBatch;
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{ArrowError, Schema};

use crate::model::run::RunInfo;
use crate::model::window::WindowBatch;

use super::columns::{LongBuilder, LongRow, long_schema};
use super::metadata::Metadata;

/// What every message of an IPC stream begins with.
pub(super) const CONTINUATION: [u8; 4] = [0xff; 4];

/// What a frame begins with: neither text nor a number that a batch holds.
pub(super) const MAGIC: [u8; 8] = *b"\x93GPURUN\x01";

/// Bytes of a frame: [`MAGIC`], then as u32 LE its place in the block, the block's length, the crc32c of the block without
/// its frame, and the crc32c of the frame up to here.
pub(super) const FRAME: usize = 24;

/// The frame of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Bytes of the block before the frame.
    pub(super) place: u32,
    /// Bytes of the block.
    pub(super) length: u32,
    crc: u32,
}

impl Frame {
    /// Reads a frame; `None` where there is none, or a damaged one.
    pub(super) fn read(bytes: &[u8; FRAME]) -> Option<Frame> {
        let (fields, crc) = bytes.split_at(FRAME - 4);
        if !fields.starts_with(&MAGIC) || crc32c::crc32c(fields).to_le_bytes() != *crc {
            return None;
        }
        let number = |at: usize| Some(u32::from_le_bytes(fields.get(at..at + 4)?.try_into().ok()?));
        Some(Frame { place: number(8)?, length: number(12)?, crc: number(16)? })
    }

    fn to_bytes(self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.place.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..FRAME - 4]);
        bytes[FRAME - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Whether a block is the one that the frame was made for.
    pub(super) fn fits(self, block: &[u8]) -> bool {
        let place = self.place as usize;
        block.len() == self.length as usize
            && place + FRAME <= block.len()
            && checksum(&block[..place], &block[place + FRAME..]) == self.crc
    }
}

fn checksum(before: &[u8], after: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(before), after)
}

/// Puts a frame at the end of the metadata of the first message.
fn framed(messages: &[u8]) -> Option<Vec<u8>> {
    let length = u32::from_le_bytes(messages.get(4..8)?.try_into().ok()?);
    let place = 8 + length;
    let (metadata, rest) = messages.get(8..)?.split_at_checked(length as usize)?;
    let mut block = Vec::with_capacity(messages.len() + FRAME);
    block.extend_from_slice(&CONTINUATION);
    block.extend_from_slice(&(length + FRAME as u32).to_le_bytes());
    block.extend_from_slice(metadata);
    let crc = checksum(&block, rest);
    let frame = Frame { place, length: u32::try_from(messages.len() + FRAME).ok()?, crc };
    block.extend_from_slice(&frame.to_bytes());
    block.extend_from_slice(rest);
    Some(block)
}

fn block(messages: &[u8]) -> io::Result<Vec<u8>> {
    framed(messages).ok_or_else(|| io::Error::other("a row set is too large for a journal"))
}

fn other(e: ArrowError) -> io::Error {
    io::Error::other(e)
}

fn stream(schema: &Schema) -> io::Result<StreamWriter<Vec<u8>>> {
    // Small batches: padding to 64 bytes would be half the file.
    let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).map_err(other)?;
    StreamWriter::try_new_with_options(Vec::new(), schema, options).map_err(other)
}

/// The block that a journal begins with: the schema with its metadata.
pub(super) fn schema_block(metadata: &Metadata) -> io::Result<Vec<u8>> {
    let metadata: HashMap<String, String> = metadata.clone().into_iter().collect();
    let schema = Schema::new_with_metadata(long_schema().fields().clone(), metadata);
    block(stream(&schema)?.get_ref())
}

/// The block of a row set.
pub(super) fn rows_block(run: &RunInfo, batch: &WindowBatch) -> io::Result<Vec<u8>> {
    let mut builder = LongBuilder::new();
    for row in &batch.rows {
        builder.push(&LongRow::of(run, batch, row));
    }
    batch_block(&builder.finish().map_err(other)?)
}

fn batch_block(batch: &RecordBatch) -> io::Result<Vec<u8>> {
    let mut stream = stream(&batch.schema())?;
    // The stream begins with the schema, which the journal has already.
    let schema = stream.get_ref().len();
    stream.write(batch).map_err(other)?;
    block(&stream.get_ref()[schema..])
}
