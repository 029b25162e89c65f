//! Certificates of an authority: handshakes, files, reloads and failures. The authority is scripted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, KeyPair};
use rustix::process::Signal;
use rustls::ClientConfig;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::ObjectIdentifier;

use crate::harness::acme::{
    AcmeMood, AcmeServer, certificate_in, challenge_path, everything, gateway_text, start, token,
};
use crate::harness::{Gateway, Software, TlsClient, Upstream, run, unix, until, unverified};

/// A request over TLS to this name; the error if the handshake fails.
fn get(gateway: &Gateway, server: &AcmeServer, name: &str) -> Result<String, String> {
    let mut client = TlsClient::connect(gateway.https(), &server.authority().client(None), name)
        .map_err(|error| error.to_string())?;
    client.get("/").map(|(head, _)| head).map_err(|error| error.to_string())
}

#[track_caller]
fn serves(gateway: &Gateway, server: &AcmeServer, name: &str) {
    until(&format!("{name} has a certificate"), Duration::from_secs(30), || {
        get(gateway, server, name).is_ok_and(|head| head.starts_with("HTTP/1.1 200"))
    });
}

#[test]
fn a_certificate_is_ordered_once_and_lies_in_the_state_folder() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    server.set(AcmeMood::Looks);
    let text = server.config(&["a.test", "B.test"], "email = \"ops@a.test\"", &everything());
    let mut gateway = start(state.path(), &text);
    server.wait_orders(1);
    for name in ["a.test", "b.test", "other.test"] {
        let error = get(&gateway, &server, name).unwrap_err();
        assert!(error.contains("AccessDenied"), "{error}");
    }
    assert_eq!(gateway.client().get("/").status, 200, "all else works");
    server.set(AcmeMood::Issues);
    for name in ["a.test", "b.test"] {
        serves(&gateway, &server, name);
    }
    assert_eq!(server.orders(), [["a.test", "b.test"]], "one certificate for both");
    assert_eq!(gateway.metric("gateway_acme_orders_total{result=\"ok\"}"), Some(1.0));
    assert_eq!(gateway.metric("gateway_acme_overdue_seconds"), Some(0.0));
    assert!(gateway.metric("gateway_tls_certificate_expiry_timestamp_seconds").unwrap() > 1e9);

    let certificate = certificate_in(state.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&certificate), mode(certificate.parent().unwrap())), (0o600, 0o700));
    assert_eq!(mode(&certificate.with_file_name("account.json")), 0o600);

    let arguments = ["check", "--config", state.path().join("gateway.toml").to_str().unwrap()].map(str::to_owned);
    let folder = ["--state-dir", state.path().to_str().unwrap()];
    let checked = run(&arguments.iter().map(String::as_str).chain(folder).collect::<Vec<_>>());
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(said.contains("valid until 4096-01-01T00:00:00Z\n    for a.test, b.test\n"), "{said}");

    // After a restart, the gateway asks nobody.
    gateway.signal(Signal::TERM);
    gateway.wait_exit();
    let requests = server.requests();
    let gateway = start(state.path(), &text);
    assert!(get(&gateway, &server, "a.test").is_ok(), "from the first connection on");
    gateway.signal(Signal::HUP);
    gateway.wait_message("reloaded");
    assert!(get(&gateway, &server, "b.test").is_ok());
    assert_eq!((server.requests(), server.accounts()), (requests, 1));
}

#[test]
fn a_broken_file_is_set_aside_and_another_certificate_is_ordered() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let text = server.config(&["a.test"], "", &everything());
    let gateway = start(state.path(), &text);
    serves(&gateway, &server, "a.test");
    drop(gateway);
    let file = certificate_in(state.path());
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let gateway = start(state.path(), &text);
    let told = gateway.wait_message("a file of certificates cannot be used");
    assert_eq!(told["file"], file.to_str().unwrap());
    serves(&gateway, &server, "a.test");
    assert_eq!((server.orders().len(), server.accounts()), (2, 1));
    assert_eq!(fs::read(file.with_extension("broken")).unwrap(), whole[..whole.len() / 2]);
}

#[test]
fn names_that_a_reload_adds_get_a_certificate_while_the_old_one_goes_on() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let gateway = start(state.path(), &server.config(&["a.test"], "", &everything()));
    serves(&gateway, &server, "a.test");
    server.set(AcmeMood::Looks);
    fs::write(state.path().join("gateway.toml"), server.config(&["a.test", "new.test"], "", &everything())).unwrap();
    gateway.signal(Signal::HUP);
    server.wait_orders(2);
    assert!(get(&gateway, &server, "a.test").is_ok());
    assert!(get(&gateway, &server, "new.test").unwrap_err().contains("AccessDenied"), "it would be for another name");
    server.set(AcmeMood::Issues);
    serves(&gateway, &server, "new.test");
    assert!(get(&gateway, &server, "a.test").is_ok());
    assert_eq!(server.orders()[1], ["a.test", "new.test"]);
}

#[test]
fn two_gateways_with_one_folder_order_once() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    server.set(AcmeMood::Looks);
    let text = server.config(&["a.test"], "", &everything());
    let first = start(state.path(), &text);
    server.wait_orders(1);
    let second = start(state.path(), &text);
    assert!(get(&second, &server, "a.test").is_err());
    server.set(AcmeMood::Issues);
    for gateway in [&first, &second] {
        serves(gateway, &server, "a.test");
    }
    assert_eq!(server.orders().len(), 1);
    let mut orders = [&first, &second].map(|gateway| gateway.metric("gateway_acme_orders_total{result=\"ok\"}"));
    orders.sort_by(|one, other| one.partial_cmp(other).unwrap());
    assert_eq!(orders, [Some(0.0), Some(1.0)]);
}

/// The state folder of a gateway whose certificate is in its last third.
fn aged(server: &AcmeServer, text: &str) -> tempfile::TempDir {
    let state = tempfile::tempdir().unwrap();
    let gateway = start(state.path(), text);
    serves(&gateway, server, "a.test");
    drop(gateway);
    let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(["a.test".to_owned()]).unwrap());
    params.not_before = UNIX_EPOCH.into();
    params.not_after = (UNIX_EPOCH + unix() + Duration::from_secs(86_400)).into();
    let pem = server.authority().sign(&params, &key) + &key.serialize_pem();
    fs::write(certificate_in(state.path()), pem).unwrap();
    state
}

#[test]
fn an_authority_that_fails_leaves_the_old_certificate_in_use() {
    const LIMITED: &str = r#"{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many certificates"}"#;
    const NONCE: &str = r#"{"type":"urn:ietf:params:acme:error:badNonce","detail":"it was lost"}"#;
    const WEEK: u64 = 604_800;
    const REFUSED: &str = r#"{"type":"urn:ietf:params:acme:error:rejectedIdentifier","detail":"not this name"}"#;
    let moods = [
        (AcmeMood::Says(429, "Retry-After: 7200\r\n", LIMITED), "limited", "too many certificates", 7200..7201),
        (AcmeMood::Says(429, "Retry-After: 99999999999999999999\r\n", LIMITED), "limited", "too many", WEEK..WEEK + 1),
        (AcmeMood::Defers("Retry-After: 7200\r\n"), "away", "timed out", 7200..7201),
        (AcmeMood::Defers("Retry-After: 18446744073709551615\r\n"), "away", "timed out", WEEK..WEEK + 1),
        (AcmeMood::Says(503, "Retry-After: 30\r\n", "<html>"), "away", "the server answers 503", 30..31),
        (AcmeMood::Closes(503), "away", "the server answers 503", 4..6),
        (AcmeMood::Closes(429), "limited", "the server answers 429", 240..301),
        (AcmeMood::Says(500, "", "busy"), "away", "the server answers 500", 4..6),
        (AcmeMood::Says(400, "", NONCE), "away", "it was lost", 4..6),
        (AcmeMood::Says(403, "", REFUSED), "refused", "not this name", 240..301),
        (AcmeMood::Says(404, "", ""), "refused", "the server answers 404", 240..301),
        (AcmeMood::Says(200, "", "[]"), "unusable", "", 240..301),
        (AcmeMood::Disbelieves, "refused", "a.test: nobody answers there", 240..301),
        (AcmeMood::OtherNames, "unusable", "is for other names: other.test", 240..301),
        (AcmeMood::OtherKey, "unusable", "the private key does not belong to the certificate", 240..301),
        (AcmeMood::Expired, "unusable", "has expired", 240..301),
        (AcmeMood::Garbage, "unusable", "there is no certificate in it", 240..301),
    ];
    std::thread::scope(|scope| {
        for (mood, reason, why, pause) in moods {
            scope.spawn(move || {
                let server = AcmeServer::start();
                let text = server.config(&["a.test"], "", &everything());
                let state = aged(&server, &text);
                server.set(mood);
                let gateway = start(state.path(), &text);
                let told = gateway.wait_message("cannot get a new certificate: the previous one stays in use");
                assert_eq!(told["reason"], reason, "{told}");
                assert!(told["error"].as_str().unwrap().contains(why), "{told}");
                assert!(pause.contains(&told["again_in_seconds"].as_u64().unwrap()), "{told}");
                assert!(told["valid_until"].as_str().unwrap().starts_with("20"), "{told}");
                assert!(get(&gateway, &server, "a.test").is_ok(), "{mood:?}");
                // The next attempt may follow after four seconds.
                let orders = gateway.metric(&format!("gateway_acme_orders_total{{result=\"{reason}\"}}"));
                assert!(orders >= Some(1.0), "{orders:?}");
                assert!(gateway.metric("gateway_acme_overdue_seconds").unwrap() > 86_400.0);
            });
        }
    });
}

/// The file with the moment until which the authority must not be asked.
fn wait_in(state: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(state.join("acme")).unwrap();
    let mut files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    files.find_map(|file| Some(file.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "wait")))
}

#[test]
fn a_pause_within_an_order_is_known_after_a_restart_and_one_of_a_wrong_clock_is_none() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    server.set(AcmeMood::Defers("Retry-After: 3600\r\n"));
    let text = server.config(&["a.test"], "", &everything());
    let gateway = start(state.path(), &text);
    until("the authority has asked to wait", Duration::from_secs(20), || {
        !server.orders().is_empty() && wait_in(state.path()).is_some()
    });
    drop(gateway);
    server.set(AcmeMood::Issues);
    let gateway = start(state.path(), &text);
    let told = gateway.wait_message("the authority has asked to wait before an order");
    assert!((3000..=3600).contains(&told["again_in_seconds"].as_u64().unwrap()), "{told}");
    assert_eq!(server.orders().len(), 1);
    drop(gateway);
    let far = unix().as_secs() + 60 * 86_400;
    fs::write(wait_in(state.path()).unwrap(), format!("{far}\n")).unwrap();
    let gateway = start(state.path(), &text);
    serves(&gateway, &server, "a.test");
}

#[test]
fn a_restart_keeps_to_what_the_authority_has_asked_for() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    server.set(AcmeMood::Says(429, "Retry-After: 5\r\n", "{}"));
    let text = server.config(&["a.test"], "", &everything());
    let gateway = start(state.path(), &text);
    let told = gateway.wait_message("cannot get a certificate: TLS handshakes for these names fail");
    // The authority refused, so the pause is longer than the wait that it asks for.
    assert!(told["again_in_seconds"].as_u64().unwrap() > 200, "{told}");
    drop(gateway);
    let wait = wait_in(state.path()).unwrap();
    // Nothing is ordered before the moment in the file.
    let moment = unix().as_secs() + 3;
    fs::write(wait, format!("{moment}\n")).unwrap();
    server.set(AcmeMood::Issues);
    let gateway = start(state.path(), &text);
    serves(&gateway, &server, "a.test");
    assert!(unix().as_secs() >= moment);
    assert_eq!(server.orders().len(), 2);
}

#[test]
fn an_authority_whose_certificates_live_shorter_is_not_asked_all_the_time() {
    let server = AcmeServer::start();
    let text = server.config(&["a.test"], "", &everything());
    // The previous certificate has a day, the new one an hour. The new one is used.
    let state = aged(&server, &text);
    server.set(AcmeMood::Aged(0, 3600));
    let gateway = start(state.path(), &text);
    until("it is renewed", Duration::from_secs(20), || gateway.metric("gateway_acme_overdue_seconds") == Some(0.0));
    assert_eq!(server.orders().len(), 2);
    drop(gateway);
    // A certificate that would be renewed at once is used, and another is ordered later.
    fs::remove_file(certificate_in(state.path())).unwrap();
    server.set(AcmeMood::Aged(3600, 60));
    let gateway = start(state.path(), &text);
    gateway.wait_message("a new certificate is in the last third of its life already");
    serves(&gateway, &server, "a.test");
    assert_eq!(server.orders().len(), 3);
}

#[test]
fn an_account_is_bound_to_the_one_that_the_operator_has() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let more = "external_account_id = \"kid-1\"\nexternal_account_key = \"c2l4dGVlbiBsZXR0ZXJzIQ==\"";
    let gateway = start(state.path(), &server.config(&["a.test"], more, &everything()));
    serves(&gateway, &server, "a.test");
    let bound = server.bound_to();
    let part = |name: &str| bound[name].as_str().unwrap_or_else(|| panic!("{bound}")).to_owned();
    let head = URL_SAFE_NO_PAD.decode(part("protected")).unwrap();
    let head: serde_json::Value = serde_json::from_slice(&head).unwrap();
    assert_eq!((&head["alg"], &head["kid"]), (&"HS256".into(), &"kid-1".into()), "{head}");
    assert!(!part("signature").is_empty() && !part("payload").is_empty());
    assert!(!gateway.admin("/api/config").text().contains("c2l4dGVlbi"));
}

#[test]
fn an_account_that_the_authority_has_forgotten_is_made_anew() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let text = server.config(&["a.test"], "", &everything());
    let gateway = start(state.path(), &text);
    serves(&gateway, &server, "a.test");
    drop(gateway);
    fs::remove_file(certificate_in(state.path())).unwrap();
    server.set(AcmeMood::Forgets);
    serves(&start(state.path(), &text), &server, "a.test");
    assert_eq!(server.accounts(), 2);
}

/// Offers these protocols in a handshake; returns the certificate of the gateway.
pub(crate) fn shown(gateway: &Gateway, name: &str, protocols: &[&str]) -> Result<Vec<u8>, String> {
    let mut config = ClientConfig::clone(&*unverified());
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let mut client = TlsClient::connect(gateway.https(), &Arc::new(config), name).map_err(|error| error.to_string())?;
    let shown = client.stream.conn.peer_certificates().unwrap()[0].to_vec();
    if client.stream.conn.alpn_protocol() == Some(b"acme-tls/1") {
        // The connection has no other use.
        assert!(client.get("/").is_err());
    }
    Ok(shown)
}

#[test]
fn only_the_authority_gets_the_answer_of_a_handshake() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    server.set(AcmeMood::Looks);
    let gateway = start(state.path(), &server.config(&["a.test", "b.test"], "", &everything()));
    server.wait_orders(1);
    until("the challenge is answered", Duration::from_secs(20), || shown(&gateway, "a.test", &["acme-tls/1"]).is_ok());
    for name in ["a.test", "B.test"] {
        let der = shown(&gateway, name, &["acme-tls/1"]).unwrap();
        let certificate = Certificate::from_der(&der).unwrap();
        let extensions = certificate.tbs_certificate().extensions().unwrap();
        let value = |oid: &str| {
            let oid = ObjectIdentifier::new(oid).unwrap();
            let found = extensions.iter().find(|extension| extension.extn_id == oid).unwrap();
            (found.critical, found.extn_value.as_bytes().to_vec())
        };
        // The hash is an octet string (RFC 8737).
        let (is_critical, hash) = value("1.3.6.1.5.5.7.1.31");
        assert!(is_critical && hash.len() == 34 && hash.starts_with(&[4, 32]), "{hash:?}");
        let (_, names) = value("2.5.29.17");
        assert!(names.ends_with(name.to_ascii_lowercase().as_bytes()) && names.len() == 4 + name.len(), "{names:?}");
    }
    let refused = |name, protocols| shown(&gateway, name, protocols).unwrap_err();
    for name in ["other.test", "a.b.test", "xa.test"] {
        let error = refused(name, &["acme-tls/1"]);
        assert!(error.contains("AccessDenied"), "{name}: {error}");
    }
    // With more protocols it is a client, and there is no certificate for it yet.
    for protocols in [&["acme-tls/1", "h2"][..], &["h2", "acme-tls/1"], &["http/1.1"], &[]] {
        let error = refused("a.test", protocols);
        assert!(error.contains("AccessDenied"), "{protocols:?}: {error}");
    }
    server.set(AcmeMood::Issues);
    serves(&gateway, &server, "a.test");
    // After the order, nothing is answered any more.
    until("the answer is taken back", Duration::from_secs(20), || shown(&gateway, "a.test", &["acme-tls/1"]).is_err());
    for name in ["a.test", "other.test"] {
        assert!(refused(name, &["acme-tls/1"]).contains("NoApplicationProtocol"), "{name}");
    }
    let challenges = |result| gateway.metric(&format!("gateway_acme_challenges_total{{result=\"{result}\"}}"));
    assert!(challenges("answered").unwrap() >= 3.0 && challenges("unknown").unwrap() >= 4.0);
}

#[test]
fn a_challenge_over_http_is_answered_before_all_else_and_reaches_nothing() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    server.set(AcmeMood::Looks);
    // Nobody may send anything, and everything is redirected.
    let rest = "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\n[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\n\
                redirect = { to = \"https://{host}{path}\", status = 308 }\n";
    let gateway = start(state.path(), &server.config(&["a.test"], "challenge = \"http-01\"", rest));
    server.wait_orders(1);
    let status = |target: &str| gateway.client().call(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n")).status;
    assert_eq!((status("/"), status("/")), (308, 429));
    let path = challenge_path("a.test");
    until("the challenge is answered", Duration::from_secs(20), || status(&path) == 200);
    let answer = gateway.client().get(&path);
    let thumbprint = answer.text().strip_prefix(&(token("a.test") + ".")).unwrap();
    assert_eq!((thumbprint.len(), answer.headers.must("content-type")), (43, "application/octet-stream"));
    assert_eq!(status(&format!("{path}?x=/../..")), 200, "a query is no part of the token");
    for unknown in [
        "",
        "x",
        "../a",
        "..%2fa",
        "%2e%2e/a",
        "a/b",
        "a//",
        "\\",
        "*",
        &token("b.test"),
        &format!("{}/", token("a.test")),
    ] {
        assert_eq!(status(&format!("/.well-known/acme-challenge/{unknown}")), 404, "{unknown}");
    }
    // Other spellings are paths like all others: the limit refuses them, or the path itself is refused.
    for (other, expected) in [
        ("/.well-known/acme%2Dchallenge/x", 429),
        ("//.well-known/acme-challenge/x", 429),
        ("/.well-known/acme-challenge", 429),
        ("/x/../.well-known/acme-challenge/x", 400),
    ] {
        assert_eq!(status(other), expected, "{other}");
    }
    let posted = format!("POST {path} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!(gateway.client().call(posted).status, 404);
    assert!(shown(&gateway, "a.test", &["acme-tls/1"]).is_err(), "it is not what the configuration says");
    server.set(AcmeMood::Issues);
    serves_limited(&gateway, &server);
    until("the answer is taken back", Duration::from_secs(20), || status(&path) == 404);
    let mut client = TlsClient::connect(gateway.https(), &server.authority().client(None), "a.test").unwrap();
    assert!(client.get(&path).unwrap().0.starts_with("HTTP/1.1 429"), "in TLS it is a path like all others");
}

#[track_caller]
fn serves_limited(gateway: &Gateway, server: &AcmeServer) {
    until("there is a certificate", Duration::from_secs(30), || get(gateway, server, "a.test").is_ok());
}

#[test]
fn a_state_folder_that_cannot_be_used_refuses_the_start() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let config = state.path().join("gateway.toml");
    fs::write(&config, server.config(&["a.test"], "", &everything())).unwrap();
    let args = |more: &[&'static str]| {
        [&["--config", config.to_str().unwrap()], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let output = run(&args(&["--state-dir", "/dev/null"]).iter().map(String::as_str).collect::<Vec<_>>());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("cannot keep certificates in /dev/null/acme/"), "{said}");
    assert_eq!(server.requests(), 0);
}

#[test]
fn a_directory_that_never_ends_or_never_answers_is_given_up() {
    let endless = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\n\r\n");
        while wire.write(&[b' '; 16_384]).is_ok() {}
    });
    let silent = Upstream::raw(|mut wire, _| _ = wire.rest());
    std::thread::scope(|scope| {
        let too_large = (endless, "unusable", "the answer has more than 256 KiB");
        for (server, reason, why) in [too_large, (silent, "away", "not done within 15s")] {
            scope.spawn(move || {
                let state = tempfile::tempdir().unwrap();
                let directory = format!("http://{}/directory", server.address());
                let gateway =
                    start(state.path(), &gateway_text(&directory, &["a.test"], "", ["127.0.0.1:0"; 2], &everything()));
                let told = gateway.wait_message("cannot get a certificate: TLS handshakes for these names fail");
                assert_eq!(told["reason"], reason, "{told}");
                assert!(told["error"].as_str().unwrap().contains(why), "{told}");
                assert_eq!(gateway.client().get("/").status, 200);
            });
        }
    });
}

#[test]
fn strangers_make_the_gateway_ask_the_store_once_a_second_for_its_own_names_alone() {
    let (server, state, memcached) = (AcmeServer::start(), tempfile::tempdir().unwrap(), Software::Memcached.start());
    server.set(AcmeMood::Says(403, "", "no"));
    let gateway = start(state.path(), &server.config(&["a.test"], "", &(memcached.store() + &everything())));
    gateway.wait_message("cannot get a certificate: TLS handshakes for these names fail");
    let flood = |name: &str| (0..50).for_each(|_| _ = shown(&gateway, name, &["acme-tls/1"]).unwrap_err());
    let before = memcached.lookups();
    flood("other.test");
    assert_eq!(memcached.lookups(), before, "they are not its names");
    let began = Instant::now();
    flood("a.test");
    let (asked, seconds) = (memcached.lookups() - before, began.elapsed().as_secs());
    assert!((1..=seconds + 2).contains(&asked), "{asked} in {seconds} s");
}

#[test]
fn without_a_folder_for_its_files_there_is_no_certificate_of_an_authority() {
    let (server, folder) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let config = folder.path().join("gateway.toml");
    fs::write(&config, server.config(&["a.test"], "", &everything())).unwrap();
    for command in [&[][..], &["check"]] {
        let mut gateway = Command::new(env!("CARGO_BIN_EXE_gateway"));
        let output = gateway.args(command).arg("--config").arg(&config).env_clear().output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("[server.tls.acme] needs a folder"), "{said}");
    }
    assert_eq!(server.requests(), 0);
}
