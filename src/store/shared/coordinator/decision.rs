//! How a decision begins, what its limits say before anything is charged, how it goes back to its worker, and what is
//! remembered of it.

use smallvec::SmallVec;
use tokio::time::Instant;

use super::Coordinator;
use crate::base::clock::Time;
use crate::config::OnError;
use crate::store::plan::Plan;
use crate::store::shared::OwnedAsk;
use crate::store::shared::batch::ServerState;
use crate::store::shared::cached_cell::CachedCell;
use crate::store::shared::cells::CellPlace;
use crate::store::shared::mailbox::{PendingDecision, PendingDecisions};
use crate::store::shared::refusals::Seen;
use crate::store::{Asks, IfAbandoned};

#[derive(Clone, Copy, Debug)]
pub(super) struct Admit {
    pub(super) now: Time,
    pub(super) is_provisional: bool,
    /// Whether the lease of the key covers it, so that it is charged already.
    pub(super) is_leased: bool,
}

pub(super) type Admits = SmallVec<[Admit; 2]>;

impl Coordinator {
    /// Ignores a decision for which nobody waits any more.
    pub(super) fn decide(&mut self, decision: Box<PendingDecision>, deadline: Instant) {
        if !decision.is_given_up() {
            self.begin(decision, Some(deadline));
        }
    }

    /// Decides at once if all servers are away, or if all counters were just read and have plenty of room; otherwise when the
    /// servers have answered, or at the deadline. With plenty of room, it charges at once and needs only the exchange that
    /// confirms the charge; to read first and write later would take two.
    ///
    /// A limit with a pool that is known to have no room is not looked at: the pool is asked instead, and has its own
    /// exchange only if it needs one.
    ///
    /// A decision that has waited before keeps its deadline (`None`).
    pub(super) fn begin(&mut self, mut decision: Box<PendingDecision>, deadline: Option<Instant>) {
        let mut admits = Admits::new();
        let PendingDecision { asks, places, now, asked, .. } = &mut *decision;
        places.clear();
        for ask in asks.iter_mut() {
            self.cells.follow(ask, *now);
            let (place, cached) = self.cells.of(&ask.limit, ask.key, *now);
            places.push(place);
            // A proxy that asks may give back what was charged at any gateway. With `strict`, lower counts are believed anyway.
            let is_given_back = ask.if_abandoned == IfAbandoned::Stays && !self.strict;
            if ask.settles || ask.held_above.is_some() || is_given_back {
                cached.counters.may_shrink();
            }
            ask.is_full |= ask.overflow.is_some() && self.refusals.knows(ask, *now);
            let now = cached.advance_for(&ask.limit, *now, *asked);
            admits.push(Admit { now, is_provisional: false, is_leased: false });
        }
        let plan = self.plan(asks, places, *asked, |ask, cached, index, need| match ask.looks_at_bans() {
            true => ask.limit.admits(&cached.cell, admits[index].now, need),
            false => cached.has_plenty(&ask.limit, need),
        });
        // Without a decision here when a server fails, a charge that was sent before would be for nothing.
        let mut may_be_provisional = self.strict || self.on_error == OnError::Local;
        let mut is_reachable = true;
        let is_scarce = plan.parts.iter().any(|part| !part.has_room);
        let is_any_full = asks.iter().any(|ask| ask.is_full);
        // Cells that must be read, and whose servers are not away.
        let mut unread: SmallVec<[CellPlace; 2]> = SmallVec::new();
        for (((ask, place), admit), part) in asks.iter_mut().zip(&*places).zip(&mut admits).zip(&plan.parts) {
            ask.follow_plan(part);
            let is_idle = ask.borrowed().is_idle();
            if ask.is_full || is_idle && part.pooled.is_none() {
                continue;
            }
            let has_plenty = part.fits();
            let cached = self.cells.peek(*place);
            admit.is_leased = cached.is_leased(ask, ask.demand(), *asked);
            let (is_read, may_reserve) = match ask.looks_at_bans() {
                true => (cached.was_read_for_bans(*asked), has_plenty),
                false => (
                    admit.is_leased || has_plenty && !self.strict && cached.was_just_read(*asked),
                    // With `held_above`, the level before the charge must be known, so the cell is read first.
                    has_plenty && ask.cost > 0 && ask.held_above.is_none() && (self.strict || cached.may_reserve()),
                ),
            };
            admit.is_provisional = !is_read;
            may_be_provisional = may_be_provisional && (is_read || may_reserve);
            if self.servers[cached.server].state == ServerState::Away {
                // A pool may not be needed in the end.
                is_reachable &= is_idle && !is_any_full;
            } else if !is_read {
                unread.push(*place);
            }
        }
        if is_scarce && self.is_refused_meanwhile(&mut decision) {
            return self.deliver(decision);
        }
        if is_reachable && unread.is_empty() {
            return self.carry_out(decision, &plan, &admits);
        }
        let number = match deadline {
            Some(deadline) => self.waiting.push(decision, unread.len(), deadline),
            None => self.waiting.put_back(decision, unread.len()),
        };
        if is_reachable && may_be_provisional {
            self.waiting.take(number).into_iter().for_each(|decision| self.carry_out(decision, &plan, &admits));
        } else if !is_reachable && self.on_error != OnError::Local {
            // Drops the sender of the reply, which tells the request.
            self.waiting.take(number);
        } else if unread.is_empty() {
            self.give_up(number);
        } else {
            for place in unread {
                let cached = self.cells.at(place);
                self.servers[cached.server].want(place, cached, number);
            }
        }
    }

    /// A cell has room for what is leased; otherwise `has_room` decides by ask, cell, index and need.
    pub(super) fn plan(
        &self,
        asks: &[OwnedAsk],
        places: &[CellPlace],
        asked: Instant,
        has_room: impl Fn(&OwnedAsk, &CachedCell, usize, u64) -> bool,
    ) -> Plan {
        Plan::new(&asks.iter().map(OwnedAsk::borrowed), |index, demand| {
            let (ask, cached) = (&asks[index], self.cells.peek(places[index]));
            !ask.is_full && (cached.is_leased(ask, demand, asked) || has_room(ask, cached, index, demand.need))
        })
    }

    /// Notes how full the limits are before the charge. If the request may be held, all its charges are reserved.
    pub(super) fn note_levels(&mut self, decision: &mut PendingDecision, plan: &Plan, admits: &Admits) {
        let PendingDecision { asks, places, .. } = decision;
        if asks.iter().all(|ask| ask.held_above.is_none()) {
            return;
        }
        let mut may_be_held = false;
        for (((ask, place), admit), part) in asks.iter_mut().zip(&*places).zip(admits).zip(&plan.parts) {
            if !part.has_room {
                continue;
            }
            ask.level = self.cells.at(*place).level(ask, admit.now);
            may_be_held |= ask.borrowed().may_be_held(ask.level);
        }
        if may_be_held {
            for (ask, place) in asks.iter_mut().zip(&*places).filter(|(ask, _)| ask.cost > 0) {
                ask.settles = true;
                self.cells.at(*place).counters.may_shrink();
            }
        }
    }

    pub(in super::super) fn take_replies(&mut self) -> impl Iterator<Item = (usize, PendingDecisions)> {
        self.replies.iter_mut().map(std::mem::take).enumerate().filter(|(_, replies)| !replies.is_empty())
    }

    /// Whether a refusal that was remembered after the request came refuses it. While the server is asked about a key,
    /// nothing is remembered of it, and each request that comes meanwhile would ask again.
    fn is_refused_meanwhile(&self, decision: &mut PendingDecision) -> bool {
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
