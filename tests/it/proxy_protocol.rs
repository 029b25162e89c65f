//! The PROXY protocol: the named address is the client's everywhere, and a connection without a valid preamble ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::harness::http2::{Frame, RawHttp2, kind};
use crate::harness::{Authority, Client, Gateway, TlsClient, Upstream, curl, limited, reply, until};

const ON: &str = "proxy_protocol = true";
const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const ONE: &[u8] = b"PROXY TCP4 192.0.2.1 10.0.0.1 5000 80\r\n";

/// Version 2 with this command, family and block.
fn binary(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let length = u16::try_from(block.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, block].concat()
}

fn v4(last: u8) -> [u8; 12] {
    [192, 0, 2, last, 10, 0, 0, 1, 0x13, 0x88, 0, 80]
}

fn sent(gateway: &Gateway, bytes: &[u8]) -> Client {
    let mut client = gateway.client();
    client.send(bytes);
    client
}

#[track_caller]
fn logged(gateway: &Gateway, path: &str) -> String {
    let line = gateway.wait_log(path, |line| line["message"] == "request" && line["path"] == path);
    line["client"].as_str().unwrap().to_owned()
}

#[test]
fn the_address_that_it_names_is_the_clients_in_everything() {
    let up = Upstream::start(|_| reply(200, "hello"));
    let limit = "[limits.l]\nkey = \"client-ip\"\nrates = [\"1/d\"]\n";
    let rest = format!("{limit}{}[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n", up.section());
    let gateway = Gateway::with_server(ON, &rest);
    let v6: Vec<u8> = [&[0x20, 1, 0x0d, 0xb8][..], &[0; 11], &[1], &[0; 15], &[1], &[0, 1, 0, 2]].concat();
    let preambles: [(&str, &[u8], &str); 5] = [
        ("/v1", ONE, "192.0.2.1"),
        ("/v1-6", b"PROXY TCP6 2001:db8:1::1 ::1 1 2\r\n", "2001:db8:1::1"),
        ("/v2", &binary(0x21, 0x11, &v4(2)), "192.0.2.2"),
        ("/v2-6", &binary(0x21, 0x21, &v6), "2001:db8::1"),
        ("/mapped", b"PROXY TCP6 ::ffff:192.0.2.3 ::1 1 2\r\n", "192.0.2.3"),
    ];
    for (path, preamble, address) in preambles {
        let mut client = sent(&gateway, preamble);
        assert_eq!(client.get(path).status, 200, "{path}");
        assert_eq!(client.get(path).status, 429, "its client is counted: {path}");
        assert_eq!(sent(&gateway, preamble).get(path).status, 429, "on any connection: {path}");
        assert_eq!(logged(&gateway, path), address);
        let received = up.received().pop().unwrap();
        assert_eq!(received.target, path);
        let told = ["x-forwarded-for", "x-real-ip"].map(|name| received.headers.joined(name));
        assert_eq!(told, [address, address], "{path}");
    }
    assert_eq!(up.received().len(), preambles.len());
}

#[test]
fn a_connection_of_the_proxy_itself_keeps_its_address() {
    let gateway = Gateway::with_server(ON, FIXED);
    let preambles: [(&str, Vec<u8>); 7] = [
        ("/local", binary(0x20, 0, &[])),
        ("/local-4", binary(0x20, 0x11, &v4(1))),
        ("/unspecified", binary(0x21, 0, &[])),
        ("/unix", binary(0x21, 0x31, &[b'/'; 216])),
        ("/datagram", binary(0x21, 0x12, &v4(1))),
        ("/unknown", b"PROXY UNKNOWN\r\n".to_vec()),
        ("/unknown-more", b"PROXY UNKNOWN 192.0.2.1 10.0.0.1 5000 80\r\n".to_vec()),
    ];
    for (path, preamble) in preambles {
        assert_eq!(sent(&gateway, &preamble).get(path).status, 200, "{path}");
        assert_eq!(logged(&gateway, path), "127.0.0.1", "{path}");
    }
}

#[test]
fn what_follows_the_address_is_skipped() {
    let gateway = Gateway::with_server(ON, FIXED);
    for (length, path) in [(3, "/3"), (5000, "/5000"), ((16 << 10) - 12, "/16372")] {
        let block = [&v4(1)[..], &vec![b'G'; length]].concat();
        let mut client = sent(&gateway, &binary(0x21, 0x11, &block));
        assert_eq!(client.get(path).status, 200, "{path}");
        assert_eq!(logged(&gateway, path), "192.0.2.1");
    }
    let mut client = sent(&gateway, &binary(0x21, 0x11, &vec![0; (16 << 10) + 1]));
    assert!(client.closed().is_empty());
}

#[test]
fn it_may_come_in_pieces_and_together_with_requests() {
    let gateway = Gateway::with_server(ON, FIXED);
    for preamble in [ONE.to_vec(), binary(0x21, 0x11, &[&v4(1)[..], b"\x04\0\x03abc"].concat())] {
        let all = [&preamble[..], ASK].concat();
        let mut whole = sent(&gateway, &[&all[..], ASK].concat());
        assert_eq!([(); 2].map(|()| whole.response(false).status), [200; 2]);
        let mut client = gateway.client();
        for byte in &all {
            client.send([*byte]);
            // Without this, the bytes would arrive together. There is no event to wait for.
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(client.response(false).status, 200);
        for end in 1..preamble.len() {
            let mut client = sent(&gateway, &all[..end]);
            client.send(&all[end..]);
            assert_eq!(client.response(false).status, 200, "cut after {end}");
        }
    }
    assert_eq!(gateway.metric("gateway_proxy_protocol_failures_total"), Some(0.0));
}

#[test]
fn a_connection_without_it_ends() {
    let gateway = Gateway::with_server(ON, FIXED);
    let bytes: [&[u8]; 8] = [
        ASK,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PROXY TCP4 192.0.2.1 10.0.0.1 5000\r\n",
        b"PROXY UNKNOWN\n",
        &[b"PROXY UNKNOWN ", &[b'x'; 200][..]].concat(),
        &binary(0x22, 0x11, &v4(1)),
    ];
    for (at, bytes) in bytes.iter().enumerate() {
        let mut client = sent(&gateway, bytes);
        assert!(client.closed().is_empty(), "{bytes:?}");
        let failures = u32::try_from(at + 1).unwrap();
        until("it is counted", Duration::from_secs(5), || {
            gateway.metric("gateway_proxy_protocol_failures_total") == Some(f64::from(failures))
        });
    }
    let line = gateway.wait_message("closed connections without a valid preamble of the PROXY protocol");
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert_eq!(
        (&line["error"], &line["level"]),
        (&"the connection does not begin with a preamble".into(), &"WARN".into())
    );
    assert_eq!(gateway.metric("gateway_requests_total"), Some(0.0), "nothing was a request");
    assert_eq!(sent(&gateway, ONE).get("/").status, 200);
}

#[test]
fn one_that_is_cut_off_is_a_failure_and_a_mere_connection_is_not() {
    let gateway = Gateway::with_server(ON, FIXED);
    let finish = |bytes: &[u8]| {
        let mut client = sent(&gateway, bytes);
        client.wire.stream().shutdown(std::net::Shutdown::Write).unwrap();
        assert!(client.closed().is_empty());
    };
    finish(b"");
    finish(&ONE[..20]);
    // The rest of the announced bytes does not come.
    finish(&binary(0x21, 0x11, &v4(1))[..20]);
    finish(&[&binary(0x21, 0x11, &[0; 100])[..], b""].concat()[..60]);
    assert_eq!(gateway.metric("gateway_proxy_protocol_failures_total"), Some(3.0));
}

#[test]
fn it_has_to_come_in_time() {
    let gateway = Gateway::with_server(&format!("{ON}\nheader_timeout = \"3s\""), FIXED);
    let begun = Instant::now();
    let cut = binary(0x21, 0x11, &[0; 100]);
    let beginnings = [&b""[..], b"P", &ONE[..ONE.len() - 1], &cut[..90], ONE];
    let clients = beginnings.map(|bytes| sent(&gateway, bytes));
    std::thread::scope(|scope| {
        for (mut client, bytes) in clients.into_iter().zip(beginnings) {
            scope.spawn(move || {
                assert!(client.closed().is_empty(), "{bytes:?}");
                assert!(begun.elapsed() > Duration::from_millis(2700), "{bytes:?}: {:?}", begun.elapsed());
            });
        }
        // Single bytes do not extend the time limit.
        let mut client = gateway.client();
        for byte in binary(0x21, 0x11, &[0; 10_000]) {
            if client.wire.write(&[byte]).is_err() || begun.elapsed() > Duration::from_secs(20) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    });
    // Four have begun a preamble and not finished it.
    until("they are counted", Duration::from_secs(10), || {
        gateway.metric("gateway_proxy_protocol_failures_total") == Some(4.0)
    });
}

#[test]
fn only_the_first_one_counts() {
    let gateway = Gateway::with_server(ON, FIXED);
    // A client writes its own preamble after that of the proxy.
    let mut client = sent(&gateway, &[ONE, b"PROXY TCP4 198.51.100.9 10.0.0.1 5000 80\r\n", ASK].concat());
    client.response(false).expect_problem(400);
    assert!(client.closed().is_empty());
    let line = gateway.wait_log("bad_head", |line| line["reason"] == "bad_head");
    assert_eq!(line["client"], "192.0.2.1");
    let mut client = sent(&gateway, &[ONE, &binary(0x21, 0x11, &v4(9))].concat());
    client.response(false).expect_problem(400);
}

#[test]
fn where_it_is_off_nobody_is_believed() {
    let gateway = Gateway::start(FIXED);
    for preamble in [ONE.to_vec(), binary(0x21, 0x11, &v4(1))] {
        let mut client = sent(&gateway, &[&preamble[..], ASK].concat());
        client.response(false).expect_problem(400);
        assert!(client.closed().is_empty());
    }
    assert!(gateway.log().iter().all(|line| !line.contains("192.0.2.1")));
}

#[test]
fn connections_are_counted_for_the_address_that_it_names() {
    let gateway =
        Gateway::with_server(&format!("{ON}\nmax_connections_per_ip = 2\ntrusted_proxies = [\"192.0.2.7\"]"), FIXED);
    let from = |last: u8| sent(&gateway, &binary(0x21, 0x11, &v4(last)));
    let mut held = [from(1), from(1), from(2)];
    assert!(held.iter_mut().all(|client| client.get("/").status == 200));
    assert!(from(1).closed().is_empty());
    assert_eq!(gateway.metric("gateway_connections_refused_total"), Some(1.0));
    // Trusted proxies are not counted, and neither is a connection before its client is known.
    let mut trusted = [(); 3].map(|()| from(7));
    assert!(trusted.iter_mut().all(|client| client.get("/").status == 200));
    let mut silent = [(); 4].map(|()| gateway.client());
    held[0].wire.stream().shutdown(std::net::Shutdown::Both).unwrap();
    until("its place is free", Duration::from_secs(5), || from(1).try_get() == Some(200));
    for client in &mut silent {
        client.send(binary(0x21, 0x11, &v4(3)));
    }
    let served = silent.iter_mut().filter_map(Client::try_get).count();
    assert_eq!(served, 2);
}

#[test]
fn trusted_proxies_are_compared_with_the_address_that_it_names() {
    let gateway =
        Gateway::with_server(&format!("{ON}\ntrusted_proxies = [\"192.0.2.7\"]"), &limited("client-ip", "1/d", ""));
    let ask = |last: u8, forwarded: &str| {
        let mut client = sent(&gateway, &binary(0x21, 0x11, &v4(last)));
        client.get_with("/", format!("X-Forwarded-For: {forwarded}\r\n")).status
    };
    assert_eq!([ask(7, "198.51.100.1"), ask(7, "198.51.100.1"), ask(7, "198.51.100.2")], [200, 429, 200]);
    assert_eq!([ask(8, "198.51.100.3"), ask(8, "198.51.100.4")], [200, 429], "it is not trusted");
}

#[test]
#[ignore = "needs curl"]
fn it_comes_before_tls_and_http2() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    let server = format!("{listen}\n{ON}\n[server.tls]\ncertificates = [{}]\n", site.toml());
    let gateway = Gateway::with_server(&server, FIXED);
    let (plain, port) = (gateway.http.port(), gateway.https().port());
    let (ca, connect) = (authority.ca(), format!("site.test:{port}:127.0.0.1:{port}"));
    let tls = ["--cacert", ca.to_str().unwrap(), "--connect-to", &connect];
    for (version, path) in [("--http1.1", "/one"), ("--http2", "/two")] {
        let url = format!("https://site.test:{port}{path}");
        let output = curl(["--haproxy-protocol", version, "--include"].into_iter().chain(tls).chain([&*url]));
        let (answer, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(answer.contains(" 200"), "{answer}{error}");
        assert_eq!(logged(&gateway, path), "127.0.0.1");
    }
    for (version, path) in [("--http1.1", "/three"), ("--http2-prior-knowledge", "/four")] {
        let output = curl(["--haproxy-protocol", version, "--include", &format!("http://127.0.0.1:{plain}{path}")]);
        assert!(String::from_utf8_lossy(&output.stdout).contains(" 200"), "{path}");
    }
    // The named client counts in TLS and in HTTP/2, too.
    let mut stream = TcpStream::connect(gateway.https()).unwrap();
    stream.write_all(ONE).unwrap();
    let mut client = TlsClient::over(stream, &authority.client(None), "site.test").unwrap();
    assert!(client.get("/five").unwrap().0.starts_with("HTTP/1.1 200"));
    assert_eq!(logged(&gateway, "/five"), "192.0.2.1");
    let mut client = RawHttp2::bare(gateway.http);
    client.send(ONE).unwrap();
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    assert!(matches!(client.next(end), Ok(Some(Frame { kind: kind::SETTINGS, .. }))));

    // Without a preamble, a handshake does not even begin.
    let mut stream = TcpStream::connect(gateway.https()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty());
    assert_eq!(gateway.metric("gateway_tls_handshakes_total{result=\"failed\"}"), Some(0.0));
}

#[test]
fn connections_that_have_rested_keep_their_client() {
    let gateway = Gateway::with_server(ON, FIXED);
    let (mut late, mut early) = (sent(&gateway, ONE), sent(&gateway, ONE));
    assert_eq!(early.get("/early").status, 200);
    // Connections drop their buffers after a second. There is no event to wait for.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!((late.get("/late").status, early.get("/again").status), (200, 200));
    assert_eq!(["/late", "/again"].map(|path| logged(&gateway, path)), ["192.0.2.1", "192.0.2.1"]);
}

#[test]
fn silent_connections_make_room_and_a_drain_does_not_wait_for_them() {
    let mut gateway = Gateway::with_server(&format!("{ON}\nmax_connections = 4\nheader_timeout = \"60s\""), FIXED);
    let begun = Instant::now();
    let _silent: Vec<_> = (0..25).flat_map(|_| [gateway.client(), sent(&gateway, ONE)]).collect();
    assert_eq!(sent(&gateway, ONE).get("/").status, 200);
    gateway.signal(rustix::process::Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[test]
fn a_reload_switches_it_for_new_connections() {
    let gateway = Gateway::start(FIXED);
    let mut old = gateway.client();
    assert_eq!(old.get("/").status, 200);
    gateway.reload(ON, FIXED);
    gateway.wait_message("reloaded");
    assert_eq!(sent(&gateway, ONE).get("/new").status, 200);
    assert_eq!(logged(&gateway, "/new"), "192.0.2.1");
    assert_eq!(old.get("/").status, 200);
}
