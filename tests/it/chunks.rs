//! Chunks that other servers read differently are never forwarded as the end of a request.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Framing, Gateway, Upstream, reply};

const HEAD: &str = "POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Chunk lines that the HTTP library accepts, although other servers read them differently.
const GENEROUS: [&str; 9] = [
    "5 \r\nhello\r\n0\r\n\r\n",
    "5\t\r\nhello\r\n0\r\n\r\n",
    "5 ;name=value\r\nhello\r\n0\r\n\r\n",
    "5;name\0\r\nhello\r\n0\r\n\r\n",
    "5;name=\u{1b}[2J\r\nhello\r\n0\r\n\r\n",
    "5;name\u{7f}\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n0 \r\n\r\n",
    "5\r\nhello\r\n0;\u{8}\r\n\r\n",
    "5\r\nhello\r\n0\r\nX-Trailer: a\nX-Other: b\r\n\r\n",
];

#[test]
fn a_bad_chunk_that_comes_with_its_head_is_not_forwarded() {
    let up = Upstream::start(|_| reply(200, "forwarded"));
    let gateway = Gateway::start(&up.everything());
    for chunks in GENEROUS {
        let mut client = gateway.client();
        client.send(format!("{HEAD}{chunks}"));
        client.response(false).expect_problem(400);
        assert!(client.closed().is_empty(), "{chunks:?}");
    }
    assert_eq!(up.connections(), 0, "{:?}", up.received());
}

/// Reports when a head has come, and then whether a complete body has come and nothing after it.
fn telling() -> (Upstream, Receiver<Option<bool>>) {
    let (tell, told) = channel();
    let tell = Arc::new(Mutex::new(tell));
    let up = Upstream::raw(move |mut wire, _| {
        while let Ok(Some((_, headers))) = wire.head() {
            let framing = headers.framing(Framing::Length(0)).unwrap();
            tell.lock().unwrap().send(None).unwrap();
            let whole = wire.body(framing, &mut |_| ()).is_ok();
            tell.lock().unwrap().send(Some(whole)).unwrap();
            if !whole || wire.write(&reply(200, "whole")).is_err() {
                break;
            }
        }
    });
    (up, told)
}

#[test]
fn a_bad_chunk_that_comes_later_breaks_the_request_off() {
    let (up, told) = telling();
    let gateway = Gateway::start(&up.everything());
    let bound = Duration::from_secs(10);
    for (number, chunks) in GENEROUS.iter().enumerate() {
        let mut client = gateway.client();
        client.send(HEAD);
        client.send("3\r\nabc\r\n");
        assert_eq!(told.recv_timeout(bound).unwrap(), None);
        client.send(chunks);
        client.response(false).expect_problem(400);
        assert!(client.closed().is_empty(), "{chunks:?}");
        assert_eq!(told.recv_timeout(bound).unwrap(), Some(false), "{chunks:?}: the upstream saw a whole request");
        assert_eq!(up.connections(), number + 1, "a connection with half a request on it was used again");
    }
}

#[test]
fn valid_chunks_pass() {
    let (up, told) = telling();
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for chunks in [
        "5\r\nhello\r\n0\r\n\r\n",
        "0005;name=\"a b\tc\";other\r\nhello\r\n000;last\r\nX-Trailer: 1\r\n\r\n",
        "A;\u{e9}\r\n0123456789\r\n0\r\n\r\n",
    ] {
        client.send(HEAD);
        assert_eq!(told.recv().unwrap(), None);
        client.send(chunks);
        assert_eq!(client.response(false).text(), "whole", "{chunks:?}");
        assert_eq!(told.recv().unwrap(), Some(true));
    }
}
