//! What a refusal tells the client: the real rate, the rest, and the reason.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Gateway, Response, Upstream, every_store, limited, reply};

#[track_caller]
fn parameter(response: &Response, header: &str, name: &str) -> u64 {
    let field = response.headers.must(header);
    let value = field.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {field:?}")).parse().unwrap()
}

#[test]
fn the_size_of_a_bucket_is_stated_if_it_differs_from_the_rate() {
    let policy = |rate: &str| {
        let gateway = Gateway::start(&limited("client-ip", rate, "strategy = \"token-bucket\"\nheaders = \"both\""));
        let response = gateway.client().get("/");
        let github = response.headers.must("x-ratelimit-limit").to_owned();
        (response.headers.must("ratelimit-policy").to_owned(), parameter(&response, "ratelimit", "r"), github)
    };
    assert_eq!(policy("10/s burst 50"), ("\"l\";q=10;w=1;gateway-burst=50".to_owned(), 49, "50".to_owned()));
    assert_eq!(policy("10/m"), ("\"l\";q=10;w=60".to_owned(), 9, "10".to_owned()));
}

#[test]
fn a_refusal_states_what_is_left_and_what_the_request_costs() {
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{}", limited("client-ip", "10/d", "cost = 4")));
        let mut client = gateway.client();
        assert_eq!([client.get("/").status, client.get("/").status], [200; 2]);
        // The second and the third refusal repeat the first one.
        for _ in 0..4 {
            let response = client.get("/");
            response.expect_problem(429);
            assert!(
                response.text().contains("allows 10/d, of which 2 are left, and this request costs 4."),
                "{store}: {response:?}"
            );
        }
    });
}

#[test]
fn a_refusal_states_the_cost_of_its_own_request() {
    let cost = "cost = { request_header = \"x-cost\" }";
    let gateway = Gateway::start(&limited("client-ip", "10/d", cost));
    let mut client = gateway.client();
    assert_eq!(client.get_with("/", "X-Cost: 9\r\n").status, 200);
    for costs in [4, 5, 4] {
        let response = client.get_with("/", format!("X-Cost: {costs}\r\n"));
        let told = format!("allows 10/d, of which 1 is left, and this request costs {costs}.");
        assert!(response.status == 429 && response.text().contains(&told), "{response:?}");
    }
    assert_eq!(client.get("/").status, 200);
    let response = client.get_with("/", "X-Cost: 4\r\n");
    assert!(response.status == 429 && response.text().contains("allows 10/d, and that is used up"), "{response:?}");
}

#[test]
fn a_cost_that_is_too_large_is_shown_as_it_was_sent() {
    let gateway = Gateway::start(&limited("client-ip", "10/d", "cost = { request_header = \"x-cost\" }"));
    let mut client = gateway.client();
    let response = client.get_with("/", "X-Cost: 99999999999999999999\r\n");
    response.expect_problem(413);
    assert!(response.text().contains("costs 99999999999999999999, "), "{response:?}");
    let response = client.get_with("/", format!("X-Cost: {}\r\n", "9".repeat(9_000)));
    response.expect_problem(413);
    assert!(response.text().contains("costs 999999999999999999999999999999..., "), "{response:?}");
}

#[test]
fn a_refusal_for_max_in_flight_has_its_own_text_and_no_time() {
    let (release, released) = channel::<()>();
    let (arrive, arrived) = channel();
    let released = Mutex::new(released);
    let upstream = Upstream::start(move |_| {
        arrive.send(()).unwrap();
        let _ = released.lock().unwrap().recv_timeout(Duration::from_secs(10));
        reply(200, "")
    });
    let limit = "[limits.l]\nkey = \"client-ip\"\nmax_in_flight = 1\n";
    let gateway = Gateway::start(&format!("{limit}{}limits = [\"l\"]\n", upstream.everything()));
    let mut slow = gateway.client();
    slow.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    arrived.recv_timeout(Duration::from_secs(10)).unwrap();
    let refused = gateway.client().get("/");
    refused.expect_problem(429);
    assert!(refused.text().contains("allows 1 request at the same time, and 1 is in flight"), "{refused:?}");
    assert_eq!(refused.headers.get("retry-after"), None);
    drop(release);
    assert_eq!(slow.response(false).status, 200);
}

#[test]
fn what_a_repeated_refusal_does_not_know_of_other_limits_is_not_reported() {
    let limit = |name: &str, rate: &str, more: &str| {
        format!("[limits.{name}]\nkey = \"client-ip\"\nrates = [{rate:?}]\n{more}\n")
    };
    let shadow = "on_limit = \"shadow\"";
    let limits = [limit("few", "2/d", ""), limit("many", "1000/d", ""), limit("trial", "1000/d", shadow)];
    let over = limit("over", "1/d", shadow);
    let names = "[\"many\", \"trial\", \"over\", \"few\"]";
    every_store(|store| {
        let gateway = Gateway::start(&format!(
            "{store}{}{over}[[routes]]\npath = \"/*\"\nlimits = {names}\nrespond = {{ status = 200 }}\n",
            limits.concat()
        ));
        let mut client = gateway.client();
        let responses = [(); 5].map(|()| client.get("/"));
        assert_eq!(responses.each_ref().map(|response| response.status), [200, 200, 429, 429, 429]);
        for response in &responses[2..] {
            assert!(response.headers.must("ratelimit").starts_with("\"few\";r=0;"), "{store}: {response:?}");
            let policies = "\"many\";q=1000;w=86400, \"few\";q=2;w=86400";
            assert_eq!(response.headers.must("ratelimit-policy"), policies, "{store}");
            let id = response.headers.must("x-request-id");
            let line = gateway.wait_log("the refusal", |line| line["request_id"] == id);
            let told = line["remaining"].to_string();
            assert!(["{\"few\":0,\"many\":998}", "{\"few\":0}"].contains(&&*told), "{store}: {told}");
        }
        for limit in ["many", "trial"] {
            let ratio = gateway.metric(&format!("gateway_limit_fullest_key_ratio{{limit={limit:?}}}"));
            assert_eq!(ratio, Some(0.002), "{limit}, {store}");
        }
        for (limit, decisions) in [
            ("few", [("admitted", 2), ("rejected", 3)]),
            ("many", [("admitted", 2), ("not_charged", 3)]),
            ("trial", [("admitted", 2), ("not_charged", 3)]),
            ("over", [("admitted", 1), ("shadowed", 4)]),
        ] {
            for (decision, count) in decisions {
                let name = format!("gateway_limit_decisions_total{{limit={limit:?},decision={decision:?}}}");
                assert_eq!(gateway.metric(&name), Some(f64::from(count)), "{name}, {store}");
            }
        }
    });
}

/// Measures what load disturbs.
mod alone {
    use super::*;

    #[test]
    fn a_client_that_obeys_retry_after_sends_at_the_rate() {
        let bucket = "strategy = \"token-bucket\"";
        every_store(|store| {
            let gateway = Gateway::start(&format!("{store}{}", limited("client-ip", "20/s burst 1", bucket)));
            let mut client = gateway.client();
            let mut paused = Duration::ZERO;
            for request in 0..20 {
                let begun = Instant::now();
                let response = client.get("/");
                let took = begun.elapsed();
                assert_eq!(response.status, 200, "request {request}: {response:?}");
                assert_eq!(parameter(&response, "ratelimit-policy", "gateway-burst"), 1);
                // Until a late response, there is room again.
                let left = parameter(&response, "ratelimit", "r");
                assert!(left == 0 || took >= Duration::from_millis(50), "{left} left after {took:?}");
                let quota = u32::try_from(parameter(&response, "ratelimit-policy", "q")).unwrap();
                let window = Duration::from_secs(parameter(&response, "ratelimit-policy", "w"));
                let reset = Duration::from_secs(parameter(&response, "ratelimit", "t"));
                let pause = reset.max(window / quota);
                paused += pause;
                sleep(pause);
            }
            assert_eq!(paused, Duration::from_secs(1), "twenty requests in a second");
        });
    }
}
