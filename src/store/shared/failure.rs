//! Why a server cannot be used, or not any more.

use std::fmt;
use std::io;

/// The input is no reply to what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage;

#[derive(Debug)]
pub enum LinkFailure {
    Io(io::Error),
    Closed,
    Silent,
    Garbage,
    /// The server answered, but refused all that it was asked.
    Failed(String),
    /// It cannot be used as the configuration says.
    Refused(String),
}

impl fmt::Display for LinkFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Silent => f.write_str("it did not answer in time"),
            Self::Garbage => f.write_str("its answer does not follow the protocol"),
            Self::Failed(answer) => write!(f, "it answered \"{answer}\""),
            Self::Refused(why) => f.write_str(why),
        }
    }
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

impl From<io::Error> for LinkFailure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Garbage> for LinkFailure {
    fn from(_: Garbage) -> Self {
        Self::Garbage
    }
}
