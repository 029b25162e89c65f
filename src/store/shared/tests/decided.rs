//! Decisions of a gateway in schedules, beside what the memory store decides.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::base::clock::Time;
use crate::store::memory::Memory;
use crate::store::shared::OwnedAsk;
use crate::store::{Reply, Reserved};

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
    /// `None` if the request was dropped.
    pub(super) reply: Option<Reply>,
}

impl Decided {
    /// What each limit would have charged.
    pub(super) fn cost(&self) -> u64 {
        self.asks.iter().map(|ask| ask.cost).max().unwrap_or(0)
    }

    pub(super) fn remaining(&self) -> u64 {
        let verdicts = self.reply.iter().flat_map(|reply| &reply.verdicts);
        verdicts.map(|(_, verdict)| verdict.remaining).min().unwrap_or(0)
    }

    /// In microseconds, as the reply says.
    pub(super) fn wait(&self) -> Option<u64> {
        let asks: Vec<_> = self.asks.iter().map(OwnedAsk::borrowed).collect();
        self.reply.iter().flat_map(|reply| reply.refusals(&asks)).filter_map(|refusal| refusal.wait()).max()
    }

    pub(super) fn admitted(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| is_yes(reply, &self.asks))
    }
}

fn is_yes(reply: &Reply, asks: &[OwnedAsk]) -> bool {
    let asks: Vec<_> = asks.iter().map(OwnedAsk::borrowed).collect();
    reply.refusals(&asks).next().is_none()
}

fn decide(memory: &Memory, decided: &Decided, is_late: bool, cost: Option<u64>) -> bool {
    let ask = |ask: &OwnedAsk| OwnedAsk { cost: cost.unwrap_or(ask.cost), settles: false, ..ask.clone() };
    let asks: Vec<_> = decided.asks.iter().map(ask).collect();
    let borrowed: Vec<_> = asks.iter().map(OwnedAsk::borrowed).collect();
    is_yes(&memory.decide(&borrowed, if is_late { decided.decided } else { decided.asked }), &asks)
}

/// Checks that the memory store would have made every decision, either when it was asked for or when it was decided.
pub(super) fn compare(all: &[Decided], is_whole: bool) -> TestCaseResult {
    let memory = Memory::new(1000, usize::MAX);
    // Decisions that are made together count as of the last of them: of a bucket, nothing drains between them.
    let mut apart = 0;
    for together in all.chunk_by(|one, next| one.decided == next.decided) {
        let asked = || together.iter().map(|decided| decided.asked.micros());
        apart += asked().max().unwrap_or(0) - asked().min().unwrap_or(0);
        for decided in together.iter().filter(|decided| decided.reply.is_some()) {
            if decided.admitted() {
                let same = decide(&memory, decided, false, None) || decide(&memory, decided, true, None);
                prop_assert!(same, "admitted against the rules: {decided:?}");
            } else {
                let looks = [false, true].map(|is_late| decide(&memory, decided, is_late, Some(0)));
                let until = decided.asked.micros() + decided.wait().unwrap_or(u64::MAX / 2);
                let is_close = until <= decided.decided.micros() + apart;
                // It may be refused because of another request that was charged, and dropped before that was confirmed.
                let is_dropped = |other: &Decided| other.reply.is_none() && other.asked <= decided.asked;
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

/// The same for this cost. A pool that only stands in for others is asked for nothing.
pub(super) fn priced(ask: OwnedAsk, cost: u64) -> OwnedAsk {
    if ask.terms().is_idle() { ask } else { OwnedAsk { need: cost, cost, ..ask } }
}
