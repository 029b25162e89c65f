//! What holds for the head of a response in every protocol.

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response, StatusCode};

use super::request::PassInterim;

/// The most interim responses before the final one.
const MAX_INTERIM: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHead {
    NotHttp,
    /// It is larger than 64 KiB, has more than 128 fields, or names more than 100 in Connection.
    TooLarge,
    Length,
    CutOff,
    Interim,
    /// To a protocol that was not requested.
    Upgrade,
}

impl BadHead {
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

/// The interim responses before the final one (RFC 9110, section 15.2). They are counted and, if the client accepts any,
/// passed on.
pub(super) struct Interim<'a> {
    count: u32,
    pass: Option<&'a PassInterim<'a>>,
}

impl<'a> Interim<'a> {
    pub(super) fn new(pass: Option<&'a PassInterim<'a>>) -> Self {
        Self { count: 0, pass }
    }

    pub(super) fn is_none(&self) -> bool {
        self.count == 0
    }

    /// Counts one with this status. Returns what passes it on, if it goes to the client. `100 Continue` does not: the gateway
    /// itself tells the client to send the body, when it wants the body.
    ///
    /// # Errors
    /// [`BadHead::Interim`] if there were too many.
    pub(super) fn count(&mut self, status: StatusCode) -> Result<Option<&'a PassInterim<'a>>, BadHead> {
        self.count += 1;
        if self.count > MAX_INTERIM {
            return Err(BadHead::Interim);
        }
        Ok(self.pass.filter(|_| status != StatusCode::CONTINUE && status != StatusCode::SWITCHING_PROTOCOLS))
    }
}

/// The head of an interim response, which has no length (RFC 9110, section 8.6).
pub(super) fn interim_head(status: StatusCode, mut headers: HeaderMap) -> Response<()> {
    headers.remove(CONTENT_LENGTH);
    let mut response = Response::new(());
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// The number in Content-Length (RFC 9110, section 8.6).
///
/// # Errors
/// [`BadHead::Length`] if there is anything but digits, or the number is too large.
pub(super) fn content_length(value: &[u8]) -> Result<u64, BadHead> {
    let number = value.iter().try_fold(0_u64, |number, digit| match digit {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    });
    number.filter(|_| !value.is_empty()).ok_or(BadHead::Length)
}
