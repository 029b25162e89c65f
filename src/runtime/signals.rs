//! Signals: what the process is told from outside.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// SIGHUP: to read the configuration again.
    Reload,
    /// SIGTERM or SIGINT: to stop.
    Stop,
}

/// The signals that are listened to; each would end the process otherwise. SIGPIPE is ignored by Rust's runtime.
pub(super) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// Listens from now on. Must be called in a runtime.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// What is asked next. Other servers reopen their logs or upgrade themselves on SIGUSR1 and SIGUSR2, so somebody may
    /// send them here; they are logged only.
    pub(super) async fn next(&mut self) -> Told {
        loop {
            let ignored = tokio::select! {
                _ = self.hangup.recv() => return Told::Reload,
                _ = self.terminate.recv() => return Told::Stop,
                _ = self.interrupt.recv() => return Told::Stop,
                _ = self.user1.recv() => "SIGUSR1",
                _ = self.user2.recv() => "SIGUSR2",
            };
            tracing::info!(signal = ignored, "a signal that means nothing here is ignored");
        }
    }
}
