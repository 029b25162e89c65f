//! The limits that come first: those that tell clients apart without a verified token.
//!
//! To verify a signature takes longer than all other steps of a request together. So a request whose token would have to be
//! verified is refused before that if these limits are known to refuse it. If its token turns out not to be valid, it is
//! charged to them, whatever becomes of it: otherwise wrong tokens would cost their clients nothing. A request whose token is
//! valid is charged as any other, to all limits or to none, by one question to the store.
//!
//! To charge these limits before each verification, and to give that back if another limit refuses, would be a second
//! exchange with Memcached for each new token. So only what is known in this process is looked at before.

use std::ops::ControlFlow;

use crate::config::Role;

use super::{Decision, DecisionInput, DecisionState, RouteLimit, delay};

/// Which limits of a route are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those that come first.
    First,
    /// The others. Those that come first are asked together with them, unless they have decided.
    Rest,
    /// All, because no token has to be verified.
    All,
}

impl Part {
    /// Whether this limit is one of them.
    pub fn has(self, limit: &RouteLimit) -> bool {
        match self {
            Self::First => limit.comes_first,
            Self::Rest => !limit.comes_first,
            Self::All => true,
        }
    }
}

/// The refusal of the limits that come first, as far as it is known without asking Memcached. Nothing is charged.
pub async fn refuse_first<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Option<Decision> {
    let decision = match state.prepare(input) {
        ControlFlow::Break(decision) => decision,
        ControlFlow::Continue(()) => state.known_refusal(input)?,
    };
    let decision = state.finish(input, decision);
    Some(state.with_bans(input, decision).await)
}

/// The decision of the limits that come first and have not refused the request before its token was found not to be valid.
pub async fn decide_first<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    // Who has no valid token is not helped by pools that are asked later.
    let decision = match state.find_pools(input, Role::Refuses) {
        ControlFlow::Break(decision) => state.finish(input, decision),
        ControlFlow::Continue(()) => state.decide(input).await,
    };
    state.with_bans(input, decision).await
}

impl<'a> DecisionState<'a> {
    fn known_refusal(&mut self, input: &DecisionInput<'a, '_>) -> Option<Decision> {
        if let Some((place, max_delay)) = delay::full_queue(input, self) {
            return Some(self.give_up(input, place, max_delay));
        }
        let reply = input.store.known_refusal(self.undecided(), input.now, input.worker)?;
        if delay::is_held(input, self, &reply) {
            return None;
        }
        Some(self.conclude(input, reply))
    }
}
