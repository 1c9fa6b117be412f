//! The `gpurun` command: understand the words, do what they say, answer with a status.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpurun::supervisor::main(std::env::args_os().collect())
}
