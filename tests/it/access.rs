//! What the access log says about limits: the limit that refused a request, the limits that only report a refusal, and
//! how long a request was held.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::{Gateway, Upstream, every_store, reply, until};

const LIMITS: &str = r#"
[limits.few]
key = "client-ip"
rates = ["1/d"]
[limits.fewer]
key = "client-ip"
rates = ["2/d", "1/30d"]
[limits.silent]
key = "client-ip"
rates = ["1/d"]
on_limit = "silent"
[limits.costly]
key = "client-ip"
rates = ["1/d"]
cost = { request_header = "x-cost" }
[limits.keyed]
key = "header:x-key"
rates = ["1/d"]
missing = "reject"
overrides = [{ keys = ["thief"], block = true }]
[limits.trial]
key = "client-ip"
rates = ["1/d"]
on_limit = "shadow"
[limits.slow]
key = "client-ip"
rates = ["5/s burst 1"]
strategy = "token-bucket"
on_limit = "delay"
max_delay = "5s"
"#;

fn route(path: &str, limits: &str) -> String {
    format!("[[routes]]\npath = \"{path}\"\nlimits = [{limits}]\nrespond = {{ status = 200 }}\n")
}

/// The lines of the access log by path, once there are `count`.
fn lines(gateway: &Gateway, count: usize) -> BTreeMap<String, Vec<Value>> {
    let requests = || {
        let lines = gateway.log().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        lines.filter(|line| line["message"] == "request").collect::<Vec<_>>()
    };
    until("all lines are there", std::time::Duration::from_secs(20), || requests().len() >= count);
    let mut by_path: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in requests() {
        by_path.entry(line["path"].as_str().unwrap().to_owned()).or_default().push(line);
    }
    by_path
}

#[test]
fn the_limit_that_refuses_is_named() {
    every_store(|store| {
        let routes = [
            route("/few", "\"few\", \"fewer\""),
            route("/silent", "\"silent\""),
            route("/costly", "\"costly\""),
            route("/keyed", "\"keyed\""),
        ];
        let gateway = Gateway::start(&format!("{store}{LIMITS}{}", routes.concat()));
        let mut client = gateway.client();
        let mut get = |path: &str, fields: &str| client.get_with(path, fields).status;
        // The third and the fourth refusal repeat an earlier one.
        assert_eq!([(); 4].map(|()| get("/few", "")), [200, 429, 429, 429], "{store}");
        assert_eq!([get("/silent", ""), get("/silent", "")], [200; 2], "{store}");
        assert_eq!(get("/costly", "X-Cost: 2\r\n"), 413, "{store}");
        assert_eq!([get("/keyed", ""), get("/keyed", "X-Key: thief\r\n")], [400, 403], "{store}");
        let lines = lines(&gateway, 9);
        let limits = |path: &str| lines[path].iter().map(|line| line["limit"].as_str()).collect::<Vec<_>>();
        // If two limits refuse a request, the log names the limit with the longer wait.
        assert_eq!(limits("/few"), [None, Some("fewer"), Some("fewer"), Some("fewer")], "{store}");
        assert_eq!(limits("/silent"), [None, Some("silent")], "{store}");
        assert_eq!(limits("/costly"), [Some("costly")], "{store}");
        assert_eq!(limits("/keyed"), [Some("keyed"); 2], "{store}");
        assert!(lines.values().flatten().all(|line| line["held_micros"].is_null()), "{store}");
    });
}

#[test]
fn the_limits_that_would_have_refused_are_named() {
    every_store(|store| {
        let routes = route("/tried", "\"trial\"") + &route("/both", "\"few\", \"trial\"");
        let gateway = Gateway::start(&format!("{store}{LIMITS}{routes}"));
        let mut client = gateway.client();
        let mut get = |path: &str| client.get(path).status;
        assert_eq!([get("/tried"), get("/tried"), get("/both"), get("/both")], [200, 200, 200, 429], "{store}");
        let lines = lines(&gateway, 4);
        let told = |path: &str| lines[path].iter().map(|line| [&line["limit"], &line["shadowed"]]).collect::<Vec<_>>();
        let trial = Value::from(vec!["trial"]);
        assert_eq!(told("/tried"), [[&Value::Null; 2], [&Value::Null, &trial]], "{store}");
        assert_eq!(told("/both"), [[&Value::Null, &trial], [&"few".into(), &trial]], "{store}");
    });
}

#[test]
fn the_time_for_which_a_request_was_held_is_logged() {
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{LIMITS}{}", route("/slow", "\"slow\"")));
        let mut client = gateway.client();
        assert_eq!([(); 8].map(|()| client.get("/slow").status), [200; 8], "{store}");
        let lines = &lines(&gateway, 8)["/slow"];
        assert!(lines[0]["held_micros"].is_null(), "{store}: {}", lines[0]);
        // One that comes late on a busy machine is not held.
        let line = lines.iter().max_by_key(|line| line["held_micros"].as_u64()).unwrap();
        let held = line["held_micros"].as_u64().unwrap();
        assert!((50_000..=line["micros"].as_u64().unwrap()).contains(&held), "{store}: {line}");
        assert!(line["limit"].is_null(), "{store}: it was let through");
    });
}

#[test]
fn the_time_of_the_upstream_begins_when_it_is_sent_the_request() {
    let silent = Upstream::raw(|mut wire, _| _ = wire.rest());
    let store = format!("[store]\ntype = \"memcached\"\nservers = [\"{}\"]\ntimeout = \"5s\"\n", silent.address());
    let up = Upstream::start(|_| reply(200, ""));
    let limit = "[limits.l]\nkey = \"client-ip\"\nrates = [\"9/d\"]\n";
    let gateway = Gateway::start(&format!("{store}{limit}{}limits = [\"l\"]\n", up.everything()));
    assert_eq!(gateway.client().get("/").status, 200);
    let line = gateway.wait_log("the request", |line| line["message"] == "request");
    let micros = |name: &str| line[name].as_u64().unwrap();
    // It waits for the rest of the five seconds, which begin with the gateway.
    assert!(micros("micros") >= micros("upstream_micros") + 1_000_000, "it waits for the store: {line}");
}

#[test]
fn lines_of_json_have_one_form_and_no_control_characters() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("access.log");
    let limit = "[limits.l]\nkey = \"client-ip\"\nrates = [\"9/d\"]\n\
                 [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let ask = |gateway: &Gateway| {
        gateway.client().get("/\u{9b}2J\u{2028}\u{202e}");
        gateway.client().get("/end");
    };
    let gateway = Gateway::start(limit);
    ask(&gateway);
    gateway.wait_log("the last request", |line| line["path"] == "/end");
    let of_log: Vec<_> = gateway.log().into_iter().filter(|line| line.contains("\"message\":\"request\"")).collect();
    let gateway = Gateway::with_log(&format!("access_file = {file:?}\naccess_format = \"json\""), limit);
    ask(&gateway);
    let read = || std::fs::read_to_string(&file).unwrap();
    until("the last request is there", std::time::Duration::from_secs(20), || read().contains("/end"));
    let of_file: Vec<_> = read().lines().map(str::to_owned).collect();
    for lines in [of_log, of_file] {
        assert!(lines.iter().flat_map(|line| line.chars()).all(|c| c == ' ' || c.is_ascii_graphic()), "{lines:?}");
        let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert!(last["remaining"]["l"].as_u64().unwrap() >= 7, "{last}");
        assert_eq!((last["level"].as_str(), last["message"].as_str()), (Some("INFO"), Some("request")));
    }
}
