//! The step that decides: verifies the tokens of a request, asks sources of quotas about its keys, sheds requests by their
//! priority, and asks the limits.
//!
//! A future of its own holds what only this step needs, and is gone before the request is forwarded.

use std::cell::OnceCell;
use std::mem;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};

use super::decided::{self, metered_request, outcome_of, refuse, refusing, respond_to_banned};
use super::inspection::{BodyReader, Unread};
use super::shed::Counts;
use super::token_meter::MeteredRequest;
use super::{ConnectionContext, Worker, WorkerSnapshot};
use crate::base::clock::{self, Time};
use crate::base::metrics::Counter;
use crate::base::reason::Reason;
use crate::config::{BanResponse, OnError};
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::{CompiledRoute, RouteLimits};
use crate::proxy::telemetry::{Outcome, RequestRecord};
use crate::request::decide::{self, Asker, Decision, DecisionInput, DecisionState, ResolvedQuotas, Stage, StageRange};
use crate::request::identify::RequestAttributes;
use crate::request::identify::tokens::{TokenProblem, ValidTokens, known_tokens, verify_tokens};
use crate::server::ClientBody;

/// The longest Retry-After, in seconds. It varies between clients, so that they do not come back at the same moment.
const LATEST_RETRY: u16 = 5;

pub(super) struct Deciding<'a, 'r> {
    pub(super) connection: &'r ConnectionContext,
    pub(super) gateway: &'a WorkerSnapshot,
    pub(super) route: &'a CompiledRoute,
    /// Those of the route, or those that the descriptors of a call name.
    pub(super) limits: &'a RouteLimits,
    /// The attributes from which keys are read, without tokens.
    pub(super) attributes: RequestAttributes<'r>,
    pub(super) now: Time,
    pub(super) asker: Option<Asker>,
    /// Whether the peer also speaks for other clients.
    pub(super) is_shared: bool,
}

pub(super) enum Decided {
    /// The request is served. The first value is the hash of the key by which the upstream chooses a server. The second is
    /// present if limits count the tokens of the response.
    Passes(Option<u64>, Option<Box<MeteredRequest>>),
    /// The request gets this answer. The place is that of the limit that refuses it, if any, and if another proxy asks.
    Answered(Outcome, Rc<LocalResponse>, Option<usize>),
    /// The connection is closed without an answer. The limit at this place has banned the key.
    Unanswered(Outcome, usize),
}

impl<'a> Deciding<'a, '_> {
    /// Decides if only the head matters and nothing has to be waited for, as on most routes. Otherwise `None`, and nothing has
    /// happened. Without the future of [`Self::run`], this costs less.
    #[inline]
    pub(super) fn at_once(&self, state: &mut DecisionState<'a>, record: &mut RequestRecord) -> Option<Decided> {
        let Self { connection, route, limits, ref attributes, now, .. } = *self;
        let needs_more = !route.tokens.is_empty() || route.inspector.is_some() || route.shedding.is_some();
        if needs_more || limits.has_quotas || limits.len() > 1 {
            return None;
        }
        if !limits.is_empty() {
            let input = self.input(record, StageRange::ALL);
            let decision = state.decide_plainly(&input)?;
            decided::record(record, limits, input.traced_since, decision, state);
            if !input.passes(decision) {
                return Some(self.refused(decision, limits, attributes, now, state));
            }
        }
        Some(Decided::Passes(route.balanced_by(attributes, &connection.key_cache), None))
    }

    /// Decides. If limits need the `body`, this replaces it by the body for the upstream. `state` borrows the quotas: those
    /// of the limits that decide before the tokens, those before the body, and those of the others or of all; and the limits
    /// that are asked instead of those of the route if the body is an array.
    pub(super) async fn run(
        &self,
        body: &mut Option<ClientBody>,
        [head_quotas, tokens_quotas, quotas]: &'a mut [ResolvedQuotas; 3],
        of_elements: &'a OnceCell<RouteLimits>,
        state: &mut DecisionState<'a>,
        record: &mut RequestRecord,
    ) -> Decided {
        let Self { connection, gateway, route, ref attributes, mut now, .. } = *self;
        let worker = &*connection.worker;
        let input = self.input(record, StageRange::FIRST);
        let cache = &worker.tokens;
        let known = known_tokens(&route.tokens, attributes.headers, now, worker.index, &mut cache.borrow_mut());
        let mut part = StageRange::ALL;
        let (mut decision, verified) = match known {
            Some(tokens) => (Decision::Admitted, Ok(tokens)),
            None => {
                part.from = Stage::Tokens;
                self.resolve_quotas(self.limits, StageRange::FIRST, attributes, &mut now, head_quotas).await;
                let input = DecisionInput { quotas: head_quotas, now, ..input };
                // Boxed because it is seldom needed and would make the future of each request larger.
                Box::pin(before_tokens(route, &input, state, worker)).await
            }
        };
        let tokens = match verified {
            Err(why) if input.passes(decision) => {
                record.reason = Some(Reason::InvalidToken);
                let answer = respond::unauthorized(why);
                let answer = decided::charged(record, self.limits, &input, decision, state, answer);
                return Decided::Answered(Outcome::Refused, answer.into(), None);
            }
            verified => verified.unwrap_or_default(),
        };
        let mut attributes = RequestAttributes { tokens: &tokens, ..*attributes };
        let inspection;
        let (mut asks_for_usage, mut limits) = (false, self.limits);
        if let Some(inspector) = route.inspector.as_ref().filter(|_| input.passes(decision)) {
            let reader = BodyReader { inspector, memory: &worker.body_memory, gateway, limit: route.body_timeout };
            let nothing = if body.is_none() { reader.read_nothing(&attributes) } else { None };
            let mut input = DecisionInput { attributes: &attributes, ..input };
            let read = if let Some(nothing) = nothing {
                Ok(nothing)
            } else {
                let part = StageRange { to: Stage::Tokens, ..mem::replace(&mut part, StageRange::BODY) };
                self.resolve_quotas(self.limits, part, &attributes, &mut now, tokens_quotas).await;
                input = DecisionInput { part, quotas: tokens_quotas, now, ..input };
                let read = Box::pin(reader.read(body, &input, state)).await;
                // The client decides how long reading takes, and decisions about others were made meanwhile.
                now = clock::now();
                read
            };
            match read {
                Ok(mut inspected) => {
                    if let Some(asked) = inspected.limits.take() {
                        let joined = asked.into_iter().map(|(place, limit)| (self.limits, place, limit));
                        limits = of_elements.get_or_init(|| RouteLimits::joined(joined));
                    }
                    inspection = inspected;
                    asks_for_usage = inspection.asks_for_usage;
                    attributes.body = Some(&inspection.body);
                }
                Err(Unread::Refused(refused)) => decision = refused,
                Err(Unread::Unusable(first, why)) => {
                    let part = StageRange::BODY_OF_OTHERS;
                    self.resolve_quotas(self.limits, part, &attributes, &mut now, quotas).await;
                    let input = DecisionInput { part, attributes: &attributes, quotas, now, ..input };
                    let decision = decide::decide_without_body(&input, state).await;
                    if !input.passes(decision) {
                        decided::record(record, self.limits, input.traced_since, decision, state);
                        return self.refused(decision, self.limits, &attributes, now, state);
                    }
                    let decision = if decision == Decision::Admitted { first } else { decision };
                    let answer = decided::refused(&why, record);
                    let answer = decided::charged(record, self.limits, &input, decision, state, answer);
                    return Decided::Answered(Outcome::Refused, answer.into(), None);
                }
            }
        }
        if input.passes(decision) {
            let counts = match shed(gateway, route, &attributes, connection, now) {
                Ok(counts) => counts,
                Err(answer) => {
                    state.give_back();
                    return Decided::Answered(Outcome::Shed, answer, None);
                }
            };
            self.resolve_quotas(limits, part, &attributes, &mut now, quotas).await;
            let input = DecisionInput {
                limits,
                part,
                attributes: &attributes,
                quotas,
                now,
                asker: self.asker_at(now),
                ..input
            };
            decision = decide::decide(&input, state).await;
            counts.iter().for_each(|counts| counts.decided(input.passes(decision)));
        }
        decided::record(record, limits, input.traced_since, decision, state);
        if !input.passes(decision) {
            return self.refused(decision, limits, &attributes, now, state);
        }
        let metered = metered_request(route, &attributes, asks_for_usage).map(Box::new);
        Decided::Passes(route.balanced_by(&attributes, &connection.key_cache), metered)
    }

    /// The input for the limits of `part`, before any source of quotas is asked.
    #[expect(clippy::inline_always, reason = "a call would copy the result")]
    #[inline(always)]
    fn input(&self, record: &RequestRecord, part: StageRange) -> DecisionInput<'a, '_> {
        let Self { connection, gateway, .. } = *self;
        DecisionInput {
            limits: self.limits,
            part,
            attributes: &self.attributes,
            quotas: &[],
            key_cache: &connection.key_cache,
            store: &gateway.store,
            concurrency: &gateway.concurrency,
            wait_queues: &gateway.wait_queues,
            now: self.now,
            worker: connection.worker.index,
            fail_open: gateway.on_error != OnError::Reject,
            asker: self.asker,
            traced_since: record.spans().map(|_| clock::now()),
        }
    }

    /// The asker, who waits for less after each wait of this decision.
    fn asker_at(&self, now: Time) -> Option<Asker> {
        let waited = Duration::from_micros(now.micros_since(self.now));
        self.asker.map(|asker| Asker { longest_hold: asker.longest_hold.saturating_sub(waited) })
    }

    /// Puts the quotas for the limits of `part` into `quotas`. Waits, and then updates `now`, only if a key is unknown.
    async fn resolve_quotas(
        &self,
        limits: &RouteLimits,
        part: StageRange,
        attributes: &RequestAttributes<'_>,
        now: &mut Time,
        quotas: &mut ResolvedQuotas,
    ) {
        let Self { connection, .. } = *self;
        if !limits.has_quotas {
            return;
        }
        let waits = {
            let key_cache = &mut connection.key_cache.borrow_mut();
            decide::resolve_quotas(limits, part, attributes, key_cache, *now, quotas)
        };
        if let Some(waits) = waits {
            let longest = Asker::longest_wait(self.asker_at(*now));
            // Boxed because it is seldom needed and would make the future of each request larger.
            Box::pin(waits.finish(quotas, longest)).await;
            *now = clock::now();
        }
    }

    /// What becomes of a request that its limits refuse.
    fn refused(
        &self,
        decision: Decision,
        limits: &RouteLimits,
        attributes: &RequestAttributes<'_>,
        now: Time,
        state: &mut DecisionState<'_>,
    ) -> Decided {
        let Self { connection, is_shared, .. } = *self;
        let outcome = outcome_of(decision, limits);
        if let Decision::Banned { place, .. } = decision
            && respond_to_banned(limits, place) == BanResponse::Close
        {
            // A proxy that speaks for others would take a closed connection for a failure of this gateway.
            return match is_shared {
                true => Decided::Answered(outcome, respond::empty(StatusCode::FORBIDDEN).into(), Some(place)),
                false => Decided::Unanswered(outcome, place),
            };
        }
        let last = &mut connection.refusal_cache.borrow_mut();
        let answer = refuse(limits, decision, state, attributes, now, last);
        Decided::Answered(outcome, answer, self.asker.and_then(|_| refusing(decision, state)))
    }
}

/// Verifies the tokens of a request, unless the limits that come first refuse it anyway. If a token is invalid, these limits
/// charge the request, and their decision is returned.
async fn before_tokens<'a>(
    route: &'a CompiledRoute,
    input: &DecisionInput<'a, '_>,
    state: &mut DecisionState<'a>,
    worker: &Worker,
) -> (Decision, Result<ValidTokens<'a>, TokenProblem>) {
    if let Some(decision) = decide::refuse_first(input, state).await {
        return (decision, Ok(ValidTokens::new()));
    }
    let (headers, cache) = (input.attributes.headers, &worker.tokens);
    let checked = verify_tokens(&route.tokens, headers, input.now, worker.index, &mut cache.borrow_mut());
    let must_charge = checked.as_ref().map_or(true, |checked| checked.ignores_invalid);
    let decision = if must_charge { decide::decide_first(input, state).await } else { Decision::Admitted };
    (decision, checked.map(|checked| checked.valid))
}

/// Where the decision about a request is to be counted, if any requests of its route are shed. If this one is, its answer is
/// the error.
fn shed<'a>(
    gateway: &WorkerSnapshot,
    route: &'a CompiledRoute,
    attributes: &RequestAttributes<'_>,
    connection: &ConnectionContext,
    now: Time,
) -> Result<Option<&'a Counts<Counter>>, Rc<LocalResponse>> {
    let (Some(shedding), Some(all)) = (&route.shedding, &gateway.shedding) else { return Ok(None) };
    let priority = shedding.priority(&route.limits, attributes, &mut connection.key_cache.borrow_mut());
    if let Some(counts) = shedding.admits(priority, attributes, now, connection.worker.index) {
        return Ok(Some(counts));
    }
    connection.key_cache.borrow_mut().shrink();
    let status = all.settings.status;
    let mut answer =
        respond::problem(status, "The service is overloaded: requests of this priority are not served now.");
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(fastrand::u16(1..=LATEST_RETRY)));
    Err(answer.into())
}
