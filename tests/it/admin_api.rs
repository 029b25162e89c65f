//! The admin API: what is in force, reloads, draining, the log level.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::events::Stream;
use crate::harness::{Authority, Client, Gateway, Response, Terminal, limited, run, run_json, until};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

/// A request to the API.
fn call(gateway: &Gateway, method: &str, path: &str, body: &str) -> Response {
    let (host, length) = (gateway.admin, body.len());
    Client::connect(gateway.admin)
        .call(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}"))
}

/// The detail of a problem document of this status.
#[track_caller]
fn problem(response: &Response, status: u16) -> String {
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.headers.get("content-type"), Some("application/problem+json"));
    let problem = response.json();
    assert_eq!(problem["status"], status);
    problem["detail"].as_str().unwrap().to_owned()
}

#[test]
fn the_configuration_is_the_one_that_check_prints() {
    let more = "[upstreams.up]\nservers = [\"http://127.0.0.1:9\"]\n[[routes]]\npath = \"/up/*\"\nupstream = \"up\"\n\
                headers = { x-api-key = \"hidden-one\", x-beta = \"1\" }\n\
                request_headers = { set = { x-internal-token = \"hidden-two\", x-team = \"a\" } }\n";
    let text = limited("header:x-api-key | client-ip", "10/s", "") + more;
    let gateway = Gateway::with_admin("token = \"\"\nhosts = [\"one.test\"]", &text);
    let response = call(&gateway, "GET", "/api/config", "");
    assert_eq!(response.headers.get("content-type"), Some("application/json"));
    let shown = response.json();
    assert_eq!(shown["limits"]["l"]["key"], "header:x-api-key | client-ip");
    assert_eq!(
        (&shown["limits"]["l"]["rates"], &shown["server"]["idle_timeout"]),
        (&json!(["10/s"]), &json!("1m 15s"))
    );
    assert_eq!(shown["routes"][1]["request_headers"]["set"], json!({ "x-internal-token": "***", "x-team": "a" }));
    assert_eq!(shown["routes"][1]["headers"], json!({ "x-api-key": "***", "x-beta": "1" }));
    assert!(!response.text().contains("hidden"));
    let file = gateway.config_path().to_str().unwrap().to_owned();
    assert_eq!(run_json(&["check", "--json", &file]), shown);
}

/// The keys that each section takes, as the errors about an unknown one list them.
fn taken_keys(file: &str) -> Vec<(String, Vec<String>)> {
    let output = run(&["check", file]);
    let text = String::from_utf8(output.stderr).unwrap();
    let sections = text.lines().filter_map(|line| line.split_once(" takes "));
    let quoted = |list: &str| list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    sections.map(|(title, list)| (title.rsplit("help: ").next().unwrap().to_owned(), quoted(list))).collect()
}

#[test]
fn the_json_has_every_key_that_a_file_can_have() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let file_name = file.to_str().unwrap();
    let authority = Authority::new();
    // Each section with a key that does not exist, and without it.
    let text = "[server]\nWRONG\n[server.http2]\nWRONG\n[server.shed]\nlatency = \"1s\"\nWRONG\n[log]\nWRONG\n\
        [admin]\nlisten = \"127.0.0.1:1\"\nWRONG\n[store]\ntype = \"memory\"\nWRONG\n\
        [jwt.j]\nissuer = \"https://a/\"\njwks = \"http://127.0.0.1:1/\"\nalgorithms = [\"RS256\"]\nWRONG\n\
        [upstreams.u]\nservers = [\"https://127.0.0.1:1\"]\nWRONG\n[upstreams.u.health]\npath = \"/\"\nWRONG\n\
        [upstreams.u.eject]\nWRONG\n[upstreams.u.retry]\nWRONG\n[upstreams.u.tls]\nca = \"CA\"\nWRONG\n\
        [limits.l]\nkey = \"global\"\nrates = [\"1/s\"]\nWRONG\n\
        [[routes]]\npath = \"/*\"\nupstream = \"u\"\nlimits = [\"l\"]\nWRONG\n";
    let text = text.replace("CA", authority.ca().to_str().unwrap());
    std::fs::write(&file, text.replace("WRONG", "zzz = 1")).unwrap();
    let taken = taken_keys(file_name);
    assert_eq!(taken.len(), text.matches("WRONG").count(), "{taken:?}");
    std::fs::write(&file, text.replace("WRONG", "")).unwrap();
    let shown = run_json(&["check", "--json", file_name]);
    for (title, keys) in taken {
        // Of a file of overrides its content is shown, and of a store the keys of its own type.
        let of_memcached = ["servers", "prefix", "timeout", "on_error", "strict"];
        let is_shown =
            |key: &&String| *key != "overrides_file" && !(title == "[store]" && of_memcached.contains(&&***key));
        for key in keys.iter().filter(is_shown) {
            let place = title.trim_matches(['[', ']']).replace("routes", "routes.0").replace('.', "/");
            assert!(shown.pointer(&format!("/{place}/{key}")).is_some(), "{title} {key} is not in {shown:#}");
        }
    }
}

#[test]
fn a_token_is_masked() {
    let gateway = Gateway::with_admin("token = \"hidden-one\"", FIXED);
    let request = "GET /api/config HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer hidden-one\r\n\r\n";
    let response = Client::connect(gateway.admin).call(request);
    assert_eq!(response.json()["admin"]["token"], "***");
    assert!(!response.text().contains("hidden"));
}

#[test]
fn limits_show_their_decisions() {
    let gateway = Gateway::start(&limited("client-ip", "2/d", ""));
    let mut client = gateway.client();
    (0..5).for_each(|_| drop(client.get("/")));
    let limits = call(&gateway, "GET", "/api/limits", "").json();
    let limit = &limits["limits"][0];
    assert_eq!((&limit["name"], &limit["rates"]), (&json!("l"), &json!(["2/d"])));
    assert_eq!((&limit["decisions"]["admitted"], &limit["decisions"]["rejected"]), (&json!(2), &json!(3)));
    assert_eq!(limit["decisions"].as_object().unwrap().len(), 13);
}

#[test]
fn limits_that_refuse_most_come_first_everywhere() {
    let names = ["a", "b", "c", "d"];
    let limit = |name: &str| {
        format!(
            "[limits.{name}]\nkey = \"global\"\nrates = [\"1/d\"]\n\
             [[routes]]\npath = \"/{name}\"\nlimits = [\"{name}\"]\nrespond = {{ status = 200 }}\n"
        )
    };
    let gateway =
        Gateway::start(&(names.map(limit).concat() + "[limits.unused]\nkey = \"global\"\nrates = [\"1/d\"]\n"));
    let mut client = gateway.client();
    for (name, times) in [("a", 1), ("b", 2), ("c", 4), ("d", 1)] {
        (0..times).for_each(|_| drop(client.get(&format!("/{name}"))));
    }
    let order = |limits: &Value| -> Vec<String> {
        limits["limits"].as_array().unwrap().iter().map(|limit| limit["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut stream = Stream::open(&gateway);
    let is_counted = |numbers: &Value| numbers["routes"][0]["requests"] == 4 && numbers["routes"][3]["requests"] == 1;
    let numbers = stream.wait("numbers", |numbers| order(numbers) == ["c", "b", "a", "d"] && is_counted(numbers));
    assert_eq!(order(&call(&gateway, "GET", "/api/limits", "").json()), ["c", "b", "a", "d", "unused"]);
    // Routes are there with what they have become, those with the most requests first.
    let route = |name: &str, requests: u64, refused: u64| json!({ "name": name, "requests": requests, "refused": refused, "failed": 0 });
    assert_eq!(
        numbers["routes"],
        json!([route("/c", 4, 3), route("/b", 2, 1), route("/a", 1, 0), route("/d", 1, 0), route("none", 0, 0)])
    );
    // What changes later counts.
    (0..5).for_each(|_| drop(client.get("/d")));
    stream.wait("numbers", |numbers| order(numbers) == ["d", "c", "b", "a"]);
    assert_eq!(order(&call(&gateway, "GET", "/api/limits", "").json()), ["d", "c", "b", "a", "unused"]);
    let mut top = Terminal::start(&["top", "--admin", &format!("http://{}", gateway.admin)], &[], (100, 40));
    top.wait("the same order", |screen| {
        let row = |name: &str| {
            screen.lines().position(|line| line.trim_start_matches(['\u{2502}', '\u{2503}']).starts_with(name))
        };
        let places = ["d ", "c ", "b ", "a "].map(row);
        places.iter().all(Option::is_some) && places.is_sorted()
    });
}

#[test]
fn a_reload_is_answered_when_it_is_in_force_or_refused_with_every_problem() {
    let gateway = Gateway::start(&limited("client-ip", "3/d", ""));
    gateway.write_config(&limited("client-ip", "5/d", ""));
    let response = call(&gateway, "POST", "/api/reload", "");
    assert_eq!((response.status, response.json()), (200, json!({ "reloaded": true, "warnings": [] })));
    assert_eq!(call(&gateway, "GET", "/api/limits", "").json()["limits"][0]["rates"], json!(["5/d"]));

    gateway.write_config("[limits.l]\nkey = \"client-pi\"\nrates = [\"3 per day\"]\n[[routes]]\npaht = \"/\"\n");
    let response = call(&gateway, "POST", "/api/reload", "");
    problem(&response, 422);
    let problems = response.json()["problems"].clone();
    let problems = problems.as_array().unwrap();
    assert!(problems.len() >= 3, "{problems:?}");
    for one in problems {
        let place: Vec<_> = one["place"].as_str().unwrap().rsplitn(3, ':').collect();
        assert!(place[2].ends_with("gateway.toml") && place[..2].iter().all(|number| number.parse::<u32>().is_ok()));
        assert!(!one["message"].as_str().unwrap().is_empty());
    }
    assert!(problems.iter().any(|one| one["help"].to_string().contains("client-ip")), "{problems:?}");
    assert_eq!(call(&gateway, "GET", "/api/limits", "").json()["limits"][0]["rates"], json!(["5/d"]));

    gateway.write_config(&"[[routes]]\npaht = \"/\"\n".repeat(60));
    let problems = call(&gateway, "POST", "/api/reload", "").json()["problems"].clone();
    let last = problems.as_array().unwrap().last().unwrap();
    assert!(last["message"].as_str().unwrap().ends_with(" more"), "{last}");

    // A file that is valid, but needs a restart.
    gateway.write_config(&format!("[store]\nmax_keys = 10\n{FIXED}"));
    let response = call(&gateway, "POST", "/api/reload", "");
    problem(&response, 422);
    assert!(response.json()["problems"][0]["message"].as_str().unwrap().starts_with("store.max_keys cannot change"));
}

#[test]
fn reloads_side_by_side_all_get_an_answer_and_see_the_file_of_their_moment() {
    let gateway = Gateway::start(&limited("client-ip", "1/d", ""));
    std::thread::scope(|scope| {
        let ask = || {
            for _ in 0..5 {
                assert_eq!(call(&gateway, "POST", "/api/reload", "").status, 200);
            }
        };
        let threads = [(); 4].map(|()| scope.spawn(ask));
        for quota in 2..10 {
            gateway.write_config(&limited("client-ip", &format!("{quota}/d"), ""));
            assert_eq!(call(&gateway, "POST", "/api/reload", "").status, 200);
            let rates = call(&gateway, "GET", "/api/limits", "").json()["limits"][0]["rates"].clone();
            assert_eq!(rates, json!([format!("{quota}/d")]));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn readiness_is_turned_off_and_on() {
    let gateway = Gateway::start(FIXED);
    for _ in 0..2 {
        assert_eq!(call(&gateway, "POST", "/api/drain", "").json(), json!({ "draining": true }));
        assert_eq!(gateway.admin("/readyz").status, 503);
    }
    assert_eq!((gateway.admin("/healthz").status, gateway.client().get("/").status), (200, 200));
    assert_eq!(call(&gateway, "DELETE", "/api/drain", "").json(), json!({ "draining": false }));
    assert_eq!(gateway.admin("/readyz").status, 200);
}

#[test]
fn a_gateway_that_stops_does_not_become_ready_again() {
    let gateway = Gateway::with_server("drain_delay = \"30s\"", FIXED);
    gateway.signal(Signal::TERM);
    gateway.wait_message("not ready");
    problem(&call(&gateway, "DELETE", "/api/drain", ""), 409);
    assert_eq!(gateway.admin("/readyz").status, 503);
}

#[test]
fn the_log_level_changes_at_once() {
    let gateway = Gateway::start(FIXED);
    let logged = |path: &str| {
        gateway.client().get(path);
        gateway.log().iter().any(|line| line.contains(path))
    };
    until("requests are logged", Duration::from_secs(10), || logged("/first"));
    let response = call(&gateway, "PUT", "/api/log-level", r#"{"level": "error"}"#);
    assert_eq!((response.status, response.json()), (200, json!({ "level": "error" })));
    assert!((0..20).all(|_| !logged("/second")));
    assert_eq!(call(&gateway, "PUT", "/api/log-level", r#"{"level": "debug"}"#).status, 200);
    until("requests are logged again", Duration::from_secs(10), || logged("/third"));
    problem(&call(&gateway, "PUT", "/api/log-level", r#"{"level": "loud"}"#), 422);
    for body in ["", "debug", "{}", r#"{"level": "info", "for": "1h"}"#, r#"{"level": 3}"#] {
        problem(&call(&gateway, "PUT", "/api/log-level", body), 400);
    }
    problem(&call(&gateway, "PUT", "/api/log-level", &" ".repeat(70_000)), 413);
}

#[test]
fn another_method_is_told_which_there_are() {
    let gateway = Gateway::start(FIXED);
    for (method, path, allowed) in [
        ("POST", "/metrics", "GET, HEAD"),
        ("GET", "/api/reload", "POST"),
        ("PUT", "/api/drain", "POST, DELETE"),
        ("OPTIONS", "/api/config", "GET, HEAD"),
    ] {
        let response = call(&gateway, method, path, "");
        problem(&response, 405);
        assert_eq!(response.headers.get("allow"), Some(allowed), "{method} {path}");
    }
    problem(&call(&gateway, "GET", "/api/nothing", ""), 404);
}

#[test]
fn who_does_not_read_delays_nobody() {
    let gateway = Gateway::start(FIXED);
    let ask = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin);
    let mut slow: Vec<_> = (0..31)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(gateway.admin).unwrap();
            // Until the gateway has so many responses that it cannot send that it reads no more.
            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            for _ in 0..5_000 {
                if stream.write_all(ask.as_bytes()).is_err() {
                    break;
                }
            }
            stream
        })
        .collect();
    for _ in 0..20 {
        let begun = Instant::now();
        assert_eq!((gateway.admin("/healthz").status, gateway.client().get("/").status), (200, 200));
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }
    slow.last_mut().unwrap().read_exact(&mut [0; 12]).unwrap();
}

#[test]
fn a_reload_of_many_overrides_delays_no_probe() {
    let gateway = Gateway::start(FIXED);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("overrides.csv");
    let lines: Vec<_> = (0..200_000).map(|number| format!("key-{number},{}/s", number % 50 + 1)).collect();
    std::fs::write(&file, format!("key,rates\n{}\n", lines.join("\n"))).unwrap();
    let more = format!("overrides_file = {:?}", file.display().to_string());
    gateway.write_config(&limited("header:x-api-key", "10/s", &more));
    let done = std::thread::scope(|scope| {
        let asked = Instant::now();
        let reload = scope.spawn(|| {
            let mut client = Client::connect(gateway.admin);
            // It may take long on a busy machine.
            client.wire.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            client.call(format!("POST /api/reload HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin)).status
        });
        let mut slowest = Duration::ZERO;
        let mut probes = 0;
        while !reload.is_finished() {
            let begun = Instant::now();
            assert_eq!(gateway.admin("/healthz").status, 200);
            slowest = slowest.max(begun.elapsed());
            probes += 1;
        }
        // One that is delayed waits for nearly all of the reload.
        let took = asked.elapsed();
        assert!(probes > 3 && slowest < took / 2, "{probes} probes, the slowest took {slowest:?} of {took:?}");
        reload.join().unwrap()
    });
    assert_eq!(done, 200);
}

#[test]
#[ignore = "needs curl"]
fn the_examples_of_the_documentation_work() {
    let text = limited("header:x-api-key", "5/d", "").replace("limits.l]", "limits.per-client]");
    let gateway = Gateway::start(&text.replace("[\"l\"]", "[\"per-client\"]"));
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/admin.md")).unwrap();
    let examples: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("    curl ")).collect();
    assert!(examples.len() > 5);
    for example in examples {
        let example = example.replace("127.0.0.1:9901", &gateway.admin.to_string());
        let status = std::process::Command::new("sh").args(["-c", &format!("curl {example} > /dev/null")]).status();
        assert!(status.unwrap().success(), "{example}");
    }
}
