//! What happens before gpurun reads its command line, and after its last word, in place of Rust's own runtime.
//!
//! The runtime prepares a program for much that a launcher has no use for, and in part has to undo for its job: it
//! ignores SIGPIPE, opens `/dev/null` on closed descriptors 0 to 2, handles SIGSEGV on a stack of its own for every
//! thread, and reads `/proc/self/maps` to find the end of the main stack. That is a tenth of a command's whole time,
//! before every job. What is needed of it is done here, after a look at what gpurun was started with.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::inherited;
use super::signals::ignore;

/// The status of a program that ended by a panic, as Rust's runtime has it.
const PANICKED: c_int = 101;

/// Runs the command with the words of a C `main`; the status for it to return.
///
/// # Safety
/// `argv` points to `argc` C strings that live as long as the process, as those given to `main` do, and no other thread
/// runs.
pub unsafe fn run(
    argc: c_int,
    argv: *const *const c_char,
    command: impl FnOnce(Vec<OsString>) -> u8,
) -> c_int {
    let closed = inherited().closed_stdio;
    open_standard_descriptors(closed);
    // A reader that goes away is an error to be seen, not a death.
    ignore(libc::SIGPIPE);
    // SAFETY: the caller's promise.
    let words = unsafe { words(argc, argv) };
    // A panic has been told by the hook, and must not run on into C.
    let status = catch_unwind(AssertUnwindSafe(|| command(words)));
    // The last line may lack its end. What could not be written was said where it was written.
    let _ = io::stdout().flush();
    status.map_or(PANICKED, c_int::from)
}

/// A file that is opened later must not become standard output.
fn open_standard_descriptors(closed: [bool; 3]) {
    for _ in closed.iter().filter(|closed| **closed) {
        // SAFETY: opens a file under the lowest free number, which is one of the closed ones; nobody owns that.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    }
}

/// # Safety
/// As for [`run`].
unsafe fn words(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(argc).unwrap_or(0);
    (0..count)
        .map(|place| {
            // SAFETY: one of the `argc` strings that the caller promises.
            let word = unsafe { CStr::from_ptr(*argv.add(place)) };
            OsStr::from_bytes(word.to_bytes()).to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_come_as_they_are() {
        let argv = [c"gpurun".as_ptr(), c"".as_ptr(), c"\xff a".as_ptr()];
        // SAFETY: three C strings.
        let seen = unsafe { words(3, argv.as_ptr()) };
        assert_eq!(seen, [OsStr::new("gpurun"), OsStr::new(""), OsStr::from_bytes(b"\xff a")]);
        // SAFETY: none.
        assert!(unsafe { words(0, std::ptr::null()) }.is_empty());
    }
}
