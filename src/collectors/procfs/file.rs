//! Opening and reading the files of `/proc` and of cgroups without allocating: relative to a kept
//! directory, with `pread` into a buffer that is reused. Never interprets what it read.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use thiserror::Error;

use crate::model::reading::Reason;

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

impl FileError {
    fn from_io(error: &io::Error) -> Self {
        match error.raw_os_error().unwrap_or(0) {
            libc::ENOENT | libc::ESRCH => FileError::Gone,
            libc::EACCES | libc::EPERM => FileError::Denied,
            libc::EOPNOTSUPP | libc::ENOSYS => FileError::Unsupported,
            libc::EMFILE | libc::ENFILE => FileError::NoDescriptor,
            errno => FileError::Errno(errno),
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
        let mut bytes = path.as_os_str().as_bytes().to_vec();
        bytes.push(0);
        let path = CStr::from_bytes_with_nul(&bytes).map_err(|_| FileError::Gone)?;
        open_at(libc::AT_FDCWD, path, libc::O_DIRECTORY).map(Self)
    }

    /// Opens a directory below this one.
    pub fn dir(&self, path: &StackPath) -> Result<Self, FileError> {
        open_at(self.0.as_raw_fd(), path.as_c_str(), libc::O_DIRECTORY).map(Self)
    }

    /// Opens a file below this directory.
    pub fn file(&self, path: &StackPath) -> Result<KernelFile, FileError> {
        open_at(self.0.as_raw_fd(), path.as_c_str(), 0).map(|fd| KernelFile(File::from(fd)))
    }

    /// Calls `each` for every entry whose name is a positive number, in the kernel's order.
    pub fn numbers(&self, buffer: &mut Buffer, mut each: impl FnMut(i32)) -> Result<(), FileError> {
        let fd = self.0.as_raw_fd();
        // SAFETY: `fd` is an open directory for as long as `self` lives; lseek touches no memory.
        if unsafe { libc::lseek(fd, 0, libc::SEEK_SET) } < 0 {
            return Err(FileError::from_io(&io::Error::last_os_error()));
        }
        loop {
            let room = &mut buffer.bytes[..];
            // SAFETY: the kernel writes at most `room.len()` bytes into `room`, which is exclusively borrowed.
            let got = unsafe { libc::syscall(libc::SYS_getdents64, fd, room.as_mut_ptr(), room.len()) };
            let got = match usize::try_from(got) {
                Err(_) => return Err(FileError::from_io(&io::Error::last_os_error())),
                Ok(0) => return Ok(()),
                Ok(got) => got.min(room.len()),
            };
            // struct linux_dirent64: ino 8, off 8, reclen 2, type 1, then the name with its final 0.
            let mut rest = &room[..got];
            while rest.len() > 19 {
                let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
                if length <= 19 || length > rest.len() {
                    break;
                }
                let name = &rest[19..length];
                let name = &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())];
                if let Some(number) = super::parse::number(name).and_then(|n| i32::try_from(n).ok())
                    && number > 0
                {
                    each(number);
                }
                rest = &rest[length..];
            }
        }
    }
}

fn open_at(dir: i32, path: &CStr, flags: i32) -> Result<OwnedFd, FileError> {
    // SAFETY: `path` is a C string that outlives the call; openat keeps no reference to it.
    let fd = unsafe { libc::openat(dir, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | flags) };
    if fd < 0 {
        return Err(FileError::from_io(&io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just given us this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
pub struct KernelFile(File);

/// A read shorter than this has reached the end: the kernel's record files stop early only within
/// one record (a line) of a page.
const SURELY_WHOLE: usize = 2048;

impl KernelFile {
    /// Opens a file by its whole path.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        File::open(path).map(Self).map_err(|error| FileError::from_io(&error))
    }

    /// The file's present text.
    pub fn read<'b>(&self, buffer: &'b mut Buffer) -> Result<&'b [u8], FileError> {
        let mut length = 0;
        loop {
            if length == buffer.bytes.len() {
                buffer.bytes.resize(length * 2, 0);
            }
            match self.0.read_at(&mut buffer.bytes[length..], length as u64) {
                Ok(0) => break,
                Ok(got) => {
                    length += got;
                    if length == got && got < SURELY_WHOLE {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FileError::from_io(&error)),
            }
        }
        Ok(&buffer.bytes[..length])
    }

    /// The start of the file, at most `limit` bytes: for files that are long and open with what matters.
    pub fn read_start<'b>(&self, buffer: &'b mut Buffer, limit: usize) -> Result<&'b [u8], FileError> {
        if buffer.bytes.len() < limit {
            buffer.bytes.resize(limit, 0);
        }
        loop {
            match self.0.read_at(&mut buffer.bytes[..limit], 0) {
                Ok(got) => return Ok(&buffer.bytes[..got]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FileError::from_io(&error)),
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
        assert_eq!(file.read_start(&mut buffer, 10).unwrap(), &text[..10]);
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
            opened.numbers(&mut Buffer::default(), |n| seen.push(n)).unwrap();
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
