//! A file that only grows by whole records: a failed write is cut off again, a deleted file is made
//! anew, and nobody else writes it meanwhile. Knows bytes, not rows.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::WriterError;

/// What became of the file behind our back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is as we left it.
    Same,
    /// It was deleted, with or without its directory; it is there again with all its bytes.
    Restored,
    /// Somebody cut it; what we had written is gone and the file is empty.
    Emptied,
}

/// A locked file of ours and the offset up to which its content is whole.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    good: u64,
    dirty: bool,
    /// A failed write may have left bytes after `good`.
    torn: bool,
}

impl LogFile {
    /// Makes a new file; an existing one is an error.
    pub(super) fn create(path: &Path) -> Result<LogFile, WriterError> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(|e| {
            if e.kind() == io::ErrorKind::AlreadyExists {
                WriterError::taken(path)
            } else {
                WriterError::io("create", path)(e)
            }
        })?;
        lock(&file, path)?;
        Ok(LogFile { path: path.to_owned(), file, good: 0, dirty: false, torn: false })
    }

    /// Opens a file that is there, whole up to its end.
    pub(super) fn existing(path: &Path) -> Result<LogFile, WriterError> {
        let file =
            OpenOptions::new().read(true).write(true).open(path).map_err(WriterError::io("open", path))?;
        lock(&file, path)?;
        let found = file.metadata().map_err(WriterError::io("look at", path))?;
        if !found.is_file() {
            return Err(WriterError::NotAFile(path.to_owned()));
        }
        Ok(LogFile { path: path.to_owned(), file, good: found.len(), dirty: false, torn: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
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

    /// Looks at what became of the file since the last write, and makes a deleted one anew.
    pub(super) fn check(&mut self) -> io::Result<Fate> {
        let ours = self.file.metadata()?;
        let named = match fs::metadata(&self.path) {
            Ok(named) => Some(named),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => None,
            Err(e) => return Err(e),
        };
        if ours.nlink() == 0 {
            if named.is_some() {
                return Err(io::Error::other("another file has taken its name"));
            }
            self.restore()?;
            return Ok(Fate::Restored);
        }
        if ours.len() < self.good {
            self.truncate(0)?;
            return Ok(Fate::Emptied);
        }
        Ok(Fate::Same)
    }

    /// The bytes of the deleted file live on behind our descriptor: copy them to a new one.
    fn restore(&mut self) -> io::Result<()> {
        if let Some(dir) = self.path.parent().filter(|d| !d.as_os_str().is_empty()) {
            fs::create_dir_all(dir)?;
        }
        let fresh = OpenOptions::new().read(true).write(true).create_new(true).open(&self.path)?;
        let copied = copy_start(&self.file, &fresh, self.good).and_then(|()| match fresh.try_lock() {
            Err(TryLockError::WouldBlock) => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            _ => Ok(()),
        });
        if let Err(e) = copied {
            // Half a copy must not look like the log; the whole one is still behind the old descriptor.
            let _ = fs::remove_file(&self.path);
            return Err(e);
        }
        self.file = fresh;
        self.torn = false;
        self.dirty = true;
        Ok(())
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

/// Takes the exclusive lock that tells other gpurun processes that the file is live.
///
/// A filesystem without locks cannot tell; the file is used all the same.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), WriterError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(WriterError::Busy(path.to_owned())),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Brings a directory's entries to the disk, so that a rename survives a power cut.
pub(super) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    match File::open(dir).and_then(|d| d.sync_all()) {
        // Some network filesystems cannot sync a directory; there is nothing more to be done there.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_deleted_file_comes_back_whole_with_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/log");
        fs::create_dir(dir.path().join("sub")).unwrap();
        let mut log = LogFile::create(&path).unwrap();
        log.append(b"one\n").unwrap();
        fs::remove_dir_all(dir.path().join("sub")).unwrap();
        assert_eq!(log.check().unwrap(), Fate::Restored);
        log.append(b"two\n").unwrap();
        assert_eq!(content(&path), "one\ntwo\n");
        assert_eq!(log.check().unwrap(), Fate::Same);
    }

    #[test]
    fn a_file_cut_by_somebody_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogFile::create(&path).unwrap();
        log.append(b"one\n").unwrap();
        fs::write(&path, b"").unwrap();
        assert_eq!(log.check().unwrap(), Fate::Emptied);
        log.append(b"two\n").unwrap();
        assert_eq!(content(&path), "two\n");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let device = Path::new("/dev/null");
        assert!(matches!(LogFile::existing(device), Err(WriterError::NotAFile(_))));
        assert!(matches!(LogFile::create(device), Err(WriterError::NotAFile(_))));
    }

    #[test]
    fn a_second_writer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let _log = LogFile::create(&path).unwrap();
        assert!(matches!(LogFile::existing(&path), Err(WriterError::Busy(_))));
        assert!(matches!(LogFile::create(&path), Err(WriterError::Exists(_))));
    }
}
