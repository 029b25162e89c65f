//! The steps of schedules, and the decisions of gateways in them, beside what the memory store decides.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::world::TIMEOUT;
use crate::base::clock::Time;
use crate::store::memory::Memory;
use crate::store::shared::OwnedAsk;
use crate::store::{Reply, Reserved};

/// Numbers of gateways and servers are taken modulo how many there are.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Ask {
        gateway: usize,
        what: usize,
        cost: u64,
    },
    Reserve {
        gateway: usize,
        what: usize,
        cost: u64,
    },
    /// Settles an admitted reservation: so many quarters are kept.
    Settle(usize, u64),
    /// Charges what a reservation costs in addition.
    Charge {
        gateway: usize,
        what: usize,
        cost: u64,
    },
    /// Reloads a gateway; it then counts in this way.
    Reload(usize, usize),
    /// Looks at the first key of a request, or resets it.
    Peek(usize, usize),
    Reset(usize, usize),
    Send(usize, usize),
    /// Executes the first exchange that has not been executed yet.
    Execute(usize, usize),
    /// Answers the first exchange if it has been executed.
    Answer(usize, usize),
    /// Breaks the connection after so many more exchanges were executed.
    Break(usize, usize, usize),
    Connect(usize, usize),
    Restart(usize),
    Evict(usize, usize),
    /// Makes some of a server's next commands fail.
    Fail(usize, u64),
    /// Makes reads outdated, without passing time on clocks.
    Moment,
    /// Passes so many microseconds.
    Tick(u64),
}

/// Schedules of exchanges without failures.
pub(super) fn reliable() -> BoxedStrategy<Step> {
    let pair = || (0..3_usize, 0..2_usize);
    prop_oneof![
        4 => (0..3_usize, 0..3_usize, 1..4_u64).prop_map(|(gateway, what, cost)| Step::Ask { gateway, what, cost }),
        4 => pair().prop_map(|(gateway, server)| Step::Send(gateway, server)),
        4 => pair().prop_map(|(gateway, server)| Step::Execute(gateway, server)),
        4 => pair().prop_map(|(gateway, server)| Step::Answer(gateway, server)),
        2 => pair().prop_map(|(gateway, server)| Step::Connect(gateway, server)),
        3 => Just(Step::Moment),
    ]
    .boxed()
}

/// Connections break, too.
pub(super) fn broken() -> BoxedStrategy<Step> {
    let broken =
        (0..3_usize, 0..2_usize, 0..3_usize).prop_map(|(gateway, server, done)| Step::Break(gateway, server, done));
    prop_oneof![18 => reliable(), 2 => broken].boxed()
}

/// Servers also lose what they know and refuse to work.
pub(super) fn lossy() -> BoxedStrategy<Step> {
    prop_oneof![
        40 => broken(),
        1 => (0..2_usize).prop_map(Step::Restart),
        1 => (0..2_usize, 0..9_usize).prop_map(|(server, number)| Step::Evict(server, number)),
        3 => (0..2_usize, 1..8_u64).prop_map(|(server, failing)| Step::Fail(server, failing)),
    ]
    .boxed()
}

/// With requests whose cost is known later, too.
pub(super) fn settling(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    let ask = (0..3_usize, 0..3_usize, 1..4_u64);
    let reserve = ask.prop_map(|(gateway, what, cost)| Step::Reserve { gateway, what, cost });
    let kept = prop_oneof![3 => Just(0_u64), 1 => Just(4), 1 => 1..4_u64];
    let settle = (0..6_usize, kept).prop_map(|(which, kept)| Step::Settle(which, kept));
    prop_oneof![5 => steps, 2 => reserve, 2 => settle].boxed()
}

/// With operators who look at keys and reset them, too.
pub(super) fn inspected(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    let one = || (0..3_usize, 0..3_usize);
    let peek = one().prop_map(|(gateway, what)| Step::Peek(gateway, what));
    let reset = one().prop_map(|(gateway, what)| Step::Reset(gateway, what));
    prop_oneof![12 => steps, 1 => peek, 1 => reset].boxed()
}

/// Time passes, up to 70 s at once.
pub(super) fn passing(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    let gap = prop_oneof![4 => 0..TIMEOUT / 2, 1 => 0..2_000_000_u64, 1 => 0..70_000_000_u64];
    prop_oneof![8 => steps, 1 => gap.prop_map(Step::Tick)].boxed()
}

/// Time passes, up to four timeouts at once.
pub(super) fn lasting(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    prop_oneof![9 => steps, 1 => (0..4 * TIMEOUT).prop_map(Step::Tick)].boxed()
}

pub(super) fn reloading(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    prop_oneof![15 => steps, 1 => (0..3_usize, 0..9_usize).prop_map(|(gateway, way)| Step::Reload(gateway, way))]
        .boxed()
}

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

    /// When there is more room, as the verdicts say, also those that admit. In microseconds.
    pub(super) fn told(&self) -> Option<u64> {
        let verdicts = self.reply.iter().flat_map(|reply| &reply.verdicts);
        verdicts.filter_map(|(_, verdict)| verdict.wait).max()
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
    if ask.borrowed().is_idle() { ask } else { OwnedAsk { need: cost, cost, ..ask } }
}
