//! What gpurun was started with, seen before it changes any of it: it ignores SIGPIPE and opens `/dev/null` on closed
//! descriptors 0 to 2, and the job must get neither. It only reads.

use std::sync::OnceLock;

use super::signals::{SignalSet, is_ignored};

/// The state at entry that the job gets back.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// Signals blocked at entry.
    pub blocked: SignalSet,
    /// Signals ignored at entry (`nohup`, a parent that ignores SIGPIPE); all others are default.
    pub ignored: SignalSet,
    /// Whether descriptors 0, 1 and 2 were closed at entry.
    pub closed_stdio: [bool; 3],
    /// Soft and hard limit of open descriptors, where they could be read.
    pub descriptors: Option<(u64, u64)>,
    /// gpurun is the first process of its PID namespace: a signal with default action cannot end it.
    pub is_init: bool,
    /// gpurun leads its session: the kernel sends a terminal's hangup to it alone.
    pub leads_session: bool,
    /// The signal to get when the parent dies (0: none): exec would keep it, a fork does not.
    pub parent_death_signal: i32,
    /// Orphans of descendants come to this process: exec would keep it, a fork does not.
    pub is_subreaper: bool,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// What gpurun was started with, as of the first call, which `main.rs` makes before Rust's runtime starts.
pub fn inherited() -> &'static Inherited {
    INHERITED.get_or_init(look)
}

fn look() -> Inherited {
    let mut ignored = SignalSet::EMPTY;
    for signal in SignalSet::all_numbers().filter(|s| is_ignored(*s)) {
        ignored.insert(signal);
    }
    // SAFETY: F_GETFD only reads the flags of a descriptor number and fails on a closed one.
    let closed = |fd: i32| unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    // SAFETY: `getpid` and `getsid(0)` read the caller's own ids and have no preconditions.
    let (pid, session) = unsafe { (libc::getpid(), libc::getsid(0)) };
    let (mut death_signal, mut subreaper): (libc::c_int, libc::c_int) = (0, 0);
    // SAFETY: both calls fill one int and leave it alone when they fail.
    unsafe {
        libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut death_signal);
        libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut subreaper);
    }
    Inherited {
        blocked: SignalSet::blocked_now(),
        ignored,
        closed_stdio: [closed(0), closed(1), closed(2)],
        descriptors: got.then_some((limit.rlim_cur, limit.rlim_max)),
        is_init: pid == 1,
        leads_session: session == pid,
        parent_death_signal: death_signal,
        is_subreaper: subreaper != 0,
    }
}
