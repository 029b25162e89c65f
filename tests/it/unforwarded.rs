//! A header that the upstream does not get decides nothing: no key, no tier, no cost and no route.

use std::net::{IpAddr, Ipv4Addr};

use crate::harness::{Client, Gateway, Upstream, reply};

/// The only proxy that is trusted; other clients connect from 127.0.0.1.
const TRUSTED: &str = "trusted_proxies = [\"127.0.0.2/32\"]";

fn from(last: u8, gateway: &Gateway) -> Client {
    Client::connect_from(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), gateway.http)
}

fn limited(up: &Upstream, limit: &str) -> String {
    format!("{}[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"{limit}\"]\n", up.section())
}

#[track_caller]
fn statuses<const N: usize>(client: &mut Client, target: &str, fields: [&str; N]) -> [u16; N] {
    fields.map(|fields| client.get_with(target, fields).status)
}

#[test]
fn a_header_of_proxies_is_no_key_of_other_clients() {
    for name in ["X-Forwarded-User", "CF-Connecting-IP", "True-Client-IP", "X-Real-IP", "X-Forwarded-For"] {
        let up = Upstream::start(|_| reply(200, ""));
        let limit = format!("[limits.l]\nkey = \"header:{} | client-ip\"\nrates = [\"2/d\"]\n", name.to_lowercase());
        let gateway = Gateway::with_server(TRUSTED, &(limit + &limited(&up, "l")));
        let value = |value: &str| format!("{name}: {value}\r\n");
        let (a, b, c) = (value("192.0.2.1"), value("192.0.2.2"), value("192.0.2.3"));
        let mut client = from(1, &gateway);
        assert_eq!(statuses(&mut client, "/", [&*a, &*b, &*c, ""]), [200, 200, 429, 429], "{name}");
        let mut proxy = from(2, &gateway);
        assert_eq!(statuses(&mut proxy, "/", [&*a, &*a, &*a, &*b]), [200, 200, 429, 200], "{name}");
    }
}

#[test]
fn a_header_of_proxies_gives_other_clients_no_tier_and_no_cost() {
    let up = Upstream::start(|_| reply(200, ""));
    let limits = "[limits.t]\nkey = \"client-ip\"\nrates = [\"2/d\"]\ntier = \"header:x-forwarded-plan\"\n\
                  tiers.gold.rates = [\"4/d\"]\n\
                  [limits.c]\nkey = \"client-ip\"\nrates = [\"2/d\"]\ncost = { request_header = \"x-forwarded-cost\" }\n";
    let route = "[[routes]]\npath = \"/c\"\nupstream = \"up\"\nlimits = [\"c\"]\n";
    let gateway = Gateway::with_server(TRUSTED, &(limits.to_owned() + route + &limited(&up, "t")));
    let (gold, dear) = ("X-Forwarded-Plan: gold\r\n", "X-Forwarded-Cost: 2\r\n");
    let mut client = from(1, &gateway);
    assert_eq!(statuses(&mut client, "/", [gold; 4]), [200, 200, 429, 429]);
    assert_eq!(statuses(&mut client, "/c", [dear; 3]), [200, 200, 429]);
    let mut proxy = from(2, &gateway);
    assert_eq!(statuses(&mut proxy, "/", [gold; 5]), [200, 200, 200, 200, 429]);
    assert_eq!(statuses(&mut proxy, "/c", [dear; 2]), [200, 429]);
}

#[test]
fn a_header_that_is_not_forwarded_selects_no_route() {
    let up = Upstream::start(|_| reply(200, ""));
    let limits = "[limits.strict]\nkey = \"client-ip\"\nrates = [\"1/d\"]\n";
    let conditions = [r#"{ x-batch = "1" }"#, r#"{ x-forwarded-batch = "1" }"#, r#"{ upgrade = "h2c" }"#];
    let loose = conditions.map(|wanted| format!("[[routes]]\npath = \"/*\"\nupstream = \"up\"\nheaders = {wanted}\n"));
    let gateway = Gateway::with_server(TRUSTED, &(limits.to_owned() + &loose.concat() + &limited(&up, "strict")));
    let mut client = from(1, &gateway);
    let hidden = "X-Batch: 1\r\nConnection: close, x-batch\r\n";
    assert_eq!(client.get_with("/", hidden).status, 200);
    assert_eq!(up.received().last().unwrap().headers.get("x-batch"), None);
    for hidden in [hidden, "X-Batch: 1\r\nConnection: keep-alive, X-BATCH\r\n", "X-Forwarded-Batch: 1\r\n"] {
        assert_eq!(from(1, &gateway).get_with("/", hidden).status, 429, "{hidden}");
    }
    for seen in
        ["X-Batch: 1\r\n", "X-Batch: 1\r\nConnection: keep-alive\r\n", "Upgrade: h2c\r\nConnection: upgrade\r\n"]
    {
        assert_eq!(from(1, &gateway).get_with("/", seen).status, 200, "{seen}");
    }
    assert_eq!(from(2, &gateway).get_with("/", "X-Forwarded-Batch: 1\r\n").status, 200);
}

#[test]
fn a_key_that_connection_names_is_refused() {
    let up = Upstream::start(|_| reply(200, ""));
    for (key, fields) in [
        ("header:x-api-key", "X-Api-Key: a\r\nConnection: x-api-key\r\n"),
        ("header:x-api-key", "X-Api-Key: a\r\nConnection: close\r\nConnection: keep-alive, X-API-KEY\r\n"),
        ("cookie:sid", "Cookie: sid=a\r\nConnection: cookie\r\n"),
        ("bearer", "Authorization: Bearer a\r\nConnection: authorization\r\n"),
    ] {
        let limit = format!("[limits.l]\nkey = \"{key} | client-ip\"\nrates = [\"2/d\"]\n");
        let gateway = Gateway::start(&(limit + &limited(&up, "l")));
        let answer = gateway.client().get_with("/", fields);
        answer.expect_problem(400);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(key) && detail.contains("Connection"), "{detail}");
    }
    assert!(up.received().is_empty());
}
