//! The step that decides: which tokens of a request are valid, what sources of quotas grant its keys, and what its limits
//! say.
//!
//! What is needed only for this is in a future of its own, which is gone when the request is forwarded.

use std::mem;

use http::StatusCode;

use super::inspection::{BodyReader, Unread};
use super::refusal::{outcome, refusing, respond_to_banned};
use super::token_meter::MeteredRequest;
use super::{ConnectionContext, Worker, WorkerSnapshot, decided, metering, priority, quotas, refusal, refuse};
use crate::base::clock::{self, Time};
use crate::base::reason::Reason;
use crate::config::{BanResponse, OnError};
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::CompiledRoute;
use crate::proxy::telemetry::{Outcome, RequestRecord};
use crate::request::decide::{self, Asker, Decision, DecisionInput, DecisionState, ResolvedQuotas, Stage, StageRange};
use crate::request::identify::RequestAttributes;
use crate::request::identify::tokens::{TokenProblem, ValidTokens, known_tokens, verify_tokens};
use crate::server::ClientBody;

/// A request about which its limits decide.
pub(super) struct Deciding<'a, 'r> {
    pub(super) connection: &'r ConnectionContext,
    pub(super) gateway: &'a WorkerSnapshot,
    pub(super) route: &'a CompiledRoute,
    /// What keys are read from, without tokens.
    pub(super) attributes: RequestAttributes<'r>,
    /// When the clock was read last.
    pub(super) now: Time,
    /// The proxy that asks about it, if one does.
    pub(super) asker: Option<Asker>,
    /// Whether its peer speaks for other clients too.
    pub(super) is_shared: bool,
}

/// What becomes of it.
pub(super) enum Decided {
    /// It is served. The hash is that of the key by which the upstream chooses a server, if it does so. What is known of the
    /// request is there if limits count the tokens of its response.
    Passes(Option<u64>, Option<Box<MeteredRequest>>),
    /// It gets this answer. The limit at the place refuses it, if one does.
    Answered(Outcome, LocalResponse, Option<usize>),
    /// It gets no answer: its connection is closed. The limit at the place has banned its key.
    Unanswered(Outcome, usize),
}

impl<'a> Deciding<'a, '_> {
    /// Decides. If limits need the `body`, the one that is sent on is in its place then. The `state` borrows `quotas`: those of
    /// the limits that decide before the tokens, before the body, and those of the others or of all.
    pub(super) async fn run(
        &self,
        body: &mut Option<ClientBody>,
        [head_quotas, tokens_quotas, quotas]: &'a mut [ResolvedQuotas; 3],
        state: &mut DecisionState<'a>,
        record: &mut RequestRecord,
    ) -> Decided {
        let Self { connection, gateway, route, ref attributes, mut now, asker, is_shared } = *self;
        let worker = &*connection.worker;
        let input = DecisionInput { asker, ..input(connection, gateway, route, attributes, now, record) };
        let cache = &worker.tokens;
        let known = known_tokens(&route.tokens, attributes.headers, now, worker.index, &mut cache.borrow_mut());
        let mut part = StageRange::ALL;
        let (mut decision, verified) = match known {
            Some(tokens) => (Decision::Admitted, Ok(tokens)),
            None => {
                part.from = Stage::Tokens;
                quotas::resolve(route, StageRange::FIRST, attributes, connection, &mut now, head_quotas).await;
                let input = DecisionInput { quotas: head_quotas, now, ..input };
                // This is seldom needed, and would make the future of each request larger.
                Box::pin(before_tokens(route, &input, state, worker)).await
            }
        };
        let tokens = match verified {
            Err(why) if input.passes(decision) => {
                record.refused_for(Reason::InvalidToken);
                let answer = respond::unauthorized(why);
                let answer = decided::charged(record, route, &input, decision, state, answer);
                return Decided::Answered(Outcome::Refused, answer, None);
            }
            verified => verified.unwrap_or_default(),
        };
        let mut attributes = RequestAttributes { tokens: &tokens, ..*attributes };
        let inspection;
        let mut asks_for_usage = false;
        if let Some(inspector) = route.inspector.as_ref().filter(|_| input.passes(decision)) {
            let reader = BodyReader { inspector, memory: &worker.body_memory, gateway, limit: route.body_timeout };
            let nothing = if body.is_none() { reader.read_nothing(&attributes) } else { None };
            let mut input = DecisionInput { attributes: &attributes, ..input };
            let read = if let Some(nothing) = nothing {
                Ok(nothing)
            } else {
                let part = mem::replace(&mut part, StageRange::BODY).without_body();
                quotas::resolve(route, part, &attributes, connection, &mut now, tokens_quotas).await;
                input = DecisionInput { part, quotas: tokens_quotas, now, ..input };
                let read = Box::pin(reader.read(body, &input, state)).await;
                // The client decides how long that takes, and others were decided about meanwhile.
                now = clock::now();
                read
            };
            match read {
                Ok(inspected) => {
                    inspection = inspected;
                    asks_for_usage = inspection.asks_for_usage;
                    attributes.body = Some(&inspection.body);
                }
                Err(Unread::Refused(refused)) => decision = refused,
                Err(Unread::Unusable(decision, why)) => {
                    let answer = refusal::answer(&why, record);
                    let answer = decided::charged(record, route, &input, decision, state, answer);
                    return Decided::Answered(Outcome::Refused, answer, None);
                }
            }
        }
        if input.passes(decision) {
            if let Some(answer) = priority::refuse(gateway, route, &attributes, connection, now) {
                state.give_back();
                return Decided::Answered(Outcome::Shed, answer, None);
            }
            quotas::resolve(route, part, &attributes, connection, &mut now, quotas).await;
            let input = DecisionInput { part, attributes: &attributes, quotas, now, ..input };
            decision = decide::decide(&input, state).await;
        }
        decided::record(record, route, input.traced_since, decision, state);
        if !input.passes(decision) {
            if let Decision::Banned { place, .. } = decision
                && respond_to_banned(route, place) == BanResponse::Close
            {
                let outcome = outcome(decision, route);
                // Who speaks for others would take a closed connection for a failure of this gateway.
                return match is_shared {
                    true => Decided::Answered(outcome, respond::empty(StatusCode::FORBIDDEN), Some(place)),
                    false => Decided::Unanswered(outcome, place),
                };
            }
            let last = &mut connection.refusal_cache.borrow_mut();
            let answer = refuse(route, decision, state, &attributes, now, last);
            return Decided::Answered(outcome(decision, route), answer, refusing(decision, state));
        }
        let metered = metering::request(route, &attributes, asks_for_usage).map(Box::new);
        Decided::Passes(route.balanced_by(&attributes, &connection.key_cache), metered)
    }
}

/// The input of a decision of the limits that come first, as long as no source of quotas was asked.
fn input<'a, 'r>(
    connection: &'r ConnectionContext,
    gateway: &'a WorkerSnapshot,
    route: &'a CompiledRoute,
    attributes: &'r RequestAttributes<'r>,
    now: Time,
    record: &RequestRecord,
) -> DecisionInput<'a, 'r>
where
    'a: 'r,
{
    DecisionInput {
        limits: &route.limits,
        part: StageRange::FIRST,
        attributes,
        quotas: &[],
        key_cache: &connection.key_cache,
        store: &gateway.store,
        concurrency: &gateway.concurrency,
        wait_queues: &gateway.wait_queues,
        now,
        worker: connection.worker.index,
        fail_open: gateway.on_error != OnError::Reject,
        asker: None,
        traced_since: record.spans().map(|_| clock::now()),
    }
}

/// What is done before the other limits decide, unless those that come first refuse the request anyway: its tokens are
/// verified. If one is not valid, the limits that come first charge the request: then what is returned is their decision.
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
