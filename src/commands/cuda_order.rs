//! The hidden subcommand that prints CUDA's own order of the GPUs, one UUID a line.

use std::io::Write;

use crate::cli::exit::Exit;
use crate::collectors::cuda;

/// Asks libcuda, which stays in this short-lived process.
pub(super) fn print(stdout: &mut dyn Write, stderr: &mut dyn Write) -> Exit {
    match cuda::device_order() {
        Ok(order) => {
            for uuid in order {
                let _ = writeln!(stdout, "{uuid}");
            }
            Exit::Ok
        }
        Err(error) => {
            let _ = writeln!(stderr, "{error}");
            Exit::Failed
        }
    }
}
