//! Heads of the largest allowed size, and the bounds on their cost.

use crate::harness::{Gateway, Upstream, reply};

fn padded(bytes: usize) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n", "x".repeat(bytes))
}

#[test]
fn the_largest_head_that_can_be_configured_passes() {
    let up = Upstream::start(|request| reply(200, &request.headers.must("x-long").len().to_string()));
    let gateway = Gateway::with_server("max_header_size = \"1MiB\"", &up.everything());
    for length in [300_000, 500_000, 1_048_000] {
        assert_eq!(gateway.client().call(padded(length)).text(), length.to_string());
    }
    let mut client = gateway.client();
    client.send(padded(1_048_600));
    client.response(false).expect_problem(431);
}

#[test]
fn connection_of_a_client_names_at_most_a_hundred_headers() {
    let up = Upstream::start(|request| reply(200, request.headers.get("x-7").unwrap_or("none")));
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let naming = |names: usize| {
        let names: Vec<_> = (0..names).map(|number| format!("x-{number}")).collect();
        format!("Connection: {}\r\nX-7: 7\r\n", names.join(", "))
    };
    assert_eq!(client.get_with("/", naming(7)).text(), "7");
    assert_eq!(client.get_with("/", naming(100)).text(), "none");
    let lines = naming(60).replace("X-7: 7\r\n", "").repeat(2);
    for fields in [naming(101), naming(5000), lines, format!("Connection: {}\r\n", ",".repeat(30_000))] {
        let response = gateway.client().get_with("/", fields);
        response.expect_problem(400);
        assert!(response.text().contains("more than 100 headers"), "{}", response.text());
    }
    assert_eq!(up.received().len(), 2);
    gateway.wait_log("why", |line| line["outcome"] == "refused" && line["reason"] == "bad_head");
}

#[test]
fn connection_of_an_upstream_names_at_most_a_hundred_headers() {
    let names = |count: usize| vec!["x-other"; count].join(",");
    let up = Upstream::start(move |request| {
        let count = request.target[1..].parse().unwrap();
        format!("HTTP/1.1 200 OK\r\nConnection: {}\r\nContent-Length: 0\r\n\r\n", names(count)).into_bytes()
    });
    let gateway = Gateway::start(&up.everything());
    assert_eq!(gateway.client().get("/100").status, 200);
    gateway.client().get("/101").expect_problem(502);
}
