//! The hidden subcommand that prints CUDA's own order of the GPUs, one UUID a line.

use std::io::Write;

use super::print::printed;
use crate::cli::exit::Exit;
use crate::collectors::cuda;
use crate::sys::notice::{Notices, Verbosity};

/// Asks libcuda, which stays in this short-lived process.
pub(super) fn print(out: &mut dyn Write, stderr: &mut dyn Write) -> Exit {
    match cuda::device_order() {
        Ok(order) => {
            let lines: String = order.into_iter().map(|uuid| format!("{uuid}\n")).collect();
            printed(out.write_all(lines.as_bytes()), out, Exit::Ok, &Notices::new(Verbosity::Normal))
        }
        Err(error) => {
            // The parent quotes the line.
            let _ = writeln!(stderr, "{error}");
            Exit::Failed
        }
    }
}
