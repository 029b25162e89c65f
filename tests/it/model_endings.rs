//! The costs of requests to language models whose responses report no usage, report it too early, or end wrongly.

use std::time::Duration;

use serde_json::{Value, json};
use socket2::SockRef;

use crate::harness::{Answer, Client, Event, Gateway, ModelServer, Upstream, Used, every_store, until};

const PATIENCE: Duration = Duration::from_secs(20);
const CHAT: &str = "/v1/chat/completions";

fn limited(up: &str, cost: &str, more: &str) -> String {
    format!(
        "[limits.tokens]\nkey = \"header:authorization\"\nrates = [\"1000000/d\"]\n\
         cost = {{ tokens = \"auto\", {cost} }}\n{more}\n{up}limits = [\"tokens\"]\n"
    )
}

fn send(client: &mut Client, path: &str, key: &str, more: &Value) {
    let mut body = json!({ "messages": [{ "role": "user", "content": "12345678" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let body = body.to_string();
    let length = body.len();
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: models.example\r\nAuthorization: {key}\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
}

/// Reads a response until `text` has come, and resets the connection.
fn hang_up_after(mut client: Client, text: &str) {
    let (mut seen, mut buffer) = (Vec::new(), [0]);
    while !seen.ends_with(text.as_bytes()) {
        client.wire.read_exact(&mut buffer).unwrap();
        seen.push(buffer[0]);
    }
    SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn a_success_without_usage_costs_what_was_reserved_or_what_has_passed() {
    every_store(|store| {
        let server = ModelServer::start(Answer::text(3));
        let gateway = Gateway::start(&format!("{store}{}", limited(&server.up.everything(), "input = 0", "")));
        for (key, stream, pieces, cost) in [("a", true, 3, 100), ("b", false, 3, 100), ("c", true, 30, 300)] {
            server.answer(Answer::text(pieces));
            let client = &mut gateway.client();
            send(client, CHAT, key, &json!({ "max_tokens": 100, "stream": stream }));
            assert_eq!(client.response(false).status, 200);
            until("it is settled", PATIENCE, || gateway.used("tokens", key) == cost);
        }
        let settled = || gateway.metric("gateway_token_cost_settled_total{limit=\"tokens\"}");
        until("all are", PATIENCE, || settled() == Some(500.0));
        server.answer(Answer { held_after: Some(2), ..Answer::text(3) });
        let mut client = gateway.client();
        send(&mut client, CHAT, "d", &json!({ "max_tokens": 500, "stream": true }));
        server.wait(Event::Held);
        hang_up_after(client, "xxxx\"");
        server.wait(Event::Gone);
        until("it is settled", PATIENCE, || settled() == Some(1000.0));
        assert_eq!(gateway.used("tokens", "d"), 500, "{store}");
    });
}

#[test]
fn a_complete_answer_whose_client_has_gone_costs_the_usage_that_follows() {
    every_store(|store| {
        let usage = Some(Used { input: 700_000, cached: 0, output: 7 });
        let server = ModelServer::start(Answer { usage, held_after: Some(2), ..Answer::text(1) });
        let gateway = Gateway::start(&format!("{store}{}", limited(&server.up.everything(), "", "")));
        let mut client = gateway.client();
        send(&mut client, CHAT, "a", &json!({ "max_tokens": 500, "stream": true }));
        server.wait(Event::Held);
        hang_up_after(client, "\"finish_reason\":\"stop\"");
        gateway.wait_log("the client has gone", |line| line["outcome"] == "abandoned");
        assert!(gateway.used("tokens", "a") < 1000, "{store}");
        server.go_on();
        until("its usage is known", PATIENCE, || gateway.used("tokens", "a") == 700_007);
        server.wait(Event::Sent);
    });
}

/// A response with this type and body, without a length.
fn whole(status: u16, kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Word\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = if length > 0 { format!("{length:x}\r\n{body}\r\n") } else { String::new() };
    format!("{head}{chunk}0\r\n\r\n").into_bytes()
}

#[test]
fn what_responses_say_is_charged_however_they_end() {
    let (json, events) = ("application/json", "text/event-stream");
    let long = "x".repeat(4000);
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":\
                 {\"input_tokens\":4011,\"output_tokens\":1}}}\n\n";
    let delta = format!("data: {{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{long}\"}}}}\n\n");
    let failed = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let zero = "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":\
                {\"input_tokens\":0,\"output_tokens\":12}}\n\n";
    let gemini = format!(
        "{{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"{long}\"}}]}}}}],\"usageMetadata\":\
         {{\"promptTokenCount\":9,\"candidatesTokenCount\":1}}}}"
    );
    let chat = |model: &str, text: &str, usage: &str| {
        format!(
            "{{\"model\":\"{model}\",\"choices\":[{{\"message\":{{\"content\":\"{text}\"}},\"finish_reason\":\"stop\"}}],\
             \"usage\":{{{usage}}}}}"
        )
    };
    let bad = chat("m", &long, "\"prompt_tokens\":11,\"completion_tokens\":-5");
    let total = chat("m", "", "\"prompt_tokens\":100,\"completion_tokens\":41,\"total_tokens\":9041");
    let zeros = chat("m", &"x".repeat(460), "\"prompt_tokens\":0,\"completion_tokens\":0,\"total_tokens\":0");
    let dear = chat("large-1", "", "\"prompt_tokens\":50,\"completion_tokens\":10");
    let error = "{\"error\":{\"message\":\"no\"},\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}";
    // Without a cost in the response, a request costs what was reserved.
    let cases: Vec<(u16, &str, String, Option<u64>)> = vec![
        (200, "text/plain", String::new(), None),
        (200, events, [start, &delta, failed].concat(), Some(5011)),
        (200, events, [start, &delta].concat(), Some(5011)),
        (200, events, [start, &delta, zero].concat(), Some(4023)),
        (200, events, format!("data: {gemini}\r\n\r\n"), Some(1009)),
        (200, json, format!("[{gemini}]"), Some(1009)),
        (200, json, bad, Some(1011)),
        (200, json, total, Some(9041)),
        (200, json, zeros, None),
        (200, json, dear, Some(1200)),
        (400, json, error.to_owned(), Some(12)),
        (500, json, "{\"error\":{\"message\":\"no\"}}".to_owned(), Some(0)),
        (429, json, String::new(), Some(0)),
    ];
    let answers: Vec<_> = cases.iter().map(|(status, kind, body, _)| whole(*status, kind, body)).collect();
    let number = |target: &str| target.split('/').nth(1).unwrap().parse::<usize>().unwrap();
    let up = Upstream::start(move |request| answers[number(&request.target)].clone());
    let models = "[[limits.tokens.models]]\nmatch = \"large*\"\ninput = 20\noutput = 20";
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{}", limited(&up.everything(), "", models)));
        let settled = || {
            let count = gateway.metric("gateway_token_cost_settled_total{limit=\"tokens\"}").unwrap_or_default();
            count.to_string().parse::<u64>().unwrap()
        };
        let mut reserved = None;
        for (index, (status, _, body, cost)) in cases.iter().enumerate() {
            let before = settled();
            let (client, key) = (&mut gateway.client(), format!("key-{index}"));
            send(client, &format!("/{index}/completions"), &key, &json!({ "model": "m", "max_tokens": 200 }));
            let response = client.response(false);
            assert_eq!((response.status, response.text()), (*status, &**body));
            until("it is settled", PATIENCE, || *cost == Some(0) || settled() > before);
            let cost = cost.unwrap_or_else(|| *reserved.get_or_insert(settled()));
            assert!(cost >= 200 || *status >= 400);
            until(&format!("{body} costs {cost}, {store}"), PATIENCE, || gateway.used("tokens", &key) == cost);
        }
    });
}

#[test]
fn streams_that_are_no_events_are_cut() {
    let piece = |provider: &str| {
        let text = "x".repeat(40);
        match provider {
            "gemini" => format!("{{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"{text}\"}}]}}}}]}}"),
            _ => format!("{{\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},\"done\":false}}"),
        }
    };
    let chunk = |text: String| format!("{:x}\r\n{text}\r\n", text.len());
    let of = |kind: &str, chunks: Vec<String>| {
        let body: String = chunks.into_iter().map(chunk).collect();
        format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n{body}0\r\n\r\n")
    };
    let element = |index| (if index == 0 { "[" } else { ",\r\n" }).to_owned() + &piece("gemini");
    let array = of("application/json", (0..30).map(element).chain(["]".to_owned()]).collect());
    let lines = of("application/x-ndjson", (0..30).map(|_| piece("ollama") + "\n").collect());
    let up = Upstream::start(move |request| {
        let answer = if request.target.contains("Generate") { &array } else { &lines };
        answer.clone().into_bytes()
    });
    let config = limited(&up.everything(), "on_exhausted = \"cut\"", "").replace("1000000/d", "100/d");
    let gateway = Gateway::start(&config);
    for (path, key) in [("/v1beta/models/gemini:streamGenerateContent", "a"), ("/api/chat", "b")] {
        let client = &mut gateway.client();
        send(client, path, key, &json!({ "max_tokens": 5 }));
        let response = client.response(false);
        let values: Vec<Value> = if key == "a" {
            serde_json::from_str(response.text()).unwrap()
        } else {
            response.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let count = values.len() - 1;
        assert!(count <= 9 && values[count]["error"].is_object(), "{}", response.text());
        until("it is settled", PATIENCE, || (10 * count as u64 + 3..=100).contains(&gateway.used("tokens", key)));
        gateway.wait_log("the reason", |line| line["reason"] == "tokens_exhausted");
    }
}

/// The upstream has used it, whether or not the client got all of the text.
#[test]
fn a_stream_that_is_cut_costs_what_it_has_reported() {
    let delta = |text: &str, more: &str| {
        format!("data: {{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"{text}\"}}]}}{more}\n\n")
    };
    let thinks =
        "}],\"usageMetadata\":{\"promptTokenCount\":9,\"candidatesTokenCount\":9,\"thoughtsTokenCount\":20000}}";
    let reads = "}],\"usageMetadata\":{\"promptTokenCount\":90000,\"candidatesTokenCount\":1}}";
    let long = "x".repeat(8000);
    for (name, events, least) in [
        ("thoughts", delta("a", "}]}") + &delta("end", thinks), 20_009),
        ("input", delta("a", reads) + &delta(&long, "}]}"), 90_000),
        ("held", delta(&long, "}]}"), 508),
    ] {
        let answer = whole(200, "text/event-stream", &events);
        let up = Upstream::start(move |_| answer.clone());
        let limit = limited(&up.everything(), "on_exhausted = \"cut\", max_output = 500", "");
        let gateway = Gateway::start(&limit.replace("1000000/d", "1100/d"));
        let path = "/v1beta/models/g:streamGenerateContent?alt=sse";
        let statuses = [(); 3].map(|()| {
            let client = &mut gateway.client();
            send(client, path, "key", &json!({}));
            let status = client.response(false).status;
            until(&format!("{name} is settled"), PATIENCE, || gateway.used("tokens", "key") >= least);
            status
        });
        // Two times 508 fit.
        let expected = if name == "held" { [200, 200, 429] } else { [200, 429, 429] };
        assert_eq!(statuses, expected, "{name}: {}", gateway.used("tokens", "key"));
    }
}
