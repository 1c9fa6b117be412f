//! `/proc/PID/stat`: what the kernel says of one process in one line.

use super::text::{number, signed, words};

/// What gpurun uses of the file. Times are in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// State letter; `Z` is a zombie.
    pub state: u8,
    /// Parent, as of now.
    pub ppid: i32,
    /// User and system time of the process, ended threads included.
    pub own_ticks: u64,
    /// User and system time of the children that it has waited for.
    pub children_ticks: u64,
    /// Number of threads.
    pub threads: u64,
    /// Start, in ticks since boot.
    pub start_ticks: u64,
}

impl Stat {
    /// Reads the file of a process that this `/proc` shows; `None` where there is none.
    pub fn read(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the file's text.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (_, close) = name_bounds(text)?;
        let mut fields = words(text.get(close + 1..)?);
        let state = *fields.next()?.first()?;
        let ppid = i32::try_from(signed(fields.next()?)?).ok()?;
        // Fields 5-13: pgrp, session, tty, tpgid, flags, minflt, cminflt, majflt, cmajflt.
        let user = number(fields.nth(9)?)?;
        let system = number(fields.next()?)?;
        // The children's times are signed in the kernel's format.
        let children_user = u64::try_from(signed(fields.next()?)?).unwrap_or(0);
        let children_system = u64::try_from(signed(fields.next()?)?).unwrap_or(0);
        // Fields 18, 19: priority, nice.
        let threads = u64::try_from(signed(fields.nth(2)?)?).ok()?;
        let start_ticks = number(fields.nth(1)?)?;
        Some(Self {
            state,
            ppid,
            own_ticks: user.saturating_add(system),
            children_ticks: children_user.saturating_add(children_system),
            threads,
            start_ticks,
        })
    }

    /// Whether its first thread has ended: the process is a zombie, unless other threads live.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// The name in a file's text; any bytes.
pub fn name(text: &[u8]) -> Option<&[u8]> {
    let (open, close) = name_bounds(text)?;
    text.get(open + 1..close)
}

/// Where the brackets around the name are. It may hold anything, `) ` included; none of the fields after it holds a
/// bracket.
fn name_bounds(text: &[u8]) -> Option<(usize, usize)> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')').filter(|close| *close > open)?;
    Some((open, close))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stat_text(comm: &[u8]) -> Vec<u8> {
        let mut text = b"42 (".to_vec();
        text.extend_from_slice(comm);
        text.extend_from_slice(
            b") S 7 42 42 0 -1 4194304 100 200 3 4 50 60 70 80 20 0 9 0 123456 1000 250 18446744073709551615 1 1\n",
        );
        text
    }

    #[test]
    fn stat_fields_are_where_proc_5_says() {
        let text = stat_text(b"python");
        let stat = Stat::parse(&text).unwrap();
        assert_eq!(name(&text), Some(&b"python"[..]));
        assert_eq!((stat.state, stat.ppid, stat.threads, stat.start_ticks), (b'S', 7, 9, 123_456));
        assert_eq!((stat.own_ticks, stat.children_ticks), (110, 150));
    }

    #[test]
    fn a_torn_stat_is_none() {
        let text = stat_text(b"x");
        for cut in 0..60 {
            assert_eq!(Stat::parse(&text[..cut]), None, "cut at {cut}");
        }
        assert_eq!(Stat::parse(b") ("), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Stat::parse(&text), name(&text));
        }

        #[test]
        fn any_name_leaves_the_fields_alone(comm in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = stat_text(&comm);
            let parsed = Stat::parse(&text).unwrap();
            prop_assert_eq!(name(&text), Some(&comm[..]));
            prop_assert_eq!((parsed.ppid, parsed.start_ticks), (7, 123_456));
        }

        #[test]
        fn names_with_brackets_and_blanks(parts in prop::collection::vec(prop::sample::select(vec![") ", "(", ")", " ", ") S 1 ", "\n"]), 0..8)) {
            let comm = parts.concat();
            let text = stat_text(comm.as_bytes());
            let parsed = Stat::parse(&text).unwrap();
            prop_assert_eq!(name(&text), Some(comm.as_bytes()));
            prop_assert_eq!(parsed.ppid, 7);
        }
    }

    #[test]
    fn this_process_is_running() {
        let stat = Stat::read(std::process::id().cast_signed()).unwrap();
        assert!(!stat.has_ended() && stat.start_ticks > 0);
        assert_eq!(Stat::read(i32::MAX), None);
    }
}
