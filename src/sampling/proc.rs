//! `/proc` as the tree reads it: one directory, buffers that are reused, and files that stay open.
//!
//! Opening a file of `/proc` costs several times what reading it costs, and a job has a file for each of its threads.
//! So files are opened once and kept, up to a number of descriptors; beyond it every read opens its file. A kept file
//! of a process that was reaped answers `ESRCH` even when its pid is another process's by then.

use std::path::Path;

use crate::collectors::procfs::file::{Buffer, Dir, Entries, FileError, KernelFile, StackPath};

/// The process filesystem, and how many of its files may still be kept open.
#[derive(Debug)]
pub(super) struct Proc {
    root: Dir,
    text: Buffer,
    entries: Entries,
    descriptors: usize,
}

/// A file or directory that is read at every sample, open where a descriptor was left for it.
#[derive(Debug)]
pub(super) struct Kept<T> {
    path: StackPath,
    open: Option<T>,
}

impl Proc {
    pub(super) fn open(root: &Path, descriptors: usize) -> Result<Self, FileError> {
        let root = Dir::open(root)?;
        Ok(Self { root, text: Buffer::default(), entries: Entries::default(), descriptors })
    }

    pub(super) fn keep_file(&mut self, path: StackPath) -> Kept<KernelFile> {
        let open = if self.descriptors > 0 { self.root.file(&path).ok() } else { None };
        self.descriptors -= usize::from(open.is_some());
        Kept { path, open }
    }

    pub(super) fn keep_dir(&mut self, path: StackPath) -> Kept<Dir> {
        let open = if self.descriptors > 0 { self.root.dir(&path).ok() } else { None };
        self.descriptors -= usize::from(open.is_some());
        Kept { path, open }
    }

    pub(super) fn close<T>(&mut self, kept: Kept<T>) {
        self.descriptors += usize::from(kept.open.is_some());
    }

    /// The present text of a kept file.
    pub(super) fn read(&mut self, file: &Kept<KernelFile>) -> Result<&[u8], FileError> {
        match &file.open {
            Some(open) => open.read(&mut self.text),
            None => self.read_once(&file.path),
        }
    }

    /// The present text of a file that is not kept.
    pub(super) fn read_once(&mut self, path: &StackPath) -> Result<&[u8], FileError> {
        self.root.file(path)?.read(&mut self.text)
    }

    /// Replaces `numbers` by those that name entries of a directory, such as the threads of a process.
    pub(super) fn numbers(&mut self, dir: &Kept<Dir>, numbers: &mut Vec<i32>) -> Result<(), FileError> {
        numbers.clear();
        match &dir.open {
            Some(open) => open.numbers(&mut self.entries, |number| numbers.push(number)),
            None => self.root.dir(&dir.path)?.numbers(&mut self.entries, |number| numbers.push(number)),
        }
    }

    /// Calls `each` for every process that this filesystem shows.
    pub(super) fn processes(&mut self, each: impl FnMut(i32)) -> Result<(), FileError> {
        self.root.numbers(&mut self.entries, each)
    }

    /// A thread of the process other than the first.
    pub(super) fn other_thread(&mut self, pid: i32) -> Option<i32> {
        let dir = self.root.dir(&StackPath::of_process(pid, "task")).ok()?;
        let mut found = None;
        let each = |tid| {
            if tid != pid {
                found.get_or_insert(tid);
            }
        };
        dir.numbers(&mut self.entries, each).ok()?;
        found
    }
}
