//! The signals that the process handles.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal tells the process to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Read the configuration again (SIGHUP).
    Reload,
    /// Open the file of the access log again (SIGUSR1).
    Reopen,
    /// Stop (SIGTERM or SIGINT).
    Stop,
}

/// The signals that are handled. Without a handler each would end the process. Rust's runtime ignores SIGPIPE.
pub(super) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// Handles signals from now on. It has to be called in a runtime.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next signal. SIGUSR2 is only logged: it makes other servers upgrade themselves, so scripts may send it.
    pub(super) async fn next(&mut self) -> Told {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => return Told::Reload,
                _ = self.terminate.recv() => return Told::Stop,
                _ = self.interrupt.recv() => return Told::Stop,
                _ = self.user1.recv() => return Told::Reopen,
                _ = self.user2.recv() => {}
            }
            tracing::info!(signal = "SIGUSR2", "the signal is ignored: it has no meaning here");
        }
    }
}
