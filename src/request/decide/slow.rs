//! Holds requests that all their limits admit, for longer the fuller a limit is.
//!
//! A request is charged when it comes and held afterwards, so concurrent requests see each other's charges. Only the longest
//! hold counts, from the arrival of the request, so time that `on_limit = "delay"` has held it is subtracted. If its client
//! leaves meanwhile, its charges are given back.
//!
//! Requests of a key leave in order of arrival, even if a later one finds the limit less full, since they may build on each
//! other. None waits longer than `up_to` for that, because those before it came earlier.
//!
//! A held request is not in flight: if no place of `max_in_flight` is free when its hold ends, it is refused and its charges
//! are given back. Held requests have queues of their own, since they would keep requests that wait for room from asking.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::delay::queue_of;
use super::{Decision, DecisionInput, DecisionState};
use crate::base::clock;
use crate::base::fingerprint::Fingerprint;
use crate::config::Slow;
use crate::store::Reply;

pub(super) struct Delay {
    place: usize,
    slow: Slow,
    lasts: Duration,
}

/// The longest hold of a request with this reply; `None` if the request is refused or not held.
pub(super) fn longest(input: &DecisionInput<'_, '_>, state: &DecisionState<'_>, reply: &Reply) -> Option<Delay> {
    let holds = reply.verdicts.iter().filter(|(_, verdict)| verdict.level > 0).filter_map(|(place, verdict)| {
        let slow = input.limits.get(*place)?.slow.filter(|_| input.reported(*place).is_none())?;
        Some(Delay { place: *place, slow, lasts: slow.hold(verdict.level) })
    });
    let longest = holds.filter(|hold| !hold.lasts.is_zero()).max_by_key(|hold| hold.lasts)?;
    reply.refusals(state.unasked()).next().is_none().then_some(longest)
}

/// Holds a request, then decides by its verdicts. If the limit already holds too many requests of the key, the request is
/// refused and charged nothing. If the future is dropped, dropping the state gives back the charges, unless another proxy
/// asks, since that may forward the request anyway.
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
        return state.conclude(input, &mut reply);
    }
    state.reserve(input, &mut reply);
    if input.asker.is_none() {
        state.reservations.is_held = true;
    }
    let queue = state.unasked().iter().find(|ask| ask.place == place).map(|ask| queue_of(ask).with(queues()));
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
    // A proxy that asks does not wait for all requests before this one.
    let _ = timeout(longest, turn).await;
    if let ControlFlow::Break(decision) = state.rejoin_flight(input) {
        state.give_back();
        return decision;
    }
    state.reservations.end_hold(clock::now);
    state.conclude_reserved(input, &mut reply)
}

/// Separates the queues of held requests from those of requests that wait for room.
fn queues() -> Fingerprint {
    Fingerprint::of(b"slow")
}
