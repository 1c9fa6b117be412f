//! The server as the rest of gpurun sees it: started, asked for its path, stopped. Its work is done on a thread.

use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use super::ControlError;
use super::answer::Answers;
use super::directory::SocketDirectory;
use super::event::{ControlEvent, Settings, Shared};
use super::event_loop::EventLoop;
use super::limits::Tally;
use crate::model::loss::Losses;

/// The running server. Its socket and directory disappear when it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    socket: PathBuf,
    done: Receiver<()>,
}

impl Server {
    /// Makes the private directory, listens, and starts the thread.
    ///
    /// `sink` takes each event on the server's thread and must not block. It hands an event back when
    /// it has no room; the server keeps it and tries again. Once there is no receiver any more it should take
    /// everything and drop it. [`Server::sink`] makes one of a bounded channel.
    ///
    /// # Errors
    /// No private directory, no socket in it, or no thread. None of them need stop a run: the job then
    /// simply has no socket to talk to.
    pub fn start<S>(settings: Settings, sink: S) -> Result<Self, ControlError>
    where
        S: FnMut(ControlEvent) -> Result<(), ControlEvent> + Send + 'static,
    {
        let (directory, listener) = SocketDirectory::listen(settings.dir.as_deref(), settings.pid)?;
        let socket = directory.socket().to_path_buf();
        let pair = || -> io::Result<_> {
            let (woken, wake) = UnixStream::pair()?;
            woken.set_nonblocking(true)?;
            wake.set_nonblocking(true)?;
            Ok((woken, wake))
        };
        let (woken, wake) = pair().map_err(ControlError::Thread)?;
        let shared = Arc::new(Shared {
            answers: Arc::new(Answers::new(wake)),
            stopping: AtomicBool::new(false),
            losses: Tally::default(),
        });
        let (finished, done) = sync_channel(1);
        let events = EventLoop::new(settings, (directory, listener), woken, Arc::clone(&shared), sink);
        std::thread::Builder::new()
            .name("gpurun-control".to_owned())
            .spawn(move || {
                // A bug here must cost the job its marks, never its life; `stop` sees `done`.
                let _ = catch_unwind(AssertUnwindSafe(move || events.serve()));
                let _ = finished.try_send(());
            })
            .map_err(ControlError::Thread)?;
        Ok(Self { shared, socket, done })
    }

    /// A sink that puts events, made into the engine's own by `wrap`, into a bounded channel. Events are
    /// handed back by `unwrap` when it is full and dropped when the receiver is gone.
    pub fn sink<E, W, U>(
        channel: SyncSender<E>,
        wrap: W,
        unwrap: U,
    ) -> impl FnMut(ControlEvent) -> Result<(), ControlEvent> + Send + 'static
    where
        E: Send + 'static,
        W: Fn(ControlEvent) -> E + Send + 'static,
        U: Fn(E) -> Option<ControlEvent> + Send + 'static,
    {
        move |event| match channel.try_send(wrap(event)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            Err(TrySendError::Full(event)) => unwrap(event).map_or(Ok(()), Err),
        }
    }

    /// The socket's path, for `GPURUN_SOCKET`.
    pub fn path(&self) -> &Path {
        &self.socket
    }

    /// What was lost so far.
    #[cfg(test)]
    pub fn losses(&self) -> Losses {
        self.shared.losses.read()
    }

    /// Delivers what clients have sent, closes their stacks, ends the thread and removes the socket.
    ///
    /// Waits at most `timeout`. Events still go to the sink meanwhile: another thread must receive them, or
    /// only those that find room arrive.
    pub fn stop(self, timeout: Duration) -> Losses {
        self.tell_to_stop();
        // A thread that is stuck in the sink is left behind; the process is about to end.
        let _ = self.done.recv_timeout(timeout);
        self.shared.losses.read()
    }

    fn tell_to_stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.answers.wake();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tell_to_stop();
    }
}
