//! Decisions with provisional charges: each charge is confirmed, or rejected and given back, or gets no answer.
//!
//! Bans are in a separate cell, which hardly ever changes. Mostly it was read less than a second ago, and is not read again.
//! Otherwise the exchange that the decision needs anyway reads it; charges meanwhile are provisional, and given back if the
//! key turns out to be banned.

use super::Coordinator;
use crate::config::OnError;
use crate::store::Reply;
use crate::store::plan::Plan;
use crate::store::shared::OwnedAsk;
use crate::store::shared::cached_cell::{Confirmation, Standing, Standings};
use crate::store::shared::cells::CellPlace;
use crate::store::shared::mailbox::PendingDecision;

impl Coordinator {
    /// The cell of bans was just read: if a decision is charged already and waits for that, notes whether its key is banned.
    pub(super) fn look_at_ban(&mut self, cell: CellPlace, number: u64) {
        let Some(decision) = self.waiting.get_mut(number) else { return };
        let Some(index) = decision.places.iter().position(|place| *place == cell) else { return };
        let (cached, ask) = (self.cells.peek(cell), &decision.asks[index]);
        let is_admitted = ask.limit.admits(&cached.cell, cached.now, ask.need);
        if let Some(standing) = decision.standings.get_mut(index) {
            *standing = if is_admitted { Standing::Final(true) } else { Standing::Rejected };
        }
    }

    pub(super) fn confirm(&mut self, cell: CellPlace, Confirmation { charge, is_confirmed }: Confirmation) {
        let number = charge.number;
        match self.waiting.get_mut(number).and_then(|decision| decision.standings.get_mut(charge.index)) {
            Some(standing) => *standing = if is_confirmed { Standing::Confirmed(charge) } else { Standing::Rejected },
            // The request was refused meanwhile.
            None if is_confirmed => self.cells.at(cell).give_back(&charge),
            None => {}
        }
        if let Some(decision) = self.waiting.count_down(number) {
            self.conclude(decision);
        }
    }

    /// Completes a decision whose provisional charges have been confirmed or rejected, or will get no answer. If one was
    /// rejected, all are given back, and if its limit has a pool, the pool is asked instead.
    pub(super) fn conclude(&mut self, mut decision: Box<PendingDecision>) {
        let standings = std::mem::take(&mut decision.standings);
        for (ask, standing) in decision.asks.iter_mut().zip(&standings) {
            ask.is_full |= matches!(standing, Standing::Rejected);
        }
        let has_room = |index: usize, _| !matches!(standings[index], Standing::Rejected | Standing::Final(false));
        let plan = Plan::new(&decision.asks.iter().map(OwnedAsk::borrowed), has_room);
        let is_late =
            |(ask, standing): (&OwnedAsk, &Standing)| ask.overflow.is_some() && matches!(standing, Standing::Rejected);
        if plan.admits && decision.asks.iter().zip(&standings).any(is_late) {
            return self.ask_pool(decision, standings);
        }
        for (index, standing) in standings.into_iter().enumerate() {
            let part = &plan.parts[index];
            let place = decision.asks[index].place;
            if part.charged == 0 {
                // The charge is given back here, or has been.
                decision.result.reserved.retain(|reserved| reserved.place != place);
            }
            self.close(&decision, index, standing, !plan.admits);
            let ask = &decision.asks[index];
            let cached = self.cells.again(&mut decision.places[index], ask, decision.now);
            if let Some(reserved) = decision.result.reserved.iter_mut().find(|reserved| reserved.place == place) {
                ask.limit.follow(&mut cached.cell, &mut reserved.ticket.reservation);
            }
            cached.judge(ask, cached.now, part, &mut decision.result);
        }
        self.reply(decision);
    }

    /// Other gateways took the room of a limit first: gives back all charges of a decision, and decides once more, with the
    /// pool of that limit.
    fn ask_pool(&mut self, mut decision: Box<PendingDecision>, standings: Standings) {
        let is_waiting = standings.iter().any(|standing| matches!(standing, Standing::Open));
        for (index, standing) in standings.into_iter().enumerate() {
            self.close(&decision, index, standing, true);
        }
        decision.result = Reply::default();
        if is_waiting {
            // Its time is over: a charge without an answer will be given back.
            self.judge(decision, false);
        } else {
            self.begin(decision, None);
        }
    }

    /// Drops a decision, which tells the request. Gives back its charges if the request is then refused.
    pub(super) fn dismiss(&mut self, mut decision: Box<PendingDecision>) {
        for (index, standing) in std::mem::take(&mut decision.standings).into_iter().enumerate() {
            self.close(&decision, index, standing, self.on_error == OnError::Reject);
        }
    }

    fn close(&mut self, decision: &PendingDecision, index: usize, standing: Standing, is_given_back: bool) {
        let place = decision.places[index];
        let cached = self.cells.at(place);
        if cached.id() != decision.asks[index].cell() {
            return;
        }
        match standing {
            Standing::Confirmed(charge) if is_given_back => cached.give_back(&charge),
            // A charge in flight is given back when it is answered, because no decision waits for it then.
            Standing::Open if !is_given_back => cached.withdraw(decision.number, index),
            _ => return,
        }
        self.queue(place, true);
    }

    /// Drops all provisional charges of this cell. Sent ones are unacknowledged, unless their exchange was answered.
    pub(super) fn drop_provisional(&mut self, cell: CellPlace, is_unacknowledged: bool) {
        for charge in self.cells.at(cell).withdraw_all() {
            let number = charge.number;
            match self.waiting.get_mut(number).and_then(|decision| decision.standings.get_mut(charge.index)) {
                // An unacknowledged charge stays: giving back one that never arrived would admit too many requests.
                Some(standing) if charge.sent && is_unacknowledged => *standing = Standing::Final(true),
                Some(standing) => *standing = Standing::Confirmed(charge),
                None if charge.sent && is_unacknowledged => {}
                None => self.cells.at(cell).give_back(&charge),
            }
            self.give_up(number);
        }
    }
}
