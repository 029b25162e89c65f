//! What a decision needs: its input, and which tokens of the request are valid.

use super::{ConnectionContext, Worker, WorkerSnapshot};
use crate::base::clock::{self, Time};
use crate::config::OnError;
use crate::proxy::snapshot::CompiledRoute;
use crate::proxy::telemetry::RequestRecord;
use crate::request::decide::{self, Decision, DecisionInput, DecisionState, Part};
use crate::request::identify::RequestAttributes;
use crate::request::identify::tokens::{TokenProblem, ValidTokens, verify_tokens};

/// The input of a decision of the limits that come first, as long as no source of quotas was asked.
pub(super) fn input<'a, 'r>(
    connection: &'r ConnectionContext,
    gateway: &'a WorkerSnapshot,
    route: &'a CompiledRoute,
    attributes: &'r RequestAttributes<'r>,
    (now, record): (Time, &RequestRecord),
) -> DecisionInput<'a, 'r>
where
    'a: 'r,
{
    DecisionInput {
        limits: &route.limits,
        part: Part::First,
        attributes,
        quotas: &[],
        key_cache: &connection.key_cache,
        store: &gateway.store,
        concurrency: &gateway.concurrency,
        wait_queues: &gateway.wait_queues,
        now,
        worker: connection.worker.index,
        fail_open: gateway.on_error != OnError::Reject,
        traced_since: record.spans().map(|_| clock::now()),
    }
}

/// What is done before the other limits decide, unless those that come first refuse the request anyway: its tokens are
/// verified, if they are not `known`. If one is not valid, the limits that come first charge the request: then what is returned
/// is their decision.
pub(super) async fn before_others<'a>(
    route: &'a CompiledRoute,
    input: &DecisionInput<'a, '_>,
    state: &mut DecisionState<'a>,
    worker: &Worker,
    known: Option<ValidTokens<'a>>,
) -> (Decision, Result<ValidTokens<'a>, TokenProblem>) {
    if let Some(decision) = decide::refuse_first(input, state) {
        return (decision, Ok(ValidTokens::new()));
    }
    if let Some(tokens) = known {
        return (Decision::Admitted, Ok(tokens));
    }
    let (headers, cache) = (input.attributes.headers, &worker.tokens);
    let checked = verify_tokens(&route.tokens, headers, input.now, worker.index, &mut cache.borrow_mut());
    let must_charge = checked.as_ref().map_or(true, |checked| checked.ignores_invalid);
    let decision = if must_charge { decide::decide_first(input, state).await } else { Decision::Admitted };
    (decision, checked.map(|checked| checked.valid))
}
