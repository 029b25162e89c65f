//! `ban`: keys that a limit has refused too often are refused altogether for a while.

use std::fmt;
use std::time::Duration;

use http::StatusCode;

use crate::base::units;

/// When a limit bans a key, for how long, and how its requests are answered then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// How many refusals of a key are no reason yet, 1 to 10 000.
    pub after: u64,
    /// Within which time they are counted, 1 s to 31 days.
    pub within: Duration,
    /// How long the first ban lasts, 1 s to 31 days.
    pub first: Duration,
    /// How long a ban lasts at most, and how long after one the next lasts twice as long; not less than `first`.
    pub longest: Duration,
    /// How requests are answered that come meanwhile.
    pub respond: BanResponse,
}

/// What is banned, and how its requests are answered: the end of a sentence.
impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [within, first, longest] = [self.within, self.first, self.longest].map(units::spelled_duration);
        let (after, answered) = (self.after, self.respond.in_words());
        write!(f, "keys with more than {after} refusals within {within} for {first}, then up to {longest}: {answered}")
    }
}

/// How a request of a banned key is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanResponse {
    /// 429, with the time at which the ban ends.
    Reject,
    /// 403.
    Forbid,
    /// The connection is closed without a response, or the stream is reset in HTTP/2. Through a trusted proxy: 403 without a body.
    Close,
}

impl BanResponse {
    /// The status of the response. Where there is none, it is that which is not sent.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Reject => StatusCode::TOO_MANY_REQUESTS,
            Self::Forbid | Self::Close => StatusCode::FORBIDDEN,
        }
    }

    /// What happens to a request, in words.
    pub fn in_words(self) -> String {
        match self {
            Self::Reject | Self::Forbid => format!("answered {}", self.status().as_u16()),
            Self::Close => {
                "their connections are closed without a response, their HTTP/2 streams are reset, and through \
                            trusted proxies they are answered 403 without a body"
                    .to_owned()
            }
        }
    }
}
