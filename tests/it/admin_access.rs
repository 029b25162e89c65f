//! Who may use the admin listener: tokens, names in Host, origins of pages, a Unix socket.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use crate::harness::{Authority, Client, Gateway, Response, TlsClient, run, until, unverified};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

/// Each header ends with `\r\n`.
fn ask(gateway: &Gateway, line: &str, headers: &str) -> Response {
    Client::connect(gateway.admin).call(format!("{line} HTTP/1.1\r\n{headers}\r\n"))
}

fn problem(response: &Response) -> String {
    assert_eq!(response.headers.get("content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(problem["status"], response.status);
    problem["detail"].as_str().unwrap().to_owned()
}

#[test]
fn a_host_of_another_name_is_refused() {
    let gateway = Gateway::with_admin("hosts = [\"Gateway.Internal\"]", FIXED);
    for host in ["127.0.0.1:9901", "localhost", "gateway.internal:80", "[::1]:1"] {
        assert_eq!(ask(&gateway, "GET /metrics", &format!("Host: {host}\r\n")).status, 200, "{host}");
    }
    let refused = ask(&gateway, "GET /metrics", "Host: evil.example\r\n");
    assert_eq!(refused.status, 403);
    assert!(problem(&refused).contains("evil.example"));
    assert_eq!(ask(&gateway, "GET /healthz", "Host: evil.example\r\n").status, 403);
    assert_eq!(ask(&gateway, "GET /metrics", "").status, 400);
    assert_eq!(ask(&gateway, "GET http://evil.example/metrics", "Host: localhost\r\n").status, 400);
}

#[test]
fn a_page_of_another_origin_is_refused_before_anything_else_is_looked_at() {
    let gateway = Gateway::start(FIXED);
    for header in ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: same-site"] {
        for line in ["POST /api/reload", "PUT /api/log-level", "DELETE /nothing"] {
            let refused = ask(&gateway, line, &format!("Host: localhost\r\n{header}\r\nContent-Length: 0\r\n"));
            assert_eq!(refused.status, 403, "{line} {header}");
            problem(&refused);
        }
        let read = ask(&gateway, "GET /metrics", &format!("Host: localhost\r\n{header}\r\n"));
        assert_eq!((read.status, read.headers.get("access-control-allow-origin")), (200, None), "{header}");
    }
}

#[test]
fn a_token_is_needed_where_there_is_one_and_a_reload_replaces_it() {
    let gateway = Gateway::with_admin("token = \"first\"", FIXED);
    let status = |token: &str| ask(&gateway, "GET /metrics", &format!("Host: localhost\r\n{token}")).status;
    assert_eq!(status("Authorization: Bearer first\r\n"), 200);
    let refused = ask(&gateway, "GET /metrics", "Host: localhost\r\n");
    assert_eq!((refused.status, refused.headers.get("www-authenticate")), (401, Some("Bearer")));
    problem(&refused);
    assert_eq!(status("Authorization: Bearer second\r\n"), 401);
    // Load balancers need no token.
    assert_eq!((gateway.admin("/healthz").status, gateway.admin("/readyz").status), (200, 200));
    // Without the token, nobody learns which paths exist.
    assert_eq!(gateway.admin("/nothing").status, 401);
    gateway.reload_admin("token = \"second\"", FIXED);
    gateway.wait_message("reloaded");
    assert_eq!(status("Authorization: Bearer first\r\n"), 401);
    assert_eq!(status("Authorization: Bearer second\r\n"), 200);
    assert!(gateway.log().iter().all(|line| !line.contains("second")), "the log shows the token");
}

#[test]
fn a_token_comes_from_a_file_or_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "from-a-file\n").unwrap();
    let gateway = Gateway::with_admin(&format!("token = \"file:{}\"", file.display()), FIXED);
    let status = |token: &str| {
        ask(&gateway, "GET /metrics", &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n")).status
    };
    assert_eq!((status("from-a-file"), status("from-a-file\\n"), status("wrong")), (200, 401, 401));
    // HOME is set where tests run, and is no secret.
    let home = std::env::var("HOME").unwrap();
    let gateway = Gateway::with_admin("token = \"env:HOME\"", FIXED);
    let headers = format!("Host: localhost\r\nAuthorization: Bearer {home}\r\n");
    assert_eq!(ask(&gateway, "GET /metrics", &headers).status, 200);
    assert_eq!(gateway.admin("/metrics").status, 401);
}

#[test]
fn a_unix_socket_serves_whoever_may_open_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let gateway = Gateway::with_admin(&format!("listen = \"unix:{}\"", path.display()), FIXED);
    gateway.wait_log("listening admin", |line| line["listener"] == "admin");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("ready\n"), "{text}");
}

#[test]
fn a_reload_makes_a_unix_socket_again_that_is_gone_or_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let admin = format!("listen = \"unix:{}\"", path.display());
    let gateway = Gateway::with_admin(&admin, FIXED);
    let reload = || {
        let before = gateway.reloads();
        gateway.reload_admin(&admin, FIXED);
        until("it reloads", Duration::from_secs(30), || gateway.reloads() > before);
    };
    let identity = || std::fs::metadata(&path).map(|there| (there.ino(), there.mtime_nsec())).unwrap();
    let first = identity();
    reload();
    assert_eq!(identity(), first, "it stays while nobody has touched it");
    std::fs::remove_file(&path).unwrap();
    reload();
    UnixStream::connect(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    reload();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("ready\n"), "{text}");
}

#[test]
fn the_token_for_reading_reads_everything_and_changes_nothing() {
    let gateway = Gateway::with_admin("token = \"changes\"\nread_token = \"reads\"", FIXED);
    let status = |line: &str, token: &str| {
        let headers = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 0\r\n");
        ask(&gateway, line, &headers).status
    };
    for path in ["/metrics", "/api/config", "/api/limits", "/api/upstreams", "/api/source", "/api/openapi.json"] {
        assert_eq!(
            (status(&format!("GET {path}"), "reads"), status(&format!("GET {path}"), "changes")),
            (200, 200),
            "{path}"
        );
    }
    for line in ["POST /api/reload", "POST /api/drain", "DELETE /api/drain", "PUT /api/log-level"] {
        assert_eq!(status(line, "reads"), 403, "{line}");
    }
    assert_eq!(status("POST /api/drain", "changes"), 200);
    let metrics = ask(&gateway, "GET /metrics", "Host: localhost\r\nAuthorization: Bearer reads\r\n");
    assert!(metrics.text().contains("gateway_admin_refused_total{reason=\"read_token\"} 4"), "{}", metrics.text());
    assert!(metrics.text().contains("gateway_admin_refused_total{reason=\"wrong_token\"} 0"));
}

#[test]
fn who_guesses_tokens_is_slowed_down_told_and_counted() {
    let gateway = Gateway::with_admin("token = \"sixteen-characters\"", FIXED);
    let guess =
        |token: &str| ask(&gateway, "GET /metrics", &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n"));
    // All at once: ten are answered at once, five wait, and the others are refused.
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let guesses = [(); 24].map(|()| scope.spawn(|| guess("wrong")));
        guesses.map(|guess| guess.join().unwrap().status).into()
    });
    let count = |status| statuses.iter().filter(|one| **one == status).count();
    assert!(count(401) >= 10 && count(401) + count(429) == 24, "{statuses:?}");
    gateway.wait_message("the admin listener got a wrong token");
    let mut answer = guess("sixteen-characters");
    while answer.status == 429 {
        assert!(answer.headers.must("retry-after").parse::<u64>().unwrap() >= 1);
        answer = guess("sixteen-characters");
    }
    let refused = |reason: &str| {
        let name = format!("gateway_admin_refused_total{{reason=\"{reason}\"}} ");
        let text = answer.text();
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok()).unwrap()
    };
    assert_eq!(refused("wrong_token"), count(401) as u64);
    assert!(refused("too_many") >= count(429) as u64);
}

#[test]
fn a_token_that_others_can_guess_is_refused_where_other_machines_reach_the_listener() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let check = |admin: &str| {
        std::fs::write(&file, format!("[admin]\n{admin}\n{FIXED}")).unwrap();
        let output = run(&["check", file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (admin, code, said) in [
        ("listen = \"0.0.0.0:9901\"\ntoken = \"fifteen-letters\"", 2, "fewer than 16 characters"),
        ("listen = \"0.0.0.0:9901\"\ntoken = \"sixteen--letters\"", 0, ""),
        ("listen = \"0.0.0.0:9901\"\ntoken = \"sixteen--letters\"\nread_token = \"short\"", 2, "fewer than 16"),
        ("listen = \"127.0.0.1:9901\"\ntoken = \"x\"\nread_token = \"y\"", 0, ""),
        ("listen = \"127.0.0.1:9901\"\ntoken = \"x\"\nread_token = \"x\"", 2, "is the same as `token`"),
        ("listen = \"127.0.0.1:9901\"\nread_token = \"y\"", 2, "`read_token` needs `token`"),
        ("listen = \"127.0.0.1:9901\"\ntoken = \"\"", 0, "the token is empty"),
    ] {
        let (status, text) = check(admin);
        assert_eq!(status, Some(code), "{admin}: {text}");
        assert!(if said.is_empty() { text.is_empty() } else { text.contains(said) }, "{admin}: {text}");
        assert!(!text.contains("fifteen-letters"), "{text}");
    }
}

#[test]
fn the_admin_listener_speaks_tls() {
    let authority = Authority::new();
    let section =
        |file| format!("[admin.tls]\ncertificates = [{}]\n", authority.issue(file, "admin", &["admin.test"]).toml());
    let tls = section("one");
    let gateway = Gateway::with_admin("hosts = [\"test.example\"]", &format!("{tls}{FIXED}"));
    let mut client = TlsClient::connect(gateway.admin, &unverified(), "admin.test").unwrap();
    let (head, body) = client.get("/readyz").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && body == "ready\n", "{head}");
    assert!(TcpStream::connect(gateway.admin).is_ok_and(|mut stream| {
        let _ = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        !answer.starts_with(b"HTTP/1.1 200")
    }));
    // Commands that ask the running gateway find it, although the certificate does not have its address.
    let file = gateway.config_path().with_file_name("probe.toml");
    std::fs::write(&file, format!("[admin]\nlisten = \"{}\"\n{tls}{FIXED}", gateway.admin)).unwrap();
    let probed = run(&["check", "--live", "--config", file.to_str().unwrap()]);
    assert!(probed.status.success(), "{}", String::from_utf8_lossy(&probed.stderr));
    std::fs::write(&file, format!("[admin]\nlisten = \"{}\"\n{}{FIXED}", gateway.admin, section("other"))).unwrap();
    assert!(!run(&["check", "--live", "--config", file.to_str().unwrap()]).status.success(), "it is not that one");
}

#[test]
fn what_check_prints_does_not_show_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, format!("[admin]\nlisten = \"0.0.0.0:9901\"\ntoken = \"hidden-one-of-many\"\n{FIXED}"))
        .unwrap();
    let output = run(&["check", file.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("admin on 0.0.0.0:9901, for requests with the token"), "{text}");
    assert!(!text.contains("hidden-one-of-many"));
    std::fs::write(&file, format!("[admin]\nlisten = \"127.0.0.1:9901\"\nhosts = [\"one.test\"]\n{FIXED}")).unwrap();
    let text = String::from_utf8(run(&["check", file.to_str().unwrap()]).stdout).unwrap();
    assert!(text.contains("admin on 127.0.0.1:9901\nadmin also answers to one.test\n"), "{text}");
}
