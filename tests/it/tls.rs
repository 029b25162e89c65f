//! TLS for clients: certificates, versions, names, slow handshakes, client certificates, reloads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::date_time_ymd;
use rustix::process::Signal;

use crate::harness::{Authority, Gateway, Issued, OCSP_RESPONSE, TlsClient, Upstream, curl, limited, reply, until};

fn server(certificates: &[&Issued], more: &str) -> String {
    let certificates: Vec<_> = certificates.iter().map(|issued| issued.toml()).collect();
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    format!("{listen}\n[server.tls]\ncertificates = [{}]\n{more}\n", certificates.join(", "))
}

/// Runs curl over TLS, as if this gateway had the host name.
fn get(gateway: &Gateway, authority: &Authority, host: &str, more: &[&str]) -> (String, String) {
    let port = gateway.https().port();
    let (url, ca) = (format!("https://{host}:{port}/"), authority.ca());
    let connect = format!("{host}:{port}:127.0.0.1:{port}");
    let all = ["--include", "--http1.1", "--cacert", ca.to_str().unwrap(), "--connect-to", &connect];
    let output = curl(all.into_iter().chain(more.iter().copied()).chain([&*url]));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

fn replace(from: &Issued, to: &Issued) {
    std::fs::rename(&from.cert, &to.cert).unwrap();
    std::fs::rename(&from.key, &to.key).unwrap();
}

#[test]
#[ignore = "needs curl"]
fn a_listener_in_tls_stands_beside_a_plain_one() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let up = Upstream::start(|_| reply(200, "hello"));
    let gateway = Gateway::with_server(&server(&[&site], ""), &up.everything());
    for version in [&["--tlsv1.3"][..], &["--tlsv1.2", "--tls-max", "1.2"]] {
        let (answer, error) = get(&gateway, &authority, "site.test", version);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}{error}");
    }
    assert_eq!(gateway.client().get("/").status, 200);
    let protos: Vec<_> = up.received().iter().map(|request| request.headers.joined("x-forwarded-proto")).collect();
    assert_eq!(protos, ["https", "https", "http"]);
    assert_eq!(gateway.metric("gateway_tls_handshakes_total"), Some(2.0));
}

#[test]
fn bodies_pass_both_ways_and_a_connection_that_has_rested_goes_on() {
    const LENGTH: usize = 5_000_000;
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let up = Upstream::start(|request| {
        let body: String =
            (0..request.body.len()).map(|at| char::from(b'a' + u8::try_from(at % 23).unwrap())).collect();
        reply(200, &body)
    });
    let gateway = Gateway::with_server(&server(&[&site], ""), &up.everything());
    let mut client = TlsClient::connect(gateway.https(), &authority.client(None), "site.test").unwrap();
    let sent: Vec<u8> = (0..LENGTH).map(|at| u8::try_from(at % 251).unwrap()).collect();
    for _ in 0..2 {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
        client.stream.write_all(head.as_bytes()).unwrap();
        client.stream.write_all(&sent).unwrap();
        let (head, body) = client.response().unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(body.bytes().enumerate().all(|(at, byte)| byte == b'a' + u8::try_from(at % 23).unwrap()));
        assert_eq!(body.len(), LENGTH);
        assert_eq!(up.received().pop().unwrap().body, sent);
        // The connection drops its buffers after a second. There is no event to wait for.
        std::thread::sleep(Duration::from_millis(2500));
    }
}

#[test]
#[ignore = "needs curl"]
fn the_name_that_a_client_asks_for_chooses_the_certificate() {
    let authority = Authority::new();
    let first = authority.issue("first", "first", &["first.test"]);
    let wild = authority.issue("wild", "wild", &["*.wild.test"]);
    let gateway = Gateway::with_server(&server(&[&first, &wild], ""), &limited("client-ip", "1000/s", ""));
    for host in ["first.test", "a.wild.test", "b.wild.test"] {
        let (answer, error) = get(&gateway, &authority, host, &[]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}{error}");
    }
    let (_, error) = get(&gateway, &authority, "a.b.wild.test", &[]);
    assert!(error.contains("no alternative certificate subject name matches"), "{error}");
}

#[test]
#[ignore = "needs curl"]
fn the_lowest_version_is_kept_to() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let gateway = Gateway::with_server(&server(&[&site], "min_version = \"1.3\""), &limited("client-ip", "9/s", ""));
    let (_, error) = get(&gateway, &authority, "site.test", &["--tls-max", "1.2"]);
    assert!(error.contains("alert protocol version"), "{error}");
    assert!(get(&gateway, &authority, "site.test", &[]).0.starts_with("HTTP/1.1 200"));
    assert_eq!(gateway.metric("gateway_tls_handshakes_total{result=\"failed\"}"), Some(1.0));
}

#[test]
#[ignore = "needs curl"]
fn new_certificates_are_used_as_soon_as_they_are_there() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["old.test"]);
    let gateway = Gateway::with_server(&server(&[&site], ""), &limited("client-ip", "1000/s", ""));
    let mut open = TlsClient::connect(gateway.https(), &authority.client(None), "old.test").unwrap();
    assert!(open.get("/").unwrap().0.starts_with("HTTP/1.1 200"));

    replace(&authority.issue("next", "site", &["new.test"]), &site);
    gateway.wait_message("the certificates were read again");
    assert!(get(&gateway, &authority, "new.test", &[]).0.starts_with("HTTP/1.1 200"));
    assert!(open.get("/").unwrap().0.starts_with("HTTP/1.1 200"), "the connection stays open");

    // A certificate without its key is refused, and the old pair serves on.
    let next = authority.issue("next", "site", &["newer.test"]);
    std::fs::rename(&next.cert, &site.cert).unwrap();
    let refused = gateway.wait_message("the certificates are refused: the previous ones stay in use");
    let problem = refused["problems"].as_str().unwrap();
    assert!(problem.ends_with("site.key: the private key does not belong to the certificate"), "{problem}");
    assert!(get(&gateway, &authority, "new.test", &[]).0.starts_with("HTTP/1.1 200"));
    std::fs::rename(&next.key, &site.key).unwrap();
    until("the pair is whole", Duration::from_secs(20), || {
        get(&gateway, &authority, "newer.test", &[]).0.starts_with("HTTP/1.1 200")
    });
    assert!(open.get("/").unwrap().0.starts_with("HTTP/1.1 200"), "the connection stays open");
}

fn states(gateway: &Gateway) -> [bool; 2] {
    let is_good = |name: &str| gateway.metric(name).unwrap() > 0.5;
    ["gateway_config_last_reload_successful", "gateway_tls_certificate_last_reload_successful"].map(is_good)
}

#[test]
fn a_new_certificate_does_not_hide_that_the_configuration_is_refused() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["old.test"]);
    let gateway = Gateway::with_server(&server(&[&site], ""), &limited("client-ip", "1000/s", ""));
    assert_eq!(states(&gateway), [true, true]);
    std::fs::write(gateway.config_path(), "this is no toml").unwrap();
    gateway.signal(Signal::HUP);
    gateway.wait_message("reload refused");
    replace(&authority.issue("next", "site", &["new.test"]), &site);
    gateway.wait_message("the certificates were read again");
    until("both states are counted", Duration::from_secs(20), || states(&gateway) == [false, true]);
    let reloads = |of: &str| {
        let count = |result: &str| gateway.metric(&format!("gateway_{of}_reloads_total{{result=\"{result}\"}}"));
        (count("ok").unwrap(), count("refused").unwrap())
    };
    assert_eq!(reloads("config"), (0.0, 1.0));
    // The new certificate may be read before its key is there.
    assert!([(1.0, 0.0), (1.0, 1.0)].contains(&reloads("tls_certificate")), "{:?}", reloads("tls_certificate"));
}

#[test]
fn certificates_are_refused_until_their_files_are_right_again() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["old.test"]);
    let gateway = Gateway::with_server(&server(&[&site], ""), &limited("client-ip", "1000/s", ""));
    let key = std::fs::read(&site.key).unwrap();
    std::fs::write(&site.key, "this is no key").unwrap();
    let refused = gateway.wait_message("the certificates are refused: the previous ones stay in use");
    assert!(refused["problems"].as_str().unwrap().contains("site.key"), "{refused}");
    until("it is counted", Duration::from_secs(20), || states(&gateway) == [true, false]);
    let certificates = || gateway.admin("/api/source").json()["certificates"].clone();
    let told = certificates();
    assert_eq!(told["current"], false);
    assert!(told["problems"][0]["message"].as_str().unwrap().contains("site.key"), "{told}");
    // The files have again what is in use.
    std::fs::write(&site.key, &key).unwrap();
    until("all is well", Duration::from_secs(20), || states(&gateway) == [true, true]);
    assert_eq!(certificates(), serde_json::json!({ "current": true, "problems": [] }));
    assert_eq!(gateway.metric("gateway_config_reloads_total"), Some(0.0));

    // A reload reads the certificates, too.
    let next = authority.issue("next", "site", &["new.test"]);
    std::fs::rename(&next.cert, &site.cert).unwrap();
    until("it is counted", Duration::from_secs(20), || states(&gateway) == [true, false]);
    let other = authority.issue("other", "other", &["other.test"]);
    gateway.reload_and_wait(&server(&[&other], ""), &limited("client-ip", "1000/s", ""));
    assert_eq!(states(&gateway), [true, true]);
}

#[test]
fn a_broken_ocsp_response_is_never_stapled() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let ocsp = authority.folder().join("site.ocsp");
    std::fs::write(&ocsp, OCSP_RESPONSE).unwrap();
    let certificate = site.toml().replace(" }", &format!(", ocsp = {ocsp:?} }}"));
    let text = server(&[&site], "").replace(&site.toml(), &certificate);
    let gateway = Gateway::with_server(&text, &limited("client-ip", "1000/s", ""));
    std::fs::write(&ocsp, "garbage").unwrap();
    let refused = gateway.wait_message("the certificates are refused: the previous ones stay in use");
    let problem = refused["problems"].as_str().unwrap();
    assert!(problem.contains("site.ocsp: it is no OCSP response to staple"), "{problem}");
    until("it is counted", Duration::from_secs(20), || states(&gateway) == [true, false]);
    gateway.reload(&text, &limited("client-ip", "1000/s", ""));
    let refused = gateway.wait_message("reload refused");
    assert!(refused["problems"].as_str().unwrap().contains("site.ocsp: it is no OCSP response"), "{refused}");
    assert!(TlsClient::connect(gateway.https(), &authority.client(None), "site.test").is_ok());
    std::fs::write(&ocsp, OCSP_RESPONSE).unwrap();
    until("all is well", Duration::from_secs(20), || states(&gateway)[1]);
}

#[test]
#[ignore = "needs curl"]
fn a_reload_reads_certificates_and_refuses_what_is_broken() {
    let authority = Authority::new();
    let [one, other] = ["one", "other"].map(|name| authority.issue(name, name, &[&format!("{name}.test")]));
    let rest = limited("client-ip", "1000/s", "");
    let gateway = Gateway::with_server(&server(&[&one], ""), &rest);
    gateway.reload(&server(&[&one, &other], ""), &rest);
    gateway.wait_message("reloaded");
    for host in ["one.test", "other.test"] {
        assert!(get(&gateway, &authority, host, &[]).0.starts_with("HTTP/1.1 200"), "{host}");
    }
    let crossed = Issued { cert: one.cert.clone(), key: other.key };
    gateway.reload(&server(&[&crossed], ""), &rest);
    let refused = gateway.wait_message("reload refused");
    let problem = refused["problems"].as_str().unwrap();
    assert!(problem.contains("other.key: the private key does not belong to the certificate"), "{problem}");
    assert!(problem.contains("gateway.toml:"), "{problem}");
    assert!(get(&gateway, &authority, "other.test", &[]).0.starts_with("HTTP/1.1 200"));
}

#[test]
fn a_certificate_that_expires_soon_is_told_of() {
    let authority = Authority::new();
    let old = authority.issue_with("old", "old", &["old.test"], |params| {
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    let gateway = Gateway::with_server(&server(&[&old], ""), &limited("client-ip", "1000/s", ""));
    gateway.wait_log("the warning", |line| {
        line["message"].as_str().is_some_and(|message| message.ends_with("old.pem\" expired on 2020-01-01"))
    });
    assert_eq!(gateway.metric("gateway_tls_certificate_expiry_timestamp_seconds"), Some(1_577_836_800.0));
}

#[test]
#[ignore = "needs curl"]
fn handshakes_are_bounded_in_time_and_hold_up_nobody() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let text = "workers = 1\nheader_timeout = \"3s\"\n".to_owned() + &server(&[&site], "");
    let gateway = Gateway::with_server(&text, &limited("client-ip", "1000/s", ""));
    let silent = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(gateway.https()).unwrap();
        stream.write_all(bytes).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    // Nothing, the beginning of a handshake, and a handshake that never goes on.
    let beginnings: [&[u8]; 3] = [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"];
    let mut streams: Vec<_> = (0..90).map(|at| silent(beginnings[at % 3])).collect();
    let begun = Instant::now();
    assert!(get(&gateway, &authority, "site.test", &[]).0.starts_with("HTTP/1.1 200"));
    for stream in &mut streams {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    until("none is open", Duration::from_secs(20), || gateway.metric("gateway_connections") == Some(0.0));
}

#[test]
#[ignore = "needs curl"]
fn connections_without_a_handshake_are_closed_for_new_ones_and_by_a_drain() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let text = "max_connections = 4\n".to_owned() + &server(&[&site], "");
    let mut gateway = Gateway::with_server(&text, &limited("client-ip", "1000/s", ""));
    let begun = Instant::now();
    let _silent: Vec<_> = (0..50).map(|_| TcpStream::connect(gateway.https()).unwrap()).collect();
    assert!(get(&gateway, &authority, "site.test", &[]).0.starts_with("HTTP/1.1 200"));
    until("all but four are closed", Duration::from_secs(9), || {
        gateway.metric("gateway_connections_evicted_total").is_some_and(|closed| closed >= 46.0)
    });
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    // A handshake that had begun would have `header_timeout`, which is longer.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}

#[test]
#[ignore = "needs curl"]
fn what_is_no_handshake_ends_the_connection() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let gateway = Gateway::with_server(&server(&[&site], ""), &limited("client-ip", "1000/s", ""));
    for bytes in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\x16\x03\x01\x00\x04aaaa", &[0xff; 4096]] {
        let mut stream = TcpStream::connect(gateway.https()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1 200"));
    }
    assert_eq!(gateway.metric("gateway_tls_handshakes_total{result=\"failed\"}"), Some(3.0));
    assert!(get(&gateway, &authority, "site.test", &[]).0.starts_with("HTTP/1.1 200"));
}

#[test]
fn clients_are_known_by_their_certificates() {
    let authority = Authority::new();
    let others = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let [first, second] = ["first", "second"].map(|name| authority.issue(name, name, &[]));
    let stranger = others.issue("stranger", "first", &[]);
    let unnamed = authority.issue_with("unnamed", "", &["unnamed.test"], |params| {
        params.distinguished_name = rcgen::DistinguishedName::new();
    });
    let up = Upstream::start(|_| reply(200, "hello"));
    let limit = "[limits.l]\nkey = \"client-cert\"\nmissing = \"reject\"\nrates = [\"2/d\"]\n";
    let rest = format!("{limit}{}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n", up.section());
    let ca = format!("client_ca = {:?}\nclient_auth = \"optional\"", authority.ca());
    let gateway = Gateway::with_server(&server(&[&site], &ca), &rest);
    let status = |own: Option<&Issued>| {
        let client = TlsClient::connect(gateway.https(), &authority.client(own), "site.test");
        let (head, _) = client.and_then(|mut client| client.get("/")).ok()?;
        head.split(' ').nth(1)?.parse::<u16>().ok()
    };
    assert_eq!([0; 3].map(|_| status(Some(&first))), [Some(200), Some(200), Some(429)]);
    assert_eq!(status(Some(&second)), Some(200));
    assert_eq!(status(None), Some(400), "no key");
    assert_eq!(status(Some(&stranger)), None, "nobody that we trust has issued it");
    assert_eq!(gateway.client().get("/").status, 400, "no key without TLS");
    let told =
        up.received().iter().map(|request| request.headers.joined("x-forwarded-client-cert")).collect::<Vec<_>>();
    assert_eq!(told.len(), 3);
    assert!(told[0].starts_with("Hash=") && told[0].ends_with(";Subject=\"CN=first\""), "{told:?}");
    assert!(told[2].ends_with(";Subject=\"CN=second\""), "{told:?}");

    // A subject that is empty is no key, but the upstream may know the certificate.
    let shared = rest.replace("missing = \"reject\"", "missing = \"shared\"");
    gateway.reload_and_wait(&server(&[&site], &ca), &shared);
    assert_eq!(status(Some(&unnamed)), Some(200));
    let told = up.received().pop().unwrap().headers.joined("x-forwarded-client-cert");
    assert!(told.strip_prefix("Hash=").is_some_and(|hash| hash.len() == 64), "{told:?}");

    let required = format!("client_ca = {:?}", authority.ca());
    gateway.reload_and_wait(&server(&[&site], &required), &rest);
    assert_eq!([status(None), status(Some(&second))], [None, Some(200)]);
}

#[test]
#[ignore = "needs curl"]
fn nobody_says_for_a_client_which_certificate_it_has() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let up = Upstream::start(|_| reply(200, "hello"));
    let gateway = Gateway::with_server(&server(&[&site], ""), &up.everything());
    for name in ["X-Forwarded-Client-Cert", "X_Forwarded_Client_Cert", "x-forwarded-client_cert"] {
        let field = format!("{name}: Subject=\"CN=admin\"");
        assert!(get(&gateway, &authority, "site.test", &["--header", &field]).0.starts_with("HTTP/1.1 200"));
    }
    let received = up.received();
    assert_eq!(received.len(), 3);
    for request in received {
        assert!(!request.headers.0.iter().any(|(_, value)| value.windows(5).any(|part| part == b"admin")));
    }
}

#[test]
fn a_client_that_does_not_read_is_left_and_a_drain_finishes_what_is_under_way() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let body = "x".repeat(64 << 20);
    let up = Upstream::start(move |request| reply(200, if request.target == "/large" { &body } else { "hello" }));
    let text = "body_timeout = \"1s\"\n".to_owned() + &server(&[&site], "");
    let mut gateway = Gateway::with_server(&text, &up.everything());
    let mut client = TlsClient::connect(gateway.https(), &authority.client(None), "site.test").unwrap();
    client.stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until("it is given up", Duration::from_secs(15), || {
        gateway.metric("gateway_connections_stalled_total") == Some(1.0)
    });

    let mut idle = TlsClient::connect(gateway.https(), &authority.client(None), "site.test").unwrap();
    assert!(idle.get("/").unwrap().0.starts_with("HTTP/1.1 200"));
    let mut busy = TlsClient::connect(gateway.https(), &authority.client(None), "site.test").unwrap();
    busy.stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    until("its head has begun to come", Duration::from_secs(20), || gateway.metric("gateway_connections") == Some(2.0));
    gateway.signal(Signal::TERM);
    gateway.wait_message("draining");
    let mut rest = Vec::new();
    // A notice tells the end, so that nobody takes a part of a response for the whole.
    assert_eq!(idle.stream.read_to_end(&mut rest).unwrap(), 0);
    busy.stream.write_all(b"Host: a\r\n\r\n").unwrap();
    assert!(busy.response().unwrap().0.starts_with("HTTP/1.1 200"));
    assert_eq!(busy.stream.read_to_end(&mut rest).unwrap(), 0);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
#[ignore = "needs curl"]
fn a_folder_is_watched_whose_links_are_replaced() {
    let authority = Authority::new();
    let folder = authority.folder().join("mounted");
    let place = |generation: &str, name: &str| {
        let data = folder.join(generation);
        std::fs::create_dir_all(&data).unwrap();
        let issued = authority.issue(generation, "site", &[name]);
        std::fs::rename(&issued.cert, data.join("tls.crt")).unwrap();
        std::fs::rename(&issued.key, data.join("tls.key")).unwrap();
    };
    let link = |generation: &str| {
        std::os::unix::fs::symlink(Path::new(generation), folder.join("..next")).unwrap();
        std::fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
    };
    place("..1", "old.test");
    link("..1");
    for file in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(Path::new("..data").join(file), folder.join(file)).unwrap();
    }
    let site = Issued { cert: folder.join("tls.crt"), key: folder.join("tls.key") };
    let gateway = Gateway::with_server(&server(&[&site], ""), &limited("client-ip", "1000/s", ""));
    assert!(get(&gateway, &authority, "old.test", &[]).0.starts_with("HTTP/1.1 200"));
    place("..2", "new.test");
    link("..2");
    gateway.wait_message("the certificates were read again");
    assert!(get(&gateway, &authority, "new.test", &[]).0.starts_with("HTTP/1.1 200"));
}
