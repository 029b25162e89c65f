//! What clients of language models get: the responses of their providers, and refusals in the same forms.

use serde_json::{Value, json};

use crate::harness::{Answer, Client, Event, Framing, Gateway, ModelServer, Used};

/// Sends a request with a body of JSON.
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
    assert_eq!((&*last.target, &*last.body, last.headers.must("via")), ("/v1/messages", &b"{}"[..], "1.1 gateway"));
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
    // The server sees that a client has gone away, and a client that the server has.
    let other = &mut gateway.client();
    post(other, "/v1/chat/completions", &streamed);
    server.wait(Event::Held);
    other.wire.stream().shutdown(std::net::Shutdown::Both).unwrap();
    server.wait(Event::Gone);
    // What has come before a stream breaks off may be lost, unless it was read before.
    server.answer(Answer { held_after: Some(2), broken_after: Some(2), ..Answer::default() });
    let third = &mut gateway.client();
    post(third, "/v1/messages", &json!({ "stream": true }));
    until(third, "\", \"");
    server.wait(Event::Held);
    server.go_on();
    let rest = String::from_utf8(third.closed()).unwrap();
    assert!(!rest.contains("world!") && !rest.ends_with("0\r\n\r\n"), "{rest}");
}
