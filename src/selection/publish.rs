//! Files of the lease directory, which others see only when they are ready.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::thread;
use std::time::{Duration, Instant};

use super::directory::LeaseDirectory;
use crate::sys::{random, unnamed};

impl LeaseDirectory {
    /// Makes a file that appears under `name` only when it is ready: with its mode, and with `prepare` done.
    pub(super) fn publish(
        &self,
        name: &str,
        prepare: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        let deadline = Instant::now() + Duration::from_millis(500);
        let mut file = loop {
            match unnamed::create(&self.dir, 0o666) {
                // The maker of the directory has not opened it to all yet.
                Err(error)
                    if error.kind() == ErrorKind::PermissionDenied
                        && self.dir.metadata()?.mode() & 0o002 == 0
                        && Instant::now() < deadline =>
                {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
                    return self.publish_renamed(name, prepare);
                }
                made => break made?,
            }
        };
        file.set_permissions(Permissions::from_mode(0o666))?;
        prepare(&mut file)?;
        unnamed::link(&file, &self.dir, name.as_ref())?;
        Ok(file)
    }

    /// The same on a filesystem that has no files without a name.
    fn publish_renamed(
        &self,
        name: &str,
        prepare: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        let new = self.at(&format!(".new.{}", random::token()?));
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(&new)?;
        let ready = file
            .set_permissions(Permissions::from_mode(0o666))
            .and_then(|()| prepare(&mut file))
            .and_then(|()| std::fs::hard_link(&new, self.at(name)));
        let removed = std::fs::remove_file(&new);
        ready.and(removed)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_is_ready_when_it_is_seen_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDirectory::open_or_create(dir.path()).unwrap();
        let write = |file: &mut File| file.write_all(b"ready");
        leases.publish("a.lock", write).unwrap();
        leases.publish_renamed("b.lock", write).unwrap();
        for name in ["a.lock", "b.lock"] {
            let taken = leases.publish(name, |_| Ok(())).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
            let taken = leases.publish_renamed(name, |_| Ok(())).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
            let path = dir.path().join(name);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "ready");
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        }
        leases.publish("c.lock", |_| Err(io::Error::other("not ready"))).unwrap_err();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
