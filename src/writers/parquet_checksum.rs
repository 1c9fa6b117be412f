//! The checksum of a finished Parquet file, in its key-value metadata: the crc32c of the whole file with eight zeros in
//! the place of the checksum's own digits. Parquet has checksums of pages, which its Rust writer does not write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memchr::memmem;
use parquet::file::metadata::{KeyValue, ParquetMetaData};

/// The key; programs that write a file again may keep it, with the value of the file before.
pub(super) const KEY: &str = "gpurun.crc32c";

/// How files are signed that gpurun wrote itself.
pub(super) const CREATED_BY: &str = concat!("gpurun ", env!("CARGO_PKG_VERSION"));

/// What stands for the digits while the checksum is made.
const DIGITS: &str = "00000000";

/// What stands between the key and the value: a text of eight bytes in the second field of a Thrift struct.
const BEFORE_VALUE: [u8; 2] = [0x18, 8];

/// The bytes behind the metadata of a file: its length, and a mark.
const TAIL: u64 = 8;

/// Bytes that are read together.
const CHUNK: usize = 256 << 10;

/// The pair that is written into a file before it is closed.
pub(super) fn placeholder() -> KeyValue {
    KeyValue::new(KEY.to_owned(), DIGITS.to_owned())
}

/// Puts the checksum into a file that is closed.
pub(super) fn seal(file: &File) -> io::Result<()> {
    let place = place(file)?.ok_or_else(|| io::Error::other("the place of the checksum is not found"))?;
    file.write_all_at(format!("{:08x}", checksum(file, place)?).as_bytes(), place)
}

/// Whether the content is what the checksum was made of. A file that another program wrote has none of its own, and one
/// of gpurun's without it has lost it.
pub(super) fn is_whole(file: &File, metadata: &ParquetMetaData) -> io::Result<bool> {
    let place = place(file)?;
    match (metadata.file_metadata().created_by(), place) {
        (Some(by), _) if !by.starts_with("gpurun ") => Ok(true),
        (None, None) => Ok(true),
        (Some(_), None) => Ok(false),
        (_, Some(place)) => {
            let mut digits = [0; DIGITS.len()];
            file.read_exact_at(&mut digits, place)?;
            Ok(format!("{:08x}", checksum(file, place)?).as_bytes() == digits)
        }
    }
}

/// Where the digits stand.
fn place(file: &File) -> io::Result<Option<u64>> {
    let size = file.metadata()?.len();
    let Some(end) = size.checked_sub(TAIL) else { return Ok(None) };
    let mut length = [0; 4];
    file.read_exact_at(&mut length, end)?;
    let Some(start) = end.checked_sub(u64::from(u32::from_le_bytes(length))) else { return Ok(None) };
    let mut metadata = vec![0; usize::try_from(end - start).unwrap_or_default()];
    file.read_exact_at(&mut metadata, start)?;
    let key = [KEY.as_bytes(), &BEFORE_VALUE].concat();
    let found = memmem::rfind(&metadata, &key).map(|at| start + (at + key.len()) as u64);
    Ok(found.filter(|place| place + DIGITS.len() as u64 <= end))
}

fn checksum(file: &File, place: u64) -> io::Result<u32> {
    let size = file.metadata()?.len();
    let after = place + DIGITS.len() as u64;
    let crc = crc32c::crc32c_append(add(file, 0..place, 0)?, DIGITS.as_bytes());
    add(file, after..size, crc)
}

fn add(file: &File, range: std::ops::Range<u64>, mut crc: u32) -> io::Result<u32> {
    let mut buffer = vec![0; CHUNK];
    let mut at = range.start;
    while at < range.end {
        let want = usize::try_from(range.end - at).map_or(CHUNK, |left| left.min(CHUNK));
        file.read_exact_at(&mut buffer[..want], at)?;
        crc = crc32c::crc32c_append(crc, &buffer[..want]);
        at += want as u64;
    }
    Ok(crc)
}
