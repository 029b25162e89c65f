//! In which order limits decide, and what a request is charged before all of it is known.
//!
//! Verifying a signature takes longer than all other steps together. So the limits that need no token may refuse first, by
//! what this process knows: asking a server would be a second exchange for each new token. They charge a request whose token
//! proves invalid, since wrong tokens would otherwise cost nothing. A request with a valid token is charged in one exchange,
//! by all limits or by none.
//!
//! A client decides how long its body takes. If the body has not come with the head, the limits that need none charge the
//! request before the gateway waits for the body. They give the charge back if a limit that needs the body refuses, but not
//! if the body cannot be used or never comes. Limits that wait for the body only because of others charge a request whose body
//! cannot be used, too.
//!
//! Until then, nothing is charged to a key that clients without a key of their own share: requests that are not served would
//! use up what others need. Such keys are charged with the limits that decide last.

use std::ops::ControlFlow;

use crate::base::clock;
use crate::config::{Missing, Role};
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::store::{Ask, IfAbandoned, Reply};

use super::{Decision, DecisionInput, DecisionState, RouteLimit, bans, delay};

/// What has to be known of a request before a limit can decide. Each stage includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The head. Such a limit tells clients apart without a verified token.
    Head,
    Tokens,
    /// The body, only because limits that are asked in the same exchange need it.
    BodyOfOthers,
    Body,
}

/// Which limits of a route are asked: those with a stage from `from` to `to`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageRange {
    pub from: Stage,
    pub to: Stage,
}

impl StageRange {
    /// Before a token is verified.
    pub const FIRST: Self = Self { from: Stage::Head, to: Stage::Head };
    pub const BODY: Self = Self { from: Stage::BodyOfOthers, to: Stage::Body };
    pub const BODY_OF_OTHERS: Self = Self { from: Stage::BodyOfOthers, to: Stage::BodyOfOthers };
    pub const ALL: Self = Self { from: Stage::Head, to: Stage::Body };

    pub fn has(self, limit: &RouteLimit) -> bool {
        (self.from..=self.to).contains(&limit.stage)
    }
}

/// The refusal of the limits of this part, if it is known without asking a server. Nothing is charged.
pub async fn refuse_first<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Option<Decision> {
    let decision = match state.prepare(input) {
        ControlFlow::Break(decision) => decision,
        ControlFlow::Continue(()) => state.known_refusal(input)?,
    };
    let decision = state.finish(input, decision);
    Some(state.with_bans(input, decision).await)
}

/// Decides by the limits that [`refuse_first`] has prepared, before the body is read. Their charge stays if [`decide_first`]
/// follows, and [`super::decide`] gives it back if another limit refuses the request.
pub async fn charge_first<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    state.set_strangers_apart(input);
    let asked = state.asked;
    // Bans charge nothing.
    let asks = state.asks[asked..].iter_mut();
    asks.filter(|ask| bans::limit_of(ask.place).is_none()).for_each(|ask| ask.settles = true);
    state.keep_if_abandoned();
    state.reservations.is_provisional = true;
    let decision = state.decide(input).await;
    state.reservations.is_provisional = false;
    state.with_bans(input, decision).await
}

/// Decides by the limits that [`refuse_first`] has prepared, after the token proved invalid or the body unusable.
pub async fn decide_first<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    state.set_strangers_apart(input);
    state.keep_if_abandoned();
    // A client without a valid token gets nothing from pools that are asked later.
    let decision = match state.find_pools(input, Role::Refuses) {
        ControlFlow::Break(decision) => state.finish(input, decision),
        ControlFlow::Continue(()) => state.decide(input).await,
    };
    state.with_bans(input, decision).await
}

/// Decides, after the body proved unusable, by the limits that waited for it only because of others.
pub async fn decide_without_body<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    match state.prepare(input) {
        ControlFlow::Continue(()) => decide_first(input, state).await,
        ControlFlow::Break(decision) => {
            let decision = state.finish(input, decision);
            state.with_bans(input, decision).await
        }
    }
}

impl RouteLimit {
    /// Whether strangers share the key of this request, so that the limit charges it only with those that decide last.
    pub fn is_of_strangers(&self, attributes: &RequestAttributes<'_>) -> bool {
        let key = self.key.extract_rare(attributes, &mut KeyCache::default());
        let counted = key.or((self.missing == Missing::Shared).then_some(self.key.shared));
        counted.is_some_and(|counted| self.key.is_of_strangers(counted, attributes))
    }
}

impl<'a> DecisionState<'a> {
    pub(super) fn unasked(&self) -> &[Ask<'a>] {
        &self.asks[self.asked..]
    }

    /// Sets the asks about keys apart that strangers share.
    fn set_strangers_apart(&mut self, input: &DecisionInput<'a, '_>) {
        let mut at = self.asked;
        while let Some(&ask) = self.asks.get(at) {
            match input.limits.get(ask.place) {
                Some(limit) if limit.key.is_of_strangers(ask.key, input.attributes) => {
                    self.asks.remove(at);
                    let profile = self.profiles.remove(at);
                    // A pool without its limits takes nothing.
                    self.of_strangers.extend(limit.is_of_route.then_some((ask, profile)));
                }
                _ => at += 1,
            }
        }
    }

    /// Asks with the limits that decide last what was set apart.
    pub(super) fn rejoin_strangers(&mut self) {
        for (ask, profile) in self.of_strangers.drain(..) {
            self.asks.push(ask);
            self.profiles.push(profile);
        }
    }

    /// The client cannot avoid the charge by leaving before the store has answered.
    fn keep_if_abandoned(&mut self) {
        self.asks[self.asked..].iter_mut().for_each(|ask| ask.if_abandoned = IfAbandoned::Stays);
    }

    /// Keeps and counts the charge from before the body was read, whatever the other limits decide.
    pub(super) fn conclude_first(&mut self, input: &DecisionInput<'a, '_>) {
        if self.first.is_some() {
            self.forget_asks(self.asked);
            self.conclude(input, &mut Reply::default());
        }
    }

    /// Decides about a request without a key if a limit that needs its body requires one. The limits that need no body
    /// themselves charge it: those that have the first `asks` asks, unless they have already, and those that waited for it.
    pub(super) async fn decide_without_key(
        &mut self,
        input: &DecisionInput<'a, '_>,
        asks: usize,
        decision: Decision,
    ) -> Decision {
        self.forget_asks(asks);
        self.leave_flight();
        let input = DecisionInput { part: StageRange::BODY_OF_OTHERS, ..*input };
        match decide_without_body(&input, self).await {
            Decision::Admitted | Decision::Unknown => decision,
            refused => refused,
        }
    }

    fn forget_asks(&mut self, left: usize) {
        self.asks.truncate(left);
        self.profiles.truncate(left);
    }

    /// Gives back the charge from before the body was read, because the request is not served.
    pub fn give_back(&mut self) {
        self.reservations.give_back(&mut self.outcomes, clock::now);
    }

    fn known_refusal(&mut self, input: &DecisionInput<'a, '_>) -> Option<Decision> {
        if let Some((place, max_delay)) = delay::full_queue(input, self) {
            return Some(self.give_up(input, place, max_delay));
        }
        let mut reply = input.store.known_refusal(self.unasked(), input.now, input.worker)?;
        if delay::is_held(input, self, &reply) {
            return None;
        }
        Some(self.conclude(input, &mut reply))
    }
}
