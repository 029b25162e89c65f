//! What somebody else writes at a server under the names of counters: it concerns decisions about that key alone.

use std::time::Duration;

use crate::harness::{self, Client, Gateway, Software, Valkey, until};

const PATIENCE: Duration = Duration::from_secs(30);
const REJECT: &str = "timeout = \"5s\"\non_error = \"reject\"";

fn status(client: &mut Client, key: &str) -> u16 {
    client.get_with("/", format!("X-Api-Key: {key}\r\n")).status
}

/// Other keys are decided as ever.
#[track_caller]
fn others_pass(gateway: &Gateway) {
    let mut client = gateway.client();
    (0..50).for_each(|number| assert_eq!(status(&mut client, &format!("other-{number}")), 200));
    assert_eq!(gateway.metric("gateway_store_up"), Some(1.0));
}

#[test]
fn a_count_that_is_none_or_too_large_concerns_its_key_alone() {
    let valkey = Valkey::start();
    for strict in ["", "strict = true\n"] {
        let limit = harness::limited("header:x-api-key", "1000/h", "");
        let gateway = Gateway::start(&format!("{}{limit}", valkey.store_with(&format!("{strict}{REJECT}"))));
        for value in ["99999999999999999999", "9223372036854775807", "1e300", "-1e300", "nan", "-5", "hello", ""] {
            let key = format!("{strict:?}{value:?}");
            let before = valkey.names();
            assert_eq!(status(&mut gateway.client(), &key), 200);
            let is_new = |name: &String| !before.contains(name);
            until("it is counted", PATIENCE, || valkey.names().iter().any(&is_new));
            for name in valkey.names().iter().filter(|name| is_new(name)) {
                assert_eq!(valkey.ask(&["SET", name, value, "KEEPTTL"]), ["OK"]);
            }
            let statuses: Vec<_> = (0..5).map(|_| status(&mut gateway.client(), &key)).collect();
            assert!(statuses.iter().all(|&status| [200, 429].contains(&status)), "{value:?}: {statuses:?}");
            others_pass(&gateway);
        }
        assert_eq!(gateway.metric("gateway_store_errors_total"), Some(0.0));
    }
}

fn a_counter_that_is_a_word_keeps_no_server_away(software: Software) {
    for (rate, strict) in [("900/day", "strict = true\n"), ("900/10h", "strict = true\n"), ("900/day", "")] {
        let server = software.start();
        let limit = harness::limited("header:x-api-key", rate, "");
        let gateway = Gateway::start(&format!("{}{limit}", server.store_with(&format!("{strict}{REJECT}"))));
        let mut client = gateway.client();
        assert_eq!(status(&mut client, "k"), 200);
        until("it is counted", PATIENCE, || !server.counters().is_empty());
        server.counters().keys().for_each(|name| server.set(name, "hello"));
        for _ in 0..5 {
            (0..10).for_each(|_| _ = status(&mut client, "k"));
            others_pass(&gateway);
        }
    }
}

harness::with_each_server! {
    a_counter_that_is_a_word_keeps_no_server_away
}

#[test]
fn a_state_of_another_type_is_not_asked_for_in_a_loop() {
    for strategy in ["fixed-window", "token-bucket", "moving-window"] {
        let valkey = Valkey::start();
        let limit = harness::limited("header:x-api-key", "1000/h", &format!("strategy = \"{strategy}\""));
        let gateway = Gateway::start(&(valkey.store_with(REJECT) + &limit));
        let mut client = gateway.client();
        assert_eq!(status(&mut client, "k"), 200);
        until("it is counted", PATIENCE, || valkey.names().iter().any(|name| name.contains("#=")));
        for name in valkey.names() {
            valkey.ask(&["DEL", &name]);
            assert_eq!(valkey.ask(&["RPUSH", &name, "x"]), ["1"]);
        }
        for _ in 0..20 {
            status(&mut client, "k");
        }
        others_pass(&gateway);
        others_pass(&gateway);
        let errors = gateway.metric("gateway_store_errors_total").unwrap();
        assert!((1.0..=40.0).contains(&errors), "{strategy}: {errors} errors");
    }
}

#[test]
fn a_state_that_is_damaged_is_written_anew() {
    for strategy in ["fixed-window", "token-bucket", "moving-window"] {
        let valkey = Valkey::start();
        let limit = harness::limited("header:x-api-key", "1000/h", &format!("strategy = \"{strategy}\""));
        let config = valkey.store_with(REJECT) + &limit;
        let gateways = [Gateway::start(&config), Gateway::start(&config)];
        for (key, damaged) in
            ["", "=", "word", "=12345678", "=12345678901", "=123456789012", "=123456789012345"].iter().enumerate()
        {
            let key = format!("k{key}");
            let before = valkey.names();
            assert_eq!(status(&mut gateways[0].client(), &key), 200);
            let is_new = |name: &String| name.contains("#=") && !before.contains(name);
            until("it is counted", PATIENCE, || valkey.names().iter().any(&is_new));
            let name = valkey.names().into_iter().find(&is_new).unwrap();
            for _ in 0..3 {
                assert_eq!(valkey.ask(&["SET", &name, damaged]), ["OK"]);
                for gateway in gateways.iter().cycle().take(4) {
                    assert_eq!(status(&mut gateway.client(), &key), 200, "{strategy} {damaged:?}");
                }
            }
        }
        for gateway in &gateways {
            others_pass(gateway);
            assert_eq!(gateway.metric("gateway_store_errors_total"), Some(0.0));
        }
    }
}
