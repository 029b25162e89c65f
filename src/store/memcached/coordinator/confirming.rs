//! Decisions with provisional charges: each charge is confirmed, or is rejected and given back, or gets no answer.

use super::Coordinator;
use crate::config::OnError;
use crate::store::memcached::Wish;
use crate::store::memcached::cells::Place;
use crate::store::memcached::claims::{Outcome, Standing};
use crate::store::memcached::message::Decision;

impl Coordinator {
    /// One provisional charge of a decision is confirmed or rejected.
    pub(super) fn settle(&mut self, cell: Place, Outcome { claim, stands }: Outcome) {
        let number = claim.number;
        match self.waiting.get_mut(number).and_then(|decision| decision.standing(claim.ask)) {
            Some(standing) => *standing = if stands { Standing::Stands(claim) } else { Standing::Lost },
            // The request was refused meanwhile.
            None if stands => self.cells.at(cell).give_back(&claim),
            None => {}
        }
        if let Some(decision) = self.waiting.count_down(number) {
            self.conclude(decision);
        }
    }

    /// Completes a decision whose provisional charges have all been confirmed or rejected, or will get no answer. If one was
    /// rejected, all are given back.
    pub(super) fn conclude(&mut self, mut decision: Box<Decision>) {
        let claimed = std::mem::take(&mut decision.claimed);
        let lost = |(wish, standing): (&Wish, &Standing)| !wish.advisory && matches!(standing, Standing::Lost);
        let refused = decision.asks.iter().zip(&claimed).any(lost);
        for (ask, standing) in claimed.into_iter().enumerate() {
            let admitted = !matches!(standing, Standing::Lost | Standing::Unclaimed(false));
            let place = decision.asks[ask].place;
            if refused || !admitted {
                // The charge is given back here, or has been.
                decision.reserved.retain(|reserved| reserved.place != place);
            }
            self.close(&decision, ask, standing, refused);
            let wish = &decision.asks[ask];
            let known = self.cells.again(&mut decision.places[ask], wish, decision.now, &self.health.forgotten);
            if let Some(reserved) = decision.reserved.iter_mut().find(|reserved| reserved.place == place) {
                wish.limit.follow(&mut known.cell, &mut reserved.reservation);
            }
            decision.verdicts.push((wish.place, wish.limit.judge(&known.cell, known.now, wish.need, admitted)));
        }
        self.reply(decision);
    }

    /// Drops a decision, which tells whoever waits for it. Its charges are given back if that means that it is refused.
    pub(super) fn dismiss(&mut self, mut decision: Box<Decision>) {
        for (ask, standing) in std::mem::take(&mut decision.claimed).into_iter().enumerate() {
            self.close(&decision, ask, standing, self.on_error == OnError::Reject);
        }
    }

    /// Keeps or gives back a charge of a decision that is complete.
    fn close(&mut self, decision: &Decision, ask: usize, standing: Standing, is_given_back: bool) {
        let place = decision.places[ask];
        let known = self.cells.at(place);
        if known.id() != decision.asks[ask].cell() {
            return;
        }
        match standing {
            Standing::Stands(claim) if is_given_back => known.give_back(&claim),
            // A charge that is in flight is given back when it is answered, because no decision waits for it then.
            Standing::Open if !is_given_back => known.withdraw(decision.number, ask),
            _ => return,
        }
        self.queue(place, true);
    }

    /// No decision waits for provisional charges of this cell any longer. Those that were sent are in doubt, unless their
    /// exchange was answered.
    pub(super) fn drop_claims(&mut self, cell: Place, is_in_doubt: bool) {
        for claim in std::mem::take(&mut self.cells.at(cell).claims) {
            let number = claim.number;
            match self.waiting.get_mut(number).and_then(|decision| decision.standing(claim.ask)) {
                // What is in doubt stays charged. To give back what never arrived would admit too many requests.
                Some(standing) if claim.sent && is_in_doubt => *standing = Standing::Unclaimed(true),
                Some(standing) => *standing = Standing::Stands(claim),
                None if claim.sent && is_in_doubt => {}
                None => self.cells.at(cell).give_back(&claim),
            }
            self.give_up(number);
        }
    }
}
