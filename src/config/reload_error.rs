//! Why a new configuration is refused.

use std::fmt;
use std::path::PathBuf;

use super::Problems;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadError {
    /// The text is not valid.
    Invalid(Box<Problems>),
    /// A sentence about something else.
    Other(String),
}

impl ReloadError {
    /// The files that the refused configuration names, as far as they are known.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let problems = match self {
            Self::Invalid(problems) => Some(problems),
            Self::Other(_) => None,
        };
        problems.into_iter().flat_map(|problems| problems.files())
    }
}

impl From<Problems> for ReloadError {
    fn from(problems: Problems) -> Self {
        Self::Invalid(Box::new(problems))
    }
}

impl From<String> for ReloadError {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(problems) => problems.fmt(f),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ReloadError {}
