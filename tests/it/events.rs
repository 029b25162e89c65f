//! The stream of the dashboard's numbers: its form, its bound, and that nobody delays it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Client, Gateway, Software, limited, until};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

pub(crate) struct Stream {
    client: Client,
    text: String,
}

impl Stream {
    pub(crate) fn open(gateway: &Gateway) -> Self {
        let mut client = Client::connect(gateway.admin);
        client.send(format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin));
        let (first, headers) = client.wire.head().unwrap().unwrap();
        assert_eq!(first, "HTTP/1.1 200 OK");
        assert_eq!(headers.must("content-type"), "text/event-stream");
        assert_eq!(headers.must("cache-control"), "no-store");
        assert_eq!((headers.get("connection"), headers.get("transfer-encoding")), (Some("close"), Some("chunked")));
        Self { client, text: String::new() }
    }

    /// The name and data of the next event, without comments and times. `None` at the end of the stream.
    fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                if let (Some(name), Some(data)) = (field("event"), field("data")) {
                    return Some((name.to_owned(), serde_json::from_str(data).unwrap()));
                }
                assert_eq!(event, "retry: 1000");
                continue;
            }
            // A chunk: its size, its bytes, an empty line.
            let size = self.client.wire.first_line().ok()??;
            let mut bytes = vec![0; usize::from_str_radix(size.trim(), 16).unwrap() + 2];
            self.client.wire.read_exact(&mut bytes).ok()?;
            self.text += std::str::from_utf8(&bytes[..bytes.len() - 2]).unwrap();
        }
    }

    #[track_caller]
    pub(crate) fn wait(&mut self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + Duration::from_secs(15);
        loop {
            let (found, value) = self.next().expect("the stream goes on");
            if found == name && wanted(&value) {
                return value;
            }
            assert!(Instant::now() < end, "no such {name}: the last one is {value:#}");
        }
    }
}

#[test]
fn numbers_follow_what_happens() {
    let gateway = Gateway::start(&limited("header:x-api-key", "2/d", ""));
    let mut stream = Stream::open(&gateway);
    let (name, history) = stream.next().unwrap();
    assert_eq!(name, "history");
    assert_eq!(history["refused_by_minute"]["l"].as_array().unwrap().len(), 60);
    let (name, first) = stream.next().unwrap();
    assert_eq!(
        (name.as_str(), &first["state"], &first["requests"]["limited"]),
        ("numbers", &json!("ready"), &json!(0))
    );
    let mut client = gateway.client();
    (0..5).for_each(|_| _ = client.get_with("/", "x-api-key: k\r\n"));
    let numbers = stream.wait("numbers", |numbers| numbers["requests"]["limited"] == 3);
    assert_eq!(numbers["requests"]["responded"], 2);
    assert_eq!(numbers["limits"][0]["name"], "l");
    assert_eq!(numbers["limits"][0]["decisions"]["rejected"], 3);
    assert_eq!((&numbers["store"]["type"], &numbers["store"]["keys"]), (&json!("memory"), &json!(1)));
    assert!(numbers["time_ms"].as_u64() > first["time_ms"].as_u64());
    assert_eq!(numbers["connections"]["open"], 1);

    gateway.write_config("this is no toml");
    let reload = format!("POST /api/reload HTTP/1.1\r\nHost: {0}\r\nContent-Length: 0\r\n\r\n", gateway.admin);
    assert_eq!(Client::connect(gateway.admin).call(reload).status, 422);
    let numbers = stream.wait("numbers", |numbers| numbers["reloads"]["refused"] == 1);
    let last = &numbers["reloads"]["recent"][0];
    assert_eq!((&last["result"], numbers["reloads"]["recent"].as_array().unwrap().len()), (&json!("refused"), 1));
    assert!(last["problem"]["place"].as_str().unwrap().ends_with("gateway.toml:11:6"), "{last}");

    // Another stream has the history from before it.
    let mut later = Stream::open(&gateway);
    let history = later.wait("history", |_| true);
    let minutes = history["refused_by_minute"]["l"].as_array().unwrap();
    assert_eq!(minutes.iter().filter_map(Value::as_u64).sum::<u64>(), 3);
    assert_eq!(history["requests"]["limited"].as_array().unwrap().last().unwrap(), &json!(3));
}

#[test]
fn totals_do_not_shrink_when_a_reload_removes_a_route() {
    let gateway = Gateway::start(FIXED);
    let mut client = gateway.client();
    (0..5).for_each(|_| _ = client.get("/"));
    let mut stream = Stream::open(&gateway);
    stream.wait("numbers", |numbers| numbers["requests"]["responded"] == 5);
    gateway.reload("", "[[routes]]\npath = \"/other\"\nrespond = { status = 200 }\n");
    gateway.wait_message("reloaded");
    assert_eq!(client.get("/other").status, 200);
    stream.wait("numbers", |numbers| numbers["requests"]["responded"] == 6);
}

#[test]
fn the_state_of_memcached_is_among_the_numbers() {
    let mut memcached = Software::Memcached.start();
    let gateway = Gateway::start(&(memcached.store() + &limited("header:x-api-key", "5/d", "")));
    assert_eq!(gateway.client().get_with("/", "x-api-key: k\r\n").status, 200);
    let mut stream = Stream::open(&gateway);
    let store = stream.wait("numbers", |numbers| numbers["store"]["round_trips"].as_u64() > Some(0))["store"].clone();
    assert_eq!((&store["type"], &store["servers"][0]["up"]), (&json!("memcached"), &json!(true)));
    let durations = store["round_trip_seconds"]["counts"].as_array().unwrap();
    assert!(durations.iter().filter_map(Value::as_u64).sum::<u64>() > 0, "{store}");
    memcached.kill();
    stream.wait("numbers", |numbers| numbers["store"]["servers"][0]["up"] == false);
}

#[test]
fn there_are_eight_streams_and_no_more_and_probes_pass() {
    let gateway = Gateway::start(FIXED);
    let mut streams: Vec<_> = (0..8).map(|_| Stream::open(&gateway)).collect();
    let refused = gateway.admin("/api/events");
    assert_eq!(refused.status, 503);
    assert!(refused.json()["detail"].as_str().unwrap().contains("8 event streams are open"), "{}", refused.text());
    // Other connections neither close streams nor take their places.
    let silent: Vec<_> = (0..100).map(|_| Client::connect(gateway.admin)).collect();
    assert_eq!(gateway.admin("/healthz").status, 200);
    for stream in &mut streams {
        (0..3).for_each(|_| _ = stream.wait("numbers", |_| true));
    }
    drop(silent);
    streams.pop();
    until("the place is free again", Duration::from_secs(10), || {
        gateway.admin("/metrics").status == 200 && {
            let mut client = Client::connect(gateway.admin);
            client.send(format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin));
            client.wire.head().unwrap().unwrap().0.contains("200")
        }
    });
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_delays_nobody() {
    // Many limits fill the buffers of a connection soon.
    let limits = (0..1000).map(|number| {
        let name = format!("l{number}-{}", "x".repeat(55));
        (format!("[limits.{name}]\nkey = \"client-ip\"\nrates = [\"1/s\"]\n"), format!("{name:?}"))
    });
    let (limits, names): (Vec<_>, Vec<_>) = limits.unzip();
    let routes = names.chunks(8).enumerate().map(|(number, names)| {
        format!("[[routes]]\npath = \"/{number}\"\nlimits = [{}]\nrespond = {{ status = 200 }}\n", names.join(", "))
    });
    let gateway = Gateway::start(&(limits.concat() + &routes.collect::<String>()));
    let open = |client: &mut Client| {
        client.send(format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin));
    };
    let mut others: Vec<_> = (0..7).map(|_| Client::connect(gateway.admin)).collect();
    others.iter_mut().for_each(open);
    let mut reading = Stream::open(&gateway);
    assert_eq!(gateway.admin("/api/events").status, 503);
    let before = gateway.memory("VmRSS");
    let mut longest = Duration::ZERO;
    let end = Instant::now() + Duration::from_secs(90);
    loop {
        let begun = Instant::now();
        reading.wait("numbers", |_| true);
        longest = longest.max(begun.elapsed());
        let mut client = Client::connect(gateway.admin);
        client.send(format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin));
        if client.wire.head().unwrap().unwrap().0.contains("200") {
            break;
        }
        assert!(Instant::now() < end, "nobody was cut off");
    }
    assert!(longest < Duration::from_secs(9), "an event came after {longest:?}");
    let grown = gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} more bytes");
}

#[test]
fn the_token_and_the_host_are_checked() {
    let gateway = Gateway::with_admin("token = \"secret\"", FIXED);
    let status = |path: &str, headers: &str| {
        let mut client = Client::connect(gateway.admin);
        client.send(format!("GET {path} HTTP/1.1\r\n{headers}\r\n"));
        client.wire.head().unwrap().unwrap().0
    };
    assert_eq!(status("/api/events", "Host: localhost\r\n"), "HTTP/1.1 401 Unauthorized");
    assert_eq!(status("/api/events", "Host: localhost\r\nAuthorization: Bearer secret\r\n"), "HTTP/1.1 200 OK");
    assert_eq!(
        status("/api/events", "Host: evil.example\r\nAuthorization: Bearer secret\r\n"),
        "HTTP/1.1 403 Forbidden"
    );
    // A foreign page could not read a stream, but would take a place.
    for (header, expected) in
        [("Sec-Fetch-Site: same-origin", "200 OK"), ("Sec-Fetch-Site: cross-site", "403 Forbidden")]
    {
        let headers = format!("Host: localhost\r\nAuthorization: Bearer secret\r\n{header}\r\n");
        assert_eq!(status("/api/events", &headers), format!("HTTP/1.1 {expected}"));
    }
    // The page holds no secrets, and a browser cannot send a token when it loads a page.
    assert_eq!(status("/", "Host: localhost\r\n"), "HTTP/1.1 200 OK");
    assert_eq!(status("/", "Host: evil.example\r\n"), "HTTP/1.1 403 Forbidden");
}

#[test]
fn a_stream_ends_when_a_reload_changes_who_may_have_it() {
    let gateway = Gateway::start(FIXED);
    let mut stream = Stream::open(&gateway);
    assert!(stream.next().is_some());
    // Another reload does not end the stream.
    gateway.reload_admin("", &format!("{FIXED}[[routes]]\npath = \"/more\"\nrespond = {{ status = 200 }}\n"));
    stream.wait("numbers", |numbers| numbers["reloads"]["ok"] == 1);
    gateway.reload_admin("token = \"new\"", FIXED);
    let end = Instant::now() + Duration::from_secs(15);
    while stream.next().is_some() {
        assert!(Instant::now() < end, "it goes on");
    }
}
