//! The counted address: that of the peer, or the one that trusted proxies report.

use std::net::{IpAddr, Ipv4Addr};

use crate::harness::{self, Client, Gateway, Upstream, reply, run};

const TRUSTING: &str = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]";

fn limited(source: &str) -> String {
    harness::limited(source, "1/d", "")
}

fn ask(client: &mut Client, lines: &[&str]) -> u16 {
    let fields: Vec<_> = lines.iter().map(|line| format!("X-Forwarded-For: {line}\r\n")).collect();
    client.get_with("/", fields.concat()).status
}

#[track_caller]
fn one_client(client: &mut Client, spellings: &[&[&str]]) {
    for (at, lines) in spellings.iter().enumerate() {
        let expected = if at == 0 { 200 } else { 429 };
        assert_eq!(ask(client, lines), expected, "{lines:?} after {:?}", &spellings[..at]);
    }
}

#[test]
fn x_forwarded_for_of_clients_is_ignored() {
    let gateway = Gateway::start(&limited("client-ip"));
    one_client(&mut gateway.client(), &[&["192.0.2.1"], &["192.0.2.2"], &[]]);
}

#[test]
fn peers_are_counted_apart_and_ports_are_not() {
    let gateway = Gateway::start(&limited("client-ip"));
    let from = |last| Client::connect_from(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), gateway.http);
    assert_eq!([from(1), from(1), from(2), from(2)].map(|mut client| ask(&mut client, &[])), [200, 429, 200, 429]);
}

#[test]
fn x_forwarded_for_of_trusted_proxies_is_used() {
    let gateway = Gateway::with_server("trusted_proxies = [\"127.0.0.2/32\"]", &limited("client-ip"));
    let from = |last| Client::connect_from(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), gateway.http);
    one_client(&mut from(1), &[&["192.0.2.1"], &["192.0.2.2"]]);
    let mut trusted = from(2);
    one_client(&mut trusted, &[&["192.0.2.1"], &["192.0.2.1"]]);
    one_client(&mut trusted, &[&["192.0.2.2"], &["192.0.2.2"]]);
}

#[test]
fn the_rightmost_untrusted_address_is_the_client() {
    let gateway = Gateway::with_server(TRUSTING, &limited("client-ip"));
    let spellings: &[&[&str]] = &[
        &["192.0.2.1"],
        &["198.51.100.9, 192.0.2.1"],
        &["198.51.100.8, 192.0.2.1, 10.1.2.3"],
        &["198.51.100.7,192.0.2.1,127.0.0.9 , 10.1.2.3"],
    ];
    one_client(&mut gateway.client(), spellings);
}

#[test]
fn forwarded_of_trusted_proxies_is_used_unless_the_other_header_contradicts_it() {
    let gateway = Gateway::with_server(TRUSTING, &limited("client-ip"));
    let mut client = gateway.client();
    let mut ask = |fields: &str| client.get_with("/", fields).status;
    assert_eq!(ask("Forwarded: for=198.51.100.9, for=192.0.2.1;proto=https\r\n"), 200);
    assert_eq!(ask("Forwarded: for=198.51.100.8\r\nForwarded: for=\"192.0.2.1:80\", for=10.0.0.1\r\n"), 429);
    assert_eq!(ask("X-Forwarded-For: 192.0.2.1\r\n"), 429, "the same client");
    assert_eq!(ask("X-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n"), 429, "both agree");
    assert_eq!(ask("Forwarded: for=\"[2001:db8::1]\"\r\n"), 200);
    // Whichever header a client can write, it only gets the counter of all who do this, not that of the proxy.
    assert_eq!(ask("X-Forwarded-For: 192.0.2.1\r\nForwarded: for=198.51.100.1\r\n"), 200);
    for chosen in ["198.51.100.2", "\"198.51.100.3\"", "unknown", "\"", "10.0.0.2"] {
        assert_eq!(ask(&format!("X-Forwarded-For: 192.0.2.1\r\nForwarded: for={chosen}\r\n")), 429, "{chosen}");
        let listed = chosen.trim_matches('"');
        assert_eq!(
            ask(&format!("X-Forwarded-For: {listed}x, {listed}1\r\nForwarded: for=192.0.2.7\r\n")),
            429,
            "{chosen}"
        );
    }
    assert_eq!(ask(""), 200, "the proxy itself");
    assert_eq!((gateway.used("l", "0.0.0.0"), gateway.used("l", "127.0.0.1")), (1, 1));
    let untrusting = Gateway::start(&limited("client-ip"));
    let mut client = untrusting.client();
    assert_eq!(client.get_with("/", "Forwarded: for=192.0.2.1\r\n").status, 200);
    assert_eq!(client.get_with("/", "Forwarded: for=192.0.2.2\r\n").status, 429);
}

/// A limit that blocks a client and a network.
const BLOCKING: &str = r#"
[limits.blocking]
key = "KEY"
rates = ["1000/d"]
on_limit = "ROLE"
overrides = [{ keys = ["192.0.2.1", "2001:db8:1::/64"], block = true }]
[limits.other]
key = "header:x-key"
missing = "skip"
rates = ["1000/d"]
[[routes]]
path = "/*"
limits = ["other", "blocking"]
respond = { status = 200 }
"#;

#[test]
fn no_contradictory_header_of_a_proxy_helps_a_blocked_client() {
    let blocked = ["192.0.2.1", "\"[2001:db8:1::7]:80\""];
    let both = |one: &str, other: &str| format!("X-Forwarded-For: {one}\r\nForwarded: for={other}\r\n");
    for (key, role) in [("client-ip", "reject"), ("header:x-key | client-ip", "silent"), ("client-ip", "shadow")] {
        let rest = BLOCKING.replace("KEY", key).replace("ROLE", role);
        for rest in [rest.clone(), rest.replace("\"other\", ", "")] {
            let gateway = Gateway::with_server(TRUSTING, &rest);
            let mut client = gateway.client();
            let mut ask = |fields: String| client.get_with("/", fields).status;
            let refused = if role == "shadow" { 200 } else { 403 };
            for blocked in blocked {
                for fields in [both(blocked, "198.51.100.1"), both("198.51.100.1", blocked), both(blocked, "unknown")] {
                    assert_eq!(ask(fields.clone()), refused, "{fields}");
                }
            }
            assert_eq!(ask(both("192.0.2.2", "192.0.2.3")), 200);
            assert_eq!(ask(both("192.0.2.2", "192.0.2.2")), 200);
        }
    }
    // An override of the admin API blocks them, too.
    let gateway = Gateway::with_server(TRUSTING, &limited("client-ip").replace("1/d", "1000/d"));
    let mut client = gateway.client();
    assert_eq!(client.get_with("/", both("192.0.2.1", "192.0.2.9")).status, 200);
    let body = "{\"block\": true, \"for\": \"1h\"}";
    let head = format!("PUT /api/limits/l/keys/192.0.2.1 HTTP/1.1\r\nHost: {}\r\n", gateway.admin);
    let put = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(Client::connect(gateway.admin).call(put).status, 200);
    harness::until("it is blocked", std::time::Duration::from_secs(20), || {
        client.get_with("/", both("192.0.2.9", "192.0.2.1")).status == 403
    });
}

#[test]
fn explain_shows_that_one_of_two_clients_is_blocked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let rest = BLOCKING.replace("KEY", "client-ip").replace("ROLE", "reject");
    std::fs::write(&file, format!("[server]\n{TRUSTING}\n{rest}")).unwrap();
    let explained = |forwarded: &str| {
        let (file, forwarded) = (file.to_str().unwrap(), format!("Forwarded: for={forwarded}"));
        let listed = "X-Forwarded-For: 198.51.100.1";
        let told =
            run(&["explain", "--config", file, "--from", "10.0.0.1", "-H", listed, "-H", &forwarded, "http://a.test/"]);
        String::from_utf8(told.stdout).unwrap()
    };
    let text = explained("192.0.2.1");
    assert!(text.contains("from 0.0.0.0 (its headers name two clients: 198.51.100.1 and 192.0.2.1)"), "{text}");
    let blocks = "an override blocks the key, answered 403";
    assert!(text.contains(blocks) && !explained("192.0.2.2").contains(blocks), "{text}");
}

#[test]
fn upstreams_and_the_log_get_the_address_that_is_counted() {
    let up = Upstream::start(|_| reply(200, "hello"));
    let gateway = Gateway::with_server(&format!("{TRUSTING}\nforwarded = true"), &up.everything());
    let fields = "X-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.2;host=evil.test\r\n";
    assert_eq!(gateway.client().get_with("/", fields).status, 200);
    let told = |name: &str| up.received()[0].headers.joined(name);
    assert_eq!(told("x-real-ip"), "0.0.0.0");
    assert!(told("forwarded").starts_with("for=0.0.0.0;host="), "{}", told("forwarded"));
    assert_eq!(gateway.wait_message("request")["client"], "0.0.0.0");
}

#[test]
fn upstreams_get_no_element_that_the_client_has_written() {
    for (setting, own) in [("forwarded = true", ", for=127.0.0.1;host="), ("forwarded = false", "")] {
        let up = Upstream::start(|_| reply(200, "hello"));
        let gateway = Gateway::with_server(&format!("{TRUSTING}\n{setting}"), &up.everything());
        let mut client = gateway.client();
        let written =
            ["for=6.6.6.6;host=evil.test, for=192.0.2.1", "for=6.6.6.6\r\nForwarded: for=192.0.2.1", "for=192.0.2.1"];
        for written in written {
            assert_eq!(client.get_with("/", format!("Forwarded: {written}\r\n")).status, 200);
            let told = up.received().last().unwrap().headers.joined("forwarded");
            let rest = told.strip_prefix("for=192.0.2.1").unwrap_or_else(|| panic!("{told}"));
            assert!(rest.starts_with(own) && rest.is_empty() == own.is_empty(), "{told}");
        }
    }
}

#[test]
fn several_lines_are_one_list() {
    let gateway = Gateway::with_server(TRUSTING, &limited("client-ip"));
    let mut client = gateway.client();
    one_client(&mut client, &[&["192.0.2.1"], &["198.51.100.9", "192.0.2.1"], &["192.0.2.1", "10.0.0.1"]]);
    one_client(&mut client, &[&["192.0.2.2", "192.0.2.3"], &["192.0.2.3"]]);
}

#[test]
fn entries_left_of_an_invalid_one_are_ignored() {
    let gateway = Gateway::with_server(TRUSTING, &limited("client-ip"));
    let mut client = gateway.client();
    one_client(&mut client, &[&["192.0.2.1"], &["garbage, 192.0.2.1"], &["999.1.1.1, 192.0.2.1"]]);
    // Otherwise a client could choose its address by making the one to its right invalid.
    one_client(&mut client, &[&["198.51.100.1, garbage"], &["198.51.100.2, garbage"], &["198.51.100.3, <>"]]);
}

#[test]
fn a_list_of_only_trusted_addresses_has_a_client_too() {
    let gateway = Gateway::with_server(TRUSTING, &limited("client-ip"));
    let mut client = gateway.client();
    assert_eq!(ask(&mut client, &["10.0.0.1"]), 200);
    assert_eq!(ask(&mut client, &["10.0.0.1"]), 429);
    assert_eq!(ask(&mut client, &["", " , "]), 200);
    assert_eq!(ask(&mut client, &[]), 429);
}

#[test]
fn ipv6_clients_are_counted_by_their_network() {
    let gateway = Gateway::with_server(TRUSTING, &limited("client-ip"));
    let mut client = gateway.client();
    one_client(&mut client, &[&["2001:db8:0:1::1"], &["2001:db8:0:1::2"], &["2001:db8:0:1:ffff::"]]);
    one_client(&mut client, &[&["2001:db8:0:2::1"], &["2001:0DB8:0:2::1"]]);
    one_client(&mut client, &[&["192.0.2.1"], &["::ffff:192.0.2.1"]]);
}

#[test]
fn another_prefix_can_be_chosen() {
    for (source, together) in [("client-ip:128", false), ("client-ip:48", true)] {
        let gateway = Gateway::with_server(TRUSTING, &limited(source));
        let mut client = gateway.client();
        assert_eq!(ask(&mut client, &["2001:db8:0:1::1"]), 200);
        assert_eq!(ask(&mut client, &["2001:db8:0:2::2"]), if together { 429 } else { 200 }, "{source}");
    }
}
