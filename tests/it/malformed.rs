//! Requests that can be read in two ways or in none are refused, and neither repaired nor forwarded.

use std::time::{Duration, Instant};

use crate::harness::{Gateway, Upstream, reply, until};

/// Fails unless each gets this status, the connection closes, and no upstream gets a request.
#[track_caller]
fn refused(status: u16, requests: &[&[u8]]) {
    let up = Upstream::start(|_| reply(200, "forwarded"));
    let gateway = Gateway::start(&up.everything());
    let mut wrong = Vec::new();
    for request in requests {
        let mut client = gateway.client();
        client.send(request);
        let (text, closed) = client.wire.rest();
        let text = String::from_utf8_lossy(&text).into_owned();
        let (answer, shown) = (text.lines().next().unwrap_or_default(), String::from_utf8_lossy(request));
        if !answer.starts_with(&format!("HTTP/1.1 {status} ")) {
            wrong.push(format!("{shown:?} was answered {answer:?}"));
        } else if !closed {
            wrong.push(format!("the connection stays open after {shown:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(up.received().is_empty(), "forwarded: {:?}", up.received());
    assert_eq!(gateway.client().get("/").text(), "forwarded");
}

#[test]
fn two_framings() {
    refused(
        400,
        &[
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        ],
    );
}

#[test]
fn refusals_do_not_depend_on_how_the_bytes_arrive() {
    let up = Upstream::start(|_| reply(200, "forwarded"));
    let gateway = Gateway::start(&up.everything());
    let bad: [&[u8]; 3] = [
        b"POST /bad HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /bad HTTP/1.1\r\nHost: a\nX-Smuggled: 1\r\n\r\n",
        b"GET /bad HTTP/1.1\r\nHost: a\r\nX-Folded: a\r\n b\r\n\r\n",
    ];
    // Only a server that reads the body as a head takes these bytes for invalid.
    let good: [&[u8]; 4] = [
        b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /good HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\na\nb\r\n\r\n\n c",
        b"POST /good HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\na\r\n\r\n3;x=y\r\n\n\n\n\r\n0\r\nX-Trailer: 1\r\n\r\n",
        b"POST /good HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    ];
    for (before, after) in good.iter().flat_map(|good| bad.iter().map(move |bad| (good, bad))) {
        let all = [before, after].map(|bytes| bytes.to_vec()).concat();
        for size in [1, 7, all.len()] {
            let mut client = gateway.client();
            for piece in all.chunks(size) {
                // The gateway may close the connection before everything is sent.
                let _ = client.wire.write(piece);
            }
            let text = String::from_utf8_lossy(&client.closed()).into_owned();
            let statuses = text.match_indices("HTTP/1.1 ").map(|(at, _)| &text[at + 9..at + 12]);
            // Problem documents contain "HTTP", too.
            let answers: Vec<_> = statuses.filter(|status| status.parse::<u16>().is_ok()).collect();
            // Requests in the same piece may be refused, too.
            let expected = [&["200", "400"][..], &["400"]];
            assert!(
                expected.contains(&&answers[..]),
                "{size} bytes at once: {answers:?} for {:?}",
                String::from_utf8_lossy(&all)
            );
        }
    }
    assert!(up.received().iter().all(|request| request.target == "/good"), "{:?}", up.received());
}

#[test]
fn a_chunk_size_of_a_mebibyte_of_zeros_hides_nothing() {
    let up = Upstream::start(|_| reply(200, "forwarded"));
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let size = format!("{}5", "0".repeat(2 << 20));
    // The gateway may close the connection before everything is sent.
    let _ = client.wire.write(
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\nhello\r\n0\r\n\r\n")
            .as_bytes(),
    );
    let _ = client.wire.write(b"GET /bad HTTP/1.1\r\nHost: a\nX-Smuggled: 1\r\n\r\n");
    assert!(!client.closed().starts_with(b"HTTP/1.1 200"));
    assert!(up.received().is_empty(), "{:?}", up.received());
}

#[test]
fn two_lengths() {
    refused(
        400,
        &[
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nhello!",
        ],
    );
}

#[test]
fn lengths_that_are_not_numbers() {
    let lengths = ["+5", "-5", "0x5", "5x", "", "5 5", "18446744073709551616", "99999999999999999999999"];
    let requests = lengths
        .map(|length| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nhello").into_bytes());
    refused(400, &requests.each_ref().map(Vec::as_slice));
}

#[test]
fn codings_that_do_not_end_in_chunked() {
    let codings = ["gzip", "xchunked", "chunked, gzip", "chunked, chunked", "identity", "\"chunked\"", ""];
    let requests = codings.map(|coding| {
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n").into_bytes()
    });
    refused(400, &requests.each_ref().map(Vec::as_slice));
}

#[test]
fn codings_that_the_gateway_does_not_decode() {
    let up = Upstream::start(|_| reply(200, "forwarded"));
    let gateway = Gateway::start(&up.everything());
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let response = gateway.client().call(request);
    // If they were forwarded in plain chunks, the upstream would read the compressed bytes as the body.
    assert!([400, 501].contains(&response.status), "{response:?}");
}

#[test]
fn chunks_in_http_1_0() {
    refused(400, &[b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]);
}

#[test]
fn a_missing_or_repeated_host() {
    refused(400, &[b"GET / HTTP/1.1\r\n\r\n"]);
    refused(400, &[b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"]);
}

#[test]
fn two_different_hosts() {
    refused(400, &[b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", b"GET http://a:1/ HTTP/1.1\r\nHost: a:2\r\n\r\n"]);
}

#[test]
fn invalid_hosts() {
    let hosts = ["a b", "a/b", "user@a", "a:port", "[::1", "a?b", "a#b", "a\\b", "\u{e9}.test", "<a>"];
    let requests = hosts.map(|host| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes());
    refused(400, &requests.each_ref().map(Vec::as_slice));
}

#[test]
fn garbage() {
    refused(
        400,
        &[
            b"garbage\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nX-Nul: a\0b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nX Y: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n: empty\r\n\r\n",
            b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / x HTTP/1.1\r\nHost: a\r\n\r\n",
            b"G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET \xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
        ],
    );
}

#[test]
fn targets_that_are_not_paths_are_not_forwarded() {
    let up = Upstream::start(|_| reply(200, "forwarded"));
    let gateway = Gateway::start(&up.everything());
    for start in
        ["GET nothing", "GET a:80", "OPTIONS *", "CONNECT a:80", "GET /#fragment", "GET http://", "GET ftp:///x"]
    {
        let response = gateway.client().call(format!("{start} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!((400..=501).contains(&response.status), "{start}: {response:?}");
    }
    assert!(up.received().is_empty(), "{:?}", up.received());
}

#[test]
fn lines_that_end_in_a_bare_line_feed() {
    refused(
        400,
        &[
            b"GET / HTTP/1.1\nHost: a\n\n",
            b"GET / HTTP/1.1\r\nHost: a\nX-Smuggled: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        ],
    );
}

#[test]
fn folded_lines() {
    refused(400, &[b"GET / HTTP/1.1\r\nHost: a\r\nX-Folded: a\r\n b\r\n\r\n", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"]);
}

#[test]
fn chunks_that_are_broken_end_the_connection() {
    let up = Upstream::start(|_| reply(200, "forwarded"));
    let gateway = Gateway::start(&up.everything());
    for chunks in [
        "zz\r\nab\r\n0\r\n\r\n",
        "2\r\nabc\r\n0\r\n\r\n",
        "-1\r\n\r\n0\r\n\r\n",
        "2;a\nab\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nab",
    ] {
        let mut client = gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"));
        client.send("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        let text = String::from_utf8_lossy(&client.closed()).into_owned();
        assert!(!text.contains("HTTP/1.1 200"), "{chunks:?} was answered {text:?}");
    }
    assert!(up.received().is_empty(), "{:?}", up.received());
}

#[test]
fn a_head_that_is_too_long_is_431() {
    let up = Upstream::start(|_| reply(200, "forwarded"));
    let gateway = Gateway::with_server("max_header_size = \"16KiB\"", &up.everything());
    let ask = |length: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n", "x".repeat(length));
    assert_eq!(gateway.client().call(ask(15_000)).status, 200);
    let mut client = gateway.client();
    client.send(ask(17_000));
    assert_eq!(client.response(false).status, 431);
    let mut client = gateway.client();
    client.send(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(17_000)));
    let status = client.response(false).status;
    assert!([414, 431].contains(&status), "{status}");
    assert_eq!(up.received().len(), 1);
}

#[test]
fn a_head_that_does_not_come_ends_the_connection() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server("header_timeout = \"500ms\"", &up.everything());
    for beginning in ["G", "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "] {
        let begun = Instant::now();
        let mut client = gateway.client();
        client.send(beginning);
        client.closed();
        let open = begun.elapsed();
        // Without the setting it would take 10 s.
        assert!((Duration::from_millis(400)..Duration::from_secs(9)).contains(&open), "{open:?} after {beginning:?}");
    }
}

#[test]
fn a_head_that_comes_byte_by_byte_ends_the_connection() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server("header_timeout = \"3s\"", &up.everything());
    let mut client = gateway.client();
    // An earlier request must not give it more time.
    assert_eq!(client.get("/").status, 200);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ");
    let start = Instant::now();
    while client.wire.write(b"x").is_ok() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn an_idle_connection_is_closed_in_time() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server("idle_timeout = \"4s\"\nheader_timeout = \"4s\"", &up.everything());
    let mut client = gateway.client();
    for _ in 0..5 {
        assert_eq!(client.get("/").status, 200);
        std::thread::sleep(Duration::from_millis(900));
    }
    let begun = Instant::now();
    let mut silent = gateway.client();
    assert_eq!(client.get("/").status, 200);
    client.closed();
    let open = begun.elapsed();
    assert!((Duration::from_millis(3_700)..Duration::from_secs(20)).contains(&open), "{open:?}");
    // A connection without any request is closed, too.
    silent.closed();
    let open = begun.elapsed();
    assert!(open < Duration::from_secs(20), "{open:?} without a byte");
}

#[test]
fn a_response_that_is_read_slowly_is_not_idle_time() {
    let body = "x".repeat(16 << 20);
    let route = format!("[[routes]]\npath = \"/\"\nrespond = {{ status = 200, body = \"{body}\" }}\n");
    let gateway = Gateway::with_server("idle_timeout = \"4s\"\nbody_timeout = \"4s\"", &route);
    let ask = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let (mut client, mut taken) = (gateway.client(), 0);
    client.send(ask);
    let (_, framing) = client.try_head().unwrap();
    let taking = client.wire.body(framing, &mut |piece| {
        taken += piece.len();
        std::thread::sleep(Duration::from_nanos(400 * piece.len() as u64));
    });
    taking.unwrap_or_else(|error| panic!("{error} after {taken} bytes"));
    // The body is not read for ever, either.
    client.send(ask);
    until("it is given up", Duration::from_secs(20), || {
        gateway.metric("gateway_connections_stalled_total") == Some(1.0)
    });
    assert!(client.try_response(false).is_err());
}
