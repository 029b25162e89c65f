//! TLS to upstreams: trust, client certificates, sessions, reloads, and that everything else holds as without TLS.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rustix::process::Signal;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::ServerConfig;

use crate::harness::{Authority, Gateway, Handshake, Pattern, TlsServer, TlsStream, Upstream, read_request, until};

const BOUND: Duration = Duration::from_secs(10);

fn trusting(authority: &Authority, keys: &str) -> String {
    format!("[upstreams.up.tls]\nca = \"{}\"\n{keys}\n", authority.ca().display())
}

fn server(name: &str) -> (Authority, ServerConfig) {
    let authority = Authority::new();
    let up = authority.issue("up", "up", &[name]);
    let config = authority.server(&up, false);
    (authority, config)
}

#[track_caller]
fn expect_failure(gateway: &Gateway, reason: &str, error: &str) {
    let line = gateway.wait_message("upstream failed");
    assert_eq!(line["reason"], reason, "{line}");
    assert!(line["error"].as_str().unwrap().contains(error), "{line}");
    let sample = format!("gateway_upstream_failures_total{{upstream=\"up\",reason=\"{reason}\"}} 1");
    until(&sample, BOUND, || gateway.admin("/metrics").text().lines().any(|line| line == sample));
}

#[test]
fn a_server_is_asked_for_and_verified_by_its_name() {
    let (authority, config) = server("up.test");
    let up = TlsServer::start(config);
    let gateway = Gateway::start(&up.everything(&trusting(&authority, "server_name = \"up.test\"")));
    let mut client = gateway.client();
    for path in ["/one", "/two"] {
        assert_eq!(client.get(path).text(), path);
    }
    let expected = Handshake {
        name: Some("up.test".to_owned()),
        protocol: Some("http/1.1".to_owned()),
        is_resumed: false,
        has_certificate: false,
    };
    assert_eq!(up.handshakes(), [expected], "one connection for both");

    // Without `server_name` the host of the URL counts, here an address, for which TLS sends no name (RFC 6066).
    let (authority, config) = server("127.0.0.1");
    let up = TlsServer::start(config);
    let gateway = Gateway::start(&up.everything(&trusting(&authority, "")));
    assert_eq!(gateway.client().get("/").text(), "/");
    assert_eq!(up.handshakes()[0].name, None);
}

#[test]
fn a_certificate_that_is_not_valid_is_502_and_nothing_is_sent() {
    let (authority, others) = (Authority::new(), Authority::new());
    let right = authority.issue("right", "up", &["127.0.0.1"]);
    let other = authority.issue("other", "up", &["other.test"]);
    let foreign = others.issue("foreign", "up", &["127.0.0.1"]);
    let old = authority.issue_with("old", "up", &["127.0.0.1"], |params| {
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    for (shown, error, why) in [
        (&other, "certificate not valid for name", "BadCertificate"),
        (&foreign, "UnknownIssuer", "UnknownCA"),
        (&old, "expired", "CertificateExpired"),
    ] {
        let up = TlsServer::start(authority.server(shown, false));
        let gateway = Gateway::start(&up.everything(&trusting(&authority, "")));
        gateway.client().call("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nsecret").expect_problem(502);
        expect_failure(&gateway, "tls", error);
        let line = gateway.wait_message("request");
        assert_eq!((&line["outcome"], &line["reason"]), (&"failed".into(), &"tls".into()), "{line}");
        until("the server has noticed", BOUND, || !up.failed().is_empty());
        assert!(up.handshakes().is_empty(), "no byte of a request could come: {:?}", up.failed());
        assert!(up.failed()[0].contains(why), "{:?}", up.failed());
    }
    let up = TlsServer::start(authority.server(&right, false));
    let gateway = Gateway::start(&up.everything(&trusting(&authority, "")));
    assert_eq!(gateway.client().get("/").text(), "/");
}

#[test]
fn the_authorities_of_the_system_are_trusted_by_default() {
    let (authority, config) = server("127.0.0.1");
    let up = TlsServer::start(config);
    let trusts = Gateway::with_variable("SSL_CERT_FILE", &authority.ca(), &up.everything(""));
    assert_eq!(trusts.client().get("/").text(), "/");
    let other = Authority::new();
    let trusts_not = Gateway::with_variable("SSL_CERT_FILE", &other.ca(), &up.everything(""));
    trusts_not.client().get("/").expect_problem(502);
    expect_failure(&trusts_not, "tls", "UnknownIssuer");
}

#[test]
fn a_server_gets_the_certificate_that_it_asks_for() {
    let authority = Authority::new();
    let [up, own] = ["up", "own"].map(|name| authority.issue(name, name, &["127.0.0.1"]));
    let server = TlsServer::start(authority.server(&up, true));
    let shows = trusting(&authority, &format!("cert = {:?}\nkey = {:?}", own.cert, own.key));
    let gateway = Gateway::start(&server.everything(&shows));
    assert_eq!(gateway.client().get("/").text(), "/");
    assert!(server.handshakes()[0].has_certificate);
    let without = Gateway::start(&server.everything(&trusting(&authority, "")));
    without.client().get("/").expect_problem(502);
    let line = without.wait_message("upstream failed");
    // In TLS 1.3 the server refuses the client after the handshake.
    assert!(line["error"].as_str().unwrap().contains("CertificateRequired"), "{line}");
    assert_eq!(server.handshakes().len(), 1);
}

/// A certificate that is its own authority, for this name and until this year, as `openssl req -x509` makes it.
fn self_signed(name: &str, year: i32) -> (tempfile::TempDir, ServerConfig) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(year, 1, 1);
    let key = KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), cert.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    (folder, builder.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap())
}

#[test]
fn a_server_may_show_the_certificate_that_is_named_as_its_authority() {
    for (name, year, why) in
        [("127.0.0.1", 4000, None), ("up.test", 4000, Some("not valid for")), ("127.0.0.1", 2020, Some("Expired"))]
    {
        let (folder, config) = self_signed(name, year);
        let up = TlsServer::start(config);
        let trusts = |folder: &Path| format!("[upstreams.up.tls]\nca = {:?}\n", folder.join("ca.pem"));
        let gateway = Gateway::start(&up.everything(&trusts(folder.path())));
        match why {
            None => assert_eq!(gateway.client().get("/").text(), "/"),
            Some(why) => {
                gateway.client().get("/").expect_problem(502);
                expect_failure(&gateway, "tls", why);
            }
        }
        // Another certificate of the same name is another server's.
        let (other, _) = self_signed(name, year);
        let gateway = Gateway::start(&up.everything(&trusts(other.path())));
        gateway.client().get("/").expect_problem(502);
        expect_failure(&gateway, "tls", "certificate");
    }
}

fn answer_once(mut stream: TlsStream, _: usize) {
    if read_request(&mut stream).is_some() {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
        stream.conn.send_close_notify();
        let _ = stream.flush();
    }
}

#[test]
fn sessions_are_resumed_by_all_workers_and_after_a_reload() {
    let (authority, config) = server("127.0.0.1");
    let up = TlsServer::raw(config, answer_once);
    let rest = up.everything(&trusting(&authority, ""));
    let gateway = Gateway::with_server("workers = 2", &rest);
    let resumed = || up.handshakes().iter().map(|handshake| handshake.is_resumed).collect::<Vec<_>>();
    for _ in 0..6 {
        assert_eq!(gateway.client().get("/").text(), "hi");
    }
    assert_eq!(resumed(), [false, true, true, true, true, true]);
    gateway.reload("workers = 2", &(rest + "# the same\n"));
    gateway.wait_message("reloaded");
    assert_eq!(gateway.client().get("/").text(), "hi");
    assert_eq!(resumed().last(), Some(&true));
}

#[test]
fn a_reload_reads_the_files_and_uses_no_connection_of_other_settings() {
    let (authority, config) = server("127.0.0.1");
    let other = Authority::new();
    let up = TlsServer::start(config);
    let ca = authority.folder().join("trusted.pem");
    let trust = |who: &Authority| std::fs::copy(who.ca(), &ca).unwrap();
    trust(&authority);
    let rest = up.everything(&format!("[upstreams.up.tls]\nca = {ca:?}\n"));
    let gateway = Gateway::with_server("workers = 1", &rest);
    let reload = |rest: &str, times| {
        gateway.reload("workers = 1", rest);
        until("reloaded", BOUND, || gateway.metric("gateway_config_reloads_total{result=\"ok\"}") == Some(times));
    };
    assert_eq!(gateway.client().get("/").text(), "/");
    reload(&rest, 1.0);
    assert_eq!(gateway.client().get("/").text(), "/");
    assert_eq!(up.handshakes().len(), 1, "nothing has changed, so the connection is used");

    trust(&other);
    reload(&rest, 2.0);
    // The old connections and sessions are not used, because they would skip the check of the certificate.
    gateway.client().get("/").expect_problem(502);
    trust(&authority);
    reload(&rest, 3.0);
    // This may use the first connection, which has these settings.
    assert_eq!(gateway.client().get("/").text(), "/");

    // Another name changes the settings, too.
    let named = up.everything(&format!("[upstreams.up.tls]\nca = {ca:?}\nserver_name = \"other.test\"\n"));
    reload(&named, 4.0);
    gateway.client().get("/").expect_problem(502);

    std::fs::write(&ca, "").unwrap();
    gateway.reload("workers = 1", &rest);
    let refused = gateway.wait_log("a refusal", |line| {
        line["problems"].as_str().is_some_and(|problems| problems.contains("there is no certificate in it"))
    });
    assert!(refused["problems"].as_str().unwrap().contains("gateway.toml:"), "{refused}");
}

#[test]
fn the_time_to_connect_includes_the_handshake() {
    let authority = Authority::new();
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = silent.local_addr().unwrap();
    let keys = trusting(&authority, "");
    let gateway = Gateway::start(&format!(
        "[upstreams.up]\nservers = [\"https://{address}\"]\nconnect_timeout = \"300ms\"\n{keys}
         [[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
    ));
    let begun = Instant::now();
    gateway.client().get("/").expect_problem(504);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    expect_failure(&gateway, "connect_timeout", "300ms");
}

#[test]
fn a_server_that_does_not_speak_tls_is_502() {
    let authority = Authority::new();
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = wire.rest();
    });
    let section = up.section().replace("http://", "https://");
    let keys = trusting(&authority, "");
    let gateway = Gateway::start(&format!("{section}{keys}[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"));
    gateway.client().get("/").expect_problem(502);
    expect_failure(&gateway, "tls", "InvalidContentType");
}

#[test]
fn large_bodies_pass_both_ways() {
    const LENGTH: usize = 20_000_000;
    let (authority, config) = server("127.0.0.1");
    let received = Arc::new(Mutex::new(Vec::new()));
    let record = received.clone();
    let up = TlsServer::raw(config, move |mut stream, _| {
        while let Some((_, body)) = read_request(&mut stream) {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            record.lock().unwrap().push(body.len());
        }
    });
    let gateway = Gateway::start(&up.everything(&trusting(&authority, "")));
    let mut client = gateway.client();
    for _ in 0..2 {
        let mut pattern = Pattern::new();
        let mut request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n").into_bytes();
        (0..LENGTH / 50_000).for_each(|_| request.extend_from_slice(pattern.next(50_000)));
        let response = client.call(request);
        assert_eq!(response.status, 200);
        let mut pattern = Pattern::new();
        pattern.check(&response.body);
        assert_eq!(response.body.len(), LENGTH);
    }
    assert_eq!(up.handshakes().len(), 1);
}

/// How a response ends whose end is the end of the connection.
#[derive(Clone, Copy, Debug)]
enum End {
    /// With the alert of TLS.
    Told,
    /// As if somebody had cut the connection.
    Cut,
}

#[test]
fn a_response_that_is_cut_is_not_taken_for_a_whole_one() {
    for (end, head) in [
        (End::Told, "Connection: close\r\n\r\n"),
        (End::Cut, "Connection: close\r\n\r\n"),
        (End::Told, "Content-Length: 100\r\n\r\n"),
        (End::Cut, "Transfer-Encoding: chunked\r\n\r\n64\r\n"),
    ] {
        let (authority, config) = server("127.0.0.1");
        let up = TlsServer::raw(config, move |mut stream, _| {
            let _ = read_request(&mut stream);
            let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}a part").as_bytes());
            if matches!(end, End::Told) {
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        let gateway = Gateway::start(&up.everything(&trusting(&authority, "")));
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let read = client.try_response(false);
        if matches!(end, End::Told) && head.starts_with("Connection") {
            assert_eq!(read.unwrap().text(), "a part");
        } else {
            read.expect_err("a clean end");
            expect_failure(&gateway, "truncated", "");
        }
    }
}

#[test]
fn a_server_that_stops_is_given_up_in_time() {
    let (authority, config) = server("127.0.0.1");
    let (go, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let up = TlsServer::raw(config, move |mut stream, number| {
        if number == 0 {
            // It reads nothing of the body, and sends nothing.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n");
            let _ = held.lock().unwrap().recv();
            return;
        }
        answer_once(stream, number);
    });
    let rest = up.everything(&format!("read_timeout = \"500ms\"\n{}", trusting(&authority, "")));
    let gateway = Gateway::with_server("workers = 1\nbody_timeout = \"20s\"", &rest);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
    let mut writing = client.wire.stream().try_clone().unwrap();
    let piece = vec![b'x'; 65_536];
    let writer = thread::spawn(move || while writing.write_all(&piece).is_ok() {});
    client.try_response(false).expect_err("a clean end");
    writer.join().unwrap();
    let line = gateway.wait_message("request");
    assert_eq!((&line["outcome"], &line["reason"]), (&"failed".into(), &"read_timeout".into()), "{line}");
    assert_eq!(gateway.client().get("/").text(), "hi");
    drop(go);
}

#[test]
fn a_connection_that_the_server_has_closed_is_not_used_again() {
    let (authority, config) = server("127.0.0.1");
    let closed = Arc::new(Mutex::new(0));
    let count = closed.clone();
    let up = TlsServer::raw(config, move |mut stream, number| {
        let _ = read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        if number % 2 == 0 {
            stream.conn.send_close_notify();
        }
        let _ = stream.flush();
        drop(stream);
        *count.lock().unwrap() += 1;
    });
    let gateway = Gateway::with_server("workers = 1", &up.everything(&trusting(&authority, "")));
    for number in 1..=6 {
        let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(gateway.client().call(request).text(), "hi", "it cannot be sent twice");
        until("the server has closed it", BOUND, || *closed.lock().unwrap() == number);
        // The gateway's system must notice it, too.
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_server_is_told_when_a_connection_ends() {
    let (authority, config) = server("127.0.0.1");
    let (tell, told) = std::sync::mpsc::channel();
    let tell = Mutex::new(tell);
    let up = TlsServer::raw(config, move |mut stream, _| {
        let _ = read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        // An end without the alert is an error.
        let _ = tell.lock().unwrap().send(stream.read(&mut [0]).map_err(|error| error.to_string()));
    });
    let rest = up.everything(&format!("max_idle = \"300ms\"\n{}", trusting(&authority, "")));
    let mut gateway = Gateway::with_server("workers = 1", &rest);
    assert_eq!(gateway.client().get("/").text(), "hi");
    assert_eq!(told.recv_timeout(BOUND).unwrap(), Ok(0), "it was idle for too long");
    assert_eq!(gateway.client().get("/").text(), "hi");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    told.recv_timeout(BOUND).expect("the process has ended, and so has the connection").ok();
}

#[test]
fn the_check_says_who_is_trusted() {
    let authority = Authority::new();
    authority.issue("own", "own", &[]);
    let config = authority.folder().join("gateway.toml");
    let text =
        "[upstreams.up]\nservers = [\"https://up.test\"]\nhttp2 = true\n[upstreams.up.tls]\nca = \"ca.pem\"\nserver_name = \"a.test\"
         cert = \"own.pem\"\nkey = \"own.key\"\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
    std::fs::write(&config, text).unwrap();
    let output = crate::harness::run(&["check", "--config", config.to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("https://up.test, weight 1"), "{said}");
    assert!(said.contains("HTTP/2: with TLS for servers that agree"), "{said}");
    let file = |name: &str| Path::new(authority.folder()).join(name).display().to_string();
    let trusted = format!("trusts the authorities in {}, for certificates of a.test", file("ca.pem"));
    assert!(said.contains(&format!("{trusted}; shows the certificate in {}", file("own.pem"))), "{said}");
}
