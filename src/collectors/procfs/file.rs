//! Opening and reading the files of `/proc` and of cgroups without allocating: relative to a kept
//! directory, with `pread` into a buffer that is reused. Never interprets what it read.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, RawDir, SeekFrom, openat, seek};
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::path::Arg;
use thiserror::Error;

use crate::model::reading::Reason;
use crate::sys::text;

/// Why a file of the kernel could not be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FileError {
    /// There is no such file, or its process has ended (`ENOENT`, `ESRCH`).
    #[error("gone")]
    Gone,
    /// The kernel refuses it to this user (`EACCES`, `EPERM`).
    #[error("no permission")]
    Denied,
    /// The kernel was built or booted without it (`EOPNOTSUPP`, `ENOSYS`).
    #[error("not supported")]
    Unsupported,
    /// No descriptor was left (`EMFILE`, `ENFILE`).
    #[error("no descriptor left")]
    NoDescriptor,
    /// Any other error number.
    #[error("error {0}")]
    Errno(i32),
}

impl From<Errno> for FileError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::SRCH => FileError::Gone,
            Errno::ACCESS | Errno::PERM => FileError::Denied,
            Errno::OPNOTSUPP | Errno::NOSYS => FileError::Unsupported,
            Errno::MFILE | Errno::NFILE => FileError::NoDescriptor,
            other => FileError::Errno(other.raw_os_error()),
        }
    }
}

impl From<FileError> for Reason {
    fn from(error: FileError) -> Reason {
        match error {
            FileError::Gone => Reason::ProcessGone,
            FileError::Denied => Reason::NoPermission,
            FileError::Unsupported => Reason::NotSupported,
            FileError::NoDescriptor => Reason::Other("no descriptor left".into()),
            FileError::Errno(errno) => Reason::Other(io::Error::from_raw_os_error(errno).to_string().into()),
        }
    }
}

/// A relative path such as `1234/task/1240/children`, built on the stack.
#[derive(Clone, Copy, Debug)]
pub struct StackPath {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl Default for StackPath {
    fn default() -> Self {
        Self { bytes: [0; Self::CAPACITY], len: 0 }
    }
}

impl StackPath {
    const CAPACITY: usize = 64;

    /// `PID/NAME`.
    pub fn of_process(pid: i32, name: &str) -> Self {
        Self::default().number(pid).text("/").text(name)
    }

    /// `PID/task/TID/NAME`.
    pub fn of_thread(pid: i32, tid: i32, name: &str) -> Self {
        Self::default().number(pid).text("/task/").number(tid).text("/").text(name)
    }

    /// `PID/task/TID/children`.
    pub fn children(pid: i32, tid: i32) -> Self {
        Self::of_thread(pid, tid, "children")
    }

    /// Appends text; what does not fit is dropped, and the open that follows then fails with `Gone`.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        for byte in text.bytes() {
            // The last byte stays 0: it ends the C string.
            if self.len < Self::CAPACITY - 1 {
                self.bytes[self.len] = byte;
                self.len += 1;
            }
        }
        self
    }

    /// Appends a number that is not negative.
    #[must_use]
    pub fn number(self, value: i32) -> Self {
        let mut digits = [0u8; 10];
        let mut at = digits.len();
        let mut rest = value.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(std::str::from_utf8(&digits[at..]).unwrap_or(""))
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

/// A kept directory.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl Dir {
    /// Opens a directory by its whole path.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        open(CWD, path, OFlags::DIRECTORY).map(Self)
    }

    /// Opens a directory below this one.
    pub fn dir(&self, path: &StackPath) -> Result<Self, FileError> {
        open(&self.0, path.as_c_str(), OFlags::DIRECTORY).map(Self)
    }

    /// Opens a file below this directory.
    pub fn file(&self, path: &StackPath) -> Result<KernelFile, FileError> {
        open(&self.0, path.as_c_str(), OFlags::empty()).map(KernelFile)
    }

    /// Calls `each` for every entry whose name is a positive number, in the kernel's order.
    pub fn numbers(&self, entries: &mut Entries, mut each: impl FnMut(i32)) -> Result<(), FileError> {
        seek(&self.0, SeekFrom::Start(0))?;
        let mut listed = RawDir::new(&self.0, &mut entries.0);
        while let Some(entry) = listed.next() {
            let number = text::number(entry?.file_name().to_bytes()).and_then(|n| i32::try_from(n).ok());
            if let Some(number) = number.filter(|number| *number > 0) {
                each(number);
            }
        }
        Ok(())
    }
}

fn open(dir: impl AsFd, path: impl Arg, flags: OFlags) -> Result<OwnedFd, FileError> {
    Ok(openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty())?)
}

/// Memory for a part of a directory's entries.
#[derive(Debug)]
pub struct Entries(Box<[MaybeUninit<u8>]>);

impl Default for Entries {
    fn default() -> Self {
        Self(Box::new_uninit_slice(8192))
    }
}

/// Memory for one file's text. Grows to the largest file read, then stays.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { bytes: vec![0; 8192] }
    }
}

/// An open file of the kernel, read from its start each time.
#[derive(Debug)]
pub struct KernelFile(OwnedFd);

/// A read shorter than this has reached the end: the kernel's record files stop early only within
/// one record (a line) of a page.
const SURELY_WHOLE: usize = 2048;

impl KernelFile {
    /// Opens a file by its whole path.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        open(CWD, path, OFlags::empty()).map(Self)
    }

    /// The file's present text.
    pub fn read<'b>(&self, buffer: &'b mut Buffer) -> Result<&'b [u8], FileError> {
        let mut length = 0;
        loop {
            if length == buffer.bytes.len() {
                buffer.bytes.resize(length * 2, 0);
            }
            let got = retry_on_intr(|| pread(&self.0, &mut buffer.bytes[length..], length as u64))?;
            length += got;
            if got == 0 || (length == got && got < SURELY_WHOLE) {
                return Ok(&buffer.bytes[..length]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_c_strings() {
        assert_eq!(StackPath::of_process(1, "stat").as_c_str(), c"1/stat");
        assert_eq!(StackPath::children(4_194_304, 0).as_c_str(), c"4194304/task/0/children");
        let long = "x".repeat(100);
        assert_eq!(StackPath::default().text(&long).as_c_str().to_bytes().len(), 63);
    }

    #[test]
    fn a_long_file_is_read_whole_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let text: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(dir.path().join("long"), &text).unwrap();
        let file = KernelFile::open(&dir.path().join("long")).unwrap();
        let mut buffer = Buffer::default();
        assert_eq!(file.read(&mut buffer).unwrap(), &text[..]);
        assert_eq!(file.read(&mut buffer).unwrap(), &text[..]);
    }

    #[test]
    fn numbers_are_the_numeric_names_only() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["1", "23", "self", "4x", "-5", "99999999999"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let opened = Dir::open(dir.path()).unwrap();
        for _ in 0..2 {
            let mut seen = Vec::new();
            opened.numbers(&mut Entries::default(), |n| seen.push(n)).unwrap();
            seen.sort_unstable();
            assert_eq!(seen, [1, 23]);
        }
    }

    #[test]
    fn a_missing_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Dir::open(dir.path()).unwrap();
        assert_eq!(opened.file(&StackPath::of_process(7, "stat")).err(), Some(FileError::Gone));
    }
}
