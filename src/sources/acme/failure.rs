//! Why an order of a certificate has failed, and who is responsible.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use instant_acme::Error;

use super::client::{NoAnswer, RetryAfter};
use crate::base::printable::printable;

/// The cause of a failed order, which decides when the order is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The authority does not answer, or has an internal error and may have lost its state.
    Away,
    /// The authority asks to wait, because it was asked too often.
    Limited,
    /// The authority refuses, mostly because its check of a name has failed.
    Refused,
    Unusable,
    /// The files in the state folder cannot be used.
    Files,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Away, Self::Limited, Self::Refused, Self::Unusable, Self::Files];

    /// For logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Limited => "limited",
            Self::Refused => "refused",
            Self::Unusable => "unusable",
            Self::Files => "files",
        }
    }
}

#[derive(Debug)]
pub(super) struct OrderFailure {
    pub(super) kind: Kind,
    pub(super) why: String,
    /// The pause that the authority asks for.
    pub(super) retry_after: Option<Duration>,
    /// Whether the authority knows no account with this key.
    pub(super) is_without_account: bool,
}

impl fmt::Display for OrderFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl OrderFailure {
    /// `why` may come from somebody else, so unprintable characters are replaced.
    pub(super) fn new(kind: Kind, why: impl fmt::Display) -> Self {
        Self { kind, why: printable(&why.to_string()), retry_after: None, is_without_account: false }
    }

    /// A failed request to the authority, which may have asked for a pause.
    pub(super) fn of(error: &Error, told: &RetryAfter) -> Self {
        let (kind, is_without_account) = match error {
            Error::Api(problem) => {
                let name = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
                let kind = match (name, problem.status) {
                    (Some("rateLimited"), _) | (_, Some(429)) => Kind::Limited,
                    // An unknown nonce says nothing about the order (RFC 8555, section 6.5).
                    (Some("serverInternal" | "badNonce"), _) | (_, Some(500..)) => Kind::Away,
                    _ => Kind::Refused,
                };
                (kind, name == Some("accountDoesNotExist"))
            }
            Error::Timeout(_) => (Kind::Away, false),
            Error::Other(error) => (
                match error.downcast_ref::<NoAnswer>() {
                    Some(NoAnswer::Status(StatusCode::TOO_MANY_REQUESTS)) => Kind::Limited,
                    Some(NoAnswer::Status(status)) if !status.is_server_error() => Kind::Refused,
                    Some(NoAnswer::Status(_) | NoAnswer::Fetch(_)) => Kind::Away,
                    Some(NoAnswer::Url(_)) | None => Kind::Unusable,
                },
                false,
            ),
            _ => (Kind::Unusable, false),
        };
        Self { retry_after: told.take(), is_without_account, ..Self::new(kind, error) }
    }
}
