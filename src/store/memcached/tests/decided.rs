//! What a gateway has decided, as schedules look at it.

use crate::clock::Time;
use crate::store::memcached::OwnedAsk;
use crate::store::{Reserved, Verdicts};

/// What was decided.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) gateway: usize,
    pub(super) asks: Vec<OwnedAsk>,
    /// When it was asked for, and when it was decided.
    pub(super) asked: Time,
    pub(super) decided: Time,
    /// What is yet to be settled, and what was given back.
    pub(super) reserved: Vec<Reserved>,
    pub(super) given: u64,
    /// `None` if whoever waited was dropped.
    pub(super) verdicts: Option<Verdicts>,
}

impl Decided {
    /// What it would have been charged, each time.
    pub(super) fn cost(&self) -> u64 {
        self.asks.iter().map(|ask| ask.cost).max().unwrap_or(0)
    }

    /// How much it was told remains.
    pub(super) fn remaining(&self) -> u64 {
        let verdicts = self.verdicts.iter().flatten();
        verdicts.map(|(_, verdict)| verdict.remaining).min().unwrap_or(0)
    }

    /// How many microseconds it was told to wait.
    pub(super) fn wait(&self) -> Option<u64> {
        self.verdicts.iter().flatten().filter_map(|(_, verdict)| verdict.wait).max()
    }

    pub(super) fn admitted(&self) -> bool {
        self.verdicts.as_ref().is_some_and(|verdicts| verdicts.iter().all(|(_, verdict)| verdict.admitted))
    }
}
