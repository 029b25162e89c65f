//! Upstreams that lead back to the gateway: the gateway recognizes the request, whatever happens to its headers on the
//! way.

use crate::harness::{Gateway, Response};

const FIRST: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200, body = \"no loop\" }\n";

fn to(gateway: &Gateway, upstream: &str, route: &str) -> String {
    let upstream = format!("[upstreams.up]\nservers = [\"http://{}\"]\n{upstream}\n", gateway.http);
    format!("{upstream}[[routes]]\npath = \"/*\"\nupstream = \"up\"\n{route}\n")
}

fn expect_loop(gateway: &Gateway, response: &Response, count: f64) {
    response.expect_problem(508);
    assert_eq!(gateway.metric("gateway_loops_total"), Some(count));
    assert_eq!(gateway.metric("gateway_request_failures_total"), Some(count), "each loop has one reason");
}

#[test]
fn the_third_passage_is_the_last() {
    let gateway = Gateway::with_server("workers = 1", FIRST);
    let mut loops = 0.0;
    for upstream in ["", "http2 = true", "[upstreams.up.eject]\nfailures = 1"] {
        for route in [
            "",
            "request_headers = { remove = [\"via\"] }",
            "request_headers = { set = { Via = \"1.1 other\" } }",
            "request_headers = { remove = [\"V_i_a\", \"VIA\"], add = { x-a = \"1\" } }",
        ] {
            gateway.reload_and_wait("workers = 1", &to(&gateway, upstream, route));
            loops += 1.0;
            let before = gateway.metric("gateway_requests_total").unwrap_or_default();
            expect_loop(&gateway, &gateway.client().get("/"), loops);
            let passages = gateway.metric("gateway_requests_total").unwrap() - before;
            assert!((passages - 3.0).abs() < 0.1, "{upstream} {route}: {passages}");
        }
    }
}

#[test]
fn a_loop_over_another_gateway_is_a_loop() {
    let one = Gateway::start(FIRST);
    let other = Gateway::start(&to(&one, "", "request_headers = { remove = [\"via\"] }"));
    for (count, route) in [(1.0, ""), (2.0, "request_headers = { set = { via = \"1.1 other\" } }")] {
        one.reload_and_wait("", &to(&other, "", route));
        expect_loop(&one, &one.client().get("/"), count);
    }
    assert_eq!(other.metric("gateway_loops_total"), Some(0.0));
}

#[test]
fn what_other_gateways_have_passed_is_no_loop() {
    let last = Gateway::start(FIRST);
    let middle = Gateway::start(&to(&last, "", ""));
    let first = Gateway::start(&to(&middle, "", ""));
    let via = "Via: 1.1 gateway, 1.1 gateway-0123456789abcdef, 1.1 gateway-0123456789abcdef\r\n";
    assert_eq!(first.client().get_with("/", via).text(), "no loop");
    assert_eq!(first.metric("gateway_loops_total"), Some(0.0));
}
