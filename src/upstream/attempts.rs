//! The attempts to get a response to one request.

use http::StatusCode;
use smallvec::SmallVec;

use super::Upstream;
use super::balancer::Criteria;
use super::health::Availability;
use super::outgoing_body::BodySource;
use super::request::UpstreamRequest;
use super::resend::{Ending, Resend, Situation};
use crate::base::clock;
use crate::server::ClientBody;

pub(super) struct Attempts<'a> {
    upstream: &'a Upstream,
    request: &'a UpstreamRequest<'a>,
    /// The ids of endpoints that have failed.
    pub(super) tried: SmallVec<[usize; 4]>,
    /// How often the request was sent to another endpoint although one may have processed it.
    retries: u32,
    /// Whether a stale connection was replaced. That happens once, and from then on all connections are new.
    pub(super) is_repeated: bool,
    /// Whether a server may have got a part of the request before the current attempt.
    was_begun: bool,
    pub(super) body: BodySource,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(upstream: &'a Upstream, request: &'a UpstreamRequest<'_>, body: Option<ClientBody>) -> Self {
        let retry = &upstream.retry;
        let keep = (retry.retries > 0 && request.head.method.is_idempotent()).then_some(retry.max_body);
        let body = BodySource::new(body, keep);
        Self { upstream, request, tried: SmallVec::new(), retries: 0, is_repeated: false, was_begun: false, body }
    }

    pub(super) fn answered(&self, status: StatusCode) -> Ending {
        let is_listed = self.upstream.retry.statuses.iter().any(|statuses| statuses.contains(&status.as_u16()));
        if is_listed { Ending::Listed } else { Ending::Final }
    }

    pub(super) fn again(&mut self, ending: Ending, endpoint: usize) -> Option<Resend> {
        if ending == Ending::Final {
            return None;
        }
        let Upstream { retry, balancer, state, .. } = self.upstream;
        let progress = self.request.progress;
        if ending.is_unprocessed() {
            progress.is_begun.set(self.was_begun);
        }
        self.was_begun = progress.is_begun.get();
        self.tried.push(endpoint);
        let next = balancer.can_try(Criteria { key: None, tried: &self.tried });
        // A response is not given up for a server that is down.
        let is_away = |next| matches!(next, Availability::Unhealthy | Availability::Ejected);
        let has_other = next.is_some_and(|next| ending != Ending::Listed || !is_away(next));
        let situation = Situation {
            is_idempotent: self.request.head.method.is_idempotent(),
            has_whole_body: self.body.is_whole(),
            has_response: progress.has_response.get(),
            is_repeated: self.is_repeated,
            has_other,
            retries: retry.retries - self.retries,
        };
        let again = ending.again(situation, || state.take_retry(retry.budget, clock::monotonic()))?;
        if again == Resend::SameServer {
            self.is_repeated = true;
            self.tried.pop();
        }
        self.retries += u32::from(again == Resend::Retry);
        self.body.rewind();
        Some(again)
    }
}
