//! What holds for the head of a response in every protocol.

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response, StatusCode};

use super::request::PassInterim;

/// The most header fields of a response.
pub(super) const MAX_FIELDS: usize = 128;
/// The most interim responses before the final one.
const MAX_INTERIM: u32 = 100;

/// Why the head of a response is not valid: what the server has sent instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadHead(pub(super) &'static str);

impl BadHead {
    pub(super) const NOT_HTTP: Self = Self("not an HTTP/1 response");
    pub(super) const TOO_LARGE: Self =
        Self("a response head of more than 64 KiB, 128 fields, or 100 names in Connection");
    pub(super) const LENGTH: Self = Self("a response whose length can be read in two ways");
    pub(super) const CUT_OFF: Self = Self("a response head that breaks off");
    pub(super) const INTERIM: Self = Self("more than 100 interim responses");
    pub(super) const UPGRADE: Self = Self("a switch of protocols that was not asked for");
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
    /// itself tells the client to send the body, when it wants the body. The error is [`BadHead::INTERIM`] if there were too
    /// many.
    pub(super) fn count(&mut self, status: StatusCode) -> Result<Option<&'a PassInterim<'a>>, BadHead> {
        self.count += 1;
        if self.count > MAX_INTERIM {
            return Err(BadHead::INTERIM);
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

/// The number in Content-Length (RFC 9110, section 8.6). The error is [`BadHead::LENGTH`] if there is anything but digits, or
/// the number is too large.
pub(super) fn content_length(value: &[u8]) -> Result<u64, BadHead> {
    let number = value.iter().try_fold(0_u64, |number, digit| match digit {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    });
    number.filter(|_| !value.is_empty()).ok_or(BadHead::LENGTH)
}
