//! What a behaviour of a limiter is, and what can be said about it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use super::target::Target;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Group {
    Never,
    Keys,
    Fair,
    Truth,
    Forget,
    Accuracy,
    Cost,
}

impl Group {
    pub(crate) const ALL: [Self; 7] =
        [Self::Never, Self::Keys, Self::Fair, Self::Truth, Self::Forget, Self::Accuracy, Self::Cost];

    /// Its name on the command line, and what it asks.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Never => ("never-more", "Never more than N"),
            Self::Keys => ("keys", "Never more than N by another spelling of the key"),
            Self::Fair => ("never-fewer", "Never fewer than N"),
            Self::Truth => ("truth", "What is told is true"),
            Self::Forget => ("forgetting", "Keys are forgotten, but not too early"),
            Self::Accuracy => ("accuracy", "How far from the exact log"),
            Self::Cost => ("cost", "What a decision costs"),
        }
    }
}

/// What a behaviour cannot be measured without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Need {
    /// `--without retry-after` says that refusals do not have it.
    RetryAfter,
    /// `--without ratelimit` says that responses do not have the fields of the RateLimit draft.
    RateLimit,
    /// `--without http2` says that there is no HTTP/2 without TLS.
    Http2,
    Instances,
    Memory,
    FailingPath,
    FreePath,
    AccessLog,
}

impl Need {
    /// The name for `--without`, and the option that gives it, if it takes one.
    pub(crate) fn names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::RetryAfter => ("retry-after", None),
            Self::RateLimit => ("ratelimit", None),
            Self::Http2 => ("http2", None),
            Self::Instances => ("instances", Some("a second --url")),
            Self::Memory => ("memory", Some("--pid")),
            Self::FailingPath => ("failing-path", Some("--failing-path")),
            Self::FreePath => ("free-path", Some("--free-path")),
            Self::AccessLog => ("access-log", Some("--log")),
        }
    }

    pub(crate) fn is_given(self, target: &Target) -> bool {
        match self {
            Self::RetryAfter | Self::RateLimit | Self::Http2 => true,
            Self::Instances => target.instances.len() > 1,
            Self::Memory => target.memory.is_some(),
            Self::FailingPath => target.failing_path.is_some(),
            Self::FreePath => target.free_path.is_some(),
            Self::AccessLog => target.log.is_some(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// Wrong, unless a window of the limiter began in between. Half a window later none does.
    Suspect,
    /// The machine was too slow to tell.
    Undecided,
    NotApplicable,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    /// What was measured, for people.
    pub(crate) figure: String,
}

impl Outcome {
    pub(crate) fn new(verdict: Verdict, figure: impl Into<String>) -> Self {
        Self { verdict, figure: figure.into() }
    }

    pub(crate) fn check(is_right: bool, figure: impl Into<String>) -> Self {
        Self::new(if is_right { Verdict::Passed } else { Verdict::Failed }, figure)
    }

    pub(crate) fn failed(figure: impl Into<String>) -> Self {
        Self::new(Verdict::Failed, figure)
    }

    pub(crate) fn undecided(figure: impl Into<String>) -> Self {
        Self::new(Verdict::Undecided, figure)
    }
}

pub(crate) type Measured = Pin<Box<dyn Future<Output = io::Result<Outcome>> + Send>>;

pub(crate) struct Behaviour {
    pub(crate) id: &'static str,
    pub(crate) group: Group,
    /// What a limiter does that has it.
    pub(crate) sentence: &'static str,
    /// How it is measured.
    pub(crate) measure: &'static str,
    /// Where it comes from.
    pub(crate) source: &'static str,
    /// What goes wrong without it.
    pub(crate) why: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(Arc<Target>) -> Measured,
}

/// An async function of a target as a value.
macro_rules! run {
    ($function:ident) => {
        |target| Box::pin(async move { $function(&target).await })
    };
}
pub(crate) use run;
