//! Holds requests that all their limits admit, the longer the fuller a limit is.
//!
//! A request is charged when it comes, and held afterwards, so that those side by side see each other. The longest hold counts,
//! once, and it counts from when the request came: one that a limit with `on_limit = "delay"` has held before is held that
//! much less. If its client goes away meanwhile, all that it was charged is given back.
//!
//! Requests of a key leave in the order in which they came, although a later one may find the limit less full: else a client
//! whose requests build on each other would see them served in another order. That makes nobody wait for longer than
//! `up_to`, because those before it came earlier.
//!
//! A held request is not in flight: it takes its places of `max_in_flight` when the hold is over. If there is none then, it is
//! refused, and what it was charged is given back.
//!
//! Held requests have queues of their own. In one with requests that wait for room, they would keep those from asking.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Decision, DecisionInput, DecisionState};
use crate::base::clock;
use crate::base::fingerprint::Fingerprint;
use crate::config::Slow;
use crate::store::Reply;

/// The hold of a request.
pub(super) struct Delay {
    place: usize,
    slow: Slow,
    lasts: Duration,
}

/// The longest hold of a request with this reply; `None` if it is refused, or not held.
pub(super) fn longest(input: &DecisionInput<'_, '_>, state: &DecisionState<'_>, reply: &Reply) -> Option<Delay> {
    let holds = reply.verdicts.iter().filter(|(_, verdict)| verdict.level > 0).filter_map(|(place, verdict)| {
        let slow = input.limits.get(*place)?.slow.filter(|_| input.reported(*place).is_none())?;
        Some(Delay { place: *place, slow, lasts: slow.hold(verdict.level) })
    });
    let longest = holds.filter(|hold| !hold.lasts.is_zero()).max_by_key(|hold| hold.lasts)?;
    reply.refusals(state.unasked()).next().is_none().then_some(longest)
}

/// Holds a request, and makes a decision of its verdicts. If the limit holds too many of its key, it is refused and charged
/// nothing. If the future is dropped, its charges are given back when the state is dropped, unless another proxy asks: that may
/// forward the request all the same.
pub(super) async fn hold<'a>(
    input: &DecisionInput<'a, '_>,
    state: &mut DecisionState<'a>,
    Delay { place, slow, lasts }: Delay,
    mut reply: Reply,
) -> Decision {
    let held = state.held_since.map_or(0, |since| clock::now().micros_since(since));
    let held = Duration::from_micros(held);
    let (left, longest) = (lasts.saturating_sub(held), input.longest_hold().saturating_sub(held));
    if left.is_zero() {
        return state.conclude(input, reply);
    }
    state.reserve(input, &mut reply);
    if input.asker.is_none() {
        state.reservations.begin_hold();
    }
    let queue = state.unasked().iter().find(|ask| ask.place == place).map(|ask| ask.key.with(queues()));
    let Some(mut slot) = queue.and_then(|queue| input.wait_queues.join(queue, slow.max_delayed)) else {
        state.give_back();
        return state.give_up(input, place, slow.up_to);
    };
    state.begin_to_hold(input.now);
    input.limits[place].counters(input.worker).delayed.one();
    state.leave_flight();
    let turn = async {
        sleep(left).await;
        slot.wait_until_first().await;
    };
    // Who asks does not wait for all that are before it.
    let _ = timeout(longest, turn).await;
    if let ControlFlow::Break(decision) = state.rejoin_flight(input) {
        state.give_back();
        return decision;
    }
    state.reservations.end_hold(clock::now);
    state.conclude(input, reply)
}

/// What tells the queues of held requests from those of requests that wait for room.
fn queues() -> Fingerprint {
    Fingerprint::of(b"slow")
}
