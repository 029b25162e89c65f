//! What schedules are made of.

use proptest::prelude::*;

use super::world::TIMEOUT;

/// One step of a schedule. Numbers of gateways and servers are taken modulo how many there are.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Asks for this cost.
    Ask {
        gateway: usize,
        what: usize,
        cost: u64,
    },
    /// Reserves this cost.
    Reserve {
        gateway: usize,
        what: usize,
        cost: u64,
    },
    /// Settles one of those that were reserved and admitted: so many parts of four are kept.
    Settle(usize, u64),
    /// Charges what a reservation turns out to cost in addition.
    Charge {
        gateway: usize,
        what: usize,
        cost: u64,
    },
    /// Reloads a gateway, which has this way to count then.
    Reload(usize, usize),
    /// Looks at the key of the first that is asked for, or resets it.
    Peek(usize, usize),
    Reset(usize, usize),
    /// Writes an exchange if one is due.
    Send(usize, usize),
    /// Executes the first exchange that has not been executed yet.
    Execute(usize, usize),
    /// Answers the first exchange if it has been executed.
    Answer(usize, usize),
    /// Breaks the connection after so many more exchanges were executed.
    Break(usize, usize, usize),
    /// Connects.
    Connect(usize, usize),
    /// Restarts a server.
    Restart(usize),
    /// Loses one of a server's items.
    Evict(usize, usize),
    /// Lets some of a server's next commands fail.
    Fail(usize, u64),
    /// Lets what was read grow old, by no clock that counts.
    Moment,
    /// Lets so many microseconds pass.
    Tick(u64),
}

/// Schedules of exchanges alone.
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

/// Schedules in which connections break as well.
pub(super) fn broken() -> BoxedStrategy<Step> {
    let broken =
        (0..3_usize, 0..2_usize, 0..3_usize).prop_map(|(gateway, server, done)| Step::Break(gateway, server, done));
    prop_oneof![18 => reliable(), 2 => broken].boxed()
}

/// Schedules in which servers lose what they know and refuse to work as well.
pub(super) fn lossy() -> BoxedStrategy<Step> {
    prop_oneof![
        40 => broken(),
        1 => (0..2_usize).prop_map(Step::Restart),
        1 => (0..2_usize, 0..9_usize).prop_map(|(server, number)| Step::Evict(server, number)),
        3 => (0..2_usize, 1..8_u64).prop_map(|(server, failing)| Step::Fail(server, failing)),
    ]
    .boxed()
}

/// The same with requests whose cost is known later.
pub(super) fn settling(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    let ask = (0..3_usize, 0..3_usize, 1..4_u64);
    let reserve = ask.prop_map(|(gateway, what, cost)| Step::Reserve { gateway, what, cost });
    let kept = prop_oneof![3 => Just(0_u64), 1 => Just(4), 1 => 1..4_u64];
    let settle = (0..6_usize, kept).prop_map(|(which, kept)| Step::Settle(which, kept));
    prop_oneof![5 => steps, 2 => reserve, 2 => settle].boxed()
}

/// The same with operators who look at keys and reset them.
pub(super) fn inspected(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    let one = || (0..3_usize, 0..3_usize);
    let peek = one().prop_map(|(gateway, what)| Step::Peek(gateway, what));
    let reset = one().prop_map(|(gateway, what)| Step::Reset(gateway, what));
    prop_oneof![12 => steps, 1 => peek, 1 => reset].boxed()
}

/// The same while time passes.
pub(super) fn passing(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    let gap = prop_oneof![4 => 0..TIMEOUT / 2, 1 => 0..2_000_000_u64, 1 => 0..70_000_000_u64];
    prop_oneof![8 => steps, 1 => gap.prop_map(Step::Tick)].boxed()
}

/// The same while moments pass.
pub(super) fn lasting(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    prop_oneof![9 => steps, 1 => (0..4 * TIMEOUT).prop_map(Step::Tick)].boxed()
}

/// The same while gateways reload.
pub(super) fn reloading(steps: BoxedStrategy<Step>) -> BoxedStrategy<Step> {
    prop_oneof![15 => steps, 1 => (0..3_usize, 0..9_usize).prop_map(|(gateway, way)| Step::Reload(gateway, way))]
        .boxed()
}
