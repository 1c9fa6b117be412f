//! The `gpurun` command: understand the words, do what they say, answer with a status.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(gpurun::program::main(std::env::args_os().collect()))
}

/// Rust's runtime ignores SIGPIPE and opens `/dev/null` on closed descriptors before `main`; the job must get neither, so
/// what gpurun was started with is looked at before.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_BEFORE_THE_RUNTIME: extern "C" fn() = {
    extern "C" fn look() {
        gpurun::program::inherited();
    }
    look
};
