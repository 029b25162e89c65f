//! Which limits decide when: what a request is charged before all of it is known.
//!
//! To verify a signature takes longer than all other steps of a request together. So a request whose token would have to be
//! verified is refused before that if the limits that need no token are known to refuse it. If its token turns out not to be
//! valid, it is charged to them, whatever becomes of it: otherwise wrong tokens would cost their clients nothing. A request
//! whose token is valid is charged as any other, to all limits or to none, by one question to the store.
//!
//! To charge these limits before each verification, and to give that back if another limit refuses, would be a second
//! exchange with Memcached for each new token. So only what is known in this process is looked at before.
//!
//! A body is another matter, since its client decides how long it takes. Where the body has not come with the head, the limits
//! that need none charge the request before the gateway waits for it. If a limit that needs the body refuses the request, they
//! give that back; if the body cannot be used, or never comes, the charge stays.

use std::ops::ControlFlow;

use crate::base::clock;
use crate::config::Role;
use crate::store::{Ask, Reply};

use super::{Decision, DecisionInput, DecisionState, RouteLimit, delay};

/// What has to be known of a request before a limit can decide. Each stage includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Its head. Such a limit tells clients apart without a verified token.
    Head,
    /// Its tokens. A limit that all clients share waits for them, too: with wrong tokens, a client could use up what others
    /// need.
    Tokens,
    Body,
}

/// Which limits of a route are asked: those of the stages from the one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageRange {
    /// The first stage.
    pub from: Stage,
    /// The last stage.
    pub to: Stage,
}

impl StageRange {
    /// Those that come first, before a token is verified.
    pub const FIRST: Self = Self { from: Stage::Head, to: Stage::Head };
    /// Those that need the body.
    pub const BODY: Self = Self { from: Stage::Body, to: Stage::Body };
    pub const ALL: Self = Self { from: Stage::Head, to: Stage::Body };

    pub fn has(self, limit: &RouteLimit) -> bool {
        (self.from..=self.to).contains(&limit.stage)
    }

    /// The part without the limits that need the body, which are asked later.
    #[must_use]
    pub fn without_body(self) -> Self {
        Self { to: Stage::Tokens, ..self }
    }
}

/// The refusal of the limits of this part, as far as it is known without asking Memcached. Nothing is charged.
pub async fn refuse_first<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Option<Decision> {
    let decision = match state.prepare(input) {
        ControlFlow::Break(decision) => decision,
        ControlFlow::Continue(()) => state.known_refusal(input)?,
    };
    let decision = state.finish(input, decision);
    Some(state.with_bans(input, decision).await)
}

/// The decision of the limits that [`refuse_first`] has asked, before the body is read. What they charge is kept by [`decide_first`],
/// and given back by [`super::decide`] if another limit refuses the request.
pub async fn charge_first<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    let limits = input.limits.len();
    let asked = state.asked;
    // Bans charge nothing.
    state.asks[asked..].iter_mut().filter(|ask| ask.place < limits).for_each(|ask| ask.settles = true);
    state.reservations.begin_provisional();
    let decision = state.decide(input).await;
    state.reservations.end_provisional();
    state.with_bans(input, decision).await
}

/// The decision of the limits that come first and have not refused the request before its token was found not to be valid, or
/// its body not to be usable.
pub async fn decide_first<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    // Who has no valid token is not helped by pools that are asked later.
    let decision = match state.find_pools(input, Role::Refuses) {
        ControlFlow::Break(decision) => state.finish(input, decision),
        ControlFlow::Continue(()) => state.decide(input).await,
    };
    state.with_bans(input, decision).await
}

impl<'a> DecisionState<'a> {
    /// What the store is asked next.
    pub(super) fn unasked(&self) -> &[Ask<'a>] {
        &self.asks[self.asked..]
    }

    /// Keeps what the store says about a request that is charged before its body is read.
    pub(super) fn keep_first(&mut self, reply: Reply) -> Decision {
        self.asked = self.asks.len();
        self.first = Some(Box::new(reply));
        Decision::Admitted
    }

    /// Leaves charged what the request was charged before its body was read, and counts it, whatever the other limits say.
    pub(super) fn conclude_first(&mut self, input: &DecisionInput<'a, '_>) {
        if self.first.is_some() {
            self.forget_asks(self.asked);
            self.conclude(input, Reply::default());
        }
    }

    /// The decision about a request without a key that one of the limits that need its body requires. Those that need none, which
    /// have so many asks, charge it if they have not before.
    pub(super) async fn decide_without_key(
        &mut self,
        input: &DecisionInput<'a, '_>,
        asks: usize,
        decision: Decision,
    ) -> Decision {
        self.forget_asks(asks);
        match self.decide(input).await {
            Decision::Admitted | Decision::Unknown => decision,
            refused => refused,
        }
    }

    /// Leaves only so many asks.
    fn forget_asks(&mut self, left: usize) {
        self.asks.truncate(left);
        self.profiles.truncate(left);
    }

    /// Gives back what the request was charged before its body was read, because it is not served.
    pub fn give_back(&mut self) {
        self.reservations.give_back(&mut self.outcomes, clock::now);
    }

    fn known_refusal(&mut self, input: &DecisionInput<'a, '_>) -> Option<Decision> {
        if let Some((place, max_delay)) = delay::full_queue(input, self) {
            return Some(self.give_up(input, place, max_delay));
        }
        let reply = input.store.known_refusal(self.unasked(), input.now, input.worker)?;
        if delay::is_held(input, self, &reply) {
            return None;
        }
        Some(self.conclude(input, reply))
    }
}
