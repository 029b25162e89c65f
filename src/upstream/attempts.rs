//! The attempts to get a response to one request: which endpoints have failed, and whether there may be another attempt.

use http::StatusCode;
use smallvec::SmallVec;

use super::error::SendAgain;
use super::outgoing_body::BodySource;
use super::request::UpstreamRequest;
use crate::config::Retry;
use crate::server::ClientBody;

/// See the head of this file.
pub(super) struct Attempts<'a> {
    retry: &'a Retry,
    /// The ids of the endpoints that have failed.
    pub(super) tried: SmallVec<[usize; 4]>,
    /// How often the request was sent again although an endpoint may have processed it.
    retries: u32,
    /// What is sent.
    pub(super) body: BodySource,
}

impl<'a> Attempts<'a> {
    /// Before the first attempt.
    pub(super) fn new(retry: &'a Retry, request: &UpstreamRequest<'_>, body: Option<ClientBody>) -> Self {
        let keep = (retry.retries > 0 && request.method.is_idempotent()).then_some(retry.max_body);
        Self { retry, tried: SmallVec::new(), retries: 0, body: BodySource::new(body, keep) }
    }

    /// Whether a request that got a response with this status may be sent again.
    pub(super) fn after_status(&self, status: StatusCode) -> SendAgain {
        let is_listed = self.retry.statuses.iter().any(|statuses| statuses.contains(&status.as_u16()));
        if is_listed { SendAgain::Idempotent } else { SendAgain::No }
    }

    /// Whether the request may be sent again after an attempt that ended so. The method decides, unless nothing was processed
    /// (RFC 9110, section 9.2.2).
    pub(super) fn may_send_again(&self, again: SendAgain, request: &UpstreamRequest<'_>) -> bool {
        let may = match again {
            SendAgain::Any => true,
            SendAgain::Idempotent => request.method.is_idempotent() && self.retries < self.retry.retries,
            SendAgain::No => false,
        };
        may && self.body.is_whole() && !request.progress.has_response.get()
    }

    /// Before a further attempt.
    pub(super) fn begin_again(&mut self, again: SendAgain) {
        if again == SendAgain::Idempotent {
            self.retries += 1;
        }
        self.body.rewind();
    }
}
