//! What the log and the metrics show of refused requests: enough to see what happens, at a bounded cost.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Client, Gateway, limited, until};

fn lines(gateway: &Gateway) -> Vec<Value> {
    gateway.log().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// How many requests with this client and outcome are logged, and how many are only counted.
fn logged(gateway: &Gateway, client: &str, outcome: &str) -> (u64, u64) {
    let lines = lines(gateway);
    let of = |line: &&Value| line["client"] == client;
    let written = lines.iter().filter(of).filter(|line| line["outcome"] == outcome).count() as u64;
    (written, lines.iter().filter(of).filter_map(|line| line["refusals"].as_u64()).sum())
}

#[test]
fn a_flood_of_refusals_writes_a_few_lines_a_second() {
    const FLOOD: u64 = 3000;
    let gateway = Gateway::with_log("access = \"sampled\"", &limited("client-ip", "10/d", ""));
    let connect = |from: [u8; 4]| Client::connect_from(IpAddr::from(from), gateway.http);
    let (mut flooding, mut other) = (connect([127, 0, 0, 1]), connect([127, 0, 0, 2]));
    let begun = std::time::Instant::now();
    for number in 0..FLOOD + 10 {
        // Equal and different requests, so that both cached and new refusals are sent.
        let path = if number % 2 == 0 { "/".to_owned() } else { format!("/{number}") };
        let path = if number % 100 < 50 { "/" } else { &path };
        flooding.get(path);
    }
    let seconds = begun.elapsed().as_secs() + 2;
    assert_eq!((0..11).map(|_| other.get("/").status).filter(|status| *status == 200).count(), 10);

    // Every refusal is logged or counted, and few are logged.
    let all = || {
        let (written, counted) = logged(&gateway, "127.0.0.1", "limited");
        written + counted
    };
    until("the rest is counted", Duration::from_secs(20), || all() == FLOOD);
    let (written, _) = logged(&gateway, "127.0.0.1", "limited");
    assert!((5..=5 * seconds).contains(&written), "{written} lines in {seconds} s");
    // For a client that is rarely or never refused, all requests are logged.
    assert_eq!(logged(&gateway, "127.0.0.1", "responded").0, 10);
    until("the lines of the other are written", Duration::from_secs(20), || {
        let of_other = |outcome: &str| logged(&gateway, "127.0.0.2", outcome);
        (of_other("responded").0, of_other("limited")) == (10, (1, 0))
    });
}

#[test]
fn requests_without_a_route_and_invalid_ones_are_refusals_too() {
    let gateway = Gateway::with_log("access = \"sampled\"", "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n");
    let mut client = gateway.client();
    (0..100).for_each(|_| assert_eq!(client.get("/nowhere").status, 404));
    until("the rest is counted", Duration::from_secs(10), || {
        let (written, counted) = logged(&gateway, "127.0.0.1", "unrouted");
        written + counted == 100 && written < 100
    });
}

#[test]
fn a_reload_can_turn_on_the_log_of_every_refusal() {
    let route = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";
    let gateway = Gateway::with_log("access = \"sampled\"", route);
    let mut client = gateway.client();
    gateway.reload("", route);
    gateway.wait_message("reloaded");
    (0..100).for_each(|_| assert_eq!(client.get("/nowhere").status, 404));
    until("all are written", Duration::from_secs(10), || logged(&gateway, "127.0.0.1", "unrouted") == (100, 0));
}

#[test]
fn the_latency_of_refusals_is_measured_for_each_outcome() {
    for more in ["", "access = false"] {
        let gateway = Gateway::with_log(more, &limited("client-ip", "10/d", ""));
        let mut client = gateway.client();
        // Repeated requests, and different ones.
        (0..400).for_each(|_| drop(client.get("/")));
        (0..100).for_each(|number| drop(client.get(&format!("/{number}"))));
        let text = gateway.admin("/metrics");
        let of = |figure: &str, outcome: &str| {
            let (name, label) = (format!("gateway_request_duration_seconds_{figure}{{"), format!("\"{outcome}\""));
            let line = text.text().lines().find(|line| line.starts_with(&name) && line.contains(&label));
            let line = line.unwrap_or_else(|| panic!("no {figure} of {outcome} in {}", text.text()));
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        assert_eq!([of("count", "limited"), of("count", "responded")].map(|count| count.to_string()), ["490", "10"]);
        // A refusal takes some microseconds, so the metric must not be zero.
        let mean = of("sum", "limited") / of("count", "limited");
        assert!(mean > 1e-6, "{mean} s");
    }
}
