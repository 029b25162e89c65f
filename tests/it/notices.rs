//! Notices: that a receiver is told when a key has used a share of a rate, once for each key, rate, share and window.

use std::net::TcpStream;
use std::time::Duration;

use aws_lc_rs::hmac;
use rustix::process::Signal;
use serde_json::Value;

use crate::bytes::files;
use crate::harness::{
    Gateway, Received, Software, Upstream, Wire, every_store, limited, reply, unix, until, with_each_server,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const SECRET: &str = "sixteen-letters-and-more";
/// Its windows hardly ever end during a test.
const MONTH: u64 = 31 * 86_400;

/// A receiver of notices, which takes all of them unless the test answers itself.
pub(crate) struct Hook(pub(crate) Upstream);

impl Hook {
    pub(crate) fn start() -> Self {
        Self::answering(|_| reply(200, ""))
    }

    pub(crate) fn answering(answer: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self(Upstream::start(answer))
    }

    pub(crate) fn section(&self, more: &str) -> String {
        let address = self.0.address();
        format!("[[notices]]\nurl = \"http://{address}/hook?token=1\"\nsecret = \"{SECRET}\"\n{more}\n")
    }

    /// All that came so far. Each is a signed POST of JSON.
    pub(crate) fn notices(&self) -> Vec<Value> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        let notice = |request: &Received| {
            assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/hook?token=1"));
            assert_eq!(request.headers.must("content-type"), "application/json");
            let digits = request.headers.must("x-gateway-signature").strip_prefix("sha256=").unwrap();
            let tag: Vec<u8> =
                (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect();
            hmac::verify(&key, &request.body, &tag).unwrap();
            serde_json::from_slice(&request.body).unwrap()
        };
        self.0.received().iter().map(notice).collect()
    }

    #[track_caller]
    pub(crate) fn wait(&self, count: usize) -> Vec<Value> {
        until(&format!("{count} notices are delivered"), PATIENCE, || self.0.received().len() >= count);
        self.notices()
    }

    /// Limit, rate, key, share and use of each, in any order.
    #[track_caller]
    pub(crate) fn wait_short(&self, count: usize) -> Vec<String> {
        let mut all: Vec<_> = self.wait(count).iter().map(short).collect();
        all.sort();
        all
    }
}

pub(crate) fn short(notice: &Value) -> String {
    let text = |name: &str| notice[name].as_str().unwrap().to_owned();
    format!(
        "{} {} {} {} {}/{}",
        text("limit"),
        text("rate"),
        text("key"),
        notice["share"],
        notice["used"],
        notice["quota"]
    )
}

/// `times` requests of this key.
pub(crate) fn ask(gateway: &Gateway, key: &str, times: usize) -> Vec<u16> {
    let mut client = gateway.client();
    (0..times).map(|_| client.get_with("/", format!("X-Api-Key: {key}\r\n")).status).collect()
}

pub(crate) const FULL: &str = "full_keys = true";

/// What comes after this key has reached its limit shows that nothing else came before.
#[track_caller]
pub(crate) fn fence(gateway: &Gateway, quota: usize) {
    ask(gateway, "fence", quota);
}

#[test]
fn each_share_is_told_once() {
    every_store(|store| {
        let hook = Hook::start();
        let gateway =
            Gateway::start(&format!("{store}{}{}", hook.section(FULL), limited("header:x-api-key", "10/31d", "")));
        assert_eq!(ask(&gateway, "alice", 7), [200; 7]);
        ask(&gateway, "alice", 1);
        let first = hook.wait(1);
        assert_eq!(short(&first[0]), "l 10/31d alice 0.8 8/10", "{store}");
        let end = (unix().as_secs() / MONTH + 1) * MONTH;
        let reset: jiff::Timestamp = first[0]["reset"].as_str().unwrap().parse().unwrap();
        assert_eq!(reset.as_second(), i64::try_from(end).unwrap());
        assert!(!first[0]["gateway"].as_str().unwrap().is_empty());
        assert_eq!(first[0].as_object().unwrap().len(), 8);
        // A flood of what is refused tells nothing more.
        assert_eq!(ask(&gateway, "alice", 102)[..3], [200, 200, 429]);
        assert_eq!(hook.wait(2).iter().map(short).collect::<Vec<_>>()[1], "l 10/31d alice 1.0 10/10");
        fence(&gateway, 10);
        let all = hook.wait_short(4);
        assert_eq!(all[2..], ["l 10/31d fence 0.8 8/10", "l 10/31d fence 1.0 10/10"], "{store}");
        until("none waits", PATIENCE, || gateway.metric("gateway_notices_waiting") == Some(0.0));
        let counted = ["total{result=\"delivered\"}", "total{result=\"failed\"}", "dropped_total"];
        until("all are counted", PATIENCE, || {
            counted.map(|name| gateway.metric(&format!("gateway_notices_{name}"))) == [Some(4.0), Some(0.0), Some(0.0)]
        });
    });
}

#[test]
fn only_the_rates_that_have_reached_a_share_are_told() {
    let hook = Hook::start();
    let text = limited("header:x-api-key", "3/30d", "").replace("\"3/30d\"", "\"3/30d\", \"300/31d\", \"4/month\"");
    let gateway = Gateway::start(&(hook.section(&format!("at = [0.5]\n{FULL}")) + &text));
    ask(&gateway, "alice", 1);
    ask(&gateway, "alice", 4);
    assert_eq!(hook.wait_short(2), ["l 3/30d alice 0.5 2/3", "l 4/month alice 0.5 2/4"]);
}

#[test]
fn the_rates_that_a_key_has_are_told() {
    let hook = Hook::start();
    let limits = "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1/31d\"]\noverflow = \"pool\"\n\
                  overrides = [{ keys = [\"gold\"], rates = [\"2/30d\"] }]\n\
                  [limits.pool]\nkey = \"global\"\nrates = [\"2/29d\"]\n\
                  [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&(hook.section(&format!("at = [1.0]\n{FULL}")) + limits));
    ask(&gateway, "gold", 2);
    hook.wait(1);
    assert_eq!(ask(&gateway, "alice", 4), [200, 200, 200, 429]);
    assert_eq!(hook.wait_short(3), ["l 1/31d alice 1.0 1/1", "l 2/30d gold 1.0 2/2", "pool 2/29d * 1.0 2/2"]);
}

#[test]
fn each_receiver_is_told_about_its_limits() {
    let [hook, of_other] = [Hook::start(), Hook::start()];
    let other = "[limits.other]\nkey = \"header:x-api-key\"\nrates = [\"1/31d\"]\n\
                 [limits.third]\nkey = \"header:x-api-key\"\nrates = [\"1/30d\"]\n\
                 [[routes]]\npath = \"/other\"\nlimits = [\"other\", \"third\"]\nrespond = { status = 200 }\n";
    let section = hook.section(&format!("limits = [\"l\"]\nat = [1.0]\n{FULL}"));
    let of_other_section = of_other.section(&format!("limits = [\"other\"]\nat = [1.0]\n{FULL}"));
    let gateway =
        Gateway::start(&format!("{section}{of_other_section}{}{other}", limited("header:x-api-key", "1/31d", "")));
    for key in ["alice", "fence"] {
        gateway.client().get_with("/other", format!("X-Api-Key: {key}\r\n"));
        fence(&gateway, 1);
    }
    assert_eq!(hook.wait_short(1), ["l 1/31d fence 1.0 1/1"]);
    assert_eq!(of_other.wait_short(2), ["other 1/31d alice 1.0 1/1", "other 1/31d fence 1.0 1/1"]);
}

#[test]
fn limits_that_only_report_are_told_as_well() {
    let hook = Hook::start();
    let limit = limited("header:x-api-key", "1/31d", "on_limit = \"shadow\"");
    let gateway = Gateway::start(&(hook.section(&format!("at = [1.0]\n{FULL}")) + &limit));
    assert_eq!(ask(&gateway, "alice", 3), [200; 3]);
    assert_eq!(hook.wait_short(1), ["l 1/31d alice 1.0 1/1"]);
}

#[test]
fn a_new_window_is_told_again() {
    let hook = Hook::start();
    let limit = limited("header:x-api-key", "1/s", "strategy = \"fixed-window\"");
    let gateway = Gateway::start(&(hook.section(&format!("at = [1.0]\n{FULL}")) + &limit));
    until("three windows are told", PATIENCE, || {
        ask(&gateway, "alice", 2);
        hook.notices().len() >= 3
    });
    let mut ends: Vec<_> = hook.notices().iter().map(|notice| notice["reset"].as_str().unwrap().to_owned()).collect();
    ends.dedup();
    assert!(ends.len() >= 2, "{ends:?}");
}

#[test]
fn keys_have_the_masks_of_the_dashboard() {
    let (masked, full) = (Hook::start(), Hook::start());
    let sections = masked.section("at = [1.0]") + &full.section(&format!("at = [1.0]\n{FULL}"));
    let gateway = Gateway::start(&(sections + &limited("header:x-api-key", "1/31d", "")));
    let hostile: [&[u8]; 4] =
        [b"a\"},{\"b\\\\\x80\xff\xfe", b"\tbell\\u0000 tab\t\"", b"${jndi:ldap://x}'\"<script>", b"short"];
    for key in hostile {
        let mut client = gateway.client();
        client.get_with("/", [b"X-Api-Key: ", key, b"\r\n"].concat());
    }
    // Both have the same beginning and end.
    for middle in ["a", "b"] {
        ask(&gateway, &["k".repeat(3_500), "k".repeat(3_500)].join(middle), 1);
    }
    let full = full.wait(6);
    let keys: Vec<_> = full.iter().map(|notice| notice["key"].as_str().unwrap()).collect();
    let texts = hostile.map(|key| String::from_utf8_lossy(key.trim_ascii()).into_owned());
    assert_eq!(keys[1..4], texts[1..]);
    // What was cut or replaced has the digits of the mask.
    let digits = |at: usize| masked.wait(6)[at]["key"].as_str().unwrap().rsplit('#').next().unwrap().to_owned();
    assert_eq!(keys[0], format!("{}#{}", texts[0], digits(0)));
    for at in [4, 5] {
        assert!(keys[at].starts_with("kkkk") && keys[at].len() < 200, "{}", keys[at].len());
        assert!(keys[at].ends_with(&format!("\u{2026}kkkk#{}", digits(at))), "{}", keys[at]);
    }
    assert_ne!(keys[4], keys[5]);
    let shown = gateway.admin("/api/limits").json()["limits"][0]["most_busy"].clone();
    let mut shown: Vec<_> =
        shown.as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap().to_owned()).collect();
    let mut told: Vec<_> = masked.wait(6).iter().map(|notice| notice["key"].as_str().unwrap().to_owned()).collect();
    shown.sort();
    told.sort();
    assert_eq!(told, shown);
    assert!(told.iter().all(|key| key.contains('#') && key.len() < 30), "{told:?}");
}

#[test]
fn what_costs_bytes_is_told_when_it_has_passed() {
    every_store(|store| {
        let (hook, upstream) = (Hook::start(), files());
        let limit = "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1000B/31d\"]\ncost = { bytes = \"response\", reserve = \"100B\" }\n";
        let text = format!("{store}{}{limit}{}limits = [\"l\"]\n", hook.section(FULL), upstream.everything());
        let gateway = Gateway::start(&text);
        gateway.client().get_with("/700", "X-Api-Key: alice\r\n");
        gateway.client().get_with("/chunked/150", "X-Api-Key: alice\r\n");
        assert_eq!(hook.wait_short(1), ["l 1KB/31d alice 0.8 850/1000"], "{store}");
        // What is refused is not used.
        gateway.client().get_with("/200", "X-Api-Key: alice\r\n").expect_problem(429);
        gateway.client().get_with("/150", "X-Api-Key: alice\r\n");
        assert_eq!(hook.wait_short(2)[1], "l 1KB/31d alice 1.0 1000/1000", "{store}");
    });
}

#[test]
fn what_is_refused_is_not_used() {
    every_store(|store| {
        let (hook, upstream) = (Hook::start(), Upstream::start(|_| reply(200, "")));
        let limit = |name: &str, rate: &str, cost: &str| {
            format!("[limits.{name}]\nkey = \"header:x-api-key\"\nrates = [\"{rate}/31d\"]\ncost = {{ {cost} }}\n")
        };
        let limits = limit("b", "1000B", "bytes = \"both\"") + &limit("e", "1000", "elements = true");
        let route = |name: &str| format!("[[routes]]\npath = \"/{name}\"\nlimits = [\"{name}\"]\nupstream = \"up\"\n");
        let text = format!("{store}{}{}{limits}{}{}", hook.section(FULL), upstream.section(), route("b"), route("e"));
        let gateway = Gateway::start(&text);
        let post = |path: &str, key: &str, length: usize, body: &str| {
            let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nX-Api-Key: {key}\r\nContent-Length: {length}\r\n");
            gateway.client().call(format!("{head}Content-Type: application/json\r\n\r\n{body}")).status
        };
        let upload = |key: &str, length: usize| post("/b", key, length, &"x".repeat(length));
        let array = |key: &str, length: usize| {
            let body = format!("[{}]", vec!["1"; length].join(","));
            post("/e", key, body.len(), &body)
        };
        assert_eq!([upload("alice", 1), post("/b", "alice", 1000, "")], [200, 429], "{store}");
        assert_eq!([array("alice", 1), array("alice", 1000)], [200, 429], "{store}");
        // What comes after these shows that nothing came before.
        assert_eq!([upload("fence", 1000), array("fence", 1000)], [200, 200], "{store}");
        hook.wait(4);
        assert_eq!([upload("alice", 899), array("alice", 899)], [200, 200], "{store}");
        hook.wait(6);
        assert_eq!([upload("alice", 100), array("alice", 100)], [200, 200], "{store}");
        let all = [
            "b 1KB/31d alice 0.8 900/1000",
            "b 1KB/31d alice 1.0 1000/1000",
            "b 1KB/31d fence 0.8 1000/1000",
            "b 1KB/31d fence 1.0 1000/1000",
        ];
        let all = all.iter().flat_map(|told| [(*told).to_owned(), told.replace("b 1KB", "e 1000")]);
        let mut all: Vec<_> = all.collect();
        all.sort();
        assert_eq!(hook.wait_short(8), all, "{store}");
    });
}

#[test]
fn what_other_requests_have_reserved_is_not_used() {
    every_store(|store| {
        let hook = Hook::start();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let gone = std::sync::Mutex::new(gone);
        let upstream = Upstream::start(move |request| {
            let used: Value = serde_json::from_slice(&request.body).unwrap();
            if used["user"] == "held" {
                gone.lock().unwrap().recv().unwrap();
            }
            reply_json(&format!("{{\"usage\":{{\"total_tokens\":{}}}}}", used["seed"]))
        });
        let limit = "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1000/31d\"]\ncost = { tokens = \"auto\" }\n";
        let text = format!("{store}{}{limit}{}limits = [\"l\"]\n", hook.section(FULL), upstream.everything());
        let gateway = Gateway::start(&text);
        // Reserves `most` tokens, and uses others.
        let ask = |key: &str, most: u64, used: u64, user: &str| {
            let body = format!(
                "{{\"model\":\"m\",\"max_tokens\":{most},\"seed\":{used},\"user\":\"{user}\",\"messages\":[]}}"
            );
            let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-Api-Key: {key}\r\n");
            let length = body.len();
            let head = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
            gateway.client().call(head + &body).status
        };
        std::thread::scope(|threads| {
            let first = threads.spawn(|| ask("alice", 600, 100, "held"));
            until("the first request is in flight", PATIENCE, || upstream.received().len() == 1);
            assert_eq!([ask("alice", 500, 0, ""), ask("alice", 300, 300, "")], [429, 200], "{store}");
            assert_eq!(ask("fence", 900, 1000, ""), 200, "{store}");
            hook.wait(2);
            go.send(()).unwrap();
            assert_eq!(first.join().unwrap(), 200, "{store}");
        });
        until("both are settled", PATIENCE, || {
            gateway.admin("/api/limits/l/keys/alice").json()["rates"][0]["used"] == 400
        });
        assert_eq!(ask("alice", 450, 450, ""), 200, "{store}");
        let all = ["l 1000/31d alice 0.8 850/1000", "l 1000/31d fence 0.8 1000/1000", "l 1000/31d fence 1.0 1000/1000"];
        assert_eq!(hook.wait_short(3), all, "{store}");
    });
}

fn reply_json(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").into()
}

#[test]
fn a_long_stream_is_told_while_it_passes() {
    const CHUNK: &str = "5a\r\n";
    let (go, next) = std::sync::mpsc::channel::<()>();
    let next = std::sync::Mutex::new(next);
    let upstream = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while next.lock().unwrap().recv().is_ok() {
            let _ = wire.write(format!("{CHUNK}{}\r\n", "x".repeat(90)).as_bytes());
        }
    });
    let hook = Hook::start();
    let limit = "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1000B/31d\"]\n\
                 cost = { bytes = \"response\", reserve = \"10B\" }\n";
    let text = format!("{}{limit}{}limits = [\"l\"]\n", hook.section(FULL), upstream.everything());
    let gateway = Gateway::start(&text);
    let mut wire = Wire::new(TcpStream::connect(gateway.http).unwrap());
    wire.write(b"GET / HTTP/1.1\r\nHost: h\r\nX-Api-Key: alice\r\n\r\n").unwrap();
    wire.head().unwrap();
    for _ in 0..9 {
        go.send(()).unwrap();
        wire.read_exact(&mut [0; 96]).unwrap();
    }
    assert_eq!(hook.wait_short(1), ["l 1KB/31d alice 0.8 810/1000"]);
}

#[test]
fn tokens_are_told_when_they_are_used() {
    let hook = Hook::start();
    let upstream = Upstream::start(|_| {
        reply_json("{\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":35,\"total_tokens\":85}}")
    });
    let limit = "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"100/31d\"]\ncost = { tokens = \"auto\" }\n";
    let text = format!("{}{limit}{}limits = [\"l\"]\n", hook.section(FULL), upstream.everything());
    let gateway = Gateway::start(&text);
    let body = "{\"model\":\"m\",\"max_tokens\":90,\"messages\":[]}";
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-Api-Key: alice\r\nContent-Type: application/json\r\n";
    assert_eq!(gateway.client().call(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())).status, 200);
    assert_eq!(hook.wait_short(1), ["l 100/31d alice 0.8 85/100"]);
}

#[test]
fn what_the_response_costs_is_told_when_it_is_known() {
    every_store(|store| {
        let hook = Hook::start();
        let upstream = Upstream::start(|request| {
            let cost = request.target.trim_start_matches('/');
            format!("HTTP/1.1 200 OK\r\nX-Cost: {cost}\r\nContent-Length: 0\r\n\r\n").into()
        });
        let limit = "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"100/31d\"]\n\
                     cost = { response_header = \"x-cost\", reserve = 90 }\n";
        let text = format!("{store}{}{limit}{}limits = [\"l\"]\n", hook.section(FULL), upstream.everything());
        let gateway = Gateway::start(&text);
        // The reservation would have reached the share, but the cost does not.
        gateway.client().get_with("/5", "X-Api-Key: alice\r\n");
        gateway.client().get_with("/80", "X-Api-Key: alice\r\n");
        assert_eq!(hook.wait_short(1), ["l 100/31d alice 0.8 85/100"], "{store}");
    });
}

fn several_gateways_tell_once(software: Software) {
    let (hook, server) = (Hook::start(), software.start());
    let limit = limited("header:x-api-key", "10/31d", "");
    let text = format!("{}{}{limit}", server.store(), hook.section(&format!("at = [1.0]\n{FULL}")));
    let gateways = [Gateway::start(&text), Gateway::start(&text)];
    for times in [4, 3, 2] {
        gateways.iter().for_each(|gateway| drop(ask(gateway, "alice", times)));
    }
    hook.wait(1);
    gateways.iter().for_each(|gateway| fence(gateway, 10));
    until("both have told what they have", PATIENCE, || {
        gateways.iter().all(|gateway| gateway.metric("gateway_notices_waiting") == Some(0.0))
    });
    let told: Vec<_> = hook.wait_short(2).iter().map(|short| short.split(' ').nth(2).unwrap().to_owned()).collect();
    assert_eq!(told, ["alice", "fence"]);
    // A restart does not tell it again, nor does the other gateway.
    let [mut first, second] = gateways;
    first.signal(Signal::TERM);
    first.wait_exit();
    let first = Gateway::start(&text);
    [&first, &second].iter().for_each(|gateway| drop(ask(gateway, "alice", 3)));
    ask(&first, "last", 10);
    assert_eq!(hook.wait_short(3).len(), 3);
}

fn a_store_that_is_away_loses_no_notice(software: Software) {
    let (hook, mut server) = (Hook::start(), software.start());
    let limit = limited("header:x-api-key", "2/31d", "");
    let text =
        format!("{}{}{limit}", server.store_with("timeout = \"200ms\""), hook.section(&format!("at = [1.0]\n{FULL}")));
    let gateway = Gateway::start(&text);
    ask(&gateway, "early", 2);
    hook.wait(1);
    server.kill();
    for key in ["alice", "bob"] {
        ask(&gateway, key, 5);
    }
    assert_eq!(hook.wait_short(3), ["l 2/31d alice 1.0 2/2", "l 2/31d bob 1.0 2/2", "l 2/31d early 1.0 2/2"]);
}

with_each_server! {
    several_gateways_tell_once
    a_store_that_is_away_loses_no_notice
}

#[test]
fn a_restart_tells_nothing_again_if_counters_are_saved() {
    let (hook, folder) = (Hook::start(), tempfile::tempdir().unwrap());
    let store = format!("[store]\nsnapshot = \"{}\"\n", folder.path().join("counters").display());
    let text = format!("{store}{}{}", hook.section(FULL), limited("header:x-api-key", "5/31d", ""));
    let mut gateway = Gateway::start(&text);
    ask(&gateway, "alice", 4);
    hook.wait(1);
    // A reload of something else forgets nothing.
    gateway.reload_and_wait("forwarded = true", &text);
    ask(&gateway, "alice", 1);
    hook.wait(2);
    gateway.signal(Signal::TERM);
    gateway.wait_exit();
    let gateway = Gateway::start(&text);
    ask(&gateway, "alice", 3);
    fence(&gateway, 5);
    let told = hook.wait_short(4);
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!(told[..2], ["l 5/31d alice 0.8 4/5", "l 5/31d alice 1.0 5/5"]);
}
