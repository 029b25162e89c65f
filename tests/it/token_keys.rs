//! The keys of issuers: how they are fetched, changed and kept, and that no request waits for them.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jsonwebtoken::Algorithm;

use crate::harness::{
    self, Authority, Gateway, Signer, TlsServer, Upstream, claims, limited, read_request, reply, reserved_port, until,
};

fn config(jwks: &str) -> String {
    format!(
        "[jwt.site]\nissuer = \"https://login.test/\"\naudience = [\"api\"]\njwks = {jwks:?}\nalgorithms = [\"ES256\"]\n\
         required = true\n{}",
        limited("jwt:sub", "1000/d", "")
    )
}

/// A key, and one token that it has signed. Gateways cache the token.
struct Issued {
    signer: Signer,
    token: String,
}

fn signer(id: &str) -> Issued {
    let signer = Signer::new(Algorithm::ES256, id);
    let token = signer.sign(&claims("alice"));
    Issued { signer, token }
}

fn key_set(issued: &Issued) -> String {
    harness::key_set(&[&issued.signer])
}

/// A gateway with one worker, and so with one cache of tokens.
#[track_caller]
fn start(config: &str) -> Gateway {
    Gateway::with_server("workers = 1", config)
}

fn status(gateway: &Gateway, issued: &Issued) -> u16 {
    gateway.client().get_with("/", format!("Authorization: Bearer {}\r\n", issued.token)).status
}

/// A server whose answer can be changed.
fn server(answer: Vec<u8>) -> (Upstream, Arc<Mutex<Vec<u8>>>) {
    let current = Arc::new(Mutex::new(answer));
    let sent = Arc::clone(&current);
    (Upstream::start(move |_| sent.lock().unwrap().clone()), current)
}

#[test]
fn new_keys_are_fetched_when_a_token_needs_them_but_not_for_every_token() {
    let (old, new) = (signer("old"), signer("new"));
    let (issuer, answer) = server(reply(200, &key_set(&old)));
    let gateway = start(&config(&format!("http://{}/keys?v=1", issuer.address())));
    assert_eq!(status(&gateway, &old), 200, "the first keys are there before the first request");
    assert_eq!(status(&gateway, &old), 200);
    let request = issuer.received().remove(0);
    assert_eq!((request.method.as_str(), request.target.as_str()), ("GET", "/keys?v=1"));
    assert_eq!(request.headers.must("host"), issuer.address().to_string());
    assert_eq!(issuer.received().len(), 1);

    *answer.lock().unwrap() = reply(200, &key_set(&new));
    assert_eq!(status(&gateway, &new), 401, "no request waits for a fetch");
    until("the new keys are used", Duration::from_secs(10), || status(&gateway, &new) == 200);
    assert_eq!(status(&gateway, &old), 401, "what was valid with the old keys is not cached");
    for number in 0..50 {
        assert_eq!(status(&gateway, &signer(&number.to_string())), 401);
    }
    assert_eq!(issuer.received().len(), 2, "clients cannot cause many fetches");
    assert_eq!(gateway.metric("gateway_jwks_fetches_total"), Some(2.0));
    assert_eq!(gateway.metric("gateway_jwks_keys"), Some(1.0));
    assert!(gateway.metric("gateway_jwks_last_success_timestamp_seconds").unwrap() > 1e9);
}

#[test]
fn the_last_keys_stay_whatever_a_server_answers() {
    let old = signer("old");
    let large = format!("{{\"keys\": [], \"x\": \"{}\"}}", "x".repeat(2 << 20));
    for (broken, why) in [
        (reply(503, "away"), "answers 503"),
        (reply(200, "<html>"), "not JSON (line 1, column 1)"),
        (reply(200, "{\"keys\": []}"), "no key that can verify a signature"),
        (reply(200, &large), "more than 1024 KiB"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".to_vec(), "not followed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\n{".to_vec(), "not done within 5s"),
        (b"nonsense\r\n\r\n".to_vec(), "does not answer"),
    ] {
        let (issuer, answer) = server(reply(200, &key_set(&old)));
        let gateway = start(&config(&format!("http://{}/", issuer.address())));
        assert_eq!(status(&gateway, &old), 200);
        *answer.lock().unwrap() = broken;
        assert_eq!(status(&gateway, &signer("new")), 401);
        let line = gateway.wait_message("cannot fetch the keys of an issuer: the previous ones stay in use");
        assert!(line["error"].as_str().unwrap().contains(why), "{why}: {line}");
        assert_eq!((&line["jwt"], &line["keys"]), (&"site".into(), &1.into()));
        assert_eq!(status(&gateway, &old), 200, "{why}");
        let text = gateway.admin("/metrics");
        assert!(text.text().contains("gateway_jwks_fetches_total{jwt=\"site\",result=\"failed\"} 1"), "{why}");
    }
}

#[test]
fn without_keys_it_starts_and_fetches_them_when_their_server_is_there() {
    let (_held, address) = reserved_port();
    let gateway = start(&config(&format!("http://{address}/")));
    let signer = signer("a");
    assert_eq!(status(&gateway, &signer), 401);
    assert_eq!(gateway.metric("gateway_jwks_last_success_timestamp_seconds"), Some(0.0));
    let listener = std::net::TcpListener::bind(address).unwrap();
    let body = reply(200, &key_set(&signer));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            use std::io::{Read as _, Write as _};
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            stream.write_all(&body).unwrap();
        }
    });
    until("the keys are fetched", Duration::from_secs(20), || status(&gateway, &signer) == 200);
}

#[test]
fn a_server_that_does_not_answer_delays_the_start_but_no_request() {
    let silent = Upstream::raw(|_wire, _| std::thread::sleep(Duration::from_secs(60)));
    let begun = Instant::now();
    let gateway = start(&config(&format!("http://{}/", silent.address())));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // A token of an unknown key causes another fetch, which overlaps with the requests below.
    let signer = signer("a");
    assert_eq!(status(&gateway, &signer), 401);
    silent.wait_connections(2);
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(status(&gateway, &signer), 401);
    }
    // A fetch ends after five seconds.
    assert!(begun.elapsed() < Duration::from_millis(4700), "{:?}", begun.elapsed());
}

#[test]
fn a_server_is_asked_in_tls_and_needs_a_certificate_that_the_system_trusts() {
    let (authority, other) = (Authority::new(), Authority::new());
    let certificate = authority.issue("keys", "keys", &["localhost"]);
    let signer = signer("a");
    let answer = reply(200, &key_set(&signer));
    let issuer = TlsServer::raw(authority.server(&certificate, false), move |mut stream, _| {
        if read_request(&mut stream).is_some() {
            let _ = std::io::Write::write_all(&mut stream, &answer);
        }
    });
    let config = config(&format!("https://localhost:{}/keys", issuer.address.port()));
    let gateway = Gateway::with_variable("SSL_CERT_FILE", &authority.ca(), &config);
    assert_eq!(status(&gateway, &signer), 200);
    let gateway = Gateway::with_variable("SSL_CERT_FILE", &other.ca(), &config);
    assert_eq!(status(&gateway, &signer), 401);
    let line = gateway.wait_message("cannot fetch the keys of an issuer: the previous ones stay in use");
    assert!(line["error"].as_str().unwrap().contains("certificate"), "{line}");
}

#[test]
fn a_reload_reads_files_again_and_fetches_what_is_new_before_it_is_in_force() {
    let (first, second) = (signer("a"), signer("a"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    fs::write(&file, key_set(&first)).unwrap();
    let from_file = config(file.to_str().unwrap());
    let gateway = start(&from_file);
    assert_eq!((status(&gateway, &first), status(&gateway, &second)), (200, 401));
    fs::write(&file, key_set(&second)).unwrap();
    gateway.reload("workers = 1", &from_file);
    gateway.wait_message("reloaded");
    assert_eq!((status(&gateway, &first), status(&gateway, &second)), (401, 200), "though the first one was cached");

    fs::write(&file, "{}").unwrap();
    gateway.reload("workers = 1", &from_file);
    gateway.wait_log("the refusal", |line| line.to_string().contains("it has no list `keys`"));
    assert_eq!(status(&gateway, &second), 200);

    let (issuer, _) = server(reply(200, &key_set(&first)));
    gateway.reload("workers = 1", &config(&format!("http://{}/", issuer.address())));
    until("the reload", Duration::from_secs(20), || status(&gateway, &first) == 200);
    assert_eq!(status(&gateway, &second), 401);
    assert_eq!(issuer.connections(), 1);
    // The requirements for tokens have changed, so a cached one is verified again.
    let strict = config(&format!("http://{}/", issuer.address())).replace("[\"api\"]", "[\"web\"]");
    gateway.reload("workers = 1", &strict);
    until("the reload", Duration::from_secs(20), || status(&gateway, &first) == 401);
    assert_eq!(issuer.connections(), 1, "the keys are still there");
}
