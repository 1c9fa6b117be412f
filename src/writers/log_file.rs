//! A file that only grows by whole records: a failed write is cut off again, a deleted file is made again, and no other
//! process writes it at the same time. Knows bytes, not rows.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::WriterError;
use super::directory::{Directory, directory_of, is_regular, make_directories};
use super::target::numbered;

/// What happened to the file since the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileState {
    /// Nothing.
    Unchanged,
    /// It was deleted, with or without its directory; it is there again with all its bytes.
    Restored,
    /// Another file has its name, as after `sed -i`; all its bytes are in a file with the next free name.
    Replaced,
    /// It has another name or stands in another directory, and is written there.
    Renamed,
    /// Another process cut it: what was written is gone, and the file is empty.
    Emptied,
}

/// A locked file and the offset up to which its content is whole.
#[derive(Debug)]
pub(super) struct LogFile {
    directory: Directory,
    name: OsString,
    path: PathBuf,
    file: File,
    good: u64,
    dirty: bool,
    /// A failed write may have left bytes after `good`.
    torn: bool,
    /// That it was renamed has been reported.
    renamed: bool,
}

impl LogFile {
    /// Makes a new file in a directory; one that is there is an error.
    pub(super) fn create(directory: &Directory, path: &Path) -> Result<LogFile, WriterError> {
        let name = name_of(path)?;
        let file = directory.create_new(name).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => WriterError::Exists(path.to_owned()),
            _ => WriterError::io("create", path)(error),
        })?;
        lock(&file, path)?;
        Ok(LogFile::new(directory.clone(), path, file, 0))
    }

    /// Opens a file that is there, whole up to its end.
    pub(super) fn existing(directory: &Directory, path: &Path) -> Result<LogFile, WriterError> {
        let name = name_of(path)?;
        let found = directory.stat(name).map_err(WriterError::io("read", path))?;
        if found.as_ref().is_some_and(|found| !is_regular(found)) {
            return Err(WriterError::NotAFile(path.to_owned()));
        }
        let file = directory.open_file(name).map_err(WriterError::io("open", path))?;
        let opened = file.metadata().map_err(WriterError::io("read", path))?;
        if !opened.is_file() {
            return Err(WriterError::NotAFile(path.to_owned()));
        }
        lock(&file, path)?;
        Ok(LogFile::new(directory.clone(), path, file, opened.len()))
    }

    fn new(directory: Directory, path: &Path, file: File, good: u64) -> LogFile {
        let name = path.file_name().unwrap_or_default().to_owned();
        LogFile {
            directory,
            name,
            path: path.to_owned(),
            file,
            good,
            dirty: false,
            torn: false,
            renamed: false,
        }
    }

    /// Its path, as the user gave it or as it was numbered.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that it stands in.
    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Bytes known to be whole.
    pub(super) fn len(&self) -> u64 {
        self.good
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Cuts the file to `len` bytes.
    pub(super) fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.good = len;
        self.torn = false;
        self.dirty = true;
        Ok(())
    }

    /// Removes the file; another one that has its name stays.
    pub(super) fn remove(&self) -> io::Result<()> {
        if self.has_its_name()? {
            self.directory.remove(&self.name)?;
        }
        self.directory.sync()
    }

    fn has_its_name(&self) -> io::Result<bool> {
        let ours = self.file.metadata()?;
        let named = self.directory.stat(&self.name)?;
        Ok(named.is_some_and(|named| (named.st_dev, named.st_ino) == (ours.dev(), ours.ino())))
    }

    /// Looks at what happened to the file since the last write, and makes a deleted one again.
    pub(super) fn check(&mut self) -> io::Result<FileState> {
        let ours = self.file.metadata()?;
        if ours.nlink() == 0 {
            let before = self.path.clone();
            self.restore()?;
            return Ok(if self.path == before { FileState::Restored } else { FileState::Replaced });
        }
        if ours.len() < self.good {
            self.truncate(0)?;
            return Ok(FileState::Emptied);
        }
        if !self.renamed && (!self.has_its_name()? || self.directory.renamed_to().is_some()) {
            self.renamed = true;
            return Ok(FileState::Renamed);
        }
        Ok(FileState::Unchanged)
    }

    /// Where the file is now, as far as the system can say.
    pub(super) fn path_now(&self) -> PathBuf {
        use std::os::fd::AsRawFd as _;
        let now = std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        now.unwrap_or_else(|_| self.path.clone())
    }

    /// The bytes of the deleted file can still be read by its descriptor: they are copied to a new one, which gets the
    /// same name, or the next one that is free.
    fn restore(&mut self) -> io::Result<()> {
        let mut n = 1;
        let (path, file) = loop {
            let path = numbered(&self.path, n);
            match self.create_again(path.file_name().unwrap_or_default()) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => n += 1,
                Err(error) => return Err(error),
            }
        };
        let name = path.file_name().unwrap_or_default().to_owned();
        let copied = copy_start(&self.file, &file, self.good).and_then(|()| match file.try_lock() {
            Err(TryLockError::WouldBlock) => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            _ => Ok(()),
        });
        if let Err(error) = copied {
            // Half a copy must not look like the log; the whole one can still be read by the old descriptor.
            let _ = self.directory.remove(&name);
            return Err(error);
        }
        (self.path, self.name, self.file) = (path, name, file);
        self.torn = false;
        self.dirty = true;
        Ok(())
    }

    /// Makes a file in the directory, which is made again if it was deleted too.
    fn create_again(&mut self, name: &OsStr) -> io::Result<File> {
        match self.directory.create_new(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = directory_of(&self.path).to_owned();
                make_directories(&path).map_err(|(_, error)| error)?;
                self.directory = Directory::open(&path)?;
                self.directory.create_new(name)
            }
            other => other,
        }
    }

    /// Adds a whole record or nothing.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.good)?;
            self.torn = false;
        }
        match self.file.write_all_at(bytes, self.good) {
            Ok(()) => {
                self.good += bytes.len() as u64;
                self.dirty = true;
                Ok(())
            }
            Err(e) => {
                self.torn = self.file.set_len(self.good).is_err();
                Err(e)
            }
        }
    }

    /// Brings everything to the disk, if there is anything new.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.dirty {
            self.file.sync_data()?;
            self.dirty = false;
        }
        Ok(())
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty
    }
}

fn name_of(path: &Path) -> Result<&OsStr, WriterError> {
    path.file_name().ok_or_else(|| WriterError::NotAFile(path.to_owned()))
}

fn copy_start(from: &File, to: &File, len: u64) -> io::Result<()> {
    let mut buffer = vec![0u8; 256 << 10];
    let mut at = 0;
    while at < len {
        let want = buffer.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
        let got = from.read_at(&mut buffer[..want], at)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all_at(&buffer[..got], at)?;
        at += got as u64;
    }
    Ok(())
}

/// Takes the exclusive lock that tells other gpurun processes that the file is being written.
///
/// A filesystem without locks cannot tell; the file is used all the same.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), WriterError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(WriterError::Busy(path.to_owned())),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn content(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    fn create(path: &Path) -> Result<LogFile, WriterError> {
        LogFile::create(&Directory::open(directory_of(path)).unwrap(), path)
    }

    fn existing(path: &Path) -> Result<LogFile, WriterError> {
        LogFile::existing(&Directory::open(directory_of(path)).unwrap(), path)
    }

    #[test]
    fn a_deleted_file_comes_back_whole_with_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/log");
        fs::create_dir(dir.path().join("sub")).unwrap();
        let mut log = create(&path).unwrap();
        log.append(b"one\n").unwrap();
        fs::remove_dir_all(dir.path().join("sub")).unwrap();
        assert_eq!(log.check().unwrap(), FileState::Restored);
        log.append(b"two\n").unwrap();
        assert_eq!(content(&path), "one\ntwo\n");
        assert_eq!(log.check().unwrap(), FileState::Unchanged);
    }

    #[test]
    fn a_file_that_was_replaced_stays_and_all_rows_are_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.csv");
        let mut log = create(&path).unwrap();
        log.append(b"one\n").unwrap();
        // As `sed -i` does.
        fs::write(dir.path().join("sed123"), "ONE\n").unwrap();
        fs::rename(dir.path().join("sed123"), &path).unwrap();
        assert_eq!(log.check().unwrap(), FileState::Replaced);
        log.append(b"two\n").unwrap();
        assert_eq!(log.check().unwrap(), FileState::Unchanged);
        assert_eq!(content(&path), "ONE\n");
        assert_eq!(log.path(), dir.path().join("m-2.csv"));
        assert_eq!(content(log.path()), "one\ntwo\n");
    }

    #[test]
    fn a_renamed_file_is_written_on_and_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.csv");
        let mut log = create(&path).unwrap();
        log.append(b"one\n").unwrap();
        let moved = dir.path().join("m.csv.1");
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(log.check().unwrap(), FileState::Renamed);
        log.append(b"two\n").unwrap();
        assert_eq!(log.check().unwrap(), FileState::Unchanged);
        assert_eq!((content(&moved), content(&path)), ("one\ntwo\n".into(), String::new()));
        assert_eq!(log.path_now(), moved);
    }

    #[test]
    fn a_file_cut_by_another_process_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = create(&path).unwrap();
        log.append(b"one\n").unwrap();
        fs::write(&path, b"").unwrap();
        assert_eq!(log.check().unwrap(), FileState::Emptied);
        log.append(b"two\n").unwrap();
        assert_eq!(content(&path), "two\n");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let device = Path::new("/dev/null");
        assert!(matches!(existing(device), Err(WriterError::NotAFile(_))));
        assert!(matches!(create(device), Err(WriterError::Exists(_))));
    }

    #[test]
    fn a_second_writer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let _log = create(&path).unwrap();
        assert!(matches!(existing(&path), Err(WriterError::Busy(_))));
        assert!(matches!(create(&path), Err(WriterError::Exists(_))));
    }
}
