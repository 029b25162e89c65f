//! Why a server cannot be used, or not any more.

use std::io;

/// The input is no reply to what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage;

#[derive(Debug, thiserror::Error)]
pub enum LinkFailure {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it closed the connection")]
    Closed,
    #[error("it did not answer in time")]
    Silent,
    #[error("its answer does not follow the protocol")]
    Garbage,
    /// The server answered, but refused all that it was asked.
    #[error("it answered \"{0}\"")]
    Failed(String),
    /// It cannot be used as the configuration says.
    #[error("{0}")]
    Refused(String),
}

impl LinkFailure {
    /// Whether most likely the configuration is wrong, not the server away: also if another kind of server answers, or TLS fails.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Garbage => true,
            Self::Io(error) => error.kind() == io::ErrorKind::InvalidData,
            Self::Closed | Self::Silent | Self::Failed(_) => false,
        }
    }

    /// It refuses a command that is needed.
    pub(super) fn refused(command: &str, answer: &[u8]) -> Self {
        Self::Refused(format!("it refuses {command}: it answered \"{}\"", String::from_utf8_lossy(answer)))
    }
}

impl From<Garbage> for LinkFailure {
    fn from(_: Garbage) -> Self {
        Self::Garbage
    }
}
