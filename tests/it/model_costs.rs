//! Limits in tokens of language models: the reservation of a request, and its final cost, whatever happens to its response.

use std::time::Duration;

use serde_json::{Value, json};
use socket2::SockRef;

use crate::harness::{
    Answer, Client, Event, Framing, Gateway, ModelServer, Response, Software, Used, every_store, until,
    with_each_server,
};

const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const CHAT: &str = "/v1/chat/completions";

pub(crate) fn limited(server: &ModelServer, tokens: u64, cost: &str, more: &str) -> String {
    format!(
        "[limits.tokens]\nkey = \"header:authorization\"\nrates = [\"{tokens}/d\"]\n\
         cost = {{ tokens = \"auto\", {cost} }}\n{more}\n{}limits = [\"tokens\"]\n",
        server.up.everything()
    )
}

fn send(client: &mut Client, path: &str, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: models.example\r\nAuthorization: key\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
}

pub(crate) fn call(gateway: &Gateway, path: &str, body: &Value) -> Response {
    let mut client = gateway.client();
    send(&mut client, path, body);
    client.response(false)
}

pub(crate) fn used(gateway: &Gateway) -> u64 {
    gateway.used("tokens", "key")
}

fn pool(tokens: u64) -> String {
    format!("overflow = \"pool\"\n[limits.pool]\nkey = \"header:authorization\"\nrates = [\"{tokens}/d\"]")
}

/// Reads a stream until two pieces of [`text`] have come, and resets the connection. After a plain close the gateway could
/// take it for half-closed, and wait for the rest.
fn hang_up_after_two(mut client: Client) {
    assert_eq!(client.try_head().unwrap().0.status, 200);
    let (mut seen, mut buffer) = (Vec::new(), [0]);
    while seen.windows(41).filter(|window| window.ends_with(b"\"") && window.starts_with(b"x")).count() < 2 {
        client.wire.read_exact(&mut buffer).unwrap();
        seen.push(buffer[0]);
    }
    SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
}

/// 47 bytes of text and of names, and a number: 13 tokens of input.
fn chat(max_tokens: u64, stream: bool) -> Value {
    json!({ "messages": [{ "role": "user", "content": "12345678" }], "max_tokens": max_tokens, "stream": stream })
}

#[test]
fn the_responses_of_all_providers_cost_what_they_say() {
    every_store(|store| {
        let usage = Used { input: 70, cached: 20, output: 5 };
        let server = ModelServer::start(Answer { usage: Some(usage), ..Answer::default() });
        let weights = "input = 1, cached = 0.5, output = 10";
        let gateway = Gateway::start(&format!("{store}{}", limited(&server, 1_000_000, weights, "")));
        let mut expected = 0;
        let gemini = "/v1beta/models/gemini:generateContent";
        for path in [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", gemini] {
            for stream in [false, true] {
                let path = if stream {
                    path.replace(":generateContent", ":streamGenerateContent?alt=sse")
                } else {
                    path.into()
                };
                // A stream reports its usage only to clients that ask; for chats, the gateway asks.
                let body = json!({ "model": "m", "stream": stream, "prompt": "a",
                    "stream_options": if path == CHAT { Value::Null } else { json!({ "include_usage": true }) } });
                let mut body = body;
                if path == CHAT || path == "/v1/messages" {
                    body["messages"] = json!([{ "role": "user", "content": "a" }]);
                }
                let response = call(&gateway, &path, &body);
                assert_eq!(response.status, 200, "{path} {stream}: {response:?}");
                expected += 70 + 10 + 50;
                until("it is settled", PATIENCE, || used(&gateway) == expected);
            }
        }
        let embeddings = call(&gateway, "/v1/embeddings", &json!({ "model": "m", "input": "a" }));
        assert_eq!(embeddings.status, 200);
        until("it is settled", PATIENCE, || used(&gateway) == expected + 90);
    });
}

#[test]
fn requests_side_by_side_pass_together_no_more_than_one_after_the_other() {
    every_store(|store| {
        let server = ModelServer::start(Answer {
            usage: Some(Used { input: 3, cached: 0, output: 7 }),
            held_after: Some(0),
            ..Answer::default()
        });
        let gateway = Gateway::start(&format!("{store}{}", limited(&server, 100, "", "")));
        // Each reserves 33.
        let mut clients: Vec<_> = (0..8).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| send(client, CHAT, &chat(20, false)));
        (0..3).for_each(|_| server.wait(Event::Held));
        until("they are refused", PATIENCE, || {
            gateway.metric("gateway_limit_decisions_total{limit=\"tokens\",decision=\"rejected\"}") == Some(5.0)
        });
        (0..3).for_each(|_| server.go_on());
        let mut statuses: Vec<_> = clients.iter_mut().map(|client| client.response(false).status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429, 429], "{store}");
        until("they are settled", PATIENCE, || used(&gateway) == 30);
        assert_eq!(server.received().len(), 3);
    });
}

#[test]
fn a_failed_request_costs_nothing() {
    every_store(|store| {
        let server = ModelServer::start(Answer { status: 400, ..Answer::default() });
        let gateway = Gateway::start(&format!("{store}{}", limited(&server, 100, "", "")));
        for status in [400, 429, 500, 503] {
            server.answer(Answer { status, ..Answer::default() });
            assert_eq!(call(&gateway, CHAT, &chat(30, false)).status, status);
            until("it is given back", PATIENCE, || used(&gateway) == 0);
        }
        server.answer(Answer::default());
        assert_eq!(call(&gateway, CHAT, &chat(30, false)).status, 200);
        until("what succeeds is charged", PATIENCE, || used(&gateway) == 13);
    });
}

#[test]
fn a_response_without_usage_costs_its_size_if_the_limit_says_so() {
    every_store(|store| {
        let server = ModelServer::start(Answer::text(3));
        let gateway = Gateway::start(&format!("{store}{}", limited(&server, 1000, "without_usage = \"size\"", "")));
        assert_eq!(call(&gateway, CHAT, &chat(100, true)).status, 200);
        until("it is settled", PATIENCE, || used(&gateway) == 43);
        assert_eq!(call(&gateway, CHAT, &chat(100, false)).status, 200);
        until("it is settled", PATIENCE, || used(&gateway) == 86);
        server.answer(Answer { held_after: Some(1), broken_after: Some(2), ..Answer::text(3) });
        let mut client = gateway.client();
        send(&mut client, CHAT, &chat(100, true));
        assert_eq!(client.try_head().unwrap().0.status, 200);
        server.wait(Event::Held);
        server.go_on();
        client.wire.rest();
        until("what has passed is charged", PATIENCE, || used(&gateway) == 86 + 33);
    });
}

#[test]
fn a_client_that_hangs_up_pays_for_what_has_passed() {
    every_store(|store| {
        let server = ModelServer::start(Answer { held_after: Some(2), ..Answer::text(3) });
        let gateway = Gateway::start(&format!("{store}{}", limited(&server, 1000, "without_usage = \"size\"", "")));
        let mut client = gateway.client();
        send(&mut client, CHAT, &chat(500, true));
        server.wait(Event::Held);
        assert_eq!(used(&gateway), 513);
        hang_up_after_two(client);
        server.wait(Event::Gone);
        until("it is settled", PATIENCE, || used(&gateway) == 33);
    });
}

#[test]
fn streams_are_cut_exactly_where_there_is_no_room() {
    every_store(|store| {
        let server = ModelServer::start(Answer { held_after: Some(0), ..Answer::text(30) });
        let gateway = Gateway::start(&format!("{store}{}", limited(&server, 200, "on_exhausted = \"cut\"", "")));
        let mut clients: Vec<_> = (0..4).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| send(client, CHAT, &chat(5, true)));
        // All of them have their reservations before any needs more.
        (0..4).for_each(|_| server.wait(Event::Held));
        (0..4).for_each(|_| server.go_on());
        let mut passed = 0;
        for client in &mut clients {
            let response = client.response(false);
            let text = response.text();
            assert!(text.ends_with("\n\n") && text.contains("\"code\":\"rate_limit_exceeded\""), "{text}");
            assert!(!text.contains("[DONE]"), "{text}");
            // The first event may have found no room: then what was reserved stays charged.
            passed += (13 + 10 * text.matches(&"x".repeat(40)).count() as u64).max(18);
        }
        until("they are settled", PATIENCE, || used(&gateway) == passed);
        // Each of them may have found less room than its next event needs.
        assert!((200 - 40..=200).contains(&passed), "{passed}, {store}");
        let line = gateway.wait_log("the reason", |line| line["reason"] == "tokens_exhausted");
        assert_eq!((&line["outcome"], &line["status"]), (&json!("limited"), &json!(200)), "{line}");
    });
}

#[test]
fn a_stream_is_settled_where_it_was_charged() {
    every_store(|store| {
        let usage = Some(Used { input: 3, cached: 0, output: 7 });
        let server = ModelServer::start(Answer { usage, held_after: Some(2), ..Answer::text(3) });
        let size = "without_usage = \"size\"";
        let gateway = Gateway::start(&format!("{store}{}", limited(&server, 600, size, &pool(1000))));
        let mut clients = [(); 2].map(|()| gateway.client());
        for client in &mut clients {
            send(client, CHAT, &chat(500, true));
            server.wait(Event::Held);
        }
        let counts = || ["tokens", "pool"].map(|limit| gateway.used(limit, "key"));
        assert_eq!(counts(), [513, 513], "{store}");
        assert_eq!(call(&gateway, CHAT, &chat(500, true)).status, 429, "neither has room, {store}");
        let [mut first, second] = clients;
        hang_up_after_two(second);
        server.wait(Event::Gone);
        until("the pool is settled", PATIENCE, || counts() == [513, 33]);
        server.go_on();
        assert_eq!(first.response(false).status, 200);
        until("the limit is settled", PATIENCE, || counts() == [10, 33]);
        // Given back tokens are there for the next request, which does not use the pool.
        send(&mut first, CHAT, &chat(500, true));
        server.wait(Event::Held);
        assert_eq!(counts(), [523, 33], "{store}");
        server.go_on();
        assert_eq!(first.response(false).status, 200);
    });
}

#[test]
fn a_stream_asks_for_more_where_it_was_charged() {
    every_store(|store| {
        let server = ModelServer::start(Answer::text(30));
        let gateway =
            Gateway::start(&format!("{store}{}", limited(&server, 200, "on_exhausted = \"cut\"", &pool(150))));
        let counts = || ["tokens", "pool"].map(|limit| gateway.used(limit, "key"));
        let cut = || {
            let response = call(&gateway, CHAT, &chat(50, true));
            assert!(response.text().contains("\"code\":\"rate_limit_exceeded\""), "{}", response.text());
            13 + 10 * response.text().matches(&"x".repeat(40)).count() as u64
        };
        let first = cut();
        assert!((190..=200).contains(&first), "{first}, {store}");
        until("the pool was not asked", PATIENCE, || counts() == [first, 0]);
        // The limit has no room for its reservation.
        let second = cut();
        assert!((140..=150).contains(&second), "{second}, {store}");
        until("the limit was not asked", PATIENCE, || counts() == [first, second]);
    });
}

#[test]
fn a_cut_stream_ends_in_the_form_of_its_provider() {
    let server = ModelServer::start(Answer::text(30));
    let gateway = Gateway::start(&limited(&server, 100, "on_exhausted = \"cut\", max_output = 5", ""));
    let body = json!({ "messages": [], "stream": true, "max_tokens": 5 });
    let anthropic = call(&gateway, "/v1/messages", &body);
    let last = anthropic.text().trim_end().rsplit("\n\n").next().unwrap().to_owned();
    assert!(last.starts_with("event: error\ndata: {") && last.contains("\"type\":\"rate_limit_error\""), "{last}");
    let gateway = Gateway::start(&limited(&server, 100, "on_exhausted = \"cut\", max_output = 5", ""));
    let gemini = call(&gateway, "/v1beta/models/gemini:streamGenerateContent?alt=sse", &json!({ "contents": [] }));
    assert!(gemini.text().ends_with("\"status\":\"RESOURCE_EXHAUSTED\"}}\r\n\r\n"), "{}", gemini.text());
    let gateway = Gateway::start(&limited(&server, 100, "on_exhausted = \"cut\", max_output = 5", ""));
    let responses = call(&gateway, "/v1/responses", &json!({ "input": "a", "stream": true, "max_output_tokens": 5 }));
    let (before, last) = responses.text().trim_end().rsplit_once("\n\n").unwrap();
    let error: Value = serde_json::from_str(last.strip_prefix("event: error\ndata: ").unwrap()).unwrap();
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("rate_limit_exceeded")), "{error}");
    // Its number follows those of the events that passed.
    let events = before.split("\n\n").count() as u64;
    assert!(error["sequence_number"].as_u64().unwrap() >= events, "{}", responses.text());
}

#[test]
fn a_client_cannot_forbid_to_ask_for_a_response_that_can_be_read() {
    let server = ModelServer::start(Answer::default());
    let gateway = Gateway::start(&limited(&server, 10_000, "", ""));
    for connection in ["accept-encoding", "close, Accept-Encoding", "x-debug\r\nConnection: ACCEPT-ENCODING"] {
        let body = chat(9, false).to_string();
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: models.example\r\nAuthorization: key\r\nX-Debug: 1\r\n\
             Accept-Encoding: br\r\nConnection: {connection}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(gateway.client().call(request).status, 200, "{connection}");
        let last = server.received().pop().unwrap();
        assert_eq!(last.headers.must("accept-encoding"), "identity", "{connection}");
        assert_eq!(last.headers.get("x-debug").is_none(), connection.contains("x-debug"), "{connection}");
    }
}

#[test]
fn the_gateway_asks_for_the_usage_of_a_stream() {
    let server = ModelServer::start(Answer::default());
    let gateway = Gateway::start(&limited(&server, 10_000, "", ""));
    let asked = |body: Value| {
        let response = call(&gateway, CHAT, &body);
        let last = server.received().pop().unwrap();
        assert_eq!(last.headers.must("accept-encoding"), "identity");
        assert_eq!(last.headers.must("content-length"), last.body.len().to_string());
        (serde_json::from_slice::<Value>(&last.body).unwrap(), response.text().to_owned())
    };
    let with = |options: Value| {
        let mut body = chat(9, true);
        body["stream_options"] = options;
        body
    };
    let wanted = json!({ "include_usage": true });
    let hidden = |text: &str| {
        !text.contains("prompt_tokens") && text.contains("\"world!\"") && text.ends_with("data: [DONE]\n\n")
    };
    for (body, becomes, is_hidden) in [
        (chat(9, true), with(wanted.clone()), true),
        (with(Value::Null), with(wanted.clone()), true),
        (with(json!({})), with(wanted.clone()), true),
        (with(json!({ "include_usage": false })), with(wanted.clone()), true),
        (with(json!({ "other": [1, 2] })), with(json!({ "other": [1, 2], "include_usage": true })), true),
        (with(wanted.clone()), with(wanted), false),
    ] {
        let (sent, text) = asked(body);
        assert_eq!((sent, hidden(&text)), (becomes, is_hidden), "{text}");
    }
    let (sent, _) = asked(chat(9, false));
    assert_eq!(sent, chat(9, false), "only a stream is asked");
    // A header does not select another API, but the path does.
    let body = chat(9, true).to_string();
    for (path, is_asked) in [(CHAT, true), ("/v1/messages", false)] {
        let response = gateway.client().call(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: other\r\nAnthropic-Version: 2023-06-01\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(response.status, 200);
        let sent: Value = serde_json::from_slice(&server.received().pop().unwrap().body).unwrap();
        assert_eq!(sent["stream_options"]["include_usage"] == true, is_asked, "{path}");
    }
    until("all are settled", PATIENCE, || used(&gateway) == 7 * 13);
}

#[test]
fn models_have_their_own_weights_and_keys_may_be_in_the_body() {
    let server =
        ModelServer::start(Answer { usage: Some(Used { input: 10, cached: 0, output: 10 }), ..Answer::default() });
    let config = format!(
        "[limits.tokens]\nkey = [\"header:authorization\", \"json:/model\"]\nrates = [\"1000/d\"]\n\
         cost = {{ tokens = \"auto\", max_output = 1 }}\n[[limits.tokens.models]]\nmatch = \"big*\"\noutput = 20\n\
         {}limits = [\"tokens\"]\n",
        server.up.everything()
    );
    let gateway = Gateway::start(&config);
    let of = |model: &str| {
        let shown = gateway.admin(&format!("/api/limits/tokens/keys/key%7C{model}")).json();
        shown["rates"][0]["used"].as_u64().unwrap()
    };
    for model in ["big-1", "small", "BIG-2"] {
        assert_eq!(call(&gateway, CHAT, &json!({ "model": model, "messages": [] })).status, 200);
    }
    until("all are settled", PATIENCE, || ["big-1", "small", "BIG-2"].map(of) == [210, 20, 210]);
    let ambiguous = r#"{"model":"small","messages":[],"mod\u0065l":"big-1"}"#;
    for (fields, body, status) in [
        ("", ambiguous, 400),
        ("", "{\"model\":\"small\",\"MODEL\":\"big\"}", 400),
        ("Content-Encoding: gzip\r\n", "{}", 415),
        ("", "\0{\0}", 415),
        ("", "no JSON", 200),
    ] {
        let length = body.len();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: key\r\n{fields}Content-Length: {length}\r\n\r\n"
        );
        let response = gateway.client().call(format!("{head}{body}"));
        assert_eq!(response.status, status, "{fields}{body}");
    }
}

#[test]
fn a_body_is_read_within_its_bounds() {
    let server = ModelServer::start(Answer::default());
    let config = limited(&server, 1000, "", "");
    let gateway = Gateway::with_server("inspect_body = \"1KiB\"\nbody_timeout = \"1s\"", &config);
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: key\r\n");
    let large = gateway.client().call(format!("{head}Content-Length: 1025\r\n\r\n"));
    assert_eq!(large.status, 413);
    let chunk = format!("400\r\n{}\r\n", "a".repeat(1024));
    let large = gateway.client().call(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}1\r\nb\r\n0\r\n\r\n"));
    assert_eq!(large.status, 413);
    let whole = gateway.client().call(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"));
    assert_eq!(whole.status, 200, "cut into pieces, it is read as a whole");
    until("it is settled", PATIENCE, || used(&gateway) == 13);
    let unfinished = gateway.client().call(format!("{head}Content-Length: 100\r\n\r\n{{"));
    assert_eq!((unfinished.status, unfinished.headers.must("connection")), (408, "close"));
    assert_eq!((used(&gateway), server.received().len()), (13, 1), "none of them was charged or sent");
    for reason in ["inspect_body", "body_timeout"] {
        gateway.wait_log("the reason", |line| line["reason"] == reason);
    }
}

#[test]
fn who_is_refused_without_its_body_is_not_waited_for() {
    let server = ModelServer::start(Answer::default());
    let config = format!(
        "[limits.requests]\nkey = \"client-ip\"\nrates = [\"1/d\"]\n\
         [limits.tokens]\nkey = \"header:authorization\"\nrates = [\"1000/d\"]\ncost = {{ tokens = \"auto\" }}\n\
         {}limits = [\"requests\", \"tokens\"]\n",
        server.up.everything()
    );
    let gateway = Gateway::start(&config);
    assert_eq!(call(&gateway, CHAT, &chat(9, false)).status, 200);
    until("it is settled", PATIENCE, || used(&gateway) == 13);
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: key\r\nContent-Length: 100\r\n\r\n");
    assert_eq!(gateway.client().call(head).status, 429);
    assert_eq!(used(&gateway), 13);
}

#[test]
fn streams_pass_as_they_come() {
    let server = ModelServer::start(Answer { held_after: Some(1), ..Answer::default() });
    for cost in ["", "on_exhausted = \"cut\""] {
        let gateway = Gateway::start(&limited(&server, 10_000, cost, ""));
        let mut client = gateway.client();
        send(&mut client, CHAT, &chat(9, true));
        server.wait(Event::Held);
        let (head, framing) = client.try_head().unwrap();
        assert_eq!((head.status, framing), (200, Framing::Chunked));
        // The first piece has come before any other was sent.
        let mut seen = Vec::new();
        while !(seen.ends_with(b"\n\n") && String::from_utf8_lossy(&seen).contains("\"Hello\"")) {
            let mut buffer = [0];
            client.wire.read_exact(&mut buffer).unwrap();
            seen.push(buffer[0]);
        }
        server.go_on();
        server.wait(Event::Sent);
    }
}

#[test]
fn a_reload_or_a_reset_during_a_stream_loses_nothing() {
    every_store(|store| {
        let answer =
            Answer { usage: Some(Used { input: 3, cached: 0, output: 7 }), held_after: Some(1), ..Answer::default() };
        let server = ModelServer::start(answer);
        let config = |tokens| format!("{store}{}", limited(&server, tokens, "", ""));
        let gateway = Gateway::start(&config(1000));
        let mut client = gateway.client();
        send(&mut client, CHAT, &chat(500, true));
        server.wait(Event::Held);
        assert_eq!(used(&gateway), 513);
        gateway.reload_and_wait("", &config(2000));
        assert_eq!(used(&gateway), 513);
        server.go_on();
        assert_eq!(client.response(false).status, 200);
        until("it is settled", PATIENCE, || used(&gateway) == 10);
        send(&mut client, CHAT, &chat(500, true));
        server.wait(Event::Held);
        assert_eq!(used(&gateway), 523);
        let admin = &mut Client::connect(gateway.admin);
        let host = gateway.admin;
        let reset = admin.call(format!("DELETE /api/limits/tokens/keys/key HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(reset.status < 300, "{reset:?}");
        assert_eq!(used(&gateway), 0);
        let mut other = gateway.client();
        send(&mut other, CHAT, &chat(40, true));
        server.wait(Event::Held);
        (0..2).for_each(|_| server.go_on());
        assert_eq!([&mut client, &mut other].map(|client| client.response(false).status), [200, 200]);
        until("what was reserved before the reset takes nothing from the others", PATIENCE, || used(&gateway) == 10);
    });
}

fn two_gateways_cut_within_what_they_have_together(software: Software) {
    let shared = software.start();
    let server = ModelServer::start(Answer { held_after: Some(0), ..Answer::text(30) });
    let store = shared.store_with("strict = true\ntimeout = \"5s\"");
    let config = format!("{store}{}", limited(&server, 300, "on_exhausted = \"cut\"", ""));
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    let mut clients: Vec<_> = (0..6).map(|place| gateways[place % 2].client()).collect();
    clients.iter_mut().for_each(|client| send(client, CHAT, &chat(5, true)));
    (0..6).for_each(|_| server.wait(Event::Held));
    (0..6).for_each(|_| server.go_on());
    let passed: u64 = clients
        .iter_mut()
        .map(|client| (13 + 10 * client.response(false).text().matches(&"x".repeat(40)).count() as u64).max(18))
        .sum();
    assert!((300 - 60..=300).contains(&passed), "{passed}");
    until("all is settled", PATIENCE, || gateways.iter().all(|gateway| used(gateway) == passed));
}

with_each_server! {
    two_gateways_cut_within_what_they_have_together
}
