//! Tests of the cache with a simulated clock.

use proptest::prelude::*;

use super::super::quota::tests::{rates, terms};
use super::*;

const SPAN: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Time {
    Time::from_micros(1_800_000_000_000_000 + seconds * 1_000_000)
}

fn key(number: usize) -> Fingerprint {
    Fingerprint::of(&number.to_be_bytes())
}

fn quota(text: &str) -> Arc<Quota> {
    Arc::new(terms("", 1).read(rates(&[text])).unwrap().unwrap())
}

/// The end of a lookup.
fn end() -> watch::Receiver<()> {
    watch::channel(()).1
}

/// Looks a key up; the source answers at once. Returns whether the source was asked.
fn look_up(cache: &Cache, number: usize, found: &LookupAnswer, now: Time) -> bool {
    let mut is_asked = false;
    cache.get(key(number), now, |_| {
        is_asked = true;
        Some(end())
    });
    if is_asked {
        cache.end(key(number), key(number), found.clone(), now);
    }
    is_asked
}

fn rate(cache: &Cache, number: usize, now: Time) -> Option<String> {
    cache.get(key(number), now, |_| None).quota.map(|quota| quota.answer.rates[0].clone())
}

#[test]
fn a_key_has_one_lookup_at_a_time() {
    let cache = Cache::new(100, SPAN);
    assert!(cache.get(key(1), at(0), |is_renewal| (!is_renewal).then(end)).wait.is_some(), "nothing is known");
    for _ in 0..3 {
        let again = cache.get(key(1), at(0), |_| panic!("it is under way"));
        assert!(again.wait.is_some() && again.quota.is_none());
    }
    cache.end(key(1), key(1), LookupAnswer::Nothing, at(0));
    assert!(cache.get(key(1), at(0), |_| None).wait.is_none(), "it may not be asked for");
    assert!(look_up(&cache, 1, &LookupAnswer::Quota(quota("5/s")), at(0)));
    assert_eq!(rate(&cache, 1, at(1)).as_deref(), Some("5/s"));
}

#[test]
fn what_has_expired_is_used_while_one_lookup_renews_it() {
    let cache = Cache::new(100, SPAN);
    assert!(look_up(&cache, 1, &LookupAnswer::Quota(quota("5/s")), at(0)));
    assert!(!look_up(&cache, 1, &LookupAnswer::Absent, at(53)), "it is fresh");
    let mut is_renewed = false;
    let late = cache.get(key(1), at(61), |is_renewal| {
        is_renewed = is_renewal;
        Some(end())
    });
    assert!(is_renewed && late.quota.is_some() && late.wait.is_none(), "no request waits");
    let meanwhile = cache.get(key(1), at(62), |_| panic!("it is under way"));
    assert!(meanwhile.quota.is_some() && meanwhile.wait.is_none(), "no request waits");
    // The source is unavailable: the quota stays in use, for ever.
    cache.end(key(1), key(1), LookupAnswer::Nothing, at(63));
    assert_eq!(rate(&cache, 1, at(1_000_000)).as_deref(), Some("5/s"));
    // The source has forgotten the key.
    assert!(look_up(&cache, 1, &LookupAnswer::Absent, at(1_000_000)));
    assert_eq!((rate(&cache, 1, at(1_000_000)), cache.len()), (None, (0, 1)));
}

#[test]
fn failures_are_repeated_less_and_less_often() {
    let cache = Cache::new(100, SPAN);
    let asked = |from: u64, to: u64, found: &LookupAnswer| {
        (from..to).filter(|second| look_up(&cache, 1, found, at(*second))).collect::<Vec<_>>()
    };
    assert_eq!(asked(0, 100, &LookupAnswer::Unusable), [0, 1, 3, 7, 15, 31, 63]);
    let peeked = cache.peek(key(1)).unwrap();
    assert_eq!((peeked.failures, peeked.answered, peeked.quota.is_none()), (7, None, true));
    assert_eq!(asked(200, 201, &LookupAnswer::Quota(quota("5/s"))), [200]);
    // The known quota stays in use although the next answers are unusable.
    assert_eq!(asked(300, 305, &LookupAnswer::Unusable), [300, 301, 303]);
    assert_eq!(rate(&cache, 1, at(305)).as_deref(), Some("5/s"));
}

#[test]
fn a_clock_that_was_set_back_makes_nothing_last_longer() {
    let cache = Cache::new(100, SPAN);
    assert!(look_up(&cache, 1, &LookupAnswer::Absent, at(1_000_000)));
    assert!(!look_up(&cache, 1, &LookupAnswer::Absent, at(999_999)), "the request had begun before the answer came");
    assert!(look_up(&cache, 1, &LookupAnswer::Absent, at(10)));
}

#[test]
fn invented_keys_evict_none_that_the_source_knows() {
    let cache = Cache::new(1000, SPAN);
    for number in 0..200 {
        assert!(look_up(&cache, number, &LookupAnswer::Quota(quota("5/s")), at(0)));
    }
    for number in 1000..50_000 {
        look_up(&cache, number, &LookupAnswer::Absent, at(1));
    }
    assert!((0..200).all(|number| rate(&cache, number, at(2)).is_some()));
    let (known, absent) = cache.len();
    assert!(known == 200 && known + absent <= 1000, "{known} + {absent}");
    assert!(cache.evictions.get() > 40_000);
}

#[test]
fn keys_in_use_outlast_others_and_one_goes_even_if_all_are_used() {
    let cache = Cache::new(40, SPAN);
    let add = |number| assert!(look_up(&cache, number, &LookupAnswer::Quota(quota("5/s")), at(0)));
    let is_cached = |number| cache.peek(key(number)).is_some();
    (0..40).for_each(add);
    assert!((0..8).all(|number| rate(&cache, number, at(1)).is_some()));
    (40..60).for_each(add);
    assert!((0..8).all(is_cached) && !(8..28).any(is_cached) && (28..60).all(is_cached));
    assert_eq!((0..60).filter(|number| rate(&cache, *number, at(1)).is_some()).count(), 40);
    add(60);
    assert!(is_cached(60));
    assert_eq!(cache.len(), (40, 0));
}

#[tokio::test]
async fn what_is_announced_is_renewed() {
    let cache = Cache::new(1000, SPAN);
    for number in 0..3 {
        assert!(look_up(&cache, number, &LookupAnswer::Absent, at(0)));
    }
    cache.expire(&Changed::Keys([key(1)].into_iter().collect())).await;
    let due = |number| look_up(&cache, number, &LookupAnswer::Absent, at(1));
    assert_eq!([0, 1, 2].map(due), [false, true, false]);
    cache.expire(&Changed::All).await;
    assert_eq!([0, 1, 2].map(due), [true; 3]);
    cache.expire_key(key(2));
    assert_eq!([0, 1, 2].map(due), [false, false, true]);
}

#[tokio::test]
async fn a_lookup_is_waited_for_if_the_answer_has_changed_or_is_twice_as_old_as_it_may_be() {
    let cache = Cache::new(100, SPAN);
    let waits = |second| cache.get(key(1), at(second), |_| Some(end())).wait.is_some();
    let ends = |found, second| cache.end(key(1), key(1), found, at(second));
    let renewed = || LookupAnswer::Quota(quota("5/s"));
    ends(renewed(), 0);
    assert!(!waits(119), "it is renewed in time");
    assert!(waits(120));
    ends(LookupAnswer::Nothing, 120);
    assert!(!waits(120), "it was just asked for");
    assert!(waits(122));
    ends(renewed(), 122);
    assert!(!waits(122));
    cache.expire(&Changed::Keys([key(1)].into_iter().collect())).await;
    assert!(waits(123));
    for (failure, second) in [(LookupAnswer::Unusable, 124), (LookupAnswer::Nothing, 130)] {
        ends(failure, second);
        assert!(!waits(second) && waits(second + 3), "the change is still to be read");
    }
    ends(renewed(), 140);
    cache.expire_key(key(1));
    assert!(waits(141));
    ends(renewed(), 142);
    assert!(!waits(202), "it is renewed in time");
}

proptest! {
    #[test]
    fn it_is_bounded_whatever_happens(
        most in 1..400_usize,
        steps in prop::collection::vec((0..600_usize, 0..4_u8, 0..200_u64), 0..1500),
    ) {
        let cache = Cache::new(most, SPAN);
        let quota = quota("5/s");
        let mut known = HashMap::new();
        let mut now = 0;
        for (number, found, later) in steps {
            now += later / 10;
            let found = match found {
                0 => LookupAnswer::Quota(quota.clone()),
                1 => LookupAnswer::Absent,
                2 => LookupAnswer::Unusable,
                _ => LookupAnswer::Nothing,
            };
            if look_up(&cache, number, &found, at(now)) {
                match found {
                    LookupAnswer::Quota(_) => _ = known.insert(number, true),
                    LookupAnswer::Absent => _ = known.insert(number, false),
                    LookupAnswer::Unusable | LookupAnswer::Nothing => {}
                }
            }
            let (granted, others) = cache.len();
            prop_assert!(granted + others <= most, "{granted} + {others} of {most}");
            // The cache returns only what the source has answered.
            if rate(&cache, number, at(now)).is_some() {
                prop_assert_eq!(known.get(&number), Some(&true));
            }
        }
    }
}
