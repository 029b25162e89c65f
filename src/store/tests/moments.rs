//! Requests that are decided long after the clock was read for them.

use std::cell::Cell as Local;

use proptest::prelude::{Just, any, prop, prop_assert, prop_oneof, proptest};
use proptest::strategy::Strategy as Generate;

use super::*;
use crate::base::clock::{self, Timeline};

const SECOND: u64 = 1_000_000;
const WINDOW: u64 = 10 * SECOND;
const QUOTA: u64 = 10;

thread_local! {
    static CLOCK: Local<u64> = const { Local::new(0) };
}

fn read() -> Time {
    Time::from_micros(CLOCK.get())
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// In microseconds.
    Pass(u64),
    Come,
    Burst(u64),
    End(prop::sample::Index),
}

fn steps() -> impl Generate<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..SECOND).prop_map(Step::Pass),
        1 => (0..2 * WINDOW).prop_map(Step::Pass),
        2 => Just(Step::Come),
        2 => (1..2 * QUOTA).prop_map(Step::Burst),
        3 => any::<prop::sample::Index>().prop_map(Step::End),
    ];
    prop::collection::vec(step, 1..80)
}

/// The most that is admitted in so many microseconds.
type Most = fn(u64) -> u64;

/// A limit of ten in ten seconds by each exact strategy, and the most that it admits in so many microseconds.
fn limits() -> [(Arc<Limit>, Most); 4] {
    let of = |strategy| {
        let rate = Rate::new(QUOTA, Duration::from_micros(WINDOW)).unwrap().with_strategy(strategy).unwrap();
        Arc::new(Limit::new("test", &[rate]))
    };
    let whole = Strategy::SlidingWindow { precision: 5, edge: Edge::Whole };
    [
        (of(whole), |time| QUOTA * (time / WINDOW + 1)),
        (of(Strategy::FixedWindow), |time| QUOTA * (time / WINDOW + 2)),
        (of(Strategy::SlidingLog), |time| QUOTA * (time / WINDOW + 1)),
        (of(Strategy::TokenBucket { burst: QUOTA }), |time| QUOTA + time * QUOTA / WINDOW + 1),
    ]
}

proptest! {
    #[test]
    fn no_order_of_old_and_new_moments_admits_more_than_the_rule_allows(steps in steps()) {
        for (limit, most) in limits() {
            let counters = Counters::Memory(Memory::new(10, usize::MAX));
            let store = Store { counters, timeline: Some(Timeline::new(read)) };
            CLOCK.set(NOW.micros());
            let (mut held, mut admitted) = (Vec::new(), Vec::new());
            let decide = |moment: Time, admitted: &mut Vec<u64>| {
                let Answer::Now(reply) = store.decide(&[ask(&limit, key(1))], moment, 0) else { unreachable!() };
                if reply.verdicts[0].1.admitted {
                    admitted.push(CLOCK.get());
                }
            };
            for step in &steps {
                match step {
                    Step::Pass(time) => {
                        CLOCK.set(CLOCK.get() + time);
                        // Somebody else comes as well.
                        store.decide(&[ask(&limit, key(2))], read(), 0);
                    }
                    Step::Come => held.push(read()),
                    Step::Burst(times) => (0..*times).for_each(|_| decide(read(), &mut admitted)),
                    Step::End(_) if held.is_empty() => {}
                    Step::End(index) => decide(held.swap_remove(index.index(held.len())), &mut admitted),
                }
            }
            for (first, begin) in admitted.iter().enumerate() {
                for (count, end) in (1..).zip(&admitted[first..]) {
                    // A clock that was read a moment ago is believed.
                    let most = most(end - begin + clock::UNCHECKED);
                    prop_assert!(count <= most, "{count} in {} us, at most {most}: {:?}", end - begin, limit);
                }
            }
        }
    }
}
