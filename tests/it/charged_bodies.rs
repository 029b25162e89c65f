//! Limits that need no body charge a request before its body is read, and keep the charge if the body is unusable. The memory
//! of unfinished bodies is bounded.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::Request;
use tokio::task::JoinSet;

use crate::harness::http2::{END_HEADERS, END_STREAM, RawHttp2, Reaction, frame, headers, kind};
use crate::harness::{Client, Gateway, every_store, until};

const BOUND: Duration = Duration::from_secs(20);

/// A limit by address and one by the model in the body, on a route that answers itself.
fn limited(store: &str, address: &str, model: &str) -> String {
    format!(
        "{store}[limits.address]\nkey = \"client-ip\"\n{address}\n\
         [limits.model]\nkey = \"json:/model\"\n{model}\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"address\", \"model\"]\nrespond = {{ status = 200 }}\n"
    )
}

const FIVE: &str = "rates = [\"5/d\"]";
const TWO: &str = "rates = [\"2/d\"]";
const TWICE: &str = r#"{"model": "a", "model": "b"}"#;

fn head(length: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n")
}

fn post(client: &mut Client, body: &str) -> u16 {
    client.call(head(body.len()) + body).status
}

/// Sends the end of the body only when the request is charged.
fn post_slowly(gateway: &Gateway, client: &mut Client, body: &str, used: u64) -> u16 {
    client.send(head(body.len()) + &body[..1]);
    until("it is charged before its body has come", BOUND, || gateway.used("address", "127.0.0.1") == used);
    client.send(&body[1..]);
    client.response(false).status
}

fn decisions(gateway: &Gateway, limit: &str) -> [Option<f64>; 3] {
    let name = |decision: &str| format!("gateway_limit_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}}");
    ["admitted", "rejected", "not_charged"].map(|decision| gateway.metric(&name(decision)))
}

#[test]
fn a_body_that_cannot_be_used_is_charged_to_its_address() {
    let large = format!(r#"{{"text": "{}", "model": "a", "model": "b"}}"#, "x".repeat(300_000));
    for body in [TWICE, &large] {
        every_store(|store| {
            let gateway = Gateway::start(&limited(store, FIVE, TWO));
            // A refusal before the body was read closes the connection.
            let statuses = [(); 8].map(|()| post(&mut gateway.client(), body));
            assert_eq!(statuses, [400, 400, 400, 400, 400, 429, 429, 429], "{store}");
            assert_eq!(gateway.client().call(head(2_000_000)).status, 429, "{store}");
            assert_eq!(decisions(&gateway, "address"), [Some(5.0), Some(4.0), Some(0.0)], "{store}");
            assert_eq!(decisions(&gateway, "model")[0], Some(0.0), "{store}");
        });
    }
}

#[test]
fn a_limit_that_waits_for_the_body_of_others_charges_one_that_cannot_be_used() {
    let own = |pool: &str| format!("key = \"client-ip\"\nrates = [\"5/d\"]\noverflow = {pool:?}");
    for (pool, limits, bodies) in [
        ("model", "\"own\"", [TWICE, "{"]),
        ("model", "\"own\", \"model\"", [TWICE, "{}"]),
        ("all", "\"own\", \"model\"", [TWICE, "{}"]),
    ] {
        every_store(|store| {
            let gateway = Gateway::start(&format!(
                "{store}[limits.own]\n{}\n[limits.model]\nkey = \"json:/model\"\nrates = [\"20/d\"]\n\
                 missing = \"reject\"\n[limits.all]\nkey = \"global\"\nrates = [\"20/d\"]\n\
                 [[routes]]\npath = \"/*\"\nlimits = [{limits}]\nrespond = {{ status = 200 }}\n",
                own(pool)
            ));
            let mut client = gateway.client();
            let statuses = [0, 1, 0, 1, 0, 1, 0].map(|which: usize| post(&mut client, bodies[which]));
            assert_eq!(statuses, [400, 400, 400, 400, 400, 429, 429], "{pool}, {limits}, {store}");
            assert_eq!(decisions(&gateway, "own"), [Some(5.0), Some(2.0), Some(0.0)], "{pool}, {limits}, {store}");
            let good = post(&mut client, r#"{"model": "a"}"#);
            assert_eq!(good, 200, "{pool}, {limits}, {store}: only a good one gets to the pool");
        });
    }
}

/// Strangers could use it up with bodies that nobody forwards.
#[test]
fn a_limit_that_all_share_is_not_charged_for_bodies_that_cannot_be_used() {
    for (key, more) in [
        ("global", ""),
        ("path:c", ""),
        ("global", "max_in_flight = 9"),
        ("header:x-api-key", ""),
        ("cookie:sid | path:c", ""),
    ] {
        every_store(|store| {
            let gateway = Gateway::start(&format!(
                "{store}[limits.all]\nkey = {key:?}\nrates = [\"5/d\"]\n{more}\n[limits.model]\nkey = \"json:/model\"\n\
                 rates = [\"20/d\"]\nmissing = \"reject\"\n[[routes]]\npath = \"/{{c}}\"\nlimits = [\"all\", \"model\"]\n\
                 respond = {{ status = 200 }}\n"
            ));
            let mut client = gateway.client();
            let mut post = |body: &str| client.call(head(body.len()).replace("POST /", "POST /c") + body).status;
            assert_eq!([TWICE, "{}", "{", TWICE, "{}", TWICE].map(&mut post), [400; 6], "{key}, {more}, {store}");
            let good = [(); 6].map(|()| post(r#"{"model": "a"}"#));
            assert_eq!(good, [200, 200, 200, 200, 200, 429], "{key}, {more}, {store}");
        });
    }
}

/// While a body is awaited, too.
#[test]
fn a_body_that_never_comes_uses_up_no_counter_that_clients_without_a_key_share() {
    every_store(|store| {
        let gateway = Gateway::with_server(
            "body_timeout = \"1s\"\n",
            &format!(
                "{store}[limits.api]\nkey = \"header:x-api-key\"\nrates = [\"3/d\"]\n[limits.model]\n\
             key = \"json:/model\"\nrates = [\"20/d\"]\n[[routes]]\npath = \"/*\"\nlimits = [\"api\", \"model\"]\n\
             respond = {{ status = 200 }}\n"
            ),
        );
        let mut clients: Vec<_> = (0..5).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.send(head(100) + "{"));
        let statuses: Vec<_> = clients.iter_mut().map(|client| client.response(false).status).collect();
        assert_eq!(statuses, [408; 5], "{store}");
        let mut client = gateway.client();
        let good = [(); 4].map(|()| post(&mut client, r#"{"model": "a"}"#));
        assert_eq!(good, [200, 200, 200, 429], "{store}");
    });
}

/// Also in a shared store, whose answer the client does not await.
#[test]
fn who_leaves_while_the_body_is_awaited_is_charged() {
    every_store(|store| {
        let gateway = Gateway::start(&limited(store, FIVE, TWO));
        let mut client = RawHttp2::connect(gateway.http, &[]);
        for stream in [1, 3, 5] {
            let reset = frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            client.send(&[begun(stream), frame(kind::DATA, 0, stream, b"{"), reset].concat()).unwrap();
        }
        until("all are charged", BOUND, || gateway.used("address", "127.0.0.1") == 3);
    });
}

#[test]
fn whatever_is_wrong_with_a_body_is_charged() {
    every_store(|store| {
        let gateway = Gateway::start(&limited(store, FIVE, TWO));
        assert_eq!(gateway.client().call(head(2_000_000)).status, 413, "{store}: it is too large");
        let chunk = format!("200000\r\n{}\r\n0\r\n\r\n", " ".repeat(0x20_0000));
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut client = gateway.client();
        client.send(chunked);
        // The gateway may refuse before everything is written.
        let _ = client.wire.write(chunk.as_bytes());
        assert_eq!(client.response(false).status, 413, "{store}: it becomes too large");
        // On a busy machine, the large bodies may need more time.
        gateway.reload_and_wait("body_timeout = \"100ms\"", &limited(store, FIVE, TWO));
        assert_eq!(gateway.client().call(head(10) + "{").status, 408, "{store}: it does not come");
        let compressed = "POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx";
        let refused = gateway.client().call(compressed);
        assert_eq!(refused.status, 415, "{store}: it is compressed");
        assert!(refused.headers.must("ratelimit").starts_with("\"address\";r=1;"), "{store}: {refused:?}");
        let mut gone = gateway.client();
        gone.send(head(10) + "{");
        until("it is charged", BOUND, || gateway.used("address", "127.0.0.1") == 5);
        drop(gone);
        assert_eq!(post(&mut gateway.client(), "{}"), 429, "{store}: the client that has gone was charged");
    });
}

#[test]
fn a_request_without_the_key_in_its_body_is_charged_where_that_is_required() {
    every_store(|store| {
        let gateway = Gateway::start(&limited(store, FIVE, &format!("{TWO}\nmissing = \"reject\"")));
        let client = &mut gateway.client();
        let slow = (1..=2).map(|used| post_slowly(&gateway, &mut gateway.client(), "{ }", used));
        assert_eq!(slow.collect::<Vec<_>>(), [400, 400], "{store}");
        assert_eq!([(); 4].map(|()| post(client, "{ }")), [400, 400, 400, 429], "{store}");
    });
}

#[test]
fn what_a_limit_refuses_that_needs_the_body_is_given_back() {
    every_store(|store| {
        let gateway = Gateway::start(&limited(store, FIVE, TWO));
        let client = &mut gateway.client();
        let body = r#"{"model": "a"}"#;
        assert_eq!([1, 2].map(|used| post_slowly(&gateway, client, body, used)), [200, 200], "{store}");
        for _ in 0..4 {
            assert_eq!(post_slowly(&gateway, client, body, 3), 429, "{store}");
            until("it is given back", BOUND, || gateway.used("address", "127.0.0.1") == 2);
            assert_eq!(post(client, body), 429, "{store}");
        }
        assert_eq!(decisions(&gateway, "address"), [Some(2.0), Some(0.0), Some(8.0)], "{store}");
        assert_eq!(decisions(&gateway, "model"), [Some(2.0), Some(8.0), Some(0.0)], "{store}");
        assert_eq!(post_slowly(&gateway, client, r#"{"model": "b"}"#, 3), 200, "{store}");
    });
}

#[test]
fn a_refusal_tells_what_is_left_after_what_was_given_back() {
    let gateway = Gateway::start(&limited("", FIVE, "rates = [\"1/d\"]\nheaders = \"none\""));
    let client = &mut gateway.client();
    let body = r#"{"model": "a"}"#;
    assert_eq!(post(client, body), 200);
    client.send(head(body.len()) + "{");
    until("it is charged", BOUND, || gateway.used("address", "127.0.0.1") == 2);
    client.send(&body[1..]);
    let refused = client.response(false);
    assert_eq!(refused.status, 429);
    assert!(refused.headers.must("ratelimit").starts_with("\"address\";r=4;"), "{refused:?}");
}

#[test]
fn a_limit_waits_for_the_body_only_if_its_pool_does() {
    let config = |pool: &str| {
        format!(
            "[limits.address]\nkey = \"client-ip\"\nrates = [\"1/d\"]\n\
             overflow = \"pool\"\n[limits.pool]\nkey = {pool:?}\nrates = [\"2/d\"]\n[limits.model]\n\
             key = \"json:/model\"\nrates = [\"9/d\"]\n[[routes]]\npath = \"/*\"\nlimits = [\"address\", \"model\"]\n\
             respond = {{ status = 200 }}\n"
        )
    };
    let body = r#"{"model": "a"}"#;
    let gateway = Gateway::start(&config("global"));
    let statuses = [(); 4].map(|()| {
        let mut client = gateway.client();
        client.send(head(body.len()) + "{");
        std::thread::yield_now();
        client.send(&body[1..]);
        client.response(false).status
    });
    assert_eq!(statuses, [200, 200, 200, 429], "the pool stands in before the body has come, too");
    assert_eq!(decisions(&gateway, "pool")[0], Some(2.0));
    let gateway = Gateway::start(&config("json:/model"));
    let client = &mut gateway.client();
    assert_eq!([(); 4].map(|()| post(client, body)), [200, 200, 200, 429]);
    assert_eq!(post(client, TWICE), 429, "the limit has no room, and only a body that can be used gets to the pool");
}

#[test]
fn bodies_that_do_not_come_use_up_the_limit_of_their_client() {
    let gateway = Gateway::start(&limited("", FIVE, TWO));
    let mut client = RawHttp2::connect(gateway.http, &[]);
    for stream in (1..16).step_by(2) {
        client.send(&[begun(stream), frame(kind::DATA, 0, stream, b"{")].concat()).unwrap();
    }
    until("all are decided", BOUND, || decisions(&gateway, "address")[1] == Some(3.0));
    assert_eq!(gateway.used("address", "127.0.0.1"), 5);
    client.send(&frame(kind::DATA, END_STREAM, 1, b"}")).unwrap();
    assert_eq!(client.reaction(1), Reaction::Status(200));
}

fn begun(stream: u32) -> Vec<u8> {
    let fields: [(&[u8], &[u8]); 4] =
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")];
    headers(stream, END_HEADERS, &fields)
}

#[test]
fn unfinished_bodies_take_a_bounded_part_of_the_memory() {
    let rest = limited("", "rates = [\"100000/d\"]", "rates = [\"100000/d\"]");
    let gateway = Gateway::with_server("workers = 1\ninspect_memory = \"8MiB\"", &rest);
    let mut other = Client::connect_from(IpAddr::from([127, 0, 0, 2]), gateway.http);
    other.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n".to_owned() + &" ".repeat(100_000));
    let before = gateway.memory("VmRSS");
    let grown = unfinished(gateway.http, || gateway.memory("VmRSS").saturating_sub(before));
    assert!(grown < 24 << 20, "it has grown by {grown} bytes");
    let given_up = gateway.metric("gateway_request_failures_total");
    println!("{given_up:?} of 200 bodies were given up, and the memory has grown by {grown} bytes");
    assert!(given_up >= Some(60.0), "{given_up:?}");
    other.send(" ");
    assert_eq!(other.response(false).status, 200, "a client with one body keeps it");
}

/// Sends parts of 200 bodies on one connection, waits until some are answered, and returns what is `measured` then.
fn unfinished(gateway: SocketAddr, measured: impl Fn() -> u64) -> u64 {
    let all = async {
        let stream = tokio::net::TcpStream::connect(gateway).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let (mut bodies, mut answers) = (Vec::new(), JoinSet::new());
        for _ in 0..200 {
            client = client.ready().await.unwrap();
            let request = Request::post("http://a/").body(()).unwrap();
            let (response, mut body) = client.send_request(request, false).unwrap();
            body.send_data(vec![b' '; 64_000].into(), false).unwrap();
            bodies.push(body);
            answers.spawn(async { response.await.unwrap().status().as_u16() });
        }
        // At least this many must be answered, if each body takes no more memory than was sent.
        for _ in 0..60 {
            assert_eq!(answers.join_next().await.unwrap().unwrap(), 503);
        }
        measured()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(BOUND, all).await }).unwrap()
}

#[test]
fn bodies_that_do_not_come_take_no_place_of_all_clients() {
    let limits = "[limits.all]\nkey = \"global\"\nmax_in_flight = 2\n[limits.address]\nkey = \"client-ip\"\nrates = [\"5/d\"]\n\
                  [limits.model]\nkey = \"json:/model\"\nrates = [\"9/d\"]\n";
    let gateway = Gateway::start(&format!(
        "{limits}[[routes]]\npath = \"/*\"\nlimits = [\"all\", \"address\", \"model\"]\nrespond = {{ status = 200 }}\n"
    ));
    let mut unfinished: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    unfinished.iter_mut().for_each(|client| client.send(head(2) + "{"));
    until("they are charged", BOUND, || gateway.used("address", "127.0.0.1") == 3);
    assert_eq!(post(&mut gateway.client(), r#"{"model": "a"}"#), 200);
    for (at, client) in unfinished.iter_mut().enumerate() {
        client.send("}");
        assert_eq!(client.response(false).status, 200, "{at}");
    }
    assert_eq!([(); 2].map(|()| post(&mut gateway.client(), TWICE)), [400, 429]);
}
