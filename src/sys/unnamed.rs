//! Files without a name: they get one when they are ready, and nothing of them is left where their process ends before.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};

/// Makes a file in a directory, for reading and writing, with these permissions before the umask.
///
/// # Errors
/// The directory takes no files, or its filesystem none without a name (NFS).
pub fn create(directory: impl AsFd, permissions: u32) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    Ok(openat(directory, c".", flags, Mode::from_raw_mode(permissions))?.into())
}

/// Gives it a name.
///
/// # Errors
/// The name is taken ([`io::ErrorKind::AlreadyExists`]), or the system refuses.
pub fn link(file: &File, directory: impl AsFd, name: &OsStr) -> io::Result<()> {
    let file = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, file, directory, name, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_with_its_name_and_takes_none_that_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let held = File::open(dir.path()).unwrap();
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        let first = create(&held, 0o600).unwrap();
        drop(create(&held, 0o600).unwrap());
        assert_eq!(count(), 0);
        link(&first, &held, OsStr::new("x")).unwrap();
        let second = create(&held, 0o600).unwrap();
        let taken = link(&second, &held, OsStr::new("x")).unwrap_err();
        assert_eq!((taken.kind(), count()), (io::ErrorKind::AlreadyExists, 1));
    }
}
