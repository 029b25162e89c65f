//! What holds for the head of a response in every protocol. Pure.

use http::{Method, StatusCode};

/// The most interim responses before the final one.
pub(super) const MAX_INTERIM: u32 = 100;

/// Why a head cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHead {
    /// It is not HTTP/1.
    NotHttp,
    /// It is larger than 64 KiB, has more than 128 fields, or names more than 100 in Connection.
    TooLarge,
    /// The length of the body can be read in two ways.
    Length,
    /// The connection ended in the middle of it.
    CutOff,
    /// There are too many interim responses before it.
    Interim,
    /// It switches to a protocol that the gateway has not requested.
    Upgrade,
}

impl BadHead {
    /// In words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NotHttp => "not an HTTP/1 response",
            Self::TooLarge => "a response head of more than 64 KiB, 128 fields, or 100 names in Connection",
            Self::Length => "a response whose length can be read in two ways",
            Self::CutOff => "a response head that breaks off",
            Self::Interim => "more than 100 interim responses",
            Self::Upgrade => "a switch of protocols that was not asked for",
        }
    }
}

/// Whether a response with this status to a request with this method has no content, whatever its headers say (RFC 9110,
/// section 6.4.1).
pub(super) fn has_no_content(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// The number in Content-Length (RFC 9110, section 8.6).
///
/// # Errors
/// [`BadHead::Length`] if there is anything but digits, or the number is too large.
pub(super) fn content_length(value: &[u8]) -> Result<u64, BadHead> {
    let digits = std::str::from_utf8(value).ok().filter(|_| value.iter().all(u8::is_ascii_digit));
    digits.and_then(|digits| digits.parse().ok()).ok_or(BadHead::Length)
}
