//! Partition keys in `RateLimit`: they name the counter of a response, and tell nobody a key.

use std::collections::BTreeSet;

use sfv::{BareItem, List, ListEntry, Parser};

use crate::envoy::{self, Caller};
use crate::harness::{Client, Gateway, Response, Software, limited, run};

const SECRET: &str = "partition_secret = \"one that nobody guesses\"";

/// The bytes of the partition key, as a parser of structured fields reads them.
#[track_caller]
fn pk_in(field: &str) -> Option<Vec<u8>> {
    let list: List = Parser::new(field).parse().unwrap_or_else(|error| panic!("{field}: {error}"));
    let [ListEntry::Item(item)] = &list[..] else { panic!("{field}") };
    let value = item.params.iter().find(|(name, _)| name.as_str() == "pk").map(|(_, value)| value)?;
    let BareItem::ByteSequence(bytes) = value else { panic!("{field}: no byte sequence") };
    assert_eq!(bytes.len(), 9, "{field}");
    Some(bytes.clone())
}

#[track_caller]
fn pk(response: &Response) -> Option<Vec<u8>> {
    pk_in(response.headers.must("ratelimit"))
}

fn by_key(more: &str) -> String {
    limited("header:x-key", "2/d", more)
}

fn start(config: &str) -> Gateway {
    Gateway::with_server(SECRET, config)
}

#[test]
fn it_names_the_counter_whether_the_request_passes_or_not() {
    let gateway = start(&by_key(""));
    let mut client = gateway.client();
    let mut ask = |key: &str| client.get_with("/", format!("X-Key: {key}\r\n"));
    // All on one connection, as a proxy sends them, so that a refusal may be repeated.
    let answers: Vec<_> = ["a", "b", "a", "b", "a", "b", "a", "b", "c", "a", "a", "b"].map(&mut ask).into();
    assert_eq!(answers.iter().filter(|answer| answer.status == 429).count(), 7);
    let keys: Vec<_> = answers.iter().map(|answer| pk(answer).unwrap()).collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 3);
    for (a, b) in [(0, 2), (0, 4), (0, 6), (0, 9), (0, 10), (1, 3), (1, 5), (1, 7), (1, 11)] {
        assert_eq!(keys[a], keys[b], "{a} {b}");
    }
    // The policies stay the same for all clients.
    assert_eq!(answers[0].headers.must("ratelimit-policy"), answers[8].headers.must("ratelimit-policy"));
}

#[test]
fn what_all_share_has_none() {
    let gateway = start(&limited("global", "9/d", ""));
    assert_eq!(pk(&gateway.client().get("/")), None);
    let gateway = start(&by_key(""));
    assert_eq!(pk(&gateway.client().get("/")), None, "it has no key");
    // An invented key counts as none.
    let folder = tempfile::tempdir().unwrap();
    let known = folder.path().join("keys.txt");
    std::fs::write(&known, "real\n").unwrap();
    let gateway = start(&by_key(&format!("known_keys = {known:?}")));
    let mut client = gateway.client();
    let mut ask = |key: &str| pk(&client.get_with("/", format!("X-Key: {key}\r\n")));
    assert!(ask("real").is_some() && ask("invented").is_none());
}

#[test]
fn the_same_key_of_another_limit_cannot_be_recognized() {
    let limit = |name: &str, rate: &str| format!("[limits.{name}]\nkey = \"client-ip\"\nrates = [\"{rate}\"]\n");
    let route = |path: &str, limit: &str| {
        format!("[[routes]]\npath = \"{path}\"\nlimits = [\"{limit}\"]\nrespond = {{ status = 200 }}\n")
    };
    let gateway = start(&(limit("one", "9/d") + &limit("two", "9/d") + &route("/1", "one") + &route("/2", "two")));
    let mut client = gateway.client();
    let keys = ["/1", "/2", "/1"].map(|path| pk(&client.get(path)).unwrap());
    assert!(keys[0] != keys[1] && keys[0] == keys[2], "{keys:?}");
}

#[test]
fn it_is_sent_only_with_a_secret_and_depends_on_it() {
    let ask = |gateway: &Gateway| pk(&gateway.client().get_with("/", "X-Key: a\r\n"));
    let gateway = Gateway::start(&by_key(""));
    assert_eq!(ask(&gateway), None);
    gateway.reload_and_wait(SECRET, &by_key(""));
    let common = ask(&gateway);
    assert!(common.is_some());
    assert_eq!(ask(&start(&by_key(""))), common, "another process");
    let other = Gateway::with_server("partition_secret = \"one that nobody guesses.\"", &by_key(""));
    assert!(ask(&other).is_some_and(|other| Some(other) != common));
    let shown = gateway.admin("/api/config").text().to_owned();
    assert!(shown.contains("partition_secret") && !shown.contains("nobody guesses"), "{shown}");
}

#[test]
fn gateways_with_a_shared_store_agree() {
    let server = Software::Memcached.start();
    let config = server.store_with("strict = true\non_error = \"reject\"\ntimeout = \"5s\"") + &by_key("");
    let ask = |gateway: &Gateway| {
        let response = gateway.client().get_with("/", "X-Key: a\r\n");
        (pk(&response), response.headers.must("ratelimit").split("r=").nth(1).unwrap().starts_with('0'))
    };
    let [one, other] = [(); 2].map(|()| start(&config));
    let (first, second) = (ask(&one), ask(&other));
    assert!(first.0.is_some() && first.0 == second.0, "{first:?} {second:?}");
    assert!(second.1, "they count together");
}

#[test]
fn other_proxies_get_that_of_the_client() {
    let server = format!("listen = []\ntrusted_proxies = [\"127.0.0.1/32\"]\n{SECRET}");
    let gateway = Gateway::with_server(&server, &format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{}", by_key("")));
    let mut asker = Client::connect(gateway.decisions());
    let mut ask = |key: &str| {
        pk(&asker.get_with("/", format!("X-Original-Method: GET\r\nX-Original-URI: /\r\nX-Key: {key}\r\n"))).unwrap()
    };
    let keys = ["a", "b", "a", "a", "a", "b", "b", "b", "a"].map(&mut ask);
    assert!(keys[0] != keys[1] && keys.iter().all(|key| [&keys[0], &keys[1]].contains(&key)), "{keys:?}");
    assert!(keys[0] == keys[8] && keys[1] == keys[7]);
    let limit = "[limits.l]\nkey = \"descriptor:k\"\nrates = [\"1/d\"]\n";
    let gateway = envoy::deciding(SECRET, &format!("{}{limit}", envoy::rule("k = \"*\"", "[\"l\"]")));
    let mut caller = Caller::connect(gateway.decisions());
    let mut ask = |key: &str| {
        let answer = caller.ask(&[(&[("k", key)], None)]);
        pk_in(&answer.response_headers_to_add.iter().find(|line| line.key == "ratelimit").unwrap().value).unwrap()
    };
    let keys = ["a", "b", "a", "b", "a"].map(&mut ask);
    assert!(keys[0] != keys[1] && keys[0] == keys[2] && keys[0] == keys[4] && keys[1] == keys[3], "{keys:?}");
}

#[test]
fn styles_without_it_and_commands_that_only_look_do_not_show_it() {
    for style in ["github", "none", "openai"] {
        let gateway = start(&by_key(&format!("headers = \"{style}\"")));
        for _ in 0..3 {
            let response = gateway.client().get_with("/", "X-Key: a\r\n");
            assert!(
                response.headers.0.iter().all(|(_, value)| !String::from_utf8_lossy(value).contains("pk=")),
                "{response:?}"
            );
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    let explain = |config: &str| {
        std::fs::write(&path, config).unwrap();
        let output = run(&["explain", "--config", path.to_str().unwrap(), "-H", "X-Key: a", "http://a/"]);
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!explain(&by_key("")).contains("pk="));
    let config = format!("[server]\n{SECRET}\n{}", by_key(""));
    let shown = explain(&config);
    let line = shown.lines().find_map(|line| line.trim().strip_prefix("ratelimit: ")).unwrap();
    let running = start(&by_key(""));
    assert_eq!(pk_in(line), pk(&running.client().get_with("/", "X-Key: a\r\n")));
}

#[test]
fn tokens_have_a_unit_of_their_own() {
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1000/m\"]\nmax_in_flight = 3\ncost = { tokens = \"auto\" }\n";
    let route = "[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&format!("{limit}{route}"));
    let body = r#"{"model": "m", "messages": []}"#;
    let request = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let policies = gateway.client().call(request).headers.must("ratelimit-policy").to_owned();
    let expected = "\"l-m\";q=1000;w=60;qu=\"gateway-tokens\", \"l-concurrency\";q=3;qu=\"concurrent-requests\"";
    assert_eq!(policies, expected);
}
