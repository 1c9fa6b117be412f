//! Spawning, signals in and out, reaping, exit status. Knows nothing of metrics.
//!
//! The order in which the supervisor uses it:
//!
//! 1. [`SignalHold::new`] first thing in `main`, before any thread starts: from then on no signal can
//!    end gpurun between "the job exists" and "its exit status is known". While gpurun only waits for a
//!    GPU, [`SignalHold::released`] lets signals act as on any other program.
//! 2. [`spawn()`] on the main thread. The child is gpurun's direct child, in the same process group and
//!    session, with what [`inherited()`] saw at its start.
//! 3. [`Launcher::next_event`] until [`JobEvent::MainExited`], then [`Launcher::leftovers`] or
//!    [`Launcher::kill_tree`].
//! 4. [`exit::leave`] as the very last thing.

mod bare;
pub mod entry;
pub mod exit;
mod inherited;
mod launcher;
mod origin;
mod signals;
mod spawn;
mod stderr;
mod termination;
mod tree;
mod watch;

pub use crate::model::signal::name as signal_name;
pub use bare::BareThread;
pub use inherited::{Inherited, inherited};
pub use launcher::{JobEvent, Launcher, Reaped};
pub use origin::NotForwarded;
pub use signals::{SignalHold, SignalSet};
pub use spawn::{JobCommand, LaunchError, raise_descriptor_limit, spawn};
pub use stderr::NonBlockingStderr;
pub use termination::Termination;
pub use tree::{KillReport, Leftover};
pub use watch::{Watch, WatchEvent};
