//! A terminal with a job-control shell on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::harness::{PATIENCE, finish, pid_of};

/// The test's end of the terminal and the session leader at the other.
pub(crate) struct Terminal {
    master: Option<File>,
    leader: Child,
    text: String,
    /// How much of `text` was expected already.
    seen: usize,
}

impl Terminal {
    /// An interactive bash without start-up files.
    pub(crate) fn bash() -> Terminal {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "-i"]).env("PS1", "PROMPT> ").env("TERM", "dumb");
        let mut terminal = Self::with(bash);
        terminal.expect("PROMPT> ");
        terminal
    }

    /// Any program as the leader of the session.
    pub(crate) fn with(mut command: Command) -> Terminal {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: opens two descriptors, owned right below.
        let (master, slave) = unsafe {
            let null = std::ptr::null_mut();
            assert_eq!(libc::openpty(&mut master, &mut slave, null, std::ptr::null(), &size), 0);
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            (File::from_raw_fd(master), File::from_raw_fd(slave))
        };
        let copy = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: between fork and exec only system calls: a new session with this terminal.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                if libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let leader = command.spawn().unwrap();
        drop((command, slave));
        Terminal { master: Some(master), leader, text: String::new(), seen: 0 }
    }

    pub(crate) fn leader(&self) -> i32 {
        pid_of(&self.leader)
    }

    /// Types.
    pub(crate) fn type_in(&mut self, keys: &str) {
        self.master.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the size of the window.
    pub(crate) fn resize(&mut self, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: hands one structure to the terminal.
        unsafe { libc::ioctl(self.master.as_ref().unwrap().as_raw_fd(), libc::TIOCSWINSZ, &size) };
    }

    /// Reads until `what` appears after what was expected before; returns all from there up to its end.
    pub(crate) fn expect(&mut self, what: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.text[self.seen..].find(what) {
                let until = self.seen + at + what.len();
                let got = self.text[self.seen..until].to_owned();
                self.seen = until;
                return got;
            }
            let master = self.master.as_mut().unwrap();
            let mut poll = libc::pollfd { fd: master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live pollfd.
            let ready = unsafe { libc::poll(&mut poll, 1, 100) };
            if ready == 1 {
                let mut buffer = [0u8; 4096];
                let n = master.read(&mut buffer).unwrap_or(0);
                assert!(n > 0, "terminal closed before {what:?}:\n{}", self.text);
                self.text.push_str(&String::from_utf8_lossy(&buffer[..n]));
            }
            assert!(Instant::now() < end, "no {what:?} in\n{}", self.text);
        }
    }

    /// Runs a line and returns what it showed before the next prompt.
    pub(crate) fn run(&mut self, line: &str) -> String {
        self.type_in(&format!("{line}\n"));
        self.expect("\r\n");
        self.expect("PROMPT> ")
    }

    /// The status of the last command.
    pub(crate) fn status(&mut self) -> String {
        let text = self.run("echo \"status=$?\"");
        text.lines().find_map(|l| l.strip_prefix("status=")).unwrap_or(&text).trim().to_owned()
    }

    /// Closes the terminal, as when its window is closed, and waits for the leader's end.
    pub(crate) fn hang_up(mut self) {
        drop(self.master.take());
        finish(&mut self.leader);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.master.take());
        if self.leader.try_wait().ok().flatten().is_none() {
            let _ = self.leader.kill();
            let _ = self.leader.wait();
        }
    }
}
