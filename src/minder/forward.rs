//! Sending a signal on as it came: plain, or queued with its value.

/// Sends the signal on to `pid`; false where the kernel refuses.
pub(super) fn send(pid: i32, info: &libc::signalfd_siginfo) -> bool {
    let Ok(signal) = i32::try_from(info.ssi_signo) else { return false };
    if info.ssi_code != libc::SI_QUEUE {
        // SAFETY: the target is the minder's own unreaped child.
        return unsafe { libc::kill(pid, signal) } == 0;
    }
    // SAFETY: a zeroed siginfo with the fields of a queued signal, laid out as the kernel reads it for SI_QUEUE; with a
    // negative code any process may queue it.
    unsafe {
        let mut queued: QueuedInfo = std::mem::zeroed();
        queued.signal = signal;
        queued.code = libc::SI_QUEUE;
        queued.pid = libc::pid_t::try_from(info.ssi_pid).unwrap_or(0);
        queued.uid = info.ssi_uid;
        queued.value = info.ssi_ptr;
        let (pid, signal) = (libc::c_long::from(pid), libc::c_long::from(signal));
        libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, &raw const queued) == 0
    }
}

/// The kernel's siginfo for a queued signal.
#[repr(C)]
struct QueuedInfo {
    signal: i32,
    errno: i32,
    code: i32,
    pad: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(std::mem::size_of::<QueuedInfo>() == std::mem::size_of::<libc::siginfo_t>());
