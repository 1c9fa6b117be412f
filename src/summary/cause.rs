//! Why a job ended, in words.

use crate::model::cause::{Cause, OutOfMemory, StopSignal};
use crate::model::signal;
use crate::sys::format::{bytes, counted, duration};

/// Why a job ended that a signal may have ended; `None` where nothing is known besides its exit status.
pub(super) fn words_of_cause(ended_by: Option<i32>, cause: &Cause) -> Option<String> {
    if let Some(memory) = &cause.out_of_memory {
        return Some(of_memory(ended_by == Some(libc::SIGKILL), memory));
    }
    cause.signal.as_ref().map(|stop| of_signal(ended_by == Some(stop.signal), stop))
}

fn of_memory(killed: bool, memory: &OutOfMemory) -> String {
    let limit = match (memory.limit, memory.peak) {
        (Some(limit), Some(peak)) => format!("cgroup limit {}, peak {}", bytes(limit), bytes(peak)),
        (Some(limit), None) => format!("cgroup limit {}", bytes(limit)),
        (None, _) => "the host had none left".to_owned(),
    };
    if killed && memory.killed == 1 {
        return format!("out of memory: {limit}");
    }
    format!("out of memory: {limit}; the kernel killed {} of its cgroup", counted(memory.killed, "processes"))
}

/// `same`: the job died of this signal.
fn of_signal(same: bool, stop: &StopSignal) -> String {
    let from = match &stop.sender {
        None => "the terminal".to_owned(),
        Some(sender) => match &sender.name {
            Some(name) => format!("{name}, pid {}, {}", sender.pid, sender.user),
            None if sender.pid > 0 => format!("pid {}, {}", sender.pid, sender.user),
            None => format!("another PID namespace, {}", sender.user),
        },
    };
    match same {
        true => format!("from {from}"),
        false => format!("{} from {from}, {} before", signal::name(stop.signal), duration(stop.before_s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cause::Sender;

    #[test]
    fn a_signal_is_named_with_its_sender() {
        let sender = |pid, name: Option<&str>| {
            Some(Sender { pid, name: name.map(str::to_owned), user: "alice".to_owned() })
        };
        let words = |ended_by, sender| {
            let signal = Some(StopSignal { signal: libc::SIGTERM, before_s: 2.5, sender });
            words_of_cause(ended_by, &Cause { signal, out_of_memory: None }).unwrap()
        };
        let term = Some(libc::SIGTERM);
        assert_eq!(words(term, sender(7, Some("slurmstepd"))), "from slurmstepd, pid 7, alice");
        assert_eq!(words(term, sender(7, None)), "from pid 7, alice");
        assert_eq!(words(term, sender(0, None)), "from another PID namespace, alice");
        assert_eq!(words(term, None), "from the terminal");
        assert_eq!(words(None, sender(7, Some("kill"))), "SIGTERM from kill, pid 7, alice, 2.5 s before");
        assert_eq!(words(Some(libc::SIGKILL), None), "SIGTERM from the terminal, 2.5 s before");
        assert_eq!(words_of_cause(term, &Cause::default()), None);
    }

    #[test]
    fn a_lack_of_memory_comes_with_its_limit() {
        let words = |ended_by, killed, limit, peak| {
            let out_of_memory = Some(OutOfMemory { killed, limit, peak });
            words_of_cause(ended_by, &Cause { signal: None, out_of_memory }).unwrap()
        };
        let kill = Some(libc::SIGKILL);
        let limit = Some(64 << 20);
        assert_eq!(words(kill, 1, limit, limit), "out of memory: cgroup limit 64.0 MiB, peak 64.0 MiB");
        assert_eq!(words(kill, 1, None, None), "out of memory: the host had none left");
        let one = "out of memory: cgroup limit 64.0 MiB; the kernel killed 1 process of its cgroup";
        assert_eq!(words(None, 1, limit, None), one);
        assert!(words(kill, 3, limit, None).ends_with("; the kernel killed 3 processes of its cgroup"));
    }
}
