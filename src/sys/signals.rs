//! Signals: sets of them, masks and dispositions.

/// A set of signals 1 to 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// No signal.
    pub const EMPTY: SignalSet = SignalSet(0);
    /// Every signal; the kernel and libc leave out those that cannot be blocked.
    pub const ALL: SignalSet = SignalSet(u64::MAX);

    /// Signals by which a process is told of its own fault.
    pub const FAULTS: [i32; 7] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];

    /// The numbers a signal can have.
    pub fn all_numbers() -> std::ops::RangeInclusive<i32> {
        1..=64
    }

    /// Adds a signal; numbers that no signal has are left out.
    pub fn insert(&mut self, signal: i32) {
        if let Some(bit) = Self::bit(signal) {
            self.0 |= bit;
        }
    }

    /// Whether the signal is in the set.
    pub fn contains(self, signal: i32) -> bool {
        Self::bit(signal).is_some_and(|bit| self.0 & bit != 0)
    }

    fn bit(signal: i32) -> Option<u64> {
        Self::all_numbers().contains(&signal).then(|| 1 << (signal - 1))
    }

    /// The calling thread's blocked signals.
    pub fn blocked_now() -> SignalSet {
        Self::change_mask(libc::SIG_BLOCK, None)
    }

    /// Signals that are blocked and waiting, for this thread or the process.
    pub fn pending_now() -> SignalSet {
        // SAFETY: `sigpending` fills a plain-data set.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigpending(&mut set);
            set
        };
        Self::from_libc(&set)
    }

    /// Blocks these signals for the calling thread and returns what was blocked before.
    pub fn block(self) -> SignalSet {
        Self::change_mask(libc::SIG_BLOCK, Some(self))
    }

    /// Lets these signals through in the calling thread.
    pub fn unblock(self) {
        Self::change_mask(libc::SIG_UNBLOCK, Some(self));
    }

    /// Makes exactly this set the calling thread's blocked signals.
    pub fn set_as_mask(self) {
        Self::change_mask(libc::SIG_SETMASK, Some(self));
    }

    fn change_mask(how: i32, set: Option<SignalSet>) -> SignalSet {
        let new = set.map(SignalSet::to_libc);
        let new_ptr = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: both pointers are null or point to live sets; only this thread's mask changes.
        let old = unsafe {
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(how, new_ptr, &mut old);
            old
        };
        Self::from_libc(&old)
    }

    /// The set as libc has it.
    pub fn to_libc(self) -> libc::sigset_t {
        // SAFETY: `sigemptyset` initialises the set; `sigaddset` refuses numbers it does not know.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in Self::all_numbers().filter(|s| self.contains(*s)) {
                libc::sigaddset(&mut set, signal);
            }
            set
        }
    }

    fn from_libc(set: &libc::sigset_t) -> SignalSet {
        let mut ours = SignalSet::EMPTY;
        for signal in Self::all_numbers() {
            // SAFETY: `set` is initialised; unknown numbers answer -1.
            if unsafe { libc::sigismember(set, signal) } == 1 {
                ours.insert(signal);
            }
        }
        ours
    }
}

/// Gives a signal its default action.
pub fn set_default(signal: i32) -> bool {
    set_disposition(signal, libc::SIG_DFL)
}

/// Ignores a signal from now on.
pub fn ignore(signal: i32) -> bool {
    set_disposition(signal, libc::SIG_IGN)
}

/// The kernel's own `struct sigaction`, the same on x86-64 and aarch64. libc's call refuses the two signals
/// that libc keeps for its threads; their dispositions are the job's all the same.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// The size of the kernel's signal set, which it wants to hear.
const KERNEL_SET: usize = size_of::<u64>();

/// Sets `SIG_DFL` or `SIG_IGN`. Async-signal-safe: used between fork and exec.
pub fn set_disposition(signal: i32, action: libc::sighandler_t) -> bool {
    let new = KernelAction { handler: action, ..KernelAction::default() };
    let none = std::ptr::null_mut::<KernelAction>();
    // SAFETY: the action is SIG_DFL or SIG_IGN without flags, so no handler of ours ever runs; the kernel
    // reads one structure of its own layout.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::c_long::from(signal), &raw const new, none, KERNEL_SET)
            == 0
    }
}

/// Runs `body` with a signal's default action, then puts back what was there.
pub fn with_default<T>(signal: i32, body: impl FnOnce() -> T) -> T {
    let mut before = KernelAction::default();
    let number = libc::c_long::from(signal);
    // SAFETY: the default action has no handler; what is put back is what the kernel itself gave out.
    unsafe {
        let default = KernelAction { handler: libc::SIG_DFL, ..KernelAction::default() };
        libc::syscall(libc::SYS_rt_sigaction, number, &raw const default, &raw mut before, KERNEL_SET);
        let result = body();
        let none = std::ptr::null_mut::<KernelAction>();
        libc::syscall(libc::SYS_rt_sigaction, number, &raw const before, none, KERNEL_SET);
        result
    }
}

/// Whether a signal is ignored now.
pub fn is_ignored(signal: i32) -> bool {
    disposition(signal) == Some(libc::SIG_IGN)
}

/// Whether a function is called when the signal comes.
pub fn has_handler(signal: i32) -> bool {
    disposition(signal).is_some_and(|handler| ![libc::SIG_IGN, libc::SIG_DFL].contains(&handler))
}

fn disposition(signal: i32) -> Option<libc::sighandler_t> {
    let mut old = KernelAction::default();
    let none = std::ptr::null::<KernelAction>();
    // SAFETY: changes nothing; the kernel fills one structure of its own layout.
    let known = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::c_long::from(signal), none, &raw mut old, KERNEL_SET) == 0
    };
    known.then_some(old.handler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let mut set = SignalSet::EMPTY;
        for bad in [0, 65, -1] {
            set.insert(bad);
        }
        assert_eq!(set, SignalSet::EMPTY);
        for signal in [1, 15, 31, 34, 64] {
            set.insert(signal);
            assert!(set.contains(signal));
        }
        assert_eq!(SignalSet::from_libc(&set.to_libc()), set);
    }
}
