//! `gpurun export`: the command around [`crate::writers::export`], with a progress bar where it is seen.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::sys::escape::printable_path;
use crate::writers::WriterError;
use crate::writers::export::{ExportRequest, Exported, export as convert};

/// Inputs smaller than this many bytes are done before a bar could be read.
const WORTH_A_BAR: u64 = 16 << 20;

/// Makes the output (`-` is `out`, as JSON lines); `err` gets what was left out of torn and damaged inputs. A bar is
/// drawn on a terminal only.
pub fn export(
    request: &ExportRequest,
    quiet: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<Exported, WriterError> {
    let show = !quiet && io::stderr().is_terminal();
    let mut bar: Option<ProgressBar> = None;
    let exported = convert(request, out, |done, total| {
        if show && total >= WORTH_A_BAR {
            bar.get_or_insert_with(|| new_bar(total)).set_position(done);
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let exported = exported?;
    for (path, what) in &exported.dropped {
        // A closed stderr does not make the export fail.
        let _ = writeln!(err, "gpurun: {}: {what}", printable_path(path));
    }
    Ok(exported)
}

fn new_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    bar
}
