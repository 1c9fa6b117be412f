//! The messages between the minder and the sidecar, and the socket pair that carries them.
//!
//! One packet is one message, little-endian, a tag byte first. The minder encodes into a buffer on the stack and never
//! waits: after the start of the job it must not depend on memory or on the other side. What it reads comes from a
//! process that has loaded a driver, so anything that is not a whole message is dropped.

mod message;
mod socket;

pub use message::{Job, MAX_LEFT, Ready, ReapedProcess, StopRequest, ToMinder, ToSidecar, Witnessed};
pub use socket::{Closed, MinderEnd, SidecarEnd, pair, send_raw};
