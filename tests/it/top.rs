//! `gateway top` in a terminal, with gateways under load, and with servers that are no gateways.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Authority, Client, Gateway, Terminal, TlsServer, Upstream, limited, read_request, reply, run, signal, until,
};

const SIZE: (u16, u16) = (80, 24);
const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
const TOKEN: &str = "GATEWAY_ADMIN_TOKEN";

fn start(address: &str, more: &[&str], variables: &[(&str, &str)]) -> Terminal {
    Terminal::start(&[&["top", "--admin", address], more].concat(), variables, SIZE)
}

fn top(gateway: &Gateway) -> Terminal {
    start(&format!("http://{}", gateway.admin), &[], &[])
}

fn rate(screen: &str, group: &str) -> Option<f64> {
    let rest = screen.lines().find_map(|line| line.split_once(group))?.1;
    rest.split_whitespace().next()?.replace(',', "").parse().ok()
}

#[track_caller]
fn expect_end(top: &mut Terminal, code: i32) {
    assert_eq!(top.wait_exit().code(), Some(code), "{}", top.screen());
    top.expect_restored();
}

#[test]
fn rates_follow_the_load_and_a_refused_key_is_seen() {
    let upstream = Upstream::start(|_| reply(200, "ok"));
    let limit = "[limits.per-key]\nkey = \"header:x-api-key\"\nrates = [\"5/h\"]\n";
    let routes = "[[routes]]\npath = \"/limited\"\nlimits = [\"per-key\"]\nupstream = \"up\"\n\
                  [[routes]]\npath = \"/free\"\nupstream = \"up\"\n";
    let gateway = Gateway::start(&(upstream.section() + limit + routes));
    let mut top = top(&gateway);
    top.wait("quiet gateway", |screen| rate(screen, "served") == Some(0.0) && screen.contains("no key yet"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = gateway.client();
            while !is_over.load(Ordering::Relaxed) {
                client.get("/free");
                client.get_with("/limited", "x-api-key: customer-of-ours\r\n");
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let end = || is_over.store(true, Ordering::Relaxed);
        // The load ends even if the screen is never right.
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            top.wait("load", |screen| rate(screen, "served") > Some(5.0) && rate(screen, "over a limit") > Some(5.0));
            top.wait("refused key", |screen| {
                let of_key = screen.split_once("cu…rs#").map(|(_, rest)| rest.split_whitespace());
                let count = of_key.and_then(|mut words| words.nth(1)?.replace(',', "").parse::<u64>().ok());
                count > Some(0)
            });
            top.wait("upstream", |screen| {
                screen.contains(&upstream.address().to_string()) && screen.contains("healthy")
            });
        }));
        end();
        shown.unwrap();
    });
    top.wait("end of the load", |screen| rate(screen, "served") == Some(0.0));
    top.press("q");
    expect_end(&mut top, 0);
}

#[test]
fn what_happens_to_the_gateway_is_seen() {
    let gateway = Gateway::start(FIXED);
    let mut top = top(&gateway);
    top.wait("ready gateway", |screen| screen.contains("ready"));
    let call = |line: &str| {
        let request = format!("{line} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n", gateway.admin);
        Client::connect(gateway.admin).call(request).status
    };
    assert_eq!(call("POST /api/drain"), 200);
    top.wait("drain", |screen| screen.contains("draining: readiness is off"));
    gateway.write_config("this is no toml");
    assert_eq!(call("POST /api/reload"), 422);
    top.wait("refused reload", |screen| screen.contains("last refused"));
    top.press("\x03");
    expect_end(&mut top, 0);
}

#[test]
fn a_restart_of_the_gateway_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("admin.sock").display());
    let begin = || {
        let gateway = Gateway::with_admin(&format!("listen = \"{socket}\""), &limited("client-ip", "5/d", ""));
        gateway.wait_log("listening admin", |line| line["listener"] == "admin");
        gateway
    };
    let mut gateway = begin();
    (0..7).for_each(|_| _ = gateway.client().get("/"));
    let mut top = start(&socket, &[], &[]);
    let refused = |screen: &str| screen.lines().any(|line| line.starts_with("l ") && line.trim_end().ends_with(" 2"));
    top.wait("refusals", refused);
    gateway.signal(Signal::KILL);
    gateway.wait_exit();
    let shown =
        top.wait("failure", |screen| screen.contains("no numbers for") && screen.contains("nothing listens there"));
    assert!(refused(&shown), "the last numbers stay:\n{shown}");
    top.wait("pause", |screen| screen.contains("asking again"));
    let _gateway = begin();
    top.wait("new numbers", |screen| {
        !screen.contains("no numbers for") && !refused(screen) && screen.contains("ready")
    });
    top.press("q");
    expect_end(&mut top, 0);
}

#[test]
fn a_gateway_that_hangs_is_away_until_it_goes_on() {
    let gateway = Gateway::start(FIXED);
    let mut top = top(&gateway);
    top.wait("ready gateway", |screen| screen.contains("ready"));
    gateway.signal(Signal::STOP);
    top.wait("silence", |screen| screen.contains("no numbers for") && screen.contains("no answer within 5s"));
    gateway.signal(Signal::CONT);
    top.wait("new numbers", |screen| !screen.contains("no numbers for"));
    top.press("q");
    expect_end(&mut top, 0);
}

#[test]
fn the_screen_follows_its_size() {
    let gateway = Gateway::start(&limited("client-ip", "5/d", ""));
    let mut top = top(&gateway);
    top.wait("small screen", |screen| screen.contains("Limits") && !screen.contains("in flight"));
    top.resize(150, 45);
    let panels = ["Limits", "Most refused keys", "Upstreams", "Store"];
    top.wait("all columns", |screen| {
        panels.iter().all(|panel| screen.contains(panel)) && screen.contains("since start")
    });
    top.resize(30, 5);
    top.wait("sentence", |screen| screen.contains("too small"));
    top.resize(40, 24);
    top.wait("narrow screen", |screen| {
        panels.iter().all(|panel| screen.contains(panel)) && !screen.contains("since start")
    });
    top.press("q");
    expect_end(&mut top, 0);
}

#[test]
fn a_key_that_comes_together_with_another_size_is_not_lost() {
    let gateway = Gateway::start(FIXED);
    // In some of the rounds the program finds both at the same time.
    for _ in 0..30 {
        let mut top = top(&gateway);
        top.wait("screen", |screen| screen.contains("ready"));
        top.resize(81, 24);
        top.press("q");
        expect_end(&mut top, 0);
    }
}

#[test]
fn signals_and_a_lost_terminal_end_it() {
    let gateway = Gateway::start(FIXED);
    for ending in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = top(&gateway);
        top.wait("screen", |screen| screen.contains("ready"));
        assert!(!top.has_old_settings(), "keys come one by one");
        signal(&top.program, ending);
        expect_end(&mut top, 0);
    }
    let mut top = top(&gateway);
    top.wait("screen", |screen| screen.contains("ready"));
    top.hang_up();
    top.wait_exit();
}

#[test]
fn a_terminal_that_takes_no_output_does_not_keep_it() {
    let gateway = Gateway::start(FIXED);
    let mut top = top(&gateway);
    top.wait("screen", |screen| screen.contains("ready"));
    top.read(false);
    // Each size makes the program draw the whole screen, until no further output fits.
    let (mut unread, mut same) = (0, 0);
    until("no further output fits", Duration::from_secs(120), || {
        top.resize(150 + same % 2, 60);
        let before = std::mem::replace(&mut unread, top.unread());
        same = if before == unread && before > 0 { same + 1 } else { 0 };
        same == 400
    });
    signal(&top.program, Signal::TERM);
    assert_eq!(top.wait_exit().code(), Some(0));
    assert!(top.has_old_settings());
    // The program could not leave its screen.
    top.read(true);
    until("all output is read", Duration::from_secs(10), || top.unread() == 0);
    assert!(!String::from_utf8_lossy(&top.bytes()).contains("\x1b[?1049l"));
}

#[test]
fn a_token_comes_from_the_environment_or_from_a_file_and_can_be_replaced() {
    let gateway = Gateway::with_admin("token = \"first-token\"", FIXED);
    let address = gateway.admin.to_string();
    let mut of_variable = start(&address, &[], &[(TOKEN, "first-token")]);
    of_variable.wait("screen", |screen| screen.contains("ready"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first-token\n").unwrap();
    let mut of_file = start(&address, &["--token-file", file.to_str().unwrap()], &[(TOKEN, "wrong")]);
    of_file.wait("screen", |screen| screen.contains("ready"));
    gateway.reload_admin("token = \"second-token\"", FIXED);
    let mut both = [of_variable, of_file];
    for top in &mut both {
        top.wait("refusal", |screen| screen.contains("the token is not that of its [admin]"));
    }
    std::fs::write(&file, "second-token").unwrap();
    both[1].wait("new numbers", |screen| !screen.contains("no numbers for"));
    assert!(both[0].screen().contains("no numbers for"));
    for top in &mut both {
        top.press("q");
        expect_end(top, 0);
    }
    for top in both {
        assert!(!String::from_utf8_lossy(&top.bytes()).contains("-token"), "a token is on the screen");
    }
}

#[track_caller]
fn failure(address: &str, variables: &[(&str, &str)]) -> String {
    let mut top = start(address, &[], variables);
    assert_eq!(top.wait_exit().code(), Some(1), "{}", top.screen());
    until("the error is there", Duration::from_secs(10), || top.screen().contains("error: "));
    top.expect_restored();
    top.screen().replace('\n', "")
}

#[test]
fn it_says_why_it_cannot_begin() {
    let (_socket, closed) = crate::harness::closed_port();
    assert!(failure(&format!("http://{closed}"), &[]).contains("nothing listens there"));
    assert!(failure("unix:/nowhere/a.sock", &[]).contains("cannot connect: No such file"));

    let gateway = Gateway::with_admin("token = \"secret\"", FIXED);
    let address = gateway.admin.to_string();
    assert!(failure(&address, &[]).contains("set GATEWAY_ADMIN_TOKEN, or use --token-file"));
    assert!(failure(&address, &[(TOKEN, "wrong")]).contains("the token is not that of its [admin]"));
    let port = gateway.admin.port();
    let other_name = failure(&format!("gateway.localhost:{port}"), &[(TOKEN, "secret")]);
    // If the system knows the name, the gateway does not.
    assert!(
        other_name.contains("is not a name of this listener") || other_name.contains("cannot connect"),
        "{other_name}"
    );
    // The port for clients.
    let clients = failure(&gateway.http.to_string(), &[]);
    assert!(clients.contains("not the admin listener of a gateway"), "{clients}");
    let no_tls = failure(&format!("https://{address}"), &[(TOKEN, "secret")]);
    assert!(no_tls.contains("the TLS handshake fails"), "{no_tls}");

    let page = Upstream::start(|_| reply(200, "<html>"));
    assert!(failure(&page.address().to_string(), &[]).contains("not the admin listener of a gateway"));
    let no_http = Upstream::raw(|mut wire, _| _ = wire.write(b"SSH-2.0-server\r\n\r\n"));
    let no_http = failure(&no_http.address().to_string(), &[]);
    assert!(no_http.contains("does not speak HTTP"), "{no_http}");
    let silent = Upstream::raw(|wire, _| {
        std::thread::sleep(Duration::from_secs(30));
        drop(wire);
    });
    assert!(failure(&silent.address().to_string(), &[]).contains("no answer within 5s"));
}

#[test]
fn it_speaks_tls_with_who_is_trusted() {
    let authority = Authority::new();
    let certificate = authority.issue("proxy", "proxy", &["localhost"]);
    let numbers = format!("event: numbers\ndata: {}\n\n", first_numbers());
    let proxy = TlsServer::raw(authority.server(&certificate, false), move |mut stream, _| {
        if read_request(&mut stream).is_none_or(|(path, _)| path != "/api/events") {
            return;
        }
        let mut sent = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        while sent.is_ok() {
            sent = stream.write_all(numbers.as_bytes()).and_then(|()| stream.flush());
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    let address = format!("https://localhost:{}", proxy.address.port());
    let mut top = start(&address, &[], &[("SSL_CERT_FILE", authority.ca().to_str().unwrap())]);
    top.wait("numbers", |screen| screen.contains(&address) && screen.contains("ready"));
    top.press("q");
    expect_end(&mut top, 0);
    let other = Authority::new();
    let untrusted = failure(&address, &[("SSL_CERT_FILE", other.ca().to_str().unwrap())]);
    assert!(untrusted.contains("the TLS handshake fails: invalid peer certificate"), "{untrusted}");
}

#[test]
fn wrong_command_lines_and_pipes_are_refused() {
    for (arguments, code, why) in [
        (&["top"][..], 1, "standard output is not a terminal"),
        (&["top", "--admin", "ftp://a"], 2, "is not a scheme"),
        (&["top", "--admin", "http://a/metrics"], 2, "without a path"),
        (&["top", "--config", "gateway.toml"], 2, "name the gateway with --admin"),
        (&["top", "--token", "secret"], 2, "unexpected argument '--token'"),
    ] {
        let output = run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(why) && output.stdout.is_empty(), "{arguments:?}: {error}");
    }
    let mut odd = start("127.0.0.1:1", &[], &[(TOKEN, "two words")]);
    assert_eq!(odd.wait_exit().code(), Some(2));
    until("the error is there", Duration::from_secs(10), || odd.screen().contains("cannot be sent in a header"));
    assert!(!odd.screen().contains("two words"));
}

#[test]
fn colours_are_left_out_if_nobody_wants_them() {
    let gateway = Gateway::start(FIXED);
    for (variables, has_colours) in [(&[][..], true), (&[("NO_COLOR", "1")], false), (&[("NO_COLOR", "")], true)] {
        let mut top = start(&gateway.admin.to_string(), &[], variables);
        top.wait("screen", |screen| screen.contains("ready"));
        top.press("q");
        expect_end(&mut top, 0);
        let sent = String::from_utf8(top.bytes()).unwrap();
        assert_eq!(sent.contains("\x1b[38;5;"), has_colours, "{variables:?}: {sent:?}");
    }
}

/// Would change the title, clear the screen, colour it or turn the line around.
const HOSTILE: &str = "\x1b]0;owned\x07\x1b[2J\u{9b}31m\u{202e}";

#[track_caller]
fn expect_harmless(top: &Terminal) {
    let sent = String::from_utf8(top.bytes()).unwrap();
    for part in ["\x1b]", "\x07", "\u{9b}", "\u{202e}"] {
        assert!(!sent.contains(part), "{part:?} was sent");
    }
}

#[test]
fn keys_of_clients_cannot_control_the_terminal() {
    let gateway = Gateway::with_admin("show_keys = true", &limited("header:x-api-key", "1/d", ""));
    let mut client = gateway.client();
    // Of all control sequences, only this passes the checks of requests.
    (0..3).for_each(|_| _ = client.get_with("/", "x-api-key: evil\u{9b}31m\u{202e}\r\n"));
    let mut top = top(&gateway);
    top.wait("key", |screen| screen.contains("evil\\u{9b}31m"));
    top.press("q");
    expect_end(&mut top, 0);
    expect_harmless(&top);
}

/// Adds something hostile to all texts except the gateway's own words.
fn with_hostile_texts(value: Value) -> Value {
    let own = ["state", "type", "result"];
    match value {
        Value::String(text) => json!(text + HOSTILE),
        Value::Array(list) => list.into_iter().map(with_hostile_texts).collect(),
        Value::Object(fields) => {
            let change = |(name, value)| {
                let value = if own.contains(&String::as_str(&name)) { value } else { with_hostile_texts(value) };
                (name, value)
            };
            Value::Object(fields.into_iter().map(change).collect())
        }
        other => other,
    }
}

/// The first numbers of a gateway with an upstream and a refused reload.
fn first_numbers() -> Value {
    let gateway = Gateway::start(&Upstream::start(|_| reply(200, "ok")).everything());
    gateway.write_config("this is no toml");
    gateway.signal(Signal::HUP);
    gateway.wait_message("reload refused");
    let mut client = Client::connect(gateway.admin);
    client.send(format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin));
    client.try_head().unwrap();
    // The first chunk has the history and the numbers.
    let size = client.wire.first_line().unwrap().unwrap();
    let mut events = vec![0; usize::from_str_radix(&size, 16).unwrap()];
    client.wire.read_exact(&mut events).unwrap();
    let events = String::from_utf8(events).unwrap();
    serde_json::from_str(events.split_once("event: numbers\ndata: ").unwrap().1).unwrap()
}

/// Answers each request for events with these bytes, and then again and again with `more`.
fn server_of_events(first: Vec<u8>, more: Vec<u8>) -> Upstream {
    Upstream::raw(move |mut wire, _| {
        let Ok(Some((line, _))) = wire.head() else { return };
        if !line.contains("/api/events") {
            _ = wire.write(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n");
            return;
        }
        _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        let mut sent = wire.write(&first);
        while sent.is_ok() {
            sent = wire.write(&more);
            std::thread::sleep(Duration::from_millis(if more.len() > 10_000 { 0 } else { 1_000 }));
        }
    })
}

#[test]
fn a_hostile_server_cannot_control_the_terminal() {
    let numbers = with_hostile_texts(first_numbers());
    let event = format!("event: numbers\ndata: {numbers}\n\n").into_bytes();
    let server = server_of_events(event, b": nothing\n\n".to_vec());
    let mut top = Terminal::start(&["top", "--admin", &server.address().to_string()], &[], (150, 50));
    let escaped = |screen: &str| screen.contains("\\u{1b}]0;owned") && screen.contains("reloads 0, last refused");
    top.wait("names", escaped);
    top.wait("age", |screen| screen.contains("no numbers for"));
    top.press("q");
    expect_end(&mut top, 0);
    expect_harmless(&top);
}

#[test]
fn a_server_that_sends_too_much_or_something_else_is_not_followed() {
    let endless = server_of_events(b"data: ".to_vec(), vec![b'x'; 1 << 20]);
    assert!(failure(&endless.address().to_string(), &[]).contains("more than 8 MiB at once"));
    let mut other = first_numbers();
    other["uptime_seconds"] = json!(HOSTILE);
    let other = server_of_events(format!("event: numbers\ndata: {other}\n\n").into_bytes(), Vec::new());
    let error = failure(&other.address().to_string(), &[]);
    assert!(error.contains("may have another version"), "{error}");
    let ended = Upstream::raw(|mut wire, _| {
        _ = wire.head();
        _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n");
    });
    assert!(failure(&ended.address().to_string(), &[]).contains("not the admin listener"));
}
