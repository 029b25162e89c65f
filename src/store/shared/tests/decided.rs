//! What a gateway has decided, as schedules look at it, beside what the memory store decides.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::base::clock::Time;
use crate::store::memory::Memory;
use crate::store::shared::OwnedAsk;
use crate::store::{Ask, Reserved, Verdicts};

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

fn decide(memory: &Memory, decided: &Decided, is_late: bool, cost: Option<u64>) -> Verdicts {
    let ask = |ask| {
        let &OwnedAsk { ref limit, key, need, role, place, .. } = ask;
        Ask { limit, key, need, cost: cost.unwrap_or(ask.cost), settles: false, held_above: None, role, place }
    };
    let asks: Vec<Ask<'_>> = decided.asks.iter().map(ask).collect();
    memory.decide(&asks, if is_late { decided.decided } else { decided.asked }).verdicts
}

/// Sees that every decision is one that the memory store would have made, either when it was asked for or when it was
/// decided.
pub(super) fn compare(all: &[Decided], is_whole: bool) -> TestCaseResult {
    let memory = Memory::new(1000, usize::MAX);
    let is_yes = |verdicts: Verdicts| verdicts.iter().all(|(_, verdict)| verdict.admitted);
    // Who is decided together is counted as of the last of them: of a bucket, nothing drains between them.
    let mut apart = 0;
    for together in all.chunk_by(|one, next| one.decided == next.decided) {
        let asked = || together.iter().map(|decided| decided.asked.micros());
        apart += asked().max().unwrap_or(0) - asked().min().unwrap_or(0);
        for decided in together.iter().filter(|decided| decided.verdicts.is_some()) {
            if decided.admitted() {
                let same =
                    is_yes(decide(&memory, decided, false, None)) || is_yes(decide(&memory, decided, true, None));
                prop_assert!(same, "admitted against the rules: {decided:?}");
            } else {
                let looks = [false, true].map(|is_late| is_yes(decide(&memory, decided, is_late, Some(0))));
                let until = decided.asked.micros() + decided.wait().unwrap_or(u64::MAX / 2);
                let is_close = until <= decided.decided.micros() + apart;
                // It may be refused because of another one that was charged, and dropped before that was confirmed.
                let is_dropped = |other: &Decided| other.verdicts.is_none() && other.asked <= decided.asked;
                let may_be_charged = is_whole && all.iter().any(is_dropped);
                prop_assert!(
                    is_close || may_be_charged || looks.contains(&false),
                    "refused against the rules: {decided:?}"
                );
            }
        }
    }
    Ok(())
}
