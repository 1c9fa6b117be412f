//! The private directory of a socket: made so that no other user can have prepared it, found again by
//! `gpurun status`, swept when its gpurun was killed.
//!
//! `BASE/<pid>/control.sock`, where BASE is `/tmp/gpurun-<uid>`; both directories are 0700 and ours, the socket is
//! 0600. Not in `$XDG_RUNTIME_DIR`: that is removed when the user's last session ends, which a job under `nohup`
//! outlives. It serves only where `/tmp` cannot be written.

use crate::sys::users;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{ControlError, os};

const SOCKET_NAME: &str = "control.sock";

/// How many names beside `/tmp/gpurun-<uid>` are tried when another user has taken it.
const SPARE_BASES: u32 = 8;

/// How many directories one pid may have: one for each server of the process, and those that another
/// PID namespace with the same `/tmp` uses.
const SERVERS_PER_PID: u32 = 64;

/// A directory younger than this is never swept: its owner may be between `bind` and `listen`.
const SWEEP_AGE: Duration = Duration::from_secs(30);

/// The directory of one server; removed, with the socket, on drop.
#[derive(Debug)]
pub(super) struct SocketDirectory {
    base: PathBuf,
    dir: PathBuf,
    socket: PathBuf,
    /// Device and inode of the socket that we listen on.
    identity: Option<(u64, u64)>,
}

impl SocketDirectory {
    /// Makes a private directory, named after `pid`, and listens in it. `base`: where, instead of the usual places.
    pub(super) fn listen(
        base: Option<&Path>,
        pid: u32,
    ) -> Result<(SocketDirectory, UnixListener), ControlError> {
        let bases = match base {
            Some(base) => vec![base.to_path_buf()],
            None => bases(),
        };
        let mut last = None;
        for base in bases {
            match Self::listen_in(base, pid) {
                Ok(done) => return Ok(done),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| ControlError::Directory {
            path: PathBuf::from("/tmp"),
            source: io::Error::from(io::ErrorKind::NotFound),
        }))
    }

    fn listen_in(base: PathBuf, pid: u32) -> Result<(SocketDirectory, UnixListener), ControlError> {
        let in_base = |source| ControlError::Directory { path: base.clone(), source };
        ensure_private(&base).map_err(in_base)?;
        sweep(&base);
        let dir = make_own(&base, pid).map_err(in_base)?;
        let socket = dir.join(SOCKET_NAME);
        let mut directory = Self { base, dir, socket, identity: None };
        match directory.bind() {
            Ok(listener) => Ok((directory, listener)),
            Err(source) => Err(ControlError::Listen { path: directory.socket.clone(), source }),
        }
    }

    fn bind(&mut self) -> io::Result<UnixListener> {
        let listener = UnixListener::bind(&self.socket)?;
        // No other user can enter the 0700 directory between bind and chmod.
        fs::set_permissions(&self.socket, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        self.identity = identity(&self.socket);
        Ok(listener)
    }

    /// The socket's path.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether the path still leads to our socket.
    pub(super) fn is_there(&self) -> bool {
        self.identity.is_some() && identity(&self.socket) == self.identity
    }

    /// Listens anew at the same path, after the socket or its directories were removed.
    pub(super) fn make_again(&mut self) -> io::Result<UnixListener> {
        ensure_private(&self.base)?;
        ensure_private(&self.dir)?;
        self.bind()
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        // /tmp may have been cleaned before; nothing can be done about either failure.
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_dir(&self.dir);
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// A socket that a gpurun of ours may be listening on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSocket {
    /// Pid of that gpurun, from the directory's name.
    pub pid: i32,
    /// The socket.
    pub path: PathBuf,
}

/// Where our directories may be, best first.
fn bases() -> Vec<PathBuf> {
    let uid = users::effective_uid();
    let mut bases = vec![PathBuf::from(format!("/tmp/gpurun-{uid}"))];
    bases.extend((1..SPARE_BASES).map(|n| PathBuf::from(format!("/tmp/gpurun-{uid}.{n}"))));
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
        && runtime.is_absolute()
        && fs::metadata(&runtime).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
    {
        bases.push(runtime.join("gpurun"));
    }
    bases
}

/// Makes `dir` 0700, or accepts it if it already is a real directory of ours that only we can enter.
fn ensure_private(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    // symlink_metadata: a link that another user put there is not followed.
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() {
        return Err(io::Error::other("it exists and is not a directory"));
    }
    if meta.uid() != users::effective_uid() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn make_own(base: &Path, pid: u32) -> io::Result<PathBuf> {
    for n in 0..SERVERS_PER_PID {
        let name = if n == 0 { pid.to_string() } else { format!("{pid}.{n}") };
        let dir = base.join(name);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

fn sockets_in(base: &Path) -> Vec<FoundSocket> {
    let private = fs::symlink_metadata(base)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == users::effective_uid() && meta.mode() & 0o077 == 0);
    if !private {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let pid = name.split('.').next()?.parse().ok()?;
            Some(FoundSocket { pid, path: entry.path().join(SOCKET_NAME) })
        })
        .collect()
}

/// Every socket of a gpurun of this user, dead ones included, by pid.
pub fn find_sockets() -> Vec<FoundSocket> {
    let mut found: Vec<_> = bases().iter().flat_map(|base| sockets_in(base)).collect();
    found.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    found
}

/// Removes the directories of killed gpuruns: those whose socket refuses. The pid is no proof, since
/// another PID namespace may share the directory.
fn sweep(base: &Path) {
    for found in sockets_in(base) {
        let Some(dir) = found.path.parent() else { continue };
        let old = fs::symlink_metadata(dir)
            .and_then(|meta| meta.modified())
            .is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > SWEEP_AGE));
        if !old {
            continue;
        }
        let dead = match os::connect_now(&found.path) {
            Ok(_) => false,
            Err(error) => {
                matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
            }
        };
        if dead {
            let _ = fs::remove_file(&found.path);
            let _ = fs::remove_dir(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prepared_link_or_file_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().join("real");
        fs::create_dir(&real).unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(SocketDirectory::listen(Some(&link), 7).is_err());
        let file = temp.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(SocketDirectory::listen(Some(&file), 7).is_err());
    }

    #[test]
    fn everything_is_private_and_goes_away() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join("base");
        let (first, _listening) = SocketDirectory::listen(Some(&base), 7).unwrap();
        let (second, _too) = SocketDirectory::listen(Some(&base), 7).unwrap();
        assert_ne!(first.socket(), second.socket());
        for path in [base.as_path(), first.socket().parent().unwrap()] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700);
        }
        assert_eq!(fs::metadata(first.socket()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(sockets_in(&base).len(), 2);
        drop((first, second));
        assert!(sockets_in(&base).is_empty());
    }

    #[test]
    fn a_removed_socket_is_noticed_and_made_again() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join("base");
        let (mut directory, _listening) = SocketDirectory::listen(Some(&base), 7).unwrap();
        assert!(directory.is_there());
        fs::remove_dir_all(&base).unwrap();
        assert!(!directory.is_there());
        let again = directory.make_again().unwrap();
        assert!(directory.is_there() && os::connect_now(directory.socket()).is_ok());
        assert!(again.accept().is_ok());
        // Another socket at the same path is not ours, and is left alone.
        fs::remove_file(directory.socket()).unwrap();
        let _theirs = UnixListener::bind(directory.socket()).unwrap();
        assert!(!directory.is_there());
        assert!(directory.make_again().is_err());
    }

    #[test]
    fn a_loose_directory_of_ours_is_tightened() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join("base");
        fs::create_dir(&base).unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o777)).unwrap();
        let _server = SocketDirectory::listen(Some(&base), 7).unwrap();
        assert_eq!(fs::metadata(&base).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join("x".repeat(120));
        assert!(matches!(SocketDirectory::listen(Some(&base), 7), Err(ControlError::Listen { .. })));
        assert!(sockets_in(&base).is_empty());
    }
}
