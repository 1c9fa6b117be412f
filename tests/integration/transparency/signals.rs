//! Signals to gpurun, to the job and to both.

use super::*;

/// Every signal that can be forwarded.
fn forwardable() -> impl Iterator<Item = i32> {
    (1..=64).filter(|s| ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(s))
}

/// A signal used to see that those before it are through.
fn marker(signal: i32) -> i32 {
    if signal == libc::SIGRTMAX() { libc::SIGRTMIN() } else { libc::SIGRTMAX() }
}

#[test]
fn every_signal_sent_to_gpurun_reaches_the_job_once() {
    for way in BOTH {
        let mut running = Running::start(way, &["count"]);
        for signal in forwardable() {
            kill(running.outer(), signal);
            let mut got = running.first_signals();
            got.extend(running.signals_up_to(marker(signal)));
            assert_eq!(got, [signal.to_string()], "{way:?}");
        }
        assert_eq!(running.end().0, "code 0", "{way:?}");
    }
}

#[test]
fn repeated_interrupts_all_reach_the_job() {
    for way in BOTH {
        let mut running = Running::start(way, &["count"]);
        for _ in 0..3 {
            kill(running.outer(), libc::SIGINT);
            assert_eq!(running.first_signals(), ["2"], "{way:?}");
        }
        assert_eq!(running.end().0, "code 0", "{way:?}");
    }
}

#[test]
fn queued_signals_keep_their_number_and_their_values() {
    for way in BOTH {
        let mut running = Running::start(way, &["count"]);
        for value in [11usize, 22, 33] {
            let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
            // SAFETY: queues a signal to a process this test started.
            assert_eq!(unsafe { libc::sigqueue(running.outer(), libc::SIGRTMIN() + 1, value) }, 0);
        }
        let rt = libc::SIGRTMIN() + 1;
        let mut got = Vec::new();
        until("all three", || {
            got.extend(running.signals());
            got.len() >= 3
        });
        assert_eq!(got, [11, 22, 33].map(|v| format!("{rt}={v}")), "{way:?}");
        running.end();
    }
}

#[test]
fn a_signal_to_one_thread_of_gpurun_is_forwarded() {
    let mut running = Running::start(Way::Wrapped, &["count"]);
    let pid = running.outer();
    // SAFETY: signals the main thread of a process this test started.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::c_long::from(pid), libc::c_long::from(pid), 12) };
    assert_eq!(running.first_signals(), ["12"]);
    running.end();
}

/// Waits until the child with which the sidecar tries the driver library is over: the kernel keeps one SIGCHLD, and one of
/// that child's hides one that the test sends.
fn sidecar_is_idle(running: &Running) {
    let sidecar = sidecar_of(running.child.id());
    let children = format!("/proc/{sidecar}/task/{sidecar}/children");
    let status = format!("/proc/{sidecar}/status");
    until("the sidecar has no child and no signal", || {
        let alone = std::fs::read_to_string(&children).unwrap().is_empty();
        let status = std::fs::read_to_string(&status).unwrap();
        alone && status.contains("ShdPnd:\t0000000000000000")
    });
}

#[test]
fn a_signal_to_the_whole_group_arrives_once() {
    for signal in forwardable().filter(|signal| *signal != libc::SIGRTMAX()) {
        let seen = BOTH.map(|way| {
            let mut running = Running::start(way, &["count"]);
            if way == Way::Wrapped {
                sidecar_is_idle(&running);
            }
            kill(-running.outer(), signal);
            // The marker goes to the outer process alone and is passed on after whatever came before.
            let got = running.signals_up_to(libc::SIGRTMAX());
            running.end();
            got
        });
        assert_eq!(seen[0], [signal.to_string()]);
        assert_eq!(seen[0], seen[1]);
    }
}

#[test]
fn what_the_job_sends_to_its_own_group_is_not_echoed() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGCONT, libc::SIGRTMIN()]
    {
        let seen = BOTH.map(|way| {
            let mut run = command(way, &job_argv(&["kill-group", &signal.to_string()]));
            Shown::of(&run.process_group(0).output().unwrap())
        });
        assert_eq!(seen[0].stdout, format!("signals {signal} \n"));
        assert_eq!(seen[0], seen[1]);
    }
}

#[test]
fn the_end_by_a_signal_to_gpurun_is_the_jobs_end() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGALRM] {
        for way in BOTH {
            let mut running = Running::start(way, &["wait"]);
            kill(running.outer(), signal);
            let status = finish(&mut running.child);
            assert_eq!(describe(status), format!("signal {signal}"), "{way:?}");
            assert!(!alive(running.job), "{way:?}");
        }
    }
}

#[test]
fn a_python_job_sees_keyboard_interrupt() {
    let script = "import os, sys\ntry:\n print('ready', os.getpid(), flush=True)\n sys.stdin.read()\nexcept KeyboardInterrupt:\n print('interrupted', flush=True)\n sys.exit(7)";
    for way in BOTH {
        let mut running = Running::start_command(command(way, &["python3", "-c", script]));
        kill(running.outer(), libc::SIGINT);
        // stdin stays open until it has ended: only the signal can have done it.
        finish(&mut running.child);
        let (status, said) = running.end();
        assert_eq!((status.as_str(), said.as_str()), ("code 7", "interrupted\n"), "{way:?}");
    }
}

#[test]
fn a_job_that_ignores_term_is_not_killed() {
    let mut running = Running::start(Way::Wrapped, &["ignore-term"]);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGTERM] {
        kill(running.outer(), signal);
    }
    // KILL to the job is the only thing that ends it, and only once it is sent.
    assert!(alive(running.job));
    kill(running.job, libc::SIGKILL);
    assert_eq!(describe(finish(&mut running.child)), "signal 9");
}

/// Waits until a child of the test is stopped and says by which signal.
pub(super) fn stopped_by(pid: i32) -> i32 {
    let mut signal = 0;
    until("it stops", || {
        let mut status = 0;
        // SAFETY: asks for a stop of the test's own child without waiting.
        let got = unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED | libc::WNOHANG) };
        if got == pid {
            assert!(libc::WIFSTOPPED(status), "ended instead: {status:x}");
            signal = libc::WSTOPSIG(status);
        }
        got == pid
    });
    signal
}

#[test]
fn terminal_stops_stop_gpurun_with_the_job_and_cont_continues_both() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        for way in BOTH {
            // By a signal from outside, twice.
            let running = Running::start(way, &["wait"]);
            for _ in 0..2 {
                kill(running.outer(), signal);
                assert_eq!(stopped_by(running.outer()), signal, "{way:?}");
                assert_eq!(state(running.job), Some('T'), "{way:?}");
                kill(running.outer(), libc::SIGCONT);
                until("the job runs again", || state(running.job) == Some('S'));
            }
            assert_eq!(running.end().0, "code 0", "{way:?} {signal}");

            // By the job itself.
            let mut run = command(way, &job_argv(&["stop-self", &signal.to_string()]));
            let mut child = run.process_group(0).stdout(Stdio::null()).spawn().unwrap();
            assert_eq!(stopped_by(pid_of(&child)), signal, "{way:?}");
            kill(pid_of(&child), libc::SIGCONT);
            assert_eq!(describe(finish(&mut child)), "code 5", "{way:?} {signal}");
        }
    }
}

#[test]
fn stop_and_continue_of_the_whole_group_in_quick_succession_never_hang() {
    let running = Running::start(Way::Wrapped, &["wait"]);
    for _ in 0..300 {
        kill(-running.outer(), libc::SIGTSTP);
        kill(-running.outer(), libc::SIGCONT);
    }
    assert_eq!(running.end().0, "code 0");
}

#[test]
fn a_sigstop_of_the_job_alone_leaves_gpurun_watching() {
    let running = Running::start(Way::Wrapped, &["wait"]);
    kill(running.job, libc::SIGSTOP);
    until("the job is stopped", || state(running.job) == Some('T'));
    kill(running.outer(), libc::SIGCONT);
    until("the job runs again", || state(running.job) == Some('S'));
    assert_ne!(state(running.outer()), Some('T'));
    assert_eq!(running.end().0, "code 0");
}

#[test]
fn a_stopped_gpurun_does_not_stop_the_job() {
    let mut running = Running::start(Way::Wrapped, &["count"]);
    kill(running.outer(), libc::SIGSTOP);
    assert_eq!(stopped_by(running.outer()), libc::SIGSTOP);
    assert_eq!(running.signals(), Vec::<String>::new());
    kill(running.outer(), libc::SIGUSR1);
    kill(running.outer(), libc::SIGCONT);
    let mut got = Vec::new();
    until("both signals are through", || {
        got.extend(running.signals());
        got.len() >= 2
    });
    got.sort();
    assert_eq!(got, ["10", "18"]);
    assert_eq!(running.end().0, "code 0");
}
