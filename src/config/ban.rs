//! `ban`: all requests of a key are refused for a while after a limit has refused too many of them.

use std::fmt;
use std::time::Duration;

use http::StatusCode;

use crate::base::units;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// More refusals than this ban the key, 1 to 10 000.
    pub after: u64,
    /// The time within which refusals are counted, 1 s to 31 days.
    pub within: Duration,
    /// The length of the first ban, 1 s to 31 days.
    pub first: Duration,
    /// The length of the longest ban, at least `first`. A ban that begins within this time after the end of another lasts
    /// twice as long.
    pub longest: Duration,
    pub respond: BanResponse,
}

/// The end of a sentence: which keys are banned, and how their requests are answered.
impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [within, first, longest] = [self.within, self.first, self.longest].map(units::spelled_duration);
        let (after, answered) = (self.after, self.respond.in_words());
        write!(f, "keys with more than {after} refusals within {within} for {first}, then up to {longest}: {answered}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanResponse {
    /// 429, with the time at which the ban ends.
    Reject,
    /// 403.
    Forbid,
    /// Closes the connection without a response; resets the stream in HTTP/2. Through a trusted proxy: 403 without a body.
    Close,
}

impl BanResponse {
    /// The status of the response. [`BanResponse::Close`] has it too, although it may send none.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Reject => StatusCode::TOO_MANY_REQUESTS,
            Self::Forbid | Self::Close => StatusCode::FORBIDDEN,
        }
    }

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
