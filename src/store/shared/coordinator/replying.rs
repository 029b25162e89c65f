//! How decisions go back to the workers, and what is remembered of them.

use super::Coordinator;
use crate::store::Asks;
use crate::store::shared::OwnedAsk;
use crate::store::shared::message::{PendingDecision, PendingDecisions};
use crate::store::shared::refusals::Seen;

impl Coordinator {
    pub(in crate::store::shared) fn take_replies(&mut self) -> impl Iterator<Item = (usize, PendingDecisions)> {
        self.replies.iter_mut().map(std::mem::take).enumerate().filter(|(_, replies)| !replies.is_empty())
    }

    /// Whether a refusal that was remembered after the request came refuses it. While the server is asked about a key,
    /// nothing is remembered of it, and each request that comes meanwhile would ask again.
    pub(super) fn is_refused_meanwhile(&self, decision: &mut PendingDecision) -> bool {
        let asks: Asks<'_> = decision.asks.iter().map(OwnedAsk::borrowed).collect();
        let Some(reply) = self.refusals.find(&asks, decision.now, false) else { return false };
        self.health.remembered.of(decision.worker).one();
        decision.result = reply;
        true
    }

    pub(super) fn reply(&mut self, decision: Box<PendingDecision>) {
        let PendingDecision { asks, result, places, now, .. } = &*decision;
        let seen = |ask: &OwnedAsk, index| match places.get(index).map(|place| self.cells.peek(*place)) {
            Some(cached) if cached.id() == ask.cell() => {
                let counts = ask.limit.small_copy(&cached.lasting(&ask.limit, *now));
                Seen { is_brief: cached.may_be_leased(*now), counts }
            }
            _ => Seen::default(),
        };
        self.refusals.note(asks, result, *now, seen);
        self.deliver(decision);
    }

    pub(super) fn deliver(&mut self, decision: Box<PendingDecision>) {
        match self.replies.get_mut(decision.worker) {
            Some(replies) if decision.reply.is_some() => replies.push(decision),
            _ => {
                let (now, asked) = (decision.now, decision.asked);
                decision.answer(now, asked).for_each(|message| self.submit(message, asked));
            }
        }
    }
}
