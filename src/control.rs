//! The job's socket: messages in, replies out. No input is trusted.
//!
//! This room owns the private directory with its socket, the JSON-lines protocol (`schemas/control.md`),
//! the bounds on what a client may cost, and the shape of the replies. It never aggregates: what a
//! client says becomes [`ControlEvent`]s, and their receiver answers through a [`ReplyHandle`](answer::ReplyHandle).
//!
//! What a client does wrong (a flood, a line without end, invalid bytes, a reply that it does not read, its death
//! inside a tag) costs at most its own marks, and a client never waits for anything here.

mod answer;
mod client;
mod connection;
mod directory;
mod event;
mod event_loop;
mod limits;
mod messages;
mod os;
mod protocol;
pub mod reply;
mod server;
mod stacks;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientError};
pub use directory::find_sockets;
pub use event::{ControlEvent, Settings};
pub use protocol::PROTOCOL_VERSION;
pub use server::Server;

/// Environment variable that names the socket to the job.
pub const SOCKET_VARIABLE: &str = "GPURUN_SOCKET";

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No directory could be had that only we can write to.
    #[error("cannot make a private directory for the job's socket in {path}: {source}")]
    Directory {
        /// The last directory that was tried.
        path: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The socket could not be bound.
    #[error("cannot listen on {path}: {source}")]
    Listen {
        /// The socket's path.
        path: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The thread that serves it could not be started.
    #[error("cannot start the thread of the job's socket: {0}")]
    Thread(std::io::Error),
}
