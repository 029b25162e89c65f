//! Requests to language models, whose clients must not decide how they are counted: the reservations, what the gateway asks of
//! the provider, and its refusals.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Answer, Event, Gateway, ModelServer, Response, until};
use crate::model_costs::{CHAT, call, limited, used};

const PATIENCE: Duration = Duration::from_secs(20);

fn raw(gateway: &Gateway, path: &str, fields: &str, body: &[u8]) -> Response {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: models.example\r\nAuthorization: key\r\n{fields}Content-Length: {length}\r\n\r\n"
    );
    gateway.client().call([head.as_bytes(), body].concat())
}

fn received(server: &ModelServer) -> Value {
    serde_json::from_slice(&server.received().pop().unwrap().body).unwrap()
}

/// A server that does not answer, so a test can see what is reserved.
fn silent() -> ModelServer {
    ModelServer::start(Answer { held_after: Some(0), ..Answer::default() })
}

#[test]
fn what_is_reserved_is_the_most_that_a_body_can_mean() {
    let server = silent();
    let text = "words ".repeat(1000);
    let picture = format!("data:image/png;base64,{}", "iVBORw0KGgo".repeat(10_000));
    for (path, body, least, most) in [
        (CHAT, json!({ "max_tokens": 4000 }), 4000, 4010),
        (CHAT, json!({ "max_tokens": "4000" }), 4000, 4010),
        (CHAT, json!({ "n_predict": 4000 }), 4000, 4010),
        (CHAT, json!({ "n_predict": 1 }), 100, 110),
        (CHAT, json!({ "max_output_tokens": 1 }), 100, 110),
        (CHAT, json!({ "max_tokens": "many" }), 100, 110),
        (CHAT, json!({ "max_tokens": 7, "n": "80" }), 560, 570),
        (CHAT, json!({ "n": 80 }), 8000, 8010),
        ("/v1/completions", json!({ "prompt": vec!["a"; 80], "max_tokens": 10 }), 820, 830),
        ("/v1/completions", json!({ "prompt": vec![1234; 4000], "max_tokens": 10 }), 4010, 4020),
        ("/v1/completions", json!({ "prompt": "a", "best_of": "80", "max_tokens": 10 }), 800, 810),
        (CHAT, json!({ "tools": [{ text.clone(): 1 }], "max_tokens": 1 }), 1500, 1510),
        (
            CHAT,
            json!({ "messages": [{ "content": [{ "image_url": { "url": "https://a.test/b.png" } }] }], "max_tokens": 1 }),
            250,
            280,
        ),
        (
            CHAT,
            json!({ "messages": [{ "content": [{ "image_url": { "url": picture } }] }], "max_tokens": 1 }),
            250,
            280,
        ),
        ("/v1/responses", json!({ "previous_response_id": "resp_1", "max_output_tokens": 1 }), 250, 280),
    ] {
        let gateway = Gateway::start(&limited(&server, 100_000, "max_output = 100, part = 240", ""));
        let mut client = gateway.client();
        let body = body.to_string();
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: key\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        server.wait(Event::Held);
        let reserved = used(&gateway);
        assert!((least..=most).contains(&reserved), "{reserved}: {}", &body[..body.len().min(200)]);
        server.go_on();
        assert_eq!(client.response(false).status, 200);
        until("it is settled", PATIENCE, || used(&gateway) == 13);
    }
}

#[test]
fn chats_and_completions_are_asked_for_their_usage() {
    let server = ModelServer::start(Answer::default());
    let gateway = Gateway::start(&limited(&server, 10_000, "", ""));
    let mut expected = 0;
    let asks = json!({ "include_usage": true });
    for path in [CHAT, "/v1/completions", "/openai/deployments/d/chat/completions"] {
        for options in [
            Value::Null,
            json!({ "include_usage": "no" }),
            json!({ "include_usage": 0 }),
            json!({ "include_usage": [] }),
            json!("a"),
        ] {
            let response = call(&gateway, path, &json!({ "prompt": "a", "stream": true, "stream_options": options }));
            assert_eq!(response.status, 200);
            assert!(!response.text().contains("prompt_tokens"), "{}", response.text());
            assert_eq!(received(&server)["stream_options"], asks, "{path} {options}");
            expected += 13;
        }
    }
    let twice = r#"{"stream":true,"stream_options":{"include_usage":false,"Include_Usage":false}}"#;
    assert_eq!(raw(&gateway, CHAT, "", twice.as_bytes()).status, 400);
    until("all have said their usage", PATIENCE, || used(&gateway) == expected);
}

#[test]
fn other_requests_are_sent_as_they_are() {
    let server = ModelServer::start(Answer::default());
    let gateway = Gateway::start(&limited(&server, 10_000, "", ""));
    let body = json!({ "messages": [], "input": "a", "prompt": "b", "stream": true });
    for path in [
        "/v1/responses",
        "/v1/messages",
        "/v1/rerank",
        "/v1/chat/completions/c-1/messages",
        "/completion",
        "/completions.json",
    ] {
        call(&gateway, path, &body);
        assert_eq!(received(&server), body, "{path}");
    }
    let gateway = Gateway::start(&limited(&server, 10_000, "ask_usage = false", ""));
    let response = call(&gateway, CHAT, &body);
    assert_eq!((response.status, received(&server)), (200, body.clone()));
    let asking = json!({ "messages": [], "stream": true, "stream_options": { "include_usage": true } });
    let response = call(&gateway, CHAT, &asking);
    assert!(response.text().contains("prompt_tokens"), "what the client has asked for is not taken out");
    assert_eq!(received(&server), asking);
}

#[test]
fn the_path_that_the_upstream_gets_says_whether_it_is_asked() {
    let server = ModelServer::start(Answer::default());
    let config = limited(&server, 10_000, "", "")
        .replace("path = \"/*\"", "path = \"/ask\"\nrewrite = \"/v1/chat/completions\"");
    let gateway = Gateway::start(&config);
    assert_eq!(call(&gateway, "/ask", &json!({ "messages": [], "stream": true })).status, 200);
    assert_eq!(received(&server)["stream_options"], json!({ "include_usage": true }));
    let gateway = Gateway::start(&config.replace("/v1/chat/completions", "/v1beta/models/m:generateContent"));
    assert_eq!(call(&gateway, "/ask?fields=candidates", &json!({})).status, 400);
    assert_eq!(raw(&gateway, "/ask", "X-Goog-FieldMask: candidates\r\n", b"{}").status, 400);
    assert_eq!(call(&gateway, "/ask", &json!({})).status, 200);
}

#[test]
fn what_switches_the_usage_off_is_refused() {
    let server = ModelServer::start(Answer::default());
    let gateway = Gateway::start(&limited(&server, 10_000, "", ""));
    let gemini = "/v1beta/models/m:generateContent";
    let status = |path: &str, fields: &str, body: &str| raw(&gateway, path, fields, body.as_bytes()).status;
    for query in [
        "fields=candidates",
        "alt=proto",
        "%24alt=media",
        "$Alt=PROTO",
        "alt=json&callback=c",
        "%24callback=c",
        "%66ields=candidates",
        "$fields=candidates",
        "alt=json&fields=candidates(content,usageMetadata)",
        "fields=*&fields=candidates",
    ] {
        for path in [gemini, "/v1beta/models/m:streamGenerateContent"] {
            assert_eq!(status(&format!("{path}?{query}"), "", "{}"), 400, "{query}");
        }
    }
    assert_eq!(status(gemini, "X-Goog-FieldMask: candidates\r\n", "{}"), 400);
    for (path, fields) in [
        (format!("{gemini}?fields=candidates,usageMetadata"), ""),
        (format!("{gemini}?key=fields"), ""),
        (gemini.to_owned(), "X-Goog-FieldMask: *\r\n"),
        (format!("{CHAT}?fields=candidates"), ""),
    ] {
        assert_eq!(status(&path, fields, "{}"), 200, "{path} {fields}");
    }
    for (body, is_refused) in [
        (r#"{"background":true}"#, true),
        (r#"{"Background":"true"}"#, true),
        (r#"{"background":false,"background":1}"#, true),
        (r#"{"background":false}"#, false),
        (r#"{"background":null}"#, false),
        (r#"{"background":"transparent"}"#, true),
        (r#"{"background":[]}"#, true),
    ] {
        assert_eq!(status("/v1/responses", "", body), if is_refused { 400 } else { 200 }, "{body}");
    }
    let picture = r#"{"background":"transparent"}"#;
    assert_eq!(status("/v1/images/generations", "", picture), 404, "the server answers");
    let refused = raw(&gateway, "/v1/responses", "", br#"{"background":true}"#);
    assert!(refused.text().contains("background"), "{}", refused.text());
}

/// Limits whose keys are in the body, and that count tokens.
fn by_model(server: &ModelServer) -> [String; 2] {
    let key = "[limits.l]\nkey = \"json:/model | client-ip\"\nrates = [\"1000/d\"]\n";
    [format!("{key}{}limits = [\"l\"]\n", server.up.everything()), limited(server, 1_000_000, "", "")]
}

#[test]
fn a_body_in_another_charset_is_refused() {
    let server = ModelServer::start(Answer::default());
    for config in by_model(&server) {
        let gateway = Gateway::start(&config);
        let status =
            |kind: &str, body: &str| raw(&gateway, CHAT, &format!("Content-Type: {kind}\r\n"), body.as_bytes()).status;
        let hidden = "{\"model\":\"cheap+ACI-,+ACI-model+ACI-:+ACI-dear\"}";
        for kind in [
            "application/json; charset=utf-7",
            "application/json; Charset=\"UTF-7\"",
            "application/json; charset=utf-8; charset=utf-7",
            "application/json; charset*=utf-8''utf-7",
            "text/plain; charset=utf-16",
            "application/json; charset=iso-8859-1",
        ] {
            assert_eq!(status(kind, hidden), 415, "{kind}");
        }
        assert_eq!(status("application/json\r\nContent-Type: application/json; charset=utf-7", hidden), 415);
        for kind in [
            "application/json; charset=utf-8",
            "application/json;charset=\"US-ASCII\"",
            "application/json",
            "text/plain",
        ] {
            assert_eq!(status(kind, "{\"model\":\"a\"}"), 200, "{kind}");
        }
        assert_eq!(status("application/json; charset=utf-7", ""), 200, "there is nothing in it");
    }
}

#[test]
fn a_body_that_is_almost_json_is_refused() {
    let server = ModelServer::start(Answer::default());
    for config in by_model(&server) {
        let gateway = Gateway::start(&config);
        let json = |body: &[u8]| raw(&gateway, CHAT, "Content-Type: application/json; charset=utf-8\r\n", body).status;
        for body in [
            &b"{\"model\":NaN}"[..],
            b"{\"model\":\"a\",\"temperature\":NaN}",
            b"{\"model\":\"a\"} // comment",
            b"{\"model\":\"a\",}",
            b"/**/{\"model\":\"a\"}",
            b"{'model':'a'}",
            b"{\"model\":\"a\xff\"}",
            b"{\"mod\xffel\":\"a\"}",
            b"{\"model\":\"a\"",
            b"{\"model\":\"a\"}{\"model\":\"b\"}",
            b"model=a",
        ] {
            assert_eq!(json(body), 400, "{}", body.escape_ascii());
        }
        for body in [&b"{\"model\":\"a\"}"[..], b"\xef\xbb\xbf{\"model\":1e5}\n", b"[]", b"", b" \r\n"] {
            assert_eq!(json(body), 200, "{}", body.escape_ascii());
        }
        for fields in ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-ndjson\r\n"] {
            assert_eq!(raw(&gateway, CHAT, fields, b"{\"model\":\"a\",}").status, 200, "{fields}");
        }
    }
}
