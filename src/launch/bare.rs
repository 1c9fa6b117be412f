//! A thread without Rust's runtime around it: for one that must do its work whatever state the process is in.
//!
//! A thread of the standard library registers the end of its locals with the dynamic loader. Where a library that is
//! being opened hangs, the loader is locked, and such a thread would hang beside it. This one touches no loader and no
//! heap until its body does, and is made in a fraction of the time.

use std::ffi::c_void;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Its stack in bytes: enough for a few lines of text.
const STACK: usize = 128 * 1024;

/// A thread that was started.
#[derive(Debug)]
pub struct BareThread(libc::pthread_t);

type Body = Box<dyn FnOnce() + Send>;

impl BareThread {
    /// Starts a thread with the calling thread's signal mask. It may not ask for the current thread's handle or name.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let body: Box<Body> = Box::new(Box::new(body));
        let handed = Box::into_raw(body);
        let mut thread: libc::pthread_t = 0;
        // SAFETY: the attributes are initialised before and destroyed after their use; `run` takes the box that is
        // handed to it, once.
        let refused = unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            let made = libc::pthread_attr_init(&raw mut attributes);
            if made == 0 {
                // A size that is refused leaves the default.
                libc::pthread_attr_setstacksize(&raw mut attributes, STACK);
                let refused =
                    libc::pthread_create(&raw mut thread, &raw const attributes, run, handed.cast());
                libc::pthread_attr_destroy(&raw mut attributes);
                refused
            } else {
                made
            }
        };
        if refused == 0 {
            return Ok(Self(thread));
        }
        // SAFETY: no thread was made, so the box is still ours.
        drop(unsafe { Box::from_raw(handed) });
        Err(io::Error::from_raw_os_error(refused))
    }

    /// Waits until it has ended.
    pub fn join(self) {
        // SAFETY: a thread that was started and is joined once: this takes the only handle.
        unsafe { libc::pthread_join(self.0, ptr::null_mut()) };
    }
}

extern "C" fn run(handed: *mut c_void) -> *mut c_void {
    // SAFETY: the box that `start` handed to this thread alone.
    let body = unsafe { Box::from_raw(handed.cast::<Body>()) };
    // Nothing unwinds into C; what a panic had to say the hook has said.
    let _ = catch_unwind(AssertUnwindSafe(body));
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_runs_its_body_and_can_be_waited_for() {
        let (sender, receiver) = mpsc::channel();
        let thread = BareThread::start(move || sender.send(7).unwrap()).unwrap();
        thread.join();
        assert_eq!(receiver.try_recv(), Ok(7));
    }

    #[test]
    fn a_panic_in_it_ends_it_alone() {
        BareThread::start(|| panic!("on purpose")).unwrap().join();
    }
}
