//! Provisional charges: what was charged before the server has confirmed it.

use smallvec::SmallVec;

use super::versioned::Number;
use crate::base::clock::Time;
use crate::store::Ticket;

/// The number of the charge of a lease, which no decision ever has.
pub(super) const NO_DECISION: u64 = u64::MAX;
/// The same of a lease that is to be given back as soon as it is granted.
pub(super) const WITHDRAWN: u64 = NO_DECISION - 1;

/// A charge to one cell that has yet to be confirmed.
#[derive(Debug)]
pub(super) struct Provisional {
    /// The number of the decision, and the index of the ask of it that was charged.
    pub(super) number: u64,
    pub(super) index: usize,
    /// What was charged, by the limit that has admitted it: limits of the same shape share a cell, but not a quota. A key that
    /// is reset gets another cell.
    pub(super) ticket: Ticket,
    /// The moment of the charge. It has to fit as of then, because later some of what it was counted with may have left
    /// the window.
    pub(super) at: Time,
    /// Whether it is part of the exchange that is in flight.
    pub(super) sent: bool,
    /// Its number among what is charged if it fits to the state that is kept as a whole, until it is known that it does.
    pub(super) attempt: Option<Number>,
}

impl Provisional {
    /// Whether no decision waits for it, because it is leased or was.
    pub(super) fn is_leased(&self) -> bool {
        matches!(self.number, NO_DECISION | WITHDRAWN)
    }

    /// The counters to which it was added: indexes of rates, and buckets.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (usize, u64)> {
        self.ticket.reservation.buckets(self.ticket.limit.rates())
    }
}

/// The provisional charges of a cell, in the order in which they were made.
pub(super) type Provisionals = SmallVec<[Box<Provisional>; 1]>;

/// What became of a provisional charge.
#[derive(Debug)]
pub(super) struct Confirmation {
    pub(super) charge: Box<Provisional>,
    /// If not, it was rejected and has been given back.
    pub(super) is_confirmed: bool,
}

/// How the charges of a decision stand, one for each of its asks.
pub(super) type Standings = SmallVec<[Standing; 2]>;

/// How the charge of one ask stands.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nothing has to be confirmed, and this says whether the limit admits the request.
    Final(bool),
    /// It has not been confirmed yet.
    Open,
    /// It is confirmed, or needs no confirmation.
    Confirmed(Box<Provisional>),
    /// It was given back, because other gateways were faster.
    Rejected,
}
