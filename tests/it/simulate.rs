//! `gateway simulate` replays access logs against the limits.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Gateway, until};

/// One limit of five requests in ten seconds, counted exactly.
const LIMIT: &str = r#"
[limits.api]
key = "client-ip"
rates = ["5/10s"]
strategy = "moving-window"
[[routes]]
path = "/*"
limits = ["api"]
respond = { status = 200 }
"#;

struct Folder(TempDir);

impl Folder {
    fn new(config: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("gateway.toml", config);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gateway"))
            .args(["simulate", "--config", "gateway.toml"])
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // With wrong arguments, nobody reads it.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    fn text(&self, arguments: &[&str], log: &str) -> String {
        let output = self.run(&[arguments, &["-"]].concat(), log.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "there is no progress bar without a terminal: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str], log: &str) -> Value {
        serde_json::from_str(&self.text(&[&["--json"], arguments].concat(), log)).unwrap()
    }

    fn error(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.run(arguments, b"");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

/// A line of the Common Log Format, at this second after midnight.
fn common(client: &str, second: u64, path: &str) -> String {
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{client} - - [22/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 12\n")
}

/// Eight requests of one client within ten seconds, and two of another.
fn traffic() -> String {
    let busy: String = (0..8).map(|second| common("192.0.2.1", 60 + second, "/a")).collect();
    busy + &common("192.0.2.2", 68, "/b") + &common("192.0.2.2", 69, "/b")
}

/// The important parts of a report on [`traffic`].
fn assert_found(report: &Value, what: &str) {
    assert_eq!(report["requests"], 10, "{what}: {report:#}");
    let limit = &report["limits"]["api"];
    assert_eq!([&limit["requests"], &limit["rejected"]], [10, 3], "{what}: {report:#}");
    assert_eq!([&limit["keys"], &limit["keys_rejected"]], [2, 1], "{what}: {report:#}");
    assert_eq!(limit["worst"], json!([{ "key": "192.0.2.1", "requests": 8, "rejected": 3 }]), "{what}");
    assert_eq!([&limit["exact"]["wrongly_admitted"], &limit["exact"]["wrongly_rejected"]], [0, 0], "{what}");
}

#[test]
fn every_format_says_the_same() {
    let folder = Folder::new(LIMIT);
    let seconds = |at: u64| 1_795_305_600 + 60 + at;
    let client = |at: u64| if at < 8 { "192.0.2.1" } else { "192.0.2.2" };
    let json_lines = |line: &dyn Fn(u64) -> Value| (0..10).map(|at| line(at).to_string() + "\n").collect::<String>();
    let combined = traffic().replace(" 12\n", " 12 \"https://referer/\" \"agent \\\"7\\\"\"\n");
    let own = json_lines(&|at| {
        json!({
            "timestamp": format!("2026-11-22T00:01:{:02}.500000Z", at), "level": "INFO", "message": "request",
            "client": client(at), "method": "GET", "host": "h", "path": "/a", "route": "/*", "status": 200,
            "outcome": "forwarded", "bytes": 12, "micros": 500_000,
        })
    });
    let nginx = json_lines(
        &|at| json!({ "msec": format!("{}.000", seconds(at)), "remote_addr": client(at), "request": "GET /a HTTP/2.0", "status": "200" }),
    );
    let caddy = json_lines(
        &|at| json!({ "ts": format!("{}.0", seconds(at)).parse::<f64>().unwrap(), "request": { "client_ip": client(at), "method": "GET", "uri": "/a", "host": "h" }, "status": 200 }),
    );
    let named = json_lines(
        &|at| json!({ "a": { "who": client(at) }, "when": seconds(at) * 1_000, "verb": "GET", "what": "/a" }),
    );
    for (what, log) in [("common", traffic()), ("combined", combined), ("own", own), ("nginx", nginx), ("caddy", caddy)]
    {
        let report = folder.json(&[], &log);
        assert_found(&report, what);
        assert_eq!([&report["from"], &report["to"]], ["2026-11-22T00:01:00Z", "2026-11-22T00:01:09Z"], "{what}");
        assert_eq!(report["skipped"], 0, "{what}");
    }
    let fields = ["client=a.who", "time=when", "method=verb", "path=what"].map(|field| ["--field", field]).concat();
    assert_found(&folder.json(&fields, &named), "named fields");
    assert_eq!(folder.json(&[], &named)["unreadable"], 10, "the default names do not fit");
}

#[test]
fn files_are_read_together_packed_or_not_and_in_any_order() {
    let folder = Folder::new(LIMIT);
    let log = traffic();
    let (older, newer) = log.split_at(log.match_indices('\n').nth(4).unwrap().0 + 1);
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(older.as_bytes()).unwrap();
    folder.write("access.log.1.gz", packed.finish().unwrap());
    folder.write("access.log", newer);
    folder.write("empty.log", "");
    for arguments in [&["access.log", "access.log.1.gz"][..], &["access.log.1.gz", "empty.log", "access.log"]] {
        let output = folder.run(&[&["--json"], arguments].concat(), b"");
        assert_found(&serde_json::from_slice(&output.stdout).unwrap(), "files");
    }
    let output = folder.run(&["--json", "access.log.1.gz", "-"], newer.as_bytes());
    assert_found(&serde_json::from_slice(&output.stdout).unwrap(), "a file and standard input");
    // A file that breaks off is reported, and its earlier lines are used.
    let whole = fs::read(folder.path("access.log.1.gz")).unwrap();
    folder.write("cut.gz", &whole[..whole.len() - 4]);
    let output = folder.run(&["--json", "cut.gz", "access.log"], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("error: cut.gz cannot be read after line 5"),
        "{output:?}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_found(&report, "a file that breaks off");
    assert_eq!(report["broken"].as_array().unwrap().len(), 1);
}

#[test]
fn the_own_log_of_a_gateway_is_replayed() {
    let gateway = Gateway::with_log("format = \"json\"", &LIMIT.replace("5/10s", "5/d"));
    let mut client = gateway.client();
    let statuses: Vec<_> = (0..8).map(|_| client.get("/a").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
    let requests = || gateway.log().iter().filter(|line| line.contains("\"message\":\"request\"")).count();
    until("all lines are there", std::time::Duration::from_secs(20), || requests() == 8);
    let log = gateway.log().join("\n");
    let folder = Folder::new(&LIMIT.replace("5/10s", "6/d"));
    let report = folder.json(&[], &log);
    assert_eq!(report["skipped"], 0, "lines that are about something else are not requests: {report:#}");
    let limit = &report["limits"]["api"];
    assert_eq!([&limit["requests"], &limit["rejected"]], [8, 2], "refused requests count like all others: {report:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("3 requests were answered 429") && !notes.contains("would have cost"), "{report:#}");
    let of_bytes = LIMIT.replace("5/10s", "6KiB/d") + "[limits.api.cost]\nbytes = \"response\"\n";
    let notes = Folder::new(&of_bytes).json(&[], &log)["notes"].to_string();
    assert!(notes.contains("would have cost, so too few are rejected by api"), "{notes}");
}

#[test]
fn a_refused_line_is_suggested_the_mean_cost_of_its_key() {
    let line = |second: u8, client: u8, status: u16, bytes: u64| {
        format!(
            r#"{{"time":"2026-05-04T12:00:{second:02}Z","client":"192.0.2.{client}","method":"GET","path":"/a","status":{status},"bytes":{bytes},"tokens_input":{},"tokens_output":0}}
"#,
            bytes / 10
        )
    };
    // The mean of the first client is 2000 bytes. The second one has none, so that of all counts.
    let first = line(1, 1, 200, 1000) + &line(2, 1, 200, 3000) + &line(3, 1, 429, 10).repeat(2);
    let both = first.clone() + &line(4, 2, 429, 10).repeat(5);
    for (quota, cost, expected) in [
        ("1GiB/d", "bytes = \"response\"", ["8KB/d", "10KB/d"]),
        ("100000/d", "tokens = \"auto\"\nmax_output = 1", ["601/d", "801/d"]),
    ] {
        let limit = LIMIT.replace("5/10s", quota).replace("moving", "fixed");
        let folder = Folder::new(&format!("{limit}[limits.api.cost]\n{cost}\n"));
        for (log, expected) in [&first, &both].into_iter().zip(expected) {
            let report = folder.json(&[], log);
            assert_eq!(report["limits"]["api"]["suggested"][0]["rates"], json!([expected]), "{report:#}");
        }
    }
}

#[test]
fn the_json_has_the_shape_of_its_contract() {
    let folder = Folder::new(LIMIT);
    let report = folder.json(&["--suggest"], &traffic());
    let limit = report["limits"]["api"].clone();
    for number in ["requests", "skipped", "unreadable", "late", "unrouted", "refused", "limited"] {
        assert!(report[number].is_u64(), "{number}: {report:#}");
    }
    for number in ["requests", "rejected", "keys", "keys_rejected", "exempt", "blocked", "without_key"] {
        assert!(limit[number].is_u64(), "{number}: {limit:#}");
    }
    let touches: Vec<_> =
        limit["suggested"].as_array().unwrap().iter().map(|found| found["touches"].as_f64()).collect();
    assert_eq!(touches, [Some(0.01), Some(0.001), Some(0.0001)]);
    assert_eq!(limit["suggested"][0]["rates"], json!(["8/10s"]));
    assert!(limit["section"].as_str().unwrap().starts_with("[limits.api]\n"));
    assert_eq!(limit["when"]["rejected"].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>(), 3);
    let empty = folder.json(&[], "");
    assert_eq!([&empty["requests"], &empty["from"], &empty["to"]], [&json!(0), &Value::Null, &Value::Null]);
    assert_eq!(empty["limits"]["api"]["suggested"], json!([]));
}

#[test]
fn broken_lines_are_counted_and_shown_by_number() {
    let folder = Folder::new(LIMIT);
    let mut lines: Vec<String> = traffic().lines().map(str::to_owned).collect();
    lines.insert(2, "nonsense".to_owned());
    lines.insert(5, "{\"time\": 1".to_owned());
    lines.insert(7, String::new());
    lines.push(common("192.0.2.9", 7_200, "/later").trim().to_owned());
    lines.push(common("192.0.2.9", 100, "/too-late").trim().to_owned());
    let log = lines.join("\n");
    let report = folder.json(&[], &log);
    assert_eq!([&report["skipped"], &report["unreadable"], &report["late"]], [3, 2, 1], "{report:#}");
    let shown: Vec<_> = report["skipped_lines"].as_array().unwrap().iter().map(|line| line["line"].as_u64()).collect();
    assert_eq!(shown, [Some(3), Some(6), Some(15)], "{report:#}");
    let text = folder.text(&[], &log);
    assert!(text.contains("3 lines skipped: 2 cannot be read, 1 out of order"), "{text}");
    assert!(text.contains("standard input:3: the line is not in the Common"), "{text}");
    assert_eq!(folder.json(&["--reorder", "3h"], &log)["late"], 0);
    assert_eq!(folder.json(&["--reorder", "0"], &(common("::1", 2, "/") + &common("::1", 1, "/")))["late"], 1);
    let many = "nonsense\n".repeat(100);
    assert!(folder.text(&[], &many).contains("and 80 more"));
}

#[test]
fn lines_are_sorted_before_they_are_decided() {
    let folder = Folder::new(LIMIT);
    let sorted: Vec<_> = (0..40).map(|at| common("192.0.2.1", 60 + at * 2, "/")).collect();
    let mut shuffled = sorted.clone();
    shuffled.chunks_mut(7).for_each(<[String]>::reverse);
    let (one, other) = (folder.json(&[], &sorted.concat()), folder.json(&[], &shuffled.concat()));
    assert_eq!(one["limits"], other["limits"]);
    assert_eq!(other["skipped"], 0);
}

#[test]
fn the_counter_is_compared_with_an_exact_log() {
    // All requests come at the end of one window and at the beginning of the next. The sliding window takes the requests
    // of the first window as spread over it, so it admits too many. Later it refuses requests for which an exact log has
    // room.
    let config = LIMIT.replace("strategy = \"moving-window\"\n", "");
    let folder = Folder::new(&config);
    let log: String = [9, 9, 9, 9, 9, 14, 14, 14, 19, 19].map(|second| common("192.0.2.1", 600 + second, "/")).concat();
    let report = folder.json(&[], &log);
    // At :14 the estimate is floor(5 * 6/10) = 3, so two more pass, although five lie in the window. At :19 it is
    // floor(5 * 1/10) + 2 = 2, so both pass, and the log has 2 of :14.
    let limit = &report["limits"]["api"];
    assert_eq!(limit["rejected"], 1, "{report:#}");
    assert_eq!([&limit["exact"]["wrongly_admitted"], &limit["exact"]["wrongly_rejected"]], [2, 0], "{report:#}");
    let log: String = [0, 0, 0, 0, 0, 10, 10].map(|second| common("192.0.2.1", 600 + second, "/")).concat();
    let limit = folder.json(&[], &log)["limits"]["api"].clone();
    assert_eq!([&limit["exact"]["wrongly_admitted"], &limit["exact"]["wrongly_rejected"]], [0, 2], "{limit:#}");
}

#[test]
fn responses_that_another_limit_has_kept_away_need_no_bytes() {
    let rates = "key = \"client-ip\"\nrates";
    let folder = Folder::new(&format!(
        "[limits.bytes]\n{rates} = [\"1MB/h\"]\ncost = {{ bytes = \"response\" }}\n[limits.requests]\n{rates} = [\"1/h\"]\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"bytes\", \"requests\"]\nrespond = {{ status = 200 }}\n"
    ));
    let log: String = (0..9).map(|second| common("192.0.2.1", second, "/").replace(" 12\n", " 400000\n")).collect();
    let report = folder.json(&[], &log);
    let limits = &report["limits"];
    assert_eq!([&limits["bytes"]["rejected"], &limits["requests"]["rejected"]], [0, 8], "{report:#}");
    assert_eq!(limits["bytes"]["exact"]["wrongly_admitted"], 0, "{report:#}");
}

#[test]
fn suggested_rates_touch_as_few_keys_as_they_say() {
    for strategy in ["sliding-window", "fixed-window", "moving-window", "token-bucket"] {
        let config = |rates: &str| LIMIT.replace("moving-window", strategy).replace("\"5/10s\"", rates);
        let mut log = String::new();
        // Each of 200 clients sends a different number of requests, in bursts.
        for client in 0..200_u64 {
            for request in 0..=client / 4 {
                let second = client % 7 + request / 10 * 3;
                log += &common(&format!("10.0.0.{client}"), second, "/");
            }
        }
        let report = Folder::new(&config("\"5/10s\", \"20/m\"")).json(&["--reorder", "1h"], &log);
        for found in report["limits"]["api"]["suggested"].as_array().unwrap() {
            let rates = found["rates"].to_string();
            let rates = rates.trim_matches(['[', ']']);
            let again = Folder::new(&config(rates)).json(&["--reorder", "1h"], &log);
            let limit = &again["limits"]["api"];
            let share = limit["keys_rejected"].as_f64().unwrap() / limit["keys"].as_f64().unwrap();
            assert!(share <= found["touches"].as_f64().unwrap(), "{strategy}: {rates} touch {share}: {found}");
        }
    }
}

#[test]
fn requests_that_would_be_held_are_counted_and_nobody_waits() {
    let slow = "strategy = \"fixed-window\"\nslow = { from = 0.5, up_to = \"5m\" }";
    let folder = Folder::new(&LIMIT.replace("strategy = \"moving-window\"", slow));
    let report = folder.json(&[], &traffic());
    // The fourth and the fifth of five find 60 and 80 % used.
    assert_eq!(report["limits"]["api"]["held"], json!({ "requests": 2, "longest_seconds": 180.0 }), "{report:#}");
    assert_eq!(report["limits"]["api"]["rejected"], 3, "{report:#}");
    let text = folder.text(&[], &traffic());
    assert!(text.contains("held      2 (20.00 %), for up to 180s"), "{text}");
    assert_eq!(Folder::new(LIMIT).json(&[], &traffic())["limits"]["api"]["held"], Value::Null);
}

#[test]
fn a_suggestion_can_be_pasted() {
    let config = LIMIT.replace("limits.api", "limits.\"a.b\"").replace("limits = [\"api\"]", "limits = [\"a.b\"]");
    let folder = Folder::new(&config);
    let suggestion = folder.text(&["--suggest"], &traffic());
    assert!(suggestion.contains("[limits.\"a.b\"]") && suggestion.contains("\nrates = [\"8/10s\"]"), "{suggestion}");
    let rest: String = config.lines().filter(|line| !line.starts_with("[limits") && !line.starts_with("rates")).fold(
        String::new(),
        |mut rest, line| {
            let _ = writeln!(rest, "{line}");
            rest
        },
    );
    folder.write("pasted.toml", format!("{suggestion}{rest}"));
    let path = folder.path("pasted.toml");
    let output = crate::harness::run(&["check", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("8/10s per client-ip"), "{output:?}");
}

#[test]
fn exempt_and_blocked_keys_are_counted_apart() {
    let overrides = r#"
[[limits.api.overrides]]
keys = ["10.0.0.0/8"]
exempt = true
[[limits.api.overrides]]
keys = ["192.0.2.66"]
block = true
[[routes]]"#;
    for on_limit in ["reject", "shadow", "silent", "delay"] {
        let on_limit = format!("strategy = \"moving-window\"\non_limit = \"{on_limit}\"");
        let config = LIMIT.replacen("[[routes]]", overrides, 1).replace("strategy = \"moving-window\"", &on_limit);
        let log = traffic() + &common("10.0.0.1", 69, "/").repeat(20) + &common("192.0.2.66", 69, "/").repeat(7);
        let report = Folder::new(&config).json(&[], &log);
        let limit = &report["limits"]["api"];
        assert_eq!([&limit["requests"], &limit["rejected"]], [10, 3], "{on_limit}: {report:#}");
        assert_eq!([&limit["exempt"], &limit["blocked"], &limit["keys"]], [20, 7, 2], "{on_limit}: {report:#}");
        let limited = if on_limit.contains("shadow") { 0 } else { 10 };
        assert_eq!([&report["requests"], &report["limited"]], [37, limited], "{on_limit}: {report:#}");
        let is_told = report["notes"].to_string().contains("what it rejects is forwarded");
        assert_eq!(is_told, on_limit.contains("shadow"), "{on_limit}: {report:#}");
    }
}

#[test]
fn what_the_log_does_not_have_is_said() {
    let config = r#"
[limits.by-header]
key = "header:x-api-key"
rates = ["1/d"]
[limits.either]
key = "header:x-api-key | client-ip"
rates = ["100/d"]
[limits.by-query]
key = "query:user"
rates = ["100/d"]
[limits.by-cookie]
key = "cookie:sid"
rates = ["1/d"]
[[routes]]
host = "api.example.com"
path = "/*"
limits = ["by-header", "either", "by-query", "by-cookie"]
respond = { status = 200 }
"#;
    let folder = Folder::new(config);
    let report = folder.json(&[], &traffic().replace("/a", "/a?user=1"));
    let limits = &report["limits"];
    assert_eq!([&limits["by-header"]["simulated"], &limits["by-header"]["requests"]], [&json!(false), &json!(0)]);
    assert_eq!(limits["by-header"]["unknown"], json!(["header:x-api-key"]));
    assert_eq!([&limits["either"]["simulated"], &limits["either"]["keys"]], [&json!(true), &json!(2)]);
    assert_eq!(limits["either"]["unknown"], json!(["header:x-api-key"]));
    assert_eq!([&limits["by-query"]["keys"], &limits["by-query"]["unknown"]], [&json!(2), &json!([])], "{report:#}");
    assert!(report["notes"].to_string().contains("taken to be for api.example.com"), "{report:#}");
    let text = folder.text(&[], &traffic());
    assert!(
        text.contains("WARNING   not simulated: its key cannot be read, since no line has header:x-api-key\n"),
        "{text}"
    );
    let line = |key: &str| {
        format!("{}\n", json!({ "time": 1, "client": "192.0.2.1", "method": "GET", "path": "/", "k": key }))
    };
    let log = line("one") + &line("two") + &line("two");
    let text = folder.text(&[], &log);
    assert!(text.contains("(--field header:x-api-key=NAME)"), "{text}");
    let named = folder.json(&["--field", "header:x-api-key=k"], &log);
    assert_eq!([&named["limits"]["by-header"]["keys"], &named["limits"]["by-header"]["rejected"]], [2, 1], "{named:#}");
    assert_eq!(named["limits"]["by-header"]["worst"][0]["key"], "two");
    assert!(named["notes"].to_string().contains("whole seconds"), "{named:#}");
    let other = folder.json(&["--host", "other.example.com"], &traffic());
    assert_eq!([&other["unrouted"], &other["limits"]["either"]["requests"]], [10, 0], "{other:#}");
}

#[test]
fn requests_cost_what_the_log_says() {
    let config = r#"
[limits.tokens]
key = "client-ip"
rates = ["100/d"]
cost = { tokens = "auto", output = 2, max_output = 10 }
[limits.header]
key = "client-ip"
rates = ["100/d"]
cost = { response_header = "x-cost", reserve = 10 }
[[routes]]
path = "/*"
limits = ["LIMIT"]
respond = { status = 200 }
"#;
    let folder = |limit: &str| Folder::new(&config.replace("LIMIT", limit));
    let log = |count: u64, status: u16, rest: &str| -> String {
        let line = |second| {
            format!(
                "{{\"time\":{},\"client\":\"192.0.2.1\",\"method\":\"GET\",\"path\":\"/\",\"status\":{status}{rest}}}\n",
                1_800_000_000 + second
            )
        };
        (0..count).map(line).collect()
    };
    // The first limit, the log, the fields, and how many of the requests have no room.
    for (limit, log, fields, rejected) in [
        // Each costs 20 of 100, which is what is reserved.
        ("tokens", log(10, 200, ""), &[][..], 5),
        // Each costs 10 + 2 * 15 = 40; a third one has room for its reservation.
        ("tokens", log(10, 200, r#","tokens_input":10,"tokens_output":15"#), &[], 7),
        ("tokens", log(10, 200, r#","tokens_input":1,"tokens_output":1,"spent":{"all":40}"#), &["cost=spent.all"], 7),
        // Each costs 2, but needs 20.
        ("tokens", log(45, 200, r#","tokens_input":0,"tokens_output":1"#), &[], 4),
        // They cost nothing.
        ("tokens", log(20, 404, r#","tokens_input":10,"tokens_output":15"#), &[], 0),
        ("header", log(20, 200, r#","tokens_input":1,"tokens_output":1"#), &[], 10),
        ("header", log(20, 200, r#","spent":50"#), &["cost=spent"], 18),
        ("header", log(20, 200, r#","spent":0"#), &["cost=spent"], 0),
    ] {
        let arguments: Vec<_> = fields.iter().flat_map(|field| ["--field", *field]).collect();
        let report = folder(limit).json(&arguments, &log);
        let found = &report["limits"][limit];
        assert_eq!(found["rejected"], rejected, "{limit} {log}: {report:#}");
        assert_eq!(found["exact"]["wrongly_admitted"], 0, "{limit} {log}: {report:#}");
        let notes = report["notes"].to_string();
        let says_tokens = fields.is_empty() && log.contains("tokens_input");
        assert_eq!(notes.contains("header: the log has no response header x-cost"), fields.is_empty(), "{notes}");
        assert_eq!(notes.contains("which tokens were cached"), says_tokens, "{notes}");
        assert_eq!(notes.contains("tokens: no line says"), fields.is_empty() && !says_tokens, "{notes}");
    }
}

#[test]
fn what_a_log_cannot_tell_is_said() {
    let config = r#"
[limits.failures]
key = "client-ip"
rates = ["2/d"]
count = { status = ["401"] }
[limits.tokens]
key = "client-ip"
rates = ["100/d"]
cost = { response_header = "x-cost", reserve = 10 }
[limits.slow]
key = "client-ip"
rates = ["100/d"]
on_limit = "delay"
[limits.at-once]
key = "client-ip"
rates = ["100/d"]
max_in_flight = 1
[[routes]]
path = "/*"
limits = ["failures", "tokens", "slow", "at-once"]
respond = { status = 200 }
"#;
    let folder = Folder::new(config);
    let log = traffic() + &traffic().replace(" 200 ", " 401 ").replace("00:01:", "00:02:");
    let report = folder.json(&[], &log);
    let notes = report["notes"].to_string();
    for part in
        ["max_in_flight is not simulated", "would be held", "each request costs 10", "with the status in the log"]
    {
        assert!(notes.contains(part), "{part}: {report:#}");
    }
    // Only failures stay charged: the first two of the eight of 192.0.2.1.
    let limits = &report["limits"];
    assert_eq!([&limits["failures"]["requests"], &limits["failures"]["rejected"]], [20, 6], "{report:#}");
    assert_eq!(limits["failures"]["exact"]["wrongly_admitted"], 0, "{report:#}");
}

#[test]
fn the_page_is_one_file_and_hostile_lines_are_escaped() {
    let hostile = ["<script>alert(1)</script>", "\"onload=\"x", "&amp;]]>", "</style><img src=//evil>", "\\xc2\\x9b2J"];
    let folder = Folder::new(&LIMIT.replace("\"client-ip\"", "\"header:user-agent\""));
    let mut log = String::new();
    for agent in hostile {
        let agent = agent.replace('"', "\\\"");
        let line = common("192.0.2.1", 60, "/").replace('\n', &format!(" \"-\" \"{agent}\"\n"));
        log += &line.repeat(9);
    }
    log += "<b>nonsense</b>\n";
    let text = folder.text(&["--html", "page.html"], &log);
    assert!(text.contains("<script>alert(1)</script>: 4 of 9") && !text.contains('\u{9b}'), "{text}");
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script") && !page.contains("<img"), "{page}");
    assert!(!page.contains('\u{9b}') && page.contains("\\u{9b}2J"), "{page}");
    for elsewhere in ["http://", "https://", "src=", "href=", "url(", "@import", "<link", "<iframe"] {
        let found: Vec<_> =
            page.match_indices(elsewhere).filter(|(at, _)| !page[..*at].ends_with("&lt;img ")).collect();
        assert!(found.is_empty(), "{elsewhere}: {page}");
    }
    for part in
        ["<svg role=\"img\" aria-label=", "lang=\"en\"", "prefers-color-scheme: dark", "default-src 'none'", "<rect"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert_well_formed(&page);
}

/// Whether every element is closed in order, and no attribute contains a quotation mark or `<`.
fn assert_well_formed(page: &str) {
    let mut open = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some((before, after)) = rest.split_once('<') {
        assert!(!before.contains('>') || open.last() == Some(&"style"), "a bare > in {before:?}");
        let (tag, after) = after.split_once('>').unwrap();
        assert!(!tag.contains('<') && tag.matches('"').count() % 2 == 0, "{tag}");
        rest = after;
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !["meta", "link", "br"].contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn no_line_makes_it_panic() {
    let folder = Folder::new(LIMIT);
    let own = r#"{"timestamp":"2026-11-22T00:01:00.5Z","level":"INFO","message":"request","client":"192.0.2.1","method":"GET","host":"h","path":"/a","status":200,"outcome":"forwarded","micros":500000}"#;
    let combined = common("192.0.2.1", 60, "/a?b=%20").replace('\n', " \"https://r/\" \"a \\\"b\\\" \\x41\"\n");
    let lines = [own, combined.trim_end()];
    // A generator with a fixed seed, so that a failure can be repeated.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    // After two lines from the future all others of their log are late, so there are many logs.
    let mut names = Vec::new();
    for log in 0..500 {
        let mut text = Vec::new();
        for at in 0..200 {
            let mut line = lines[at % 2].as_bytes().to_vec();
            for _ in 0..=random(3) {
                let place = random(line.len());
                match random(5) {
                    0 => line[place] = u8::try_from(random(256)).unwrap(),
                    1 if line.len() > 1 => drop(line.remove(place)),
                    2 => line.truncate(place + 1),
                    3 => line.extend_from_within(place..),
                    _ => line.insert(place, b"\"\\[]{} :/0x%,\x00\xff"[random(15)]),
                }
            }
            line.retain(|byte| *byte != b'\n');
            text.extend(line);
            text.push(b'\n');
        }
        names.push(format!("{log}.log"));
        folder.write(&names[log], text);
    }
    let arguments: Vec<_> =
        ["--json", "--html", "page.html"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let output = folder.run(&arguments, b"");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (requests, skipped) = (report["requests"].as_u64().unwrap(), report["skipped"].as_u64().unwrap());
    assert!(requests > 10_000 && skipped > 10_000, "{requests} and {skipped}");
    assert!((99_000..=100_000).contains(&(requests + skipped)), "{requests} and {skipped}");
}

#[test]
fn invalid_arguments_are_errors() {
    let folder = Folder::new(LIMIT);
    folder.write("access.log", traffic());
    for (arguments, parts) in [
        (&[][..], &["<LOG>"][..]),
        (
            &["missing.log", "other.log"],
            &["error: missing.log cannot be read: No such file", "error: other.log cannot"],
        ),
        (&["."], &["error: . cannot be read"]),
        (&["access.log", "access.log"], &["access.log is named twice"]),
        (&["--field", "clinet=x", "access.log"], &["did you mean `client`?"]),
        (&["--field", "client", "access.log"], &["NAME=FIELD"]),
        (&["--field", "time=a", "--field", "time=b", "access.log"], &["error: --field time is given twice"]),
        (&["--reorder", "10", "access.log"], &["it has no unit"]),
        (&["--reorder", "25h", "access.log"], &["at most 24h"]),
        (&["--host", "a b", "access.log"], &["is not a host"]),
        (&["--html", "no/such/folder", "access.log"], &["error: no/such/folder cannot be written"]),
    ] {
        let (code, text) = folder.error(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{arguments:?}: {text}");
        }
    }
    let nothing = Folder::new("[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n");
    let (code, text) = nothing.error(&["-"]);
    assert!(code == Some(2) && text.contains("error: no route has limits"), "{text}");
}

#[test]
fn the_gateway_and_the_simulation_refuse_the_same_requests() {
    let cors = "max_body_size = \"10B\"\ncors = { origins = [\"*\"] }\n";
    let folder = Folder::new(&LIMIT.replace("limits =", &(cors.to_owned() + "limits =")));
    let line = |more: Value| {
        let mut line =
            json!({ "time": 1_795_305_600, "client": "192.0.2.1", "method": "GET", "path": "/", "host": "h" });
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line.to_string() + "\n"
    };
    let refused = |more: Value| {
        let report = folder.json(&[], &line(more));
        assert_eq!(report["requests"], 1, "{report:#}");
        (report["refused"].as_u64().unwrap(), report["limits"]["api"]["requests"].as_u64().unwrap())
    };
    assert_eq!(refused(json!({})), (0, 1));
    for more in [
        json!({ "path": "http://other.test/" }),
        json!({ "path": "http://h/a/../b" }),
        json!({ "method": "get" }),
        json!({ "method": "CONNECT", "path": "h:443" }),
        json!({ "host": "a b" }),
        json!({ "content-length": "11" }),
    ] {
        assert_eq!(refused(more.clone()), (1, 0), "{more}");
    }
    for more in [
        // Logs spell the host in other ways than the target.
        json!({ "path": "http://H:80/" }),
        json!({ "content-length": "10" }),
    ] {
        assert_eq!(refused(more.clone()), (0, 1), "{more}");
    }
    let preflight = json!({ "method": "OPTIONS", "origin": "https://a", "access-control-request-method": "GET" });
    assert_eq!(refused(preflight), (0, 0), "`cors` answers it, and no limit counts it");
}

#[test]
fn bans_are_simulated() {
    let ban = "strategy = \"moving-window\"\nban = { after = 2, within = \"1m\", for = \"30s\" }\n";
    let folder = Folder::new(&LIMIT.replace("strategy = \"moving-window\"\n", ban));
    // Five pass, two are refused, one more begins a ban, and the ban refuses the rest, until it ends.
    let flood: String = (0..20).map(|_| common("192.0.2.1", 60, "/a")).collect();
    let log = flood + &common("192.0.2.2", 61, "/a") + &common("192.0.2.1", 89, "/a") + &common("192.0.2.1", 91, "/a");
    let report = folder.json(&[], &log);
    let limit = &report["limits"]["api"];
    assert_eq!([&limit["requests"], &limit["rejected"]], [10, 3], "{report:#}");
    assert_eq!(limit["bans"], json!({ "begun": 1, "keys": 1, "refused": 13 }), "{report:#}");
    assert_eq!(report["limited"], 16, "{report:#}");
    let text = folder.text(&[], &log);
    assert!(text.contains("\n  banned    1 keys, in 1 bans, which would have refused 13 more requests\n"), "{text}");
    let plain = Folder::new(LIMIT);
    assert_eq!(plain.json(&[], &log)["limits"]["api"].get("bans"), None);
    assert!(!plain.text(&[], &log).contains("banned"));
}
