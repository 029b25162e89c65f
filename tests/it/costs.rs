//! The cost of requests: a number, a header of the request or response, or nothing unless the request fails.

use std::time::Duration;

use crate::harness::{Client, Gateway, Response, Upstream, every_store, until};

fn limit(rest: &str) -> String {
    format!("[limits.l]\nkey = \"global\"\nrates = [\"10/d\"]\n{rest}\n")
}

fn everything(upstream: &Upstream) -> String {
    upstream.everything() + "limits = [\"l\"]\n"
}

fn remaining(response: &Response) -> u64 {
    let state = response.headers.must("ratelimit");
    state.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
}

/// Answers `/NUMBER` with a cost of that number, and other paths without a cost.
fn costly() -> Upstream {
    Upstream::start(|request| {
        let cost = request.target.trim_start_matches('/');
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Cost: {cost}\r\n\r\nok").into_bytes()
    })
}

#[test]
fn a_number_is_the_cost_of_every_request() {
    every_store(|store| {
        let upstream = costly();
        let gateway = Gateway::start(&format!("{store}{}{}", limit("cost = 4"), everything(&upstream)));
        let mut client = gateway.client();
        let answers: Vec<_> = (0..3).map(|_| client.get("/")).collect();
        assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 429], "{store}");
        assert_eq!(answers.iter().map(remaining).collect::<Vec<_>>(), [6, 2, 2], "{store}");
    });
}

#[test]
fn a_request_header_states_the_cost() {
    every_store(|store| {
        let upstream = costly();
        let cost = "cost = { request_header = \"x-cost\" }";
        let gateway = Gateway::start(&format!("{store}{}{}", limit(cost), everything(&upstream)));
        let mut client = gateway.client();
        let mut left = 10;
        for (said, costs) in [("X-Cost: 3\r\n", 3), ("", 1), ("X-Cost: -5\r\n", 1), ("X-Cost: 0\r\n", 1)] {
            let answer = client.get_with("/", said);
            left -= costs;
            assert_eq!((answer.status, remaining(&answer)), (200, left), "{said:?}, {store}");
        }
        assert_eq!(client.get_with("/", "X-Cost: 5\r\n").status, 429, "{store}");
        let answer = client.get_with("/", b"X-Cost: \xff\xfe\r\n");
        assert_eq!((answer.status, remaining(&answer)), (200, 3), "{store}");
        let long = format!("X-Cost: {}\r\n", "9".repeat(20_000));
        for never in ["X-Cost: 11\r\n", "X-Cost: 18446744073709551616\r\n", &long] {
            let answer = client.get_with("/", never);
            answer.expect_problem(413);
            assert!(answer.text().contains("never") && answer.headers.get("retry-after").is_none(), "{answer:?}");
        }
        let answer = client.get_with("/", "X-Cost: 3\r\n");
        assert_eq!((answer.status, remaining(&answer)), (200, 0), "what can never pass was not charged: {store}");
    });
}

#[test]
fn a_response_header_states_the_cost() {
    every_store(|store| {
        let upstream = costly();
        let cost = "cost = { response_header = \"x-cost\" }";
        let gateway = Gateway::start(&format!("{store}{}{}", limit(cost), everything(&upstream)));
        let mut client = gateway.client();
        let mut left: u64 = 10;
        for (path, cost) in [("/0", 0), ("/4", 4), ("/what", 1), ("/250", 250)] {
            let answer = client.get(path);
            left = left.saturating_sub(cost);
            assert_eq!((answer.status, remaining(&answer)), (200, left), "{path}, {store}");
            assert_eq!(answer.headers.must("x-cost"), &path[1..]);
        }
        let refused = client.get("/0");
        assert_eq!(refused.status, 429, "{store}");
        let wait: u64 = refused.headers.must("retry-after").parse().unwrap();
        assert!(wait > 3600, "255 of 10 a day are gone: {refused:?}");
        assert_eq!(upstream.received().len(), 4, "{store}");
    });
}

#[test]
fn a_client_that_goes_away_before_the_response_is_charged_one() {
    every_store(|store| {
        let upstream = Upstream::raw(|mut wire, _| while wire.head().is_ok_and(|head| head.is_some()) {});
        let cost = "cost = { response_header = \"x-cost\" }";
        let gateway = Gateway::start(&format!("{store}{}{}", limit(cost), everything(&upstream)));
        for gone in 1..=3 {
            let mut client = gateway.client();
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
            upstream.wait_connections(gone);
        }
        // A client that has finished sending may still read, so the gateway waits for it.
        let abandoned = || gateway.log().iter().filter(|line| line.contains("\"abandoned\"")).count();
        until("they count as gone", Duration::from_secs(10), || abandoned() == 3);
        let routes = "[[routes]]\npath = \"/look\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
        gateway.reload("", &format!("{store}{}{}{routes}", limit(""), everything(&upstream)));
        gateway.wait_message("reloaded");
        let mut client = gateway.client();
        let mut charged = 0;
        until("three are charged", Duration::from_secs(5), || {
            charged += 1;
            remaining(&client.get("/look")) == 10 - 3 - charged
        });
    });
}

fn login(client: &mut Client, password: &str) -> u16 {
    client.get_with("/login", format!("X-Password: {password}\r\n")).status
}

#[test]
fn only_the_statuses_that_count_are_charged() {
    every_store(|store| {
        let upstream = Upstream::start(|request| {
            let status = match request.headers.get("x-password") {
                Some("right") => 200,
                Some("crash") => 503,
                _ => 401,
            };
            crate::harness::reply(status, "said")
        });
        let limit = "[limits.l]\nkey = \"global\"\nrates = [\"3/d\"]\ncount = { status = [\"401\", \"5xx\"] }\n";
        let gateway = Gateway::start(&format!("{store}{limit}{}", everything(&upstream)));
        let mut client = gateway.client();
        let passwords = ["right", "wrong", "right", "crash", "right", "wrong", "right", "wrong"];
        let statuses = passwords.map(|password| login(&mut client, password));
        assert_eq!(statuses, [200, 401, 200, 503, 200, 401, 429, 429], "{store}");
        assert_eq!(upstream.received().len(), 6, "{store}");
    });
}

#[test]
fn a_response_without_room_for_its_bytes_costs_other_limits_what_it_says() {
    every_store(|store| {
        let upstream = Upstream::start(|_| {
            format!("HTTP/1.1 200 OK\r\nX-Cost: 5\r\nContent-Length: 5000\r\n\r\n{}", "x".repeat(5000)).into_bytes()
        });
        let limits = [
            ("l", "10/d", "cost = { response_header = \"x-cost\", reserve = 1 }"),
            ("failed", "10/d", "count = { status = [\"401\"] }"),
            ("bytes", "1KB/d", "cost = { bytes = \"response\" }"),
        ];
        let limits = limits
            .map(|(name, rate, cost)| format!("[limits.{name}]\nkey = \"client-ip\"\nrates = [{rate:?}]\n{cost}\n"));
        let limits = limits.concat();
        let routes = upstream.everything() + "limits = [\"l\", \"failed\", \"bytes\"]\n";
        let gateway = Gateway::start(&format!("{store}{limits}{routes}"));
        gateway.client().get("/").expect_problem(429);
        let used = || ["l", "failed", "bytes"].map(|limit| gateway.used(limit, "127.0.0.1"));
        until("all is settled", Duration::from_secs(10), || used() == [5, 0, 0]);
    });
}
