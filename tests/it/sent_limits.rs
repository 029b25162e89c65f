//! Calls of Envoy with a rate of their own, and rules that only tell who is over a limit (`quota_mode`).

use std::collections::BTreeSet;
use std::time::Duration;

use gateway::request::descriptors::messages::{Code, RateLimitOverride, RateLimitRequest, RateLimitResponse, Unit};

use crate::envoy::{self, Caller};
use crate::harness::{every_store, until};

const OK: i32 = Code::Ok as i32;
const OVER_LIMIT: i32 = Code::OverLimit as i32;

fn limit(name: &str, more: &str) -> String {
    format!("[limits.{name}]\nkey = \"descriptor:k\"\n{more}\n")
}

fn config(more: &str) -> String {
    envoy::rule("k = \"*\"", "[\"l\"]") + &limit("l", more)
}

fn call(entries: &[(&str, &str)], hits: u64, sent: Option<(u32, i32)>) -> RateLimitRequest {
    let mut call = envoy::request(&[(entries, Some(hits))]);
    call.descriptors[0].limit = sent.map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
    call
}

fn ask(caller: &mut Caller, key: &str, hits: u64, sent: Option<(u32, Unit)>) -> RateLimitResponse {
    caller.send_request(&call(&[("k", key)], hits, sent.map(|(requests, unit)| (requests, unit as i32))))
}

fn said(answer: &RateLimitResponse) -> (i32, u32, u32) {
    let status = &answer.statuses[0];
    let allowed = status.current_limit.as_ref().map_or(0, |current| current.requests_per_unit);
    (answer.overall_code, allowed, status.limit_remaining)
}

#[test]
fn a_sent_rate_replaces_those_of_the_limit() {
    every_store(|store| {
        let gateway = envoy::deciding("", &format!("{store}{}", config("rates = [\"2/7d\"]")));
        let mut caller = Caller::connect(gateway.decisions());
        assert_eq!(ask(&mut caller, "a", 3, None).overall_code, OVER_LIMIT, "{store}");
        assert_eq!(said(&ask(&mut caller, "a", 3, Some((5, Unit::Day)))), (OK, 5, 2), "{store}");
        assert_eq!(said(&ask(&mut caller, "a", 3, Some((5, Unit::Day)))), (OVER_LIMIT, 5, 2), "{store}");
        // The same unit is the same counter, whatever the number is.
        assert_eq!(said(&ask(&mut caller, "a", 1, Some((3, Unit::Day)))), (OVER_LIMIT, 3, 0), "{store}");
        assert_eq!(said(&ask(&mut caller, "a", 3, Some((9, Unit::Day)))), (OK, 9, 3), "{store}");
        // Another unit is another counter, and so are the limit's own rates.
        let answer = ask(&mut caller, "a", 1, Some((5, Unit::Hour)));
        assert_eq!(
            (said(&answer), answer.statuses[0].current_limit.as_ref().unwrap().unit),
            ((OK, 5, 4), Unit::Hour as i32)
        );
        assert_eq!(said(&ask(&mut caller, "a", 1, None)), (OK, 2, 1), "{store}");
        assert_eq!(said(&ask(&mut caller, "b", 1, Some((5, Unit::Day)))), (OK, 5, 4), "of another key: {store}");
    });
}

#[test]
fn rates_that_cannot_be_counted_leave_those_of_the_limit() {
    let gateway = envoy::deciding("", &config("rates = [\"2/d\"]"));
    let mut caller = Caller::connect(gateway.decisions());
    for (at, unit) in [Unit::Unknown as i32, Unit::Year as i32, 99, -1].into_iter().enumerate() {
        let key = format!("k{at}");
        let answer = caller.send_request(&call(&[("k", &key)], 3, Some((1_000_000, unit))));
        assert_eq!(answer.overall_code, OVER_LIMIT, "{unit}");
        assert_eq!(said(&ask(&mut caller, &key, 2, None)), (OK, 2, 0), "{unit}");
    }
    // Nothing passes a rate of 0, as there.
    assert_eq!(ask(&mut caller, "zero", 1, Some((0, Unit::Second))).overall_code, OVER_LIMIT);
    assert_eq!(said(&ask(&mut caller, "most", u64::from(u32::MAX), Some((u32::MAX, Unit::Month)))), (OK, u32::MAX, 0));
    // A moving window stores each request, so it has at most 10 000.
    let gateway = envoy::deciding("", &config("rates = [\"2/d\"]\nstrategy = \"moving-window\""));
    let mut caller = Caller::connect(gateway.decisions());
    assert_eq!(ask(&mut caller, "a", 3, Some((10_001, Unit::Day))).overall_code, OVER_LIMIT);
    assert_eq!(said(&ask(&mut caller, "a", 3, Some((10_000, Unit::Day)))), (OK, 10_000, 9_997));
}

#[test]
fn a_sent_rate_is_counted_as_the_limit_counts() {
    for (strategy, all_at_once) in
        [("fixed-window", 5), ("moving-window", 5), ("token-bucket", 5), ("sliding-window", 5)]
    {
        let gateway = envoy::deciding("", &config(&format!("rates = [\"2/d\"]\nstrategy = \"{strategy}\"")));
        let mut caller = Caller::connect(gateway.decisions());
        let passed = (0..9).filter(|_| ask(&mut caller, "a", 1, Some((5, Unit::Day))).overall_code == OK).count();
        assert_eq!(passed, all_at_once, "{strategy}");
    }
    // Gateways that share the rates of the limit share this one, too.
    let store = "[store]\nshare = 2\n";
    let gateway = envoy::deciding("", &format!("{store}{}", config("rates = [\"2/d\"]")));
    let mut caller = Caller::connect(gateway.decisions());
    assert_eq!(said(&ask(&mut caller, "a", 1, Some((10, Unit::Day)))), (OK, 5, 4));
}

#[test]
fn a_sent_rate_goes_on_from_what_its_unit_has_counted_beside_any_others() {
    const LIMITS: [(&str, Unit); 9] = [
        ("rates = [\"5/h\", \"1/d\"]", Unit::Day),
        ("rates = [\"1/d\", \"5/h\"]\nprecision = 10\nedge = \"whole\"", Unit::Day),
        ("rates = [\"5/h\", \"1/d\"]\nstrategy = \"fixed-window\"", Unit::Day),
        ("rates = [\"5/h\", \"1/d\"]\nstrategy = \"moving-window\"", Unit::Day),
        ("rates = [\"5/h\", \"1/d\"]\nstrategy = \"token-bucket\"", Unit::Day),
        ("rates = [\"1/day\"]", Unit::Day),
        ("rates = [\"5/h\", \"1/day\"]", Unit::Day),
        ("rates = [\"1/month\"]", Unit::Month),
        ("rates = [\"9/d\"]\n[[limits.l.overrides]]\nkeys = [\"a8\"]\nrates = [\"5/h\", \"1/d\"]", Unit::Day),
    ];
    every_store(|store| {
        for (at, (limit, unit)) in LIMITS.into_iter().enumerate() {
            let key = format!("a{at}");
            let gateway = envoy::deciding("", &format!("{store}{}", config(limit)));
            let mut caller = Caller::connect(gateway.decisions());
            let mut ask = |sent: Option<u32>| {
                let answer = ask(&mut caller, &key, 1, sent.map(|requests| (requests, unit)));
                (said(&answer), answer)
            };
            assert_eq!((ask(None).0.0, ask(None).0.0), (OK, OVER_LIMIT), "{store}{limit}");
            let ((code, allowed, _), answer) = ask(Some(3));
            assert_eq!((code, allowed), (OK, 3), "{store}{limit}");
            assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().unit, unit as i32, "{store}{limit}");
            assert_eq!((ask(Some(3)).0.0, ask(Some(3)).0.0), (OK, OVER_LIMIT), "{store}{limit}");
            // Its own rates have counted those, too.
            assert_eq!(
                (ask(Some(4)).0.0, ask(None).0.0, ask(Some(4)).0.0),
                (OK, OVER_LIMIT, OVER_LIMIT),
                "{store}{limit}"
            );
        }
    });
}

#[test]
fn what_the_file_blocks_or_exempts_stays_so() {
    let overrides = r#"rates = ["2/d"]
[[limits.l.overrides]]
keys = ["thief"]
block = true
[[limits.l.overrides]]
keys = ["partner"]
exempt = true
[[limits.l.overrides]]
keys = ["better"]
rates = ["3/d"]
"#;
    let gateway = envoy::deciding("", &config(overrides));
    let mut caller = Caller::connect(gateway.decisions());
    assert_eq!(ask(&mut caller, "thief", 1, Some((1_000, Unit::Day))).overall_code, OVER_LIMIT);
    assert_eq!(ask(&mut caller, "partner", 100, Some((1, Unit::Day))).overall_code, OK);
    assert_eq!(said(&ask(&mut caller, "better", 1, Some((9, Unit::Day)))), (OK, 9, 8));
    // A value in an entry is no rate: only the proxy itself can send one.
    let entries = [("k", "a"), ("limit", "1000"), ("requests_per_unit", "1000")];
    assert_eq!(caller.send_request(&call(&entries, 3, None)).overall_code, OVER_LIMIT);
}

#[test]
fn any_number_of_sent_rates_share_their_counters() {
    every_store(|store| {
        let gateway = envoy::deciding("", &format!("{store}{}", config("rates = [\"2/d\"]")));
        let mut caller = Caller::connect(gateway.decisions());
        // More than a worker keeps: each is compiled again, and the counts stay.
        for number in 0..500 {
            let answer = ask(&mut caller, "a", 1, Some((1_000 + number, Unit::Day)));
            let (code, allowed, left) = said(&answer);
            // For some milliseconds, a gateway with a shared store may hold a part in advance.
            assert!((code, allowed) == (OK, 1_000 + number) && left <= 999, "{store}: {answer:?}");
        }
        assert_eq!(said(&ask(&mut caller, "a", 1, Some((500, Unit::Day)))), (OVER_LIMIT, 500, 0), "{store}");
        until("all else is given back", Duration::from_secs(20), || {
            ask(&mut caller, "a", 0, Some((600, Unit::Day))).statuses[0].limit_remaining == 100
        });
        gateway.reload_and_wait(
            "listen = []\n",
            &format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{store}{}", config("rates = [\"3/d\"]")),
        );
        let mut caller = Caller::connect(gateway.decisions());
        assert_eq!(said(&ask(&mut caller, "a", 1, Some((501, Unit::Day)))), (OK, 501, 0), "after a reload: {store}");
    });
}

#[test]
fn descriptors_of_one_call_have_their_own_rates() {
    let gateway = envoy::deciding("", &config("rates = [\"2/d\"]"));
    let mut caller = Caller::connect(gateway.decisions());
    let mut both = call(&[("k", "a")], 4, Some((5, Unit::Day as i32)));
    both.descriptors.extend(call(&[("k", "b")], 2, None).descriptors);
    let answer = caller.send_request(&both);
    let allowed =
        answer.statuses.iter().map(|status| (status.code, status.current_limit.as_ref().unwrap().requests_per_unit));
    assert_eq!((answer.overall_code, allowed.collect::<Vec<_>>()), (OK, vec![(OK, 5), (OK, 2)]));
    // Neither is charged if one does not fit.
    assert_eq!(caller.send_request(&both).overall_code, OVER_LIMIT);
    assert_eq!(said(&ask(&mut caller, "a", 1, Some((5, Unit::Day)))), (OK, 5, 0));
}

fn quota_mode(limits: &str) -> String {
    envoy::rule("k = \"*\", plan = \"*\"", &format!("{limits}\nquota_mode = true"))
}

#[test]
fn over_a_quota_is_told_and_passes() {
    every_store(|store| {
        let rules = quota_mode("[\"l\"]") + &config("rates = [\"2/d\"]");
        let gateway = envoy::deciding("", &format!("{store}{rules}"));
        let mut caller = Caller::connect(gateway.decisions());
        let mut quota = |hits| caller.ask(&[(&[("k", "a"), ("plan", "x")], Some(hits))]);
        for (hits, code, left) in [(2, OK, 0), (1, OVER_LIMIT, 0), (9, OVER_LIMIT, 0), (0, OVER_LIMIT, 0)] {
            let answer = quota(hits);
            assert_eq!(said(&answer), (OK, 2, left), "{store}: {answer:?}");
            assert_eq!(answer.statuses[0].code, code, "{store}");
            assert_eq!(answer.raw_body.len(), 0, "{store}");
        }
        gateway.wait_log("it is told", |line| line["shadowed"] == serde_json::json!(["l"]));
        // The same counter refuses where it is no quota, and is charged for no more than it admits.
        assert_eq!(gateway.used("l", "a"), 2, "{store}");
        assert_eq!(caller.ask_one(&[("k", "a")], 1), (OVER_LIMIT, 0), "{store}");
    });
}

#[test]
fn a_quota_beside_a_limit_does_not_weaken_it() {
    every_store(|store| {
        let rules = quota_mode("[\"q\"]") + &config("rates = [\"3/d\"]") + &limit("q", "rates = [\"1/d\"]");
        let gateway = envoy::deciding("", &format!("{store}{rules}"));
        let mut caller = Caller::connect(gateway.decisions());
        let mut codes = || {
            let answer = caller.ask(&[(&[("k", "a"), ("plan", "x")], None), (&[("k", "a")], None)]);
            (answer.overall_code, answer.statuses.iter().map(|status| status.code).collect::<Vec<_>>())
        };
        assert_eq!(codes(), (OK, vec![OK, OK]), "{store}");
        assert_eq!([codes(), codes()], [(); 2].map(|()| (OK, vec![OVER_LIMIT, OK])), "{store}");
        assert_eq!(codes(), (OVER_LIMIT, vec![OVER_LIMIT, OVER_LIMIT]), "{store}");
    });
}

#[test]
fn quotas_hold_ban_and_block_nobody() {
    let strict = r#"rates = ["1/d"]
on_limit = "delay"
max_delay = "5m"
ban = { after = 1, within = "1h", for = "1h" }
slow = { from = 0.0, up_to = "5m" }
[[limits.l.overrides]]
keys = ["thief"]
block = true
"#;
    let gateway = envoy::deciding("", &(quota_mode("[\"l\"]") + &limit("l", strict)));
    let mut caller = Caller::connect(gateway.decisions());
    let mut quota = |key| {
        let answer = caller.ask(&[(&[("k", key), ("plan", "x")], None)]);
        (answer.overall_code, answer.statuses[0].code)
    };
    let answers = [(); 5].map(|()| quota("a"));
    assert_eq!(answers, [(OK, OK), (OK, OVER_LIMIT), (OK, OVER_LIMIT), (OK, OVER_LIMIT), (OK, OVER_LIMIT)]);
    assert_eq!(quota("thief"), (OK, OVER_LIMIT));
}

#[test]
fn quotas_take_sent_rates_and_reports() {
    let rules =
        envoy::rule("k = \"*\"", "[\"l\"]\nquota_mode = true\nreports = true") + &limit("l", "rates = [\"2/d\"]");
    let gateway = envoy::deciding("", &rules);
    let mut caller = Caller::connect(gateway.decisions());
    let mut ask = |hits, sent| {
        let answer = ask(&mut caller, "a", hits, sent);
        (answer.overall_code, answer.statuses[0].code)
    };
    assert_eq!(ask(9, None), (OK, OK), "a report is over only afterwards");
    assert_eq!(
        [ask(1, None), ask(1, Some((20, Unit::Day))), ask(1, Some((3, Unit::Day)))],
        [(OK, OVER_LIMIT), (OK, OK), (OK, OVER_LIMIT),]
    );
    let shown = gateway.admin("/api/config").json();
    let names: BTreeSet<_> = shown["decisions"]["descriptors"][0].as_object().unwrap().keys().cloned().collect();
    assert!(names.contains("quota_mode"), "{names:?}");
}
