//! Provisional charges, which the server has yet to confirm.

use smallvec::SmallVec;

use super::versioned::Number;
use crate::base::clock::Time;
use crate::store::Ticket;

/// In place of a decision's number: the charge of a lease.
pub(super) const NO_DECISION: u64 = u64::MAX;
/// In place of a decision's number: the charge of a lease that is given back as soon as it is granted.
pub(super) const WITHDRAWN: u64 = NO_DECISION - 1;

#[derive(Debug)]
pub(super) struct Provisional {
    /// The number of the decision, and the index of the charged ask.
    pub(super) number: u64,
    pub(super) index: usize,
    /// With the admitting limit: limits of one shape share a cell, not a quota. A key that is reset gets another cell.
    pub(super) ticket: Ticket,
    /// The moment of the charge. It must fit as of then: later, other counts may have left the window.
    pub(super) at: Time,
    /// Whether it is part of the exchange in flight.
    pub(super) sent: bool,
    /// Its number as an attempt to charge the state that is kept as a whole, until the result is known.
    pub(super) attempt: Option<Number>,
}

impl Provisional {
    /// Whether it is the charge of a lease, for which no decision waits.
    pub(super) fn is_leased(&self) -> bool {
        matches!(self.number, NO_DECISION | WITHDRAWN)
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = (usize, u64)> {
        self.ticket.reservation.buckets(self.ticket.limit.rates())
    }
}

/// In the order in which they were made.
pub(super) type Provisionals = SmallVec<[Box<Provisional>; 1]>;

#[derive(Debug)]
pub(super) struct Confirmation {
    pub(super) charge: Box<Provisional>,
    /// If not, it was rejected and has been given back.
    pub(super) is_confirmed: bool,
}

pub(super) type Standings = SmallVec<[Standing; 2]>;

#[derive(Debug)]
pub(super) enum Standing {
    /// Nothing has to be confirmed; says whether the limit admits the request.
    Final(bool),
    Open,
    /// Confirmed, or in no need of it.
    Confirmed(Box<Provisional>),
    /// Given back, because other gateways were faster.
    Rejected,
}
