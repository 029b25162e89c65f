//! The answer to a request that is refused before its limits are asked, and what a refusing decision means for its record.

use crate::config::BanResponse;
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::CompiledRoute;
use crate::proxy::telemetry::{Outcome, RequestRecord};
use crate::request::decide::{self, Decision, DecisionState};
use crate::request::resolve::Rejection;

/// The answer to a request that is refused before its limits are asked. Records the reason.
pub(super) fn answer(why: &Rejection, record: &mut RequestRecord) -> LocalResponse {
    why.reason.into_iter().for_each(|reason| record.refused_for(reason));
    respond::refused(why)
}

pub(super) fn outcome(decision: Decision, route: &CompiledRoute) -> Outcome {
    match decision {
        Decision::Banned { place, .. } if respond_to_banned(route, place) != BanResponse::Reject => Outcome::Blocked,
        Decision::Rejected | Decision::TooCostly { .. } | Decision::Banned { .. } => Outcome::Limited,
        Decision::Silenced(_) => Outcome::Silenced,
        Decision::Blocked(_) => Outcome::Blocked,
        Decision::NoKey(_) => Outcome::Refused,
        Decision::Admitted | Decision::Unknown => Outcome::Unavailable,
    }
}

pub(super) fn respond_to_banned(route: &CompiledRoute, place: usize) -> BanResponse {
    let rule = route.limits.get(place).and_then(|route_limit| route_limit.ban.as_ref());
    rule.map_or(BanResponse::Reject, |rule| rule.respond)
}

pub(super) fn refusing(decision: Decision, state: &DecisionState<'_>) -> Option<usize> {
    match decision {
        Decision::Rejected => decide::longest_refusal(&state.outcomes).map(|outcome| outcome.place),
        Decision::Silenced(place)
        | Decision::Blocked(place)
        | Decision::NoKey(place)
        | Decision::Banned { place, .. }
        | Decision::TooCostly { place, .. } => Some(place),
        Decision::Admitted | Decision::Unknown => None,
    }
}
