//! Descriptors of this process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Makes standard input and output `/dev/null`, keeps standard error and `kept`, and closes every other descriptor.
/// For a new process in which nothing is open yet: a descriptor that is closed must have no owner. Returns `kept` under
/// its new number.
///
/// # Errors
/// `/dev/null` cannot be opened, or the system has no descriptor left.
pub fn keep_only(kept: OwnedFd) -> io::Result<OwnedFd> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for standard in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        duplicate(&null, standard)?;
    }
    const PLACE: RawFd = 3;
    let place = if kept.as_raw_fd() == PLACE {
        kept
    } else {
        // SAFETY: the new number is above the standard ones; whatever stood there has no owner in this process.
        let moved = unsafe { libc::dup3(kept.as_raw_fd(), PLACE, libc::O_CLOEXEC) };
        if moved == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and owned here alone. The old numbers are closed below.
        let moved = unsafe { OwnedFd::from_raw_fd(moved) };
        std::mem::forget(kept);
        moved
    };
    std::mem::forget(null);
    close_from(PLACE + 1);
    Ok(place)
}

/// Makes standard output `/dev/null`.
///
/// # Errors
/// `/dev/null` cannot be opened.
pub fn silence_stdout() -> io::Result<()> {
    duplicate(&OpenOptions::new().write(true).open("/dev/null")?, libc::STDOUT_FILENO)
}

fn duplicate(file: &File, number: RawFd) -> io::Result<()> {
    // SAFETY: replaces a standard descriptor, which has no owner.
    if unsafe { libc::dup2(file.as_raw_fd(), number) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Closes every descriptor from `first` on.
fn close_from(first: RawFd) {
    // SAFETY: closes descriptors that the caller says have no owner.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } == 0 {
        return;
    }
    // Kernels before 5.9.
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<RawFd> =
        listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number >= first) {
        // SAFETY: as above; the one of the listing itself is closed already.
        unsafe { libc::close(number) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    #[test]
    fn only_the_kept_one_is_left() {
        let (mut reader, writer) = io::pipe().unwrap();
        let other = File::open("/dev/zero").unwrap();
        // SAFETY: the child makes system calls and a few allocations; no other thread holds a lock that it needs, as
        // each test runs in a process of its own or touches none.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let kept = keep_only(OwnedFd::from(writer)).unwrap();
            // SAFETY: reads flags of descriptor numbers.
            let open = |fd: RawFd| unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
            let others = (4..1024).filter(|fd| open(*fd)).count();
            let null = std::fs::read_link("/proc/self/fd/1").unwrap();
            let mut pipe = File::from(kept);
            write!(pipe, "{} {others} {}", pipe.as_fd().as_raw_fd(), null.display()).unwrap();
            // SAFETY: ends the child without running the test harness's exit.
            unsafe { libc::_exit(0) };
        }
        drop((writer, other));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "3 0 /dev/null");
        // SAFETY: reaps the child made above.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
}
