//! The signals that the process handles.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalAction {
    /// SIGHUP.
    Reload,
    /// SIGUSR1.
    Reopen,
    /// SIGTERM or SIGINT.
    Stop,
}

/// Signals that are handled before the configuration is read, so that scripts which send them end no gateway that is
/// starting. Signals that arrive meanwhile take effect after the start.
pub(super) struct EarlySignals {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl EarlySignals {
    /// Must be called in a runtime.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }
}

/// All handled signals. Without a handler each would end the process. Rust's runtime ignores SIGPIPE.
pub(super) struct Signals {
    early: EarlySignals,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Must be called in the same runtime.
    pub(super) fn listen(early: EarlySignals) -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { early, terminate, interrupt })
    }

    /// Waits for the next signal. SIGUSR2 is only logged: it makes other servers upgrade themselves, so scripts may send it.
    pub(super) async fn next(&mut self) -> SignalAction {
        loop {
            tokio::select! {
                _ = self.early.hangup.recv() => return SignalAction::Reload,
                _ = self.terminate.recv() => return SignalAction::Stop,
                _ = self.interrupt.recv() => return SignalAction::Stop,
                _ = self.early.user1.recv() => return SignalAction::Reopen,
                _ = self.early.user2.recv() => {}
            }
            tracing::info!(signal = "SIGUSR2", "the signal is ignored: it has no meaning here");
        }
    }
}
