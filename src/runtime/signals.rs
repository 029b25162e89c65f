//! The signals that the process handles.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal tells the process to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Read the configuration again (SIGHUP).
    Reload,
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

    /// Waits for the next signal. SIGUSR1 and SIGUSR2 are only logged: they make other servers reopen their logs or upgrade
    /// themselves, so scripts may send them.
    pub(super) async fn next(&mut self) -> Told {
        loop {
            let ignored = tokio::select! {
                _ = self.hangup.recv() => return Told::Reload,
                _ = self.terminate.recv() => return Told::Stop,
                _ = self.interrupt.recv() => return Told::Stop,
                _ = self.user1.recv() => "SIGUSR1",
                _ = self.user2.recv() => "SIGUSR2",
            };
            tracing::info!(signal = ignored, "the signal is ignored: it has no meaning here");
        }
    }
}
