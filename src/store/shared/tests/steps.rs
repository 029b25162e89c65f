//! The steps of schedules.

use proptest::prelude::*;

use super::world::TIMEOUT;

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
