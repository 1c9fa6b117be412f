//! The `gpurun` command: understand the words, do what they say, answer with a status.

// Rust's runtime would ignore SIGPIPE, handle SIGSEGV and read its own memory map before the first line: see `entry`.
#![no_main]

use std::ffi::{c_char, c_int};

/// What the C runtime starts.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: what the C runtime gives to `main`, before there is another thread.
    unsafe { gpurun::launch::entry::run(argc, argv, |words| gpurun::supervisor::main(words).code()) }
}
