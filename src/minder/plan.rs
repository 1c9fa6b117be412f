//! What the minder is to do.

use std::ffi::OsString;
use std::time::Duration;

use crate::model::selection::Patience;
use crate::sys::notice::Notices;

/// What the user asked for, as far as it concerns the job's process.
pub struct Plan {
    /// The job's command line, byte for byte.
    pub command: Vec<OsString>,
    /// `--kill-after`.
    pub kill_after: Option<Duration>,
    /// `--kill-tree`.
    pub kill_tree: bool,
    /// `--die-together`.
    pub die_together: bool,
    /// GPUs are chosen before the job starts; how long that may take.
    pub choice: Option<Patience>,
    /// Messages to the user.
    pub notices: Notices,
}
