//! Directories held open, and the files in them: made exclusively, opened without following links, renamed into place.
//!
//! A file is always reached through its directory's descriptor, so that it stays the same file when another process renames
//! the directory while a run writes to it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use super::target::numbered;
use crate::sys::{random, unnamed};

/// Permissions of new files, before the umask.
const NEW_FILE: Mode = Mode::from_raw_mode(0o666);

/// A directory held open. Clones share the descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    fd: Arc<OwnedFd>,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory; needs no permission to list it.
    pub(crate) fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(or_here(path), flags, Mode::empty())?;
        Ok(Directory { fd: Arc::new(fd), path: path.to_owned() })
    }

    /// Its path when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its path now, if it is another one.
    pub(crate) fn renamed_to(&self) -> Option<PathBuf> {
        let now = fs::read_link(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).ok()?;
        let there = rustix::fs::stat(or_here(&self.path)).ok();
        let ours = rustix::fs::fstat(&self.fd).ok()?;
        let same = there.is_some_and(|there| same_file(&there, &ours));
        (!same && now.is_dir()).then_some(now)
    }

    /// Makes a file; anything that has the name already is an error.
    pub(crate) fn create_new(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, name, flags, NEW_FILE)?.into())
    }

    /// Opens a file for reading and writing. A link is an error, and a FIFO does not block.
    pub(crate) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, name, flags, Mode::empty())?.into())
    }

    /// Opens a file for reading only, as [`Self::open_file`] does.
    pub(crate) fn read_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, name, flags, Mode::empty())?.into())
    }

    /// What has the name; a link is not followed.
    pub(crate) fn stat(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether anything has the name.
    pub(crate) fn has(&self, name: &OsStr) -> io::Result<bool> {
        Ok(self.stat(name)?.is_some())
    }

    /// Removes a file; one that is not there is no error.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Brings the names in it to the disk, so that a rename survives a power cut.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.fd, c".", flags, Mode::empty());
        match opened.and_then(rustix::fs::fsync) {
            // Some network filesystems cannot sync a directory, and one that cannot be listed cannot be opened for it:
            // there is nothing more to be done.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOTSUP | rustix::io::Errno::ACCESS) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Whether both are the same file.
pub(crate) fn same_file(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Whether it is a regular file.
pub(crate) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// A path that names the working directory by an empty text names it by a dot here.
fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// The directory of a file's path; empty for the working directory.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Makes the directories of a path that are missing; gives those that it made, outermost first.
pub(crate) fn make_directories(path: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.is_dir()).collect();
    let mut made = Vec::new();
    for dir in missing.into_iter().rev() {
        match fs::create_dir(dir) {
            Ok(()) => made.push(dir.to_owned()),
            // Another rank was faster.
            Err(_) if dir.is_dir() => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err((dir.to_owned(), io::ErrorKind::NotADirectory.into()));
            }
            Err(error) => return Err((dir.to_owned(), error)),
        }
    }
    Ok(made)
}

/// Whether files can be made in a directory, or the directory itself, if it is not there yet. Makes nothing.
pub(crate) fn check_directory(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    for dir in path.ancestors().chain([Path::new(".")]).map(or_here) {
        match fs::metadata(dir) {
            Ok(found) if !found.is_dir() => {
                return Err((dir.to_owned(), io::ErrorKind::NotADirectory.into()));
            }
            Ok(_) => {
                use rustix::fs::Access;
                let wanted = Access::WRITE_OK | Access::EXEC_OK;
                return rustix::fs::access(dir, wanted).map_err(|error| (dir.to_owned(), error.into()));
            }
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err((dir.to_owned(), error)),
        }
    }
    Ok(())
}

/// Whether nothing has the path that gave the error.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What a finished file does with the name that it is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placing {
    /// It replaces what has the name.
    Replace,
    /// The name must be free ([`io::ErrorKind::AlreadyExists`]).
    New,
    /// Where the name is taken, it gets the next one that is free.
    NextFree,
}

/// A file that gets its name when it is whole. Until then it has none, so that nothing of it stays where this process is
/// killed; a filesystem that has no such files (NFS) gives it a random hidden name, which is removed on drop.
#[derive(Debug)]
pub(crate) struct TempFile {
    directory: Directory,
    name: Option<OsString>,
    file: File,
}

impl TempFile {
    /// Makes the file. No other process can have prepared anything in its place.
    pub(crate) fn create(directory: &Directory) -> io::Result<TempFile> {
        let (name, file) = match unnamed::create(&directory.fd, NEW_FILE.as_raw_mode()) {
            Ok(file) => (None, file),
            Err(_) => Self::named(directory)?,
        };
        Ok(TempFile { directory: directory.clone(), name, file })
    }

    fn named(directory: &Directory) -> io::Result<(Option<OsString>, File)> {
        let (name, file) = under_random_name(|name| directory.create_new(name))?;
        Ok((Some(name), file))
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Brings the content to the disk and gives it the name of a path in the same directory; answers with the path that
    /// it got.
    pub(crate) fn place(mut self, path: &Path, placing: Placing) -> io::Result<PathBuf> {
        self.file.sync_all()?;
        let mut n = 1;
        loop {
            let path = numbered(path, n);
            let name = path.file_name().unwrap_or_default();
            let placed = match placing {
                Placing::Replace => self.replace(name),
                Placing::New | Placing::NextFree => self.put(name),
            };
            match placed {
                Err(error) if taken(&error) && placing == Placing::NextFree => n += 1,
                Err(error) => return Err(error),
                Ok(()) => {
                    self.directory.sync()?;
                    return Ok(path);
                }
            }
        }
    }

    fn replace(&mut self, name: &OsStr) -> io::Result<()> {
        if let Some(old) = self.directory.stat(name)?.filter(is_regular) {
            // The new file has the permissions of the old one.
            let _ = rustix::fs::fchmod(&self.file, Mode::from_raw_mode(old.st_mode));
        }
        let temporary = match &self.name {
            Some(name) => name,
            // Only a name can be renamed.
            None => self
                .name
                .insert(under_random_name(|name| unnamed::link(&self.file, &self.directory.fd, name))?.0),
        };
        let dir = &self.directory.fd;
        Ok(rustix::fs::renameat(dir, temporary, dir, name)?)
    }

    fn put(&self, name: &OsStr) -> io::Result<()> {
        let Some(temporary) = &self.name else { return unnamed::link(&self.file, &self.directory.fd, name) };
        let dir = &self.directory.fd;
        match rustix::fs::linkat(dir, temporary, dir, name, AtFlags::empty()) {
            Ok(()) => self.directory.remove(temporary),
            Err(rustix::io::Errno::EXIST) => Err(io::ErrorKind::AlreadyExists.into()),
            // A filesystem without hard links cannot refuse to replace.
            Err(_) if !self.directory.has(name)? => Ok(rustix::fs::renameat(dir, temporary, dir, name)?),
            Err(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

/// Makes something under a random name, which cannot be foreseen. It is hidden, so that readers of a directory of logs
/// ignore it.
fn under_random_name<T>(mut make: impl FnMut(&OsStr) -> io::Result<T>) -> io::Result<(OsString, T)> {
    loop {
        let name = OsString::from(format!(".gpurun-{}.tmp", random::token()?));
        match make(&name) {
            Ok(made) => return Ok((name, made)),
            Err(error) if taken(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // After a rename there is nothing of that name.
            let _ = self.directory.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn missing_directories_are_made_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        check_directory(&deep).unwrap();
        assert!(!dir.path().join("a").exists(), "a check makes nothing");
        let made = make_directories(&deep).unwrap();
        assert_eq!(made, ["a", "a/b", "a/b/c"].map(|d| dir.path().join(d)));
        assert!(make_directories(&deep).unwrap().is_empty());
        fs::write(dir.path().join("file"), "").unwrap();
        let (path, error) = check_directory(&dir.path().join("file/x")).unwrap_err();
        assert_eq!((path, error.kind()), (dir.path().join("file"), io::ErrorKind::NotADirectory));
        assert_eq!(make_directories(&dir.path().join("file/x")).unwrap_err().0, dir.path().join("file"));
    }

    #[test]
    fn a_renamed_directory_is_written_to_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::create_dir(&old).unwrap();
        let held = Directory::open(&old).unwrap();
        assert_eq!(held.renamed_to(), None);
        fs::rename(&old, &new).unwrap();
        fs::create_dir(&old).unwrap();
        held.create_new(OsStr::new("x")).unwrap();
        assert!(new.join("x").exists() && !old.join("x").exists());
        assert_eq!(held.renamed_to(), Some(new));
    }

    #[test]
    fn links_and_fifos_in_the_way_are_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        symlink("elsewhere", dir.path().join("link")).unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, NEW_FILE, 0).unwrap();
        let held = Directory::open(dir.path()).unwrap();
        assert_eq!(held.create_new(OsStr::new("link")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(held.open_file(OsStr::new("link")).is_err());
        assert!(!is_regular(&held.stat(OsStr::new("fifo")).unwrap().unwrap()));
        drop(held.open_file(OsStr::new("fifo")));
        assert!(!dir.path().join("elsewhere").exists());
    }

    #[test]
    fn a_temporary_file_replaces_or_gets_the_next_free_name() {
        let named = |held: &Directory| {
            let (name, file) = TempFile::named(held)?;
            Ok(TempFile { directory: held.clone(), name, file })
        };
        for create in [TempFile::create as fn(&Directory) -> _, named] {
            let dir = tempfile::tempdir().unwrap();
            let held = Directory::open(dir.path()).unwrap();
            let there = dir.path().join("m.json");
            let content = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
            let place = |text: &str, placing| {
                let temp: TempFile = create(&held)?;
                temp.file().write_all(text.as_bytes())?;
                temp.place(&there, placing)
            };
            fs::write(&there, "old").unwrap();
            fs::set_permissions(&there, fs::Permissions::from_mode(0o640)).unwrap();
            assert_eq!(place("x", Placing::New).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(place("second", Placing::NextFree).unwrap(), dir.path().join("m-2.json"));
            assert_eq!(place("third", Placing::NextFree).unwrap(), dir.path().join("m-3.json"));
            assert_eq!((content("m.json"), content("m-2.json")), ("old".into(), "second".into()));
            assert_eq!(place("newer", Placing::Replace).unwrap(), there);
            assert_eq!(content("m.json"), "newer");
            assert_eq!(fs::metadata(&there).unwrap().permissions().mode() & 0o777, 0o640);
            drop(create(&held).unwrap());
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        }
    }
}
