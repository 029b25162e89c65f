//! What clients of language models get: the responses of their providers, and refusals in the same forms. The providers' own
//! libraries read both; `scripts/test --all` installs them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use socket2::SockRef;

use crate::harness::{Answer, Client, Event, Framing, Gateway, ModelServer, Used, until};

/// The interpreter, the program, and the provider of each library.
const LIBRARIES: [Library; 4] = [
    ("python3", "provider_clients.py", "openai"),
    ("node", "provider_clients.js", "openai"),
    ("python3", "provider_clients.py", "anthropic"),
    ("node", "provider_clients.js", "anthropic"),
];

type Library = (&'static str, &'static str, &'static str);

/// The results of calls of these kinds, and the exchanged messages. A refused call is repeated at most `retries` times.
fn calls(library: Library, gateway: &Gateway, retries: u32, kinds: &[&str]) -> [Vec<Value>; 2] {
    calls_with("secret", library, gateway, retries, kinds)
}

fn calls_with(
    key: &str,
    (interpreter, program, provider): Library,
    gateway: &Gateway,
    retries: u32,
    kinds: &[&str],
) -> [Vec<Value>; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(interpreter);
    command.env("PYTHONPATH", root.join("target").join(provider)).env("API_KEY", key);
    command.env("NODE_PATH", root.join("target/provider-clients/node_modules"));
    command.arg(root.join("tests/it").join(program)).args([provider, &gateway.http.to_string(), &retries.to_string()]);
    let output = command.args(kinds).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    ["results", "exchanges"].map(|name| printed[name].as_array().unwrap().clone())
}

fn limited(server: &ModelServer, provider: &str, rate: &str, more: &str) -> String {
    let limit = format!("[limits.l]\nkey = \"global\"\nrates = [{rate:?}]\nheaders = {provider:?}\n{more}\n");
    format!("{limit}{}limits = [\"l\"]\n", server.up.everything())
}

fn post(client: &mut Client, path: &str, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    client.send(format!("POST {path} HTTP/1.1\r\nHost: models.example\r\nContent-Length: {length}\r\n\r\n{body}"));
}

#[test]
fn responses_of_all_providers_pass() {
    let answer = || Answer { usage: Some(Used { input: 7, cached: 5, output: 3 }), ..Answer::default() };
    let server = ModelServer::start(answer());
    let gateway = Gateway::start(&server.up.everything());
    let client = &mut gateway.client();
    let mut call = |path: &str, body: &Value| {
        post(client, path, body);
        let response = client.response(false);
        assert_eq!(response.status, 200, "{response:?}");
        response
    };
    let gemini = "/v1beta/models/gemini:generateContent";
    for (path, text, input) in [
        ("/v1/chat/completions", "/choices/0/message/content", ("/usage/prompt_tokens", 12)),
        ("/v1/completions", "/choices/0/text", ("/usage/prompt_tokens", 12)),
        ("/v1/responses", "/output/0/content/0/text", ("/usage/input_tokens", 12)),
        ("/v1/messages", "/content/0/text", ("/usage/input_tokens", 7)),
        (gemini, "/candidates/0/content/parts/0/text", ("/usageMetadata/promptTokenCount", 12)),
    ] {
        let body = call(path, &json!({ "model": "m" })).json();
        assert_eq!(body.pointer(text), Some(&json!("Hello, world!")), "{body}");
        assert_eq!(body.pointer(input.0), Some(&json!(input.1)), "{body}");
    }
    let embeddings = call("/v1/embeddings", &json!({ "model": "m", "input": "a" })).json();
    assert_eq!((&embeddings["data"][0]["index"], &embeddings["usage"]["total_tokens"]), (&json!(0), &json!(12)));
    let streamed = json!({ "model": "m", "stream": true, "stream_options": { "include_usage": true } });
    for (path, last) in [
        ("/v1/chat/completions", "data: [DONE]\n\n"),
        ("/v1/completions", "data: [DONE]\n\n"),
        ("/v1/responses", "event: response.completed\n"),
        ("/v1/messages", "event: message_stop\n"),
        ("/v1beta/models/gemini:streamGenerateContent?alt=sse", "\"finishReason\":\"STOP\""),
    ] {
        let response = call(path, &streamed);
        let end = response.text().trim_end().rsplit("\n\n").next().unwrap();
        assert!(response.text().contains("\"world!\"") && format!("{end}\n\n").contains(last), "{}", response.text());
    }
    // From 400 on it answers errors.
    server.answer(Answer { status: 529, fields: "X-More: 1\r\n".to_owned(), ..answer() });
    post(client, "/v1/messages", &json!({}));
    let failed = client.response(false);
    assert_eq!((failed.status, failed.headers.must("x-more")), (529, "1"));
    assert_eq!(failed.json()["error"]["type"], "api_error");
    let last = server.received().pop().unwrap();
    assert_eq!((&*last.target, &*last.body), ("/v1/messages", &b"{}"[..]));
    assert!(last.headers.must("via").starts_with("1.1 gateway"));
}

#[test]
fn a_stream_passes_event_by_event() {
    let server = ModelServer::start(Answer { held_after: Some(2), ..Answer::default() });
    let gateway = Gateway::start(&server.up.everything());
    let client = &mut gateway.client();
    let streamed = json!({ "model": "m", "stream": true });
    let until = |client: &mut Client, end: &str| {
        let mut bytes = Vec::new();
        while !bytes.ends_with(end.as_bytes()) {
            bytes.push(0);
            client.wire.read_exact(bytes.last_mut().map(std::slice::from_mut).unwrap()).unwrap();
        }
    };
    post(client, "/v1/chat/completions", &streamed);
    assert_eq!(client.try_head().unwrap().1, Framing::Chunked);
    until(client, "\", \"");
    server.wait(Event::Held);
    server.go_on();
    until(client, "[DONE]");
    server.wait(Event::Sent);
    // The server notices that a client has gone away, and the client that the server has.
    let mut other = gateway.client();
    post(&mut other, "/v1/chat/completions", &streamed);
    server.wait(Event::Held);
    // After a plain close the gateway could take the connection for half-closed, and wait for the rest.
    SockRef::from(other.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(other);
    server.wait(Event::Gone);
    // What came before a stream breaks off may be lost, unless the client has read it before.
    server.answer(Answer { held_after: Some(2), broken_after: Some(2), ..Answer::default() });
    let third = &mut gateway.client();
    post(third, "/v1/messages", &json!({ "stream": true }));
    until(third, "\", \"");
    server.wait(Event::Held);
    server.go_on();
    let rest = String::from_utf8(third.closed()).unwrap();
    assert!(!rest.contains("world!") && !rest.ends_with("0\r\n\r\n"), "{rest}");
}

#[test]
#[ignore = "needs the libraries of providers of language models"]
fn libraries_get_what_the_model_says() {
    for library in LIBRARIES {
        let usage = Used { input: 10, cached: 4, output: 7 };
        let server = ModelServer::start(Answer { usage: Some(usage), ..Answer::default() });
        let cost = "cost = { tokens = \"auto\", max_output = 50 }";
        let gateway = Gateway::start(&limited(&server, library.2, "10000/d", cost));
        // Only a client that asks gets chunks with the usage.
        let (kinds, used): (&[_], &[_]) = if library.2 == "openai" {
            (&["stream", "usage", "responses", "create"], &[None, Some(7), Some(7), Some(7)])
        } else {
            (&["stream", "create"], &[Some(7), Some(7)])
        };
        let [results, exchanges] = calls(library, &gateway, 0, kinds);
        let expected: Vec<_> = used.iter().map(|used| json!({ "text": "Hello, world!", "used": used })).collect();
        assert_eq!(results, expected, "{library:?}");
        let headers = &exchanges.last().unwrap()["headers"];
        let told = |name: &str| {
            let name = if library.2 == "openai" {
                format!("x-ratelimit-{name}-tokens")
            } else {
                format!("anthropic-ratelimit-tokens-{name}")
            };
            headers[&name].as_str().unwrap_or_else(|| panic!("no {name}: {headers}")).parse::<u64>().unwrap()
        };
        assert_eq!(told("limit"), 10_000);
        // All calls before the last are settled at what they have used, and the last one is reserved.
        let before = u64::try_from(exchanges.len() - 1).unwrap() * 21;
        assert!((1..100).contains(&(10_000 - before - told("remaining"))), "{headers}");
    }
}

#[test]
#[ignore = "needs the libraries of providers of language models"]
fn libraries_wait_as_long_as_they_are_told() {
    for library in LIBRARIES {
        let exchanges = two_calls_of_which_one_is_refused(library);
        let number = |value: &Value| value.as_str().unwrap().parse::<f64>().unwrap();
        let refused: Vec<_> = exchanges.windows(2).filter(|pair| pair[0]["status"] == 429).collect();
        for [refusal, next] in refused.iter().map(|pair| [&pair[0], &pair[1]]) {
            let headers = &refusal["headers"];
            let told = match headers.get("retry-after-ms") {
                Some(millis) => number(millis) / 1000.0,
                None => number(&headers["retry-after"]),
            };
            let waited = next["sent"].as_f64().unwrap() - refusal["received"].as_f64().unwrap();
            // Timers of JavaScript count milliseconds from when they were set, rounded down.
            assert!(told > 0.0 && told <= 2.0 && waited >= told - 0.002, "{waited} s instead of {told} s: {headers}");
            assert_eq!(headers.get("retry-after-ms").is_some(), library.2 == "openai", "{headers}");
        }
    }
}

/// The exchanges of two calls, with one allowed in two seconds. Calls again if the library took so long that none was
/// refused.
fn two_calls_of_which_one_is_refused(library: Library) -> Vec<Value> {
    loop {
        let server = ModelServer::start(Answer::default());
        let gateway = Gateway::start(&limited(&server, library.2, "30/m burst 1", "strategy = \"token-bucket\""));
        let [results, exchanges] = calls(library, &gateway, 2, &["create", "create"]);
        let whole = json!({ "text": "Hello, world!", "used": 3 });
        assert_eq!(results, [whole.clone(), whole], "{library:?}");
        assert_eq!(server.received().len(), 2, "a refused call does not reach the model");
        if exchanges.iter().any(|exchange| exchange["status"] == 429) {
            return exchanges;
        }
        let took = exchanges[1]["received"].as_f64().unwrap() - exchanges[0]["sent"].as_f64().unwrap();
        assert!(took >= 2.0, "{exchanges:?}");
    }
}

/// The recipes of docs/tokens.md for these libraries, with the server instead of the provider, and with rates by the hour
/// instead of by the minute, so that counts last for a test.
fn recipes(server: &ModelServer, provider: &str) -> Vec<String> {
    let page = include_str!("../../docs/tokens.md");
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let upstream = format!("upstream = \"{provider}\"");
    // Those without an issuer of tokens and without files of keys.
    let recipes = blocks.filter(|block| block.contains(&upstream) && !block.contains("known_keys"));
    let section = server.up.section().replace("upstreams.up", &format!("upstreams.{provider}"));
    recipes
        .map(|block| {
            let own = format!("[upstreams.{provider}]");
            let limits = block.find("[limits").filter(|_| block.contains(&own)).unwrap_or(0);
            format!("{section}\n{}", block[limits..].replace("/m\"", "/h\""))
        })
        .collect()
}

#[test]
#[ignore = "needs the libraries of providers of language models"]
fn recipes_count_clients_apart() {
    for library in LIBRARIES {
        let server = ModelServer::start(Answer::default());
        let recipes = recipes(&server, library.2);
        assert!(!recipes.is_empty(), "{library:?}");
        for recipe in recipes {
            let gateway = Gateway::start(&recipe);
            for (key, times) in [("first", 1), ("second", 2)] {
                let [results, _] = calls_with(key, library, &gateway, 0, &["create", "stream"][..times]);
                assert!(results.iter().all(|result| result["text"] == "Hello, world!"), "{library:?} {results:?}");
            }
            assert_eq!(
                gateway.metric("gateway_token_cost_settled_total{limit=\"tokens\"}"),
                Some(39.0),
                "{library:?}: {recipe}"
            );
            // In another hour, a part of both counts is gone.
            let [first, second] = ["first", "second"].map(|key| gateway.used("tokens", key));
            assert!((1..=13).contains(&first) && (first + 1..=26).contains(&second), "{first}, {second}: {recipe}");
        }
    }
}

/// A client with two keys cannot choose between two counters.
#[test]
fn the_key_that_is_counted_is_the_one_that_is_sent() {
    let server = ModelServer::start(Answer::default());
    let [recipe] = &recipes(&server, "anthropic")[..] else { panic!("there is one") };
    let gateway = Gateway::start(recipe);
    let call = |fields: &str| {
        let request = format!("POST /v1/messages HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: 2\r\n\r\n{{}}");
        assert_eq!(gateway.client().call(request).status, 200);
        let last = server.received().pop().unwrap();
        ["authorization", "x-api-key"].map(|name| last.headers.get(name).map(str::to_owned))
    };
    assert_eq!(call("Authorization: Bearer a\r\nX-Api-Key: b\r\n"), [Some("Bearer a".to_owned()), None]);
    assert_eq!(call("X-Api-Key: b\r\n"), [None, Some("b".to_owned())]);
    assert_eq!(call("Authorization: bearer  a\r\nX-Api-Key: c\r\n"), [Some("bearer  a".to_owned()), None]);
    until("both are counted", Duration::from_secs(20), || {
        ["a", "b"].map(|key| gateway.used("tokens", key)) == [26, 13]
    });
}

#[test]
#[ignore = "needs the libraries of providers of language models"]
fn libraries_raise_their_own_errors() {
    for library in LIBRARIES {
        let server = ModelServer::start(Answer::default());
        let cost = "cost = { tokens = \"auto\", max_output = 5 }";
        let gateway = Gateway::start(&limited(&server, library.2, "1/d", cost));
        let [results, _] = calls(library, &gateway, 0, &["create", "create", "stream"]);
        for refused in &results[1..] {
            assert_eq!(
                (&refused["error"]["class"], &refused["text"]),
                (&json!("RateLimitError"), &json!("")),
                "{refused}"
            );
            let error = of_limit(library, &refused["error"]["body"]);
            assert!(error["message"].as_str().unwrap().contains("allows 1/d"), "{error}");
        }
        assert_eq!(results[0]["text"], "Hello, world!");
    }
}

#[test]
#[ignore = "needs the libraries of providers of language models"]
fn libraries_notice_that_a_stream_is_cut() {
    for library in LIBRARIES {
        let pieces = vec!["Hello".to_owned(), "a text that was not paid for ".repeat(8), "end".to_owned()];
        let server = ModelServer::start(Answer { pieces, held_after: Some(2), ..Answer::default() });
        let cost = "cost = { tokens = \"auto\", max_output = 5, on_exhausted = \"cut\" }";
        let kinds: &[_] = if library.2 == "openai" { &["stream", "responses"] } else { &["stream"] };
        for kind in kinds {
            let gateway = Gateway::start(&limited(&server, library.2, "30/d", cost));
            let [results, _] = calls(library, &gateway, 0, &[kind]);
            assert_eq!(results[0]["text"], "Hello", "{library:?} {kind} {results:?}");
            of_limit(library, &results[0]["error"]["body"]);
            // The model need not go on.
            server.wait(Event::Gone);
        }
    }
}

/// The error in a body; a limit of tokens has another form.
fn of_limit(library: Library, body: &Value) -> &Value {
    if library.2 == "openai" {
        assert_eq!((&body["type"], &body["code"]), (&json!("tokens"), &json!("rate_limit_exceeded")), "{body}");
        return body;
    }
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("rate_limit_error")), "{body}");
    &body["error"]
}
