//! `retry_jitter`: refused clients come back spread out, at the earliest when there is room, whoever asks and in which way.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Request;

use crate::decisions;
use crate::envoy::{self, Caller};
use crate::harness::{Client, Gateway, Response, Upstream, every_store, limited, over_http2, run};

const ROUNDS: usize = 60;

/// With a window that begins with the first request, so that the first wait is known.
fn jitter(share: &str) -> String {
    format!("strategy = \"fixed-window\"\nretry_jitter = \"{share}\"\n")
}

fn number(response: &Response, name: &str) -> u64 {
    response.headers.must(name).parse().unwrap()
}

/// The exact wait, from `RateLimit`, and Retry-After.
#[track_caller]
fn waits(response: &Response) -> (u64, u64) {
    assert_eq!(response.status, 429, "{response:?}");
    let exact = response.headers.must("ratelimit").split(";t=").nth(1).unwrap();
    let exact = exact.split(';').next().unwrap().parse().unwrap();
    (exact, number(response, "retry-after"))
}

/// Checks that nobody is told too early or too late, and that clients are spread.
#[track_caller]
fn check(told: &[(u64, u64)], percent: u64) {
    for (exact, told) in told {
        assert!(told >= exact, "too early: {told} instead of {exact}");
        assert!(told * 100 <= exact * (100 + percent), "too late: {told} instead of {exact}");
    }
    let extra: BTreeSet<_> = told.iter().map(|(exact, told)| told - exact).collect();
    assert!(extra.len() > 5, "not spread: {extra:?}");
}

fn refused(client: &mut Client, fields: &str) -> Response {
    (0..20).map(|_| client.get_with("/", fields)).find(|response| response.status == 429).unwrap()
}

#[test]
fn each_refusal_has_another_moment_with_every_store() {
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{}", limited("header:x-key", "1/h", &jitter("50%"))));
        let mut client = gateway.client();
        refused(&mut client, "X-Key: a\r\n");
        // The gateway reuses a refusal on a connection, but not its moment.
        check(&(0..ROUNDS).map(|_| waits(&client.get_with("/", "X-Key: a\r\n"))).collect::<Vec<_>>(), 50);
        let told: Vec<_> = (0..ROUNDS).map(|_| waits(&gateway.client().get_with("/", "X-Key: a\r\n"))).collect();
        check(&told, 50);
    });
}

#[test]
fn clients_behind_one_connection_of_a_proxy_are_spread() {
    let limit = limited("header:x-key", "1/h", &jitter("20%"));
    let gateway = decisions::deciding("", &limit);
    let mut asker = Client::connect(gateway.decisions());
    let mut ask =
        |key: usize| asker.get_with("/", format!("X-Original-Method: GET\r\nX-Original-URI: /\r\nX-Key: {key}\r\n"));
    (0..ROUNDS).for_each(|key| assert_eq!(ask(key).status, 200));
    check(&(0..ROUNDS).map(|key| waits(&ask(key))).collect::<Vec<_>>(), 20);
}

#[test]
fn envoy_gets_headers_with_jitter_and_an_exact_status() {
    let limit = format!("[limits.l]\nkey = \"descriptor:k\"\nrates = [\"1/h\"]\n{}", jitter("50%"));
    let gateway = envoy::deciding("", &format!("{}{limit}", envoy::rule("k = \"*\"", "[\"l\"]")));
    let mut caller = Caller::connect(gateway.decisions());
    let told = (0..=ROUNDS).map(|_| caller.ask(&[(&[("k", "a")], None)]));
    let told = told.skip(1).map(|answer| {
        let headers = &answer.response_headers_to_add;
        let told = headers.iter().find(|line| line.key == "retry-after").unwrap().value.parse::<u64>().unwrap();
        let reset = answer.statuses[0].duration_until_reset.unwrap();
        (u64::try_from(reset.seconds).unwrap() + u64::from(reset.nanos > 0), told)
    });
    check(&told.collect::<Vec<_>>(), 50);
}

#[test]
fn the_limit_that_refuses_longest_decides() {
    let config = |hour: &str, day: &str| {
        let limit = |name: &str, rate: &str, jitter: &str| {
            format!("[limits.{name}]\nkey = \"global\"\nrates = [\"{rate}\"]\n{}", self::jitter(jitter))
        };
        let route = "[[routes]]\npath = \"/*\"\nlimits = [\"hour\", \"day\"]\nrespond = { status = 200 }\n";
        Gateway::start(&(limit("hour", "1/1h", hour) + &limit("day", "1/24h", day) + route))
    };
    let told = |gateway: &Gateway| {
        let mut client = gateway.client();
        refused(&mut client, "");
        (0..ROUNDS).map(|_| waits(&client.get("/"))).collect::<Vec<_>>()
    };
    check(&told(&config("0%", "10%")), 10);
    let exact = told(&config("100%", "0%"));
    assert!(exact.iter().all(|(exact, told)| exact == told), "{exact:?}");
}

#[test]
fn the_end_of_a_ban_has_jitter_unless_it_is_a_secret() {
    let ban = |respond: &str| {
        let ban = format!("ban = {{ after = 1, within = \"1h\", for = \"1h\", respond = \"{respond}\" }}");
        jitter("50%") + &ban
    };
    let gateway = Gateway::start(&limited("header:x-key", "1/1m", &ban("reject")));
    // Each ban begins now, so an exact client would be told nearly the same.
    let told = |key: usize| {
        let answers = [(); 3].map(|()| gateway.client().get_with("/", format!("X-Key: {key}\r\n")));
        assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 429, 429]);
        number(&answers[2], "retry-after")
    };
    let told: BTreeSet<_> = (0..ROUNDS).map(told).collect();
    assert!(told.len() > 5 && *told.first().unwrap() >= 3590 && *told.last().unwrap() <= 5400, "{told:?}");
    // Later answers to a banned key have jitter, too.
    let told = (0..ROUNDS).map(|_| waits(&gateway.client().get_with("/", "X-Key: 1\r\n")));
    check(&told.collect::<Vec<_>>(), 50);
    let gateway = Gateway::start(&limited("header:x-key", "1/1m", &ban("forbid")));
    let answers = [(); 4].map(|()| gateway.client().get_with("/", "X-Key: a\r\n"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 429, 403, 403]);
    assert!(answers[2..].iter().all(|answer| answer.headers.get("retry-after").is_none()), "{answers:?}");
}

#[test]
fn delay_refuses_with_jitter_and_holds_as_before() {
    let more = jitter("50%") + "on_limit = \"delay\"\nmax_delay = \"1ms\"";
    let gateway = Gateway::start(&limited("global", "1/h", &more));
    let mut client = gateway.client();
    refused(&mut client, "");
    check(&(0..ROUNDS).map(|_| waits(&client.get("/"))).collect::<Vec<_>>(), 50);
}

#[test]
fn all_ways_to_say_when_agree() {
    let gateway = Gateway::start(&limited("global", "1/h", &(jitter("50%") + "headers = \"openai\"")));
    let mut client = gateway.client();
    refused(&mut client, "");
    let told = (0..ROUNDS).map(|_| {
        let response = client.get("/");
        let (seconds, millis) = (number(&response, "retry-after"), number(&response, "retry-after-ms"));
        assert_eq!(seconds, millis.div_ceil(1000), "{response:?}");
        seconds
    });
    assert!(told.collect::<BTreeSet<_>>().len() > 5);
    let reset = client.get("/").headers.must("x-ratelimit-reset-requests").to_owned();
    assert!(reset == "1h0m0s" || reset.starts_with("59m"), "the end of the window is exact: {reset}");
    // HEAD says the same without a body.
    client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
    let head = client.response(true);
    assert!(head.status == 429 && number(&head, "retry-after") >= 3500, "{head:?}");

    let gateway = Gateway::start(&limited("global", "1/h", &jitter("50%")));
    let call = || Request::post("http://h/a.B/C").header("content-type", "application/grpc").body(()).unwrap();
    let answers = over_http2(gateway.http, (0..20).map(|_| call()).collect());
    let refused = answers.iter().filter(|(_, headers)| headers.contains_key("retry-after"));
    let told = refused.map(|(_, headers)| {
        let details = STANDARD_NO_PAD.decode(&headers["grpc-status-details-bin"]).unwrap();
        let seconds: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
        // The end of the details is a duration: its tag, and a number in two bytes.
        let [8, low, high] = details[details.len() - 3..] else { panic!("{details:?}") };
        assert_eq!(u64::from(low & 0x7f) | u64::from(high) << 7, seconds);
        seconds
    });
    assert!(told.collect::<BTreeSet<_>>().len() > 5);
}

#[test]
fn a_limit_that_hides_tells_nothing_and_the_upstreams_own_answer_stays() {
    let gateway = Gateway::start(&limited("global", "1/h", &(jitter("100%") + "on_limit = \"silent\"")));
    let mut client = gateway.client();
    for _ in 0..3 {
        assert!(client.get("/").headers.get("retry-after").is_none());
    }
    let up = Upstream::start(|_| b"HTTP/1.1 429 Wait\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n".to_vec());
    let gateway = Gateway::start(&format!(
        "[limits.l]\nkey = \"global\"\nrates = [\"9/h\"]\nretry_jitter = \"100%\"\n{}
         [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nupstream = \"up\"\n",
        up.section()
    ));
    assert_eq!(gateway.client().get("/").headers.must("retry-after"), "7");
}

#[test]
fn what_only_looks_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    std::fs::write(&path, limited("global", "1/h", &(jitter("100%") + "ban = {}"))).unwrap();
    let config = path.to_str().unwrap();
    let explain = || run(&["explain", "--config", config, "http://a/"]);
    let (first, second) = (explain(), explain());
    let text = String::from_utf8_lossy(&first.stdout);
    assert!(text.contains("jitter   Retry-After is later by up to 100 % of the wait"), "{text}");
    assert_eq!(first.stdout, second.stdout);
    let log = folder.path().join("access.log");
    let line = |second: u32| format!("192.0.2.1 - - [27/Nov/2026:10:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n");
    std::fs::write(&log, (0..50).map(line).collect::<String>()).unwrap();
    let simulate = || run(&["simulate", "--config", config, log.to_str().unwrap()]);
    let (first, second) = (simulate(), simulate());
    assert!(first.status.success() && first.stdout == second.stdout, "{first:?}");
    // The admin API says when there is room.
    let gateway = Gateway::start(&limited("client-ip", "1/h", &jitter("100%")));
    refused(&mut gateway.client(), "");
    for _ in 0..20 {
        let exact = gateway.admin("/api/limits/l/keys/127.0.0.1").json()["retry_after"].as_u64();
        assert!((3500..=3600).contains(&exact.unwrap()), "{exact:?}");
    }
    assert_eq!(gateway.admin("/api/config").json()["limits"]["l"]["retry_jitter"], "100%");
}
