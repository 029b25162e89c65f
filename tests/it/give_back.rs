//! Calls of Envoy that give back hits: never more than is counted, with each strategy and store.

use std::time::Duration;

use gateway::request::descriptors::messages::{Code, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use crate::envoy::{self, Caller};
use crate::harness::{Gateway, Software, every_store, until};

const OK: i32 = Code::Ok as i32;
const OVER_LIMIT: i32 = Code::OverLimit as i32;
const STRATEGIES: [&str; 5] = [
    "rates = [\"5/d\"]",
    "rates = [\"5/d\", \"5/h\"]\nprecision = 10",
    "rates = [\"5/d\"]\nstrategy = \"fixed-window\"",
    "rates = [\"5/d\"]\nstrategy = \"moving-window\"",
    // Nothing drains during the test.
    "rates = [\"1/31d burst 5\", \"100/day\"]\nstrategy = \"token-bucket\"",
];

/// A rule without and one with reports, for a limit with this text.
fn config(limit: &str) -> String {
    let rules =
        envoy::rule("k = \"*\", report = \"*\"", "[\"l\"]\nreports = true") + &envoy::rule("k = \"*\"", "[\"l\"]");
    format!("{rules}[limits.l]\nkey = \"descriptor:k\"\n{limit}\n")
}

fn giving(entries: &[(&str, &str)], hits: Option<u64>) -> RateLimitDescriptor {
    let asked = envoy::request(&[(entries, hits)]).descriptors.remove(0);
    RateLimitDescriptor { is_negative_hits: true, ..asked }
}

fn give_back(caller: &mut Caller, key: &str, hits: u64) -> RateLimitResponse {
    let descriptors = vec![giving(&[("k", key)], Some(hits))];
    let answer = caller.send_request(&RateLimitRequest { descriptors, ..envoy::request(&[]) });
    assert_eq!((answer.overall_code, answer.statuses[0].code), (OK, OK), "{answer:?}");
    answer
}

/// How many hits pass now, one after the other.
fn room(caller: &mut Caller, key: &str) -> usize {
    (0..20).take_while(|_| caller.ask_one(&[("k", key)], 1).0 == OK).count()
}

/// Waits until hits pass, since a refusal is remembered for a few seconds. Returns how many.
fn room_again(what: &str, caller: &mut Caller, key: &str) -> usize {
    let mut passed = 0;
    until(what, Duration::from_secs(30), || {
        passed += room(caller, key);
        passed > 0
    });
    passed + room(caller, key)
}

fn with_each(test: impl Fn(&str, &str)) {
    every_store(|store| STRATEGIES.iter().for_each(|limit| test(store, limit)));
    for software in Software::ALL {
        let server = software.start();
        let store = server.store_with("strict = true\non_error = \"reject\"\ntimeout = \"5s\"");
        STRATEGIES.iter().for_each(|limit| test(&store, limit));
    }
}

#[test]
fn what_was_charged_has_room_again_and_no_more() {
    with_each(|store, limit| {
        let what = format!("{store}{limit}");
        let gateway = envoy::deciding("", &format!("{store}{}", config(limit)));
        let mut caller = Caller::connect(gateway.decisions());
        assert_eq!(room(&mut caller, "a"), 5, "{what}");
        give_back(&mut caller, "a", 2);
        assert_eq!(room(&mut caller, "a"), 2, "{what}");
        // More than is counted, twice, and to a key that counts nothing.
        for _ in 0..2 {
            let answer = give_back(&mut caller, "a", 1_000);
            assert!(answer.statuses[0].limit_remaining <= 5, "{what}: {answer:?}");
            give_back(&mut caller, "unknown", u64::MAX);
        }
        assert_eq!(room(&mut caller, "a"), 5, "{what}");
        assert_eq!(room(&mut caller, "unknown"), 5, "{what}");
        // Giving back nothing changes nothing.
        give_back(&mut caller, "a", 0);
        assert_eq!(room(&mut caller, "a"), 0, "{what}");
        assert_eq!(room(&mut caller, "b"), 5, "other keys are not affected: {what}");
    });
}

#[test]
fn a_give_back_that_is_repeated_takes_other_hits_of_its_key_only() {
    with_each(|store, limit| {
        let gateway = envoy::deciding("", &format!("{store}{}", config(limit)));
        let mut caller = Caller::connect(gateway.decisions());
        assert_eq!(caller.ask_one(&[("k", "a")], 4).0, OK);
        assert_eq!(caller.ask_one(&[("k", "b")], 4).0, OK);
        (0..3).for_each(|_| _ = give_back(&mut caller, "a", 3));
        assert_eq!((room(&mut caller, "a"), room(&mut caller, "b")), (5, 1), "{store}{limit}");
    });
}

#[test]
fn one_call_may_charge_and_give_back() {
    with_each(|store, limit| {
        let gateway = envoy::deciding("", &format!("{store}{}", config(limit)));
        let mut caller = Caller::connect(gateway.decisions());
        assert_eq!(caller.ask_one(&[("k", "a")], 5).0, OK);
        assert_eq!(caller.ask_one(&[("k", "b")], 5).0, OK);
        let mut call = envoy::request(&[(&[("k", "a")], Some(1)), (&[("k", "c")], Some(2))]);
        call.descriptors.push(giving(&[("k", "b")], Some(1)));
        // What is refused charges nothing. What is given back was used elsewhere, so it is given back all the same.
        let refused = caller.send_request(&call);
        let codes: Vec<_> = refused.statuses.iter().map(|status| status.code).collect();
        assert_eq!((refused.overall_code, codes), (OVER_LIMIT, vec![OVER_LIMIT, OK, OK]), "{store}{limit}");
        assert_eq!(room(&mut caller, "b"), 1, "{store}{limit}");
        call.descriptors.remove(0);
        assert_eq!(caller.send_request(&call).overall_code, OK);
        assert_eq!((room(&mut caller, "b"), room(&mut caller, "c")), (1, 3), "{store}{limit}");
        // The same key: the give-back comes after the decision.
        let mut both = envoy::request(&[(&[("k", "a")], Some(1))]);
        both.descriptors.push(giving(&[("k", "a")], Some(1)));
        assert_eq!(caller.send_request(&both).overall_code, OVER_LIMIT);
        assert_eq!(room(&mut caller, "a"), 1, "{store}{limit}");
    });
}

#[test]
fn another_gateway_may_give_back() {
    for software in Software::ALL {
        for (strict, limit) in
            ["", "strict = true\n"].into_iter().flat_map(|strict| STRATEGIES.map(|limit| (strict, limit)))
        {
            let server = software.start();
            let text = server.store_with(&format!("{strict}on_error = \"reject\"\ntimeout = \"5s\"")) + &config(limit);
            let [one, other] = [(); 2].map(|()| envoy::deciding("", &text));
            let [mut first, mut second] = [&one, &other].map(|gateway| Caller::connect(gateway.decisions()));
            let what = format!("{software:?} {strict}{limit}");
            assert_eq!((room(&mut first, "a"), room(&mut second, "a")), (5, 0), "{what}");
            give_back(&mut second, "a", 3);
            // Where it was given back, there is room. A gateway without `strict` goes on counting what it has counted itself.
            assert_eq!(room(&mut second, "a"), 3, "{what}");
            assert_eq!((room(&mut first, "a"), room(&mut second, "a")), (0, 0), "{what}");
            if !strict.is_empty() {
                give_back(&mut second, "a", 2);
                assert_eq!(room_again(&what, &mut first, "a") + room(&mut second, "a"), 2, "{what}");
            }
            // Both give back what only one of them has charged.
            give_back(&mut first, "a", 5);
            give_back(&mut second, "a", 5);
            let count = |gateway: &Gateway| gateway.used("l", "a");
            until(&what, Duration::from_secs(30), || count(&one) == 0 && count(&other) == 0);
        }
    }
}

#[test]
fn who_has_only_read_a_count_believes_what_another_gateway_gives_back() {
    for (software, limit) in Software::ALL.into_iter().flat_map(|software| STRATEGIES.map(|limit| (software, limit))) {
        let server = software.start();
        let text = server.store_with("on_error = \"reject\"\ntimeout = \"5s\"") + &config(limit);
        let [one, other] = [(); 2].map(|()| envoy::deciding("", &text));
        let [mut first, mut second] = [&one, &other].map(|gateway| Caller::connect(gateway.decisions()));
        let what = format!("{software:?} {limit}");
        assert_eq!((room(&mut first, "a"), room(&mut second, "a")), (5, 0), "{what}");
        give_back(&mut first, "a", 5);
        assert_eq!(room_again(&what, &mut second, "a") + room(&mut first, "a"), 5, "{what}");
    }
}

#[test]
fn hits_of_the_call_and_of_older_buckets_count_too() {
    let limit = "rates = [\"6/6s\"]\nprecision = 3\nedge = \"whole\"";
    let gateway = envoy::deciding("", &config(limit));
    let mut caller = Caller::connect(gateway.decisions());
    // Two hits in each of at least two buckets, unless the machine stalls: then they have left the window, which is as good.
    for _ in 0..3 {
        let first = gateway.used("l", "a");
        caller.ask_one(&[("k", "a")], 2);
        until("a bucket has passed", Duration::from_secs(30), || {
            caller.ask_one(&[("k", "tick")], 0);
            std::thread::sleep(Duration::from_millis(1_000));
            first != u64::MAX
        });
    }
    give_back(&mut caller, "a", 6);
    assert_eq!(gateway.used("l", "a"), 0);
    // Without hits of its own, the descriptor has those of the call.
    assert_eq!(caller.ask_one(&[("k", "b")], 5).0, OK);
    let call = RateLimitRequest { hits_addend: 4, ..envoy::request(&[]) };
    caller.send_request(&RateLimitRequest { descriptors: vec![giving(&[("k", "b")], None)], ..call });
    assert_eq!(gateway.used("l", "b"), 1);
}

#[test]
fn a_rule_for_reports_gives_back_as_well() {
    every_store(|store| {
        let gateway = envoy::deciding("", &format!("{store}{}", config(STRATEGIES[0])));
        let mut caller = Caller::connect(gateway.decisions());
        let report = [("k", "a"), ("report", "x")];
        caller.ask(&[(&report, Some(9))]);
        let descriptors = vec![giving(&report, Some(7))];
        let answer = caller.send_request(&RateLimitRequest { descriptors, ..envoy::request(&[]) });
        assert_eq!(answer.overall_code, OK, "{store}: {answer:?}");
        assert_eq!(room(&mut caller, "a"), 3, "{store}");
    });
}

#[test]
fn what_bans_or_blocks_is_not_given_back() {
    let more = "rates = [\"1/d\"]\nban = { after = 1, within = \"1h\", for = \"1h\" }\n[[limits.l.overrides]]\nkeys = [\"thief\"]\nblock = true";
    let gateway = envoy::deciding("", &config(more));
    let mut caller = Caller::connect(gateway.decisions());
    let codes = [(); 3].map(|()| caller.ask_one(&[("k", "a")], 1).0);
    assert_eq!(codes, [OK, OVER_LIMIT, OVER_LIMIT]);
    give_back(&mut caller, "a", 5);
    assert_eq!(caller.ask_one(&[("k", "a")], 1).0, OVER_LIMIT, "it is banned");
    give_back(&mut caller, "thief", 5);
    assert_eq!(caller.ask_one(&[("k", "thief")], 1).0, OVER_LIMIT, "it is blocked");
}
