//! What the engine is to do.

use std::path::PathBuf;

use crate::cli::logging::Logging;
use crate::model::run::RunInfo;
use crate::model::window::WindowBatch;
use crate::sampling::TreeRoot;
use crate::sys::notice::Notices;
use crate::writers::Opened;

use super::super::watched::Watched;

/// What a library user hears of each window of the root tag.
pub type OnWindow = Box<dyn FnMut(&WindowBatch) + Send>;

/// What the engine is to do.
pub struct EngineSettings {
    /// The logging options as meant.
    pub logging: Logging,
    /// Which processes are the job.
    pub root: TreeRoot,
    /// Which devices are watched, and how they are found.
    pub watched: Watched,
    /// NVML library to load; `None` searches the usual names.
    pub library: Option<PathBuf>,
    /// The targets, already open.
    pub targets: Option<Opened>,
    /// What is known about the run; devices, driver and series are filled in here.
    pub run: RunInfo,
    /// Called with each window of the root tag (the library's callback).
    pub on_window: Option<OnWindow>,
    /// Where messages to the user go.
    pub notices: Notices,
}
