//! Tests of what is found in responses.

use proptest::prelude::*;

use super::*;
use crate::tokens::Usage;

const EVENTS: &str = "text/event-stream; charset=utf-8";
const JSON: &str = "application/json";

#[derive(Debug, PartialEq)]
struct Read {
    usage: Option<Usage>,
    text: u64,
    provider: Option<Provider>,
    ignored: u32,
}

fn read_pieces<'a>(content_type: &str, source: &UsageSource, pieces: impl IntoIterator<Item = &'a [u8]>) -> Read {
    let mut reader = ResponseReader::new(content_type, source);
    pieces.into_iter().for_each(|piece| reader.read(piece));
    let Findings { report, provider, .. } = &reader.findings;
    Read { usage: report.usage(), text: reader.text(), provider: *provider, ignored: report.ignored }
}

/// Reads a body whole, and in small pieces.
#[track_caller]
fn read(content_type: &str, body: &str) -> Read {
    let whole = read_pieces(content_type, &UsageSource::Auto, [body.as_bytes()]);
    assert_eq!(read_pieces(content_type, &UsageSource::Auto, body.as_bytes().chunks(1)), whole);
    whole
}

fn used(input: u64, cached: u64, output: u64) -> Usage {
    Usage { input, cached, output }
}

fn stream(events: &[&str]) -> String {
    events.iter().fold(String::new(), |stream, data| stream + "data: " + data + "\n\n")
}

#[test]
fn text_that_is_no_json_counts_before_its_end_has_come() {
    let long = "x".repeat(1000);
    for (body, text) in [
        (format!("data: {long}"), 1000),
        (format!("data: {long}\n"), 1000),
        (format!("data: {long}\n\n"), 1000),
        (format!("data: {long}\n\ndata: {long}"), 2000),
        (format!("data: {{\"a\": {long}"), 0),
    ] {
        assert_eq!(read(EVENTS, &body).text, text, "{body}");
    }
}

const OPEN_AI: &str = r#"{
  "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT", "object": "chat.completion", "created": 1741569952, "model": "gpt-4.1-2025-04-14",
  "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello! Grüße", "refusal": null, "annotations": []},
    "logprobs": {"content": [{"token": "Hello", "logprob": -0.3, "bytes": [72], "top_logprobs": [{"token": "Hi"}]}]},
    "finish_reason": "stop"}],
  "usage": {"prompt_tokens": 1219, "completion_tokens": 10, "total_tokens": 1229,
    "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0, "accepted_prediction_tokens": 0}},
  "service_tier": "default"
}"#;

#[test]
fn reads_chat_completions() {
    let text = "Hello! Grüße".len() as u64;
    assert_eq!(
        read(JSON, OPEN_AI),
        Read { usage: Some(used(195, 1024, 10)), text, provider: Some(Provider::OpenAi), ignored: 0 }
    );
    let body = r#"{"object":"chat.completion","choices":[{"message":{"role":"assistant","content":null,"tool_calls":
        [{"id":"call_abc","type":"function","function":{"name":"weather","arguments":"{\"in\":\"Paris\"}"}}]}}]}"#;
    assert_eq!(read(JSON, body), Read { usage: None, text: 14, provider: Some(Provider::OpenAi), ignored: 0 });
}

#[test]
fn reads_streams_of_chat_completions() {
    let chunks = [
        r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Hi \ud83d\ude00"},"logprobs":{"content":[{"token":"Hi"}]},"finish_reason":null}],"usage":null,"obfuscation":"aB3"}"#,
        r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":null}]}"#,
        r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}"#,
        r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":7,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":5}}}"#,
        "[DONE]",
    ];
    let provider = Some(Provider::OpenAi);
    assert_eq!(read(EVENTS, &stream(&chunks)), Read { usage: Some(used(15, 5, 7)), text: 9, provider, ignored: 0 });
    assert_eq!(read(EVENTS, &stream(&chunks[..4])), Read { usage: None, text: 9, provider, ignored: 0 });
}

#[test]
fn reads_other_apis_of_openai() {
    let provider = Some(Provider::OpenAi);
    let embeddings = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AAAAvwAA"}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    assert_eq!(read(JSON, embeddings), Read { usage: Some(used(8, 0, 0)), text: 14, provider, ignored: 0 });
    let completion = r#"{"object":"text_completion","choices":[{"text":"abcd","index":0}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;
    assert_eq!(read(JSON, completion), Read { usage: Some(used(5, 0, 1)), text: 4, provider, ignored: 0 });
    let events = [
        r#"{"type":"response.created","response":{"id":"resp_1","object":"response","instructions":"Be brief","output":[],"usage":null},"sequence_number":0}"#,
        r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"msg_1","type":"message","content":[],"role":"assistant"}}"#,
        r#"{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hi","logprobs":[]}"#,
        r#"{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":" you"}"#,
        r#"{"type":"response.output_text.done","item_id":"msg_1","output_index":0,"content_index":0,"text":"Hi you"}"#,
        r#"{"type":"response.completed","response":{"id":"resp_1","object":"response","output":[{"type":"message","content":[{"type":"output_text","text":"Hi you"}]}],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":30},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":80},"total_tokens":123}}}"#,
    ];
    let of_stream = Some(Provider::OpenAiResponses);
    let whole = Read { usage: Some(used(6, 30, 87)), text: 6, provider: of_stream, ignored: 0 };
    assert_eq!(read(EVENTS, &stream(&events)), whole);
    assert_eq!(read(EVENTS, &stream(&events[..5])), Read { usage: None, ..whole });
    let echo = r#"{"type":"response.created","response":{"object":"response","instructions":"Be brief","text":{"format":{"type":"text"}},"tools":[{"parameters":{"properties":{"text":{"description":"long"}}}}]}}"#;
    assert_eq!(read(EVENTS, &stream(&[echo])).text, 0, "it is what the request has said");
    let body = r#"{"id":"resp_1","object":"response","output":[{"type":"message","id":"msg_1","content":[{"type":"output_text","text":"Hi you"}]}],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":0},"output_tokens":87}}"#;
    assert_eq!(read(JSON, body), Read { usage: Some(used(36, 0, 87)), text: 6, provider, ignored: 0 });
}

#[test]
fn reads_messages_of_anthropic() {
    let provider = Some(Provider::Anthropic);
    let body = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"thinking","thinking":"Hm","signature":"EqQBCgIYAhIM"},
        {"type":"text","text":"Hello"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"city":"Paris"}}],"stop_reason":"end_turn","stop_sequence":null,
        "usage":{"input_tokens":10,"cache_creation_input_tokens":200,"cache_read_input_tokens":3000,"cache_creation":{"ephemeral_5m_input_tokens":200},
        "output_tokens":25,"service_tier":"standard"}}"#;
    assert_eq!(read(JSON, body), Read { usage: Some(used(210, 3000, 25)), text: 12, provider, ignored: 0 });
    let events = [
        r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"claude","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":5,"cache_read_input_tokens":70,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type": "ping"}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQBCgIYAhIM"}}"#,
        r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    assert_eq!(read(EVENTS, &stream(&events)), Read { usage: Some(used(30, 70, 15)), text: 10, provider, ignored: 0 });
    assert_eq!(
        read(EVENTS, &stream(&events[..4])),
        Read { usage: Some(used(30, 70, 1)), text: 5, provider, ignored: 0 }
    );
}

#[test]
fn reads_what_gemini_generates() {
    let provider = Some(Provider::Gemini);
    let first = r#"{"candidates":[{"content":{"parts":[{"text":"Hello"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":100,"totalTokenCount":100,"cachedContentTokenCount":60,"promptTokensDetails":[{"modality":"TEXT","tokenCount":100}]},"modelVersion":"gemini-2.5-flash","responseId":"x"}"#;
    let last = r#"{"candidates":[{"content":{"parts":[{"text":" you","thoughtSignature":"Cs4B"},{"functionCall":{"name":"f","args":{"a":"bc"}}}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":9,"totalTokenCount":134,"cachedContentTokenCount":60,"toolUsePromptTokenCount":5,"thoughtsTokenCount":20}}"#;
    let whole = Read { usage: Some(used(45, 60, 29)), text: 11, provider, ignored: 0 };
    assert_eq!(read(EVENTS, &stream(&[first, last])), whole);
    assert_eq!(read(JSON, &format!("[{first}\n,\r\n{last}]")), whole);
    assert_eq!(read("application/x-ndjson", &format!("{first}\n{last}\n")), whole);
    assert_eq!(read(JSON, first), Read { usage: Some(used(40, 60, 0)), text: 5, provider, ignored: 0 });
}

#[test]
fn a_usage_elsewhere_is_none() {
    for body in [
        r#"{"usage":null}"#,
        r#"{"usage":{}}"#,
        r#"{"usage":5}"#,
        r#"{"usage":[{"prompt_tokens":5}]}"#,
        r#"{"a":{"usage":{"prompt_tokens":5}}}"#,
        r#"{"response":{"message":{"usage":{"prompt_tokens":5}}}}"#,
        r#"{"response":[{"usage":{"prompt_tokens":5}}]}"#,
        r#"{"choices":[{"usage":{"prompt_tokens":5}}]}"#,
        r#"{"usage":{"x":{"prompt_tokens":5}}}"#,
        r#"[[{"usage":{"prompt_tokens":5}}]]"#,
        r#"{"prompt_tokens":5}"#,
        r#"{"usage":{"cache_read_input_tokens":5}}"#,
    ] {
        assert_eq!(read(JSON, body).usage, None, "{body}");
    }
}

#[test]
fn what_is_no_count_is_ignored() {
    for (count, ignored) in [
        ("null", 0),
        ("-1", 1),
        ("0.5", 1),
        ("1e300", 1),
        ("\"7\"", 1),
        ("true", 1),
        ("18446744073709551616", 1),
        ("NaN", 1),
    ] {
        let body = format!(r#"{{"usage":{{"prompt_tokens":{count},"completion_tokens":7.0}}}}"#);
        let found = read(JSON, &body);
        assert_eq!((found.usage, found.ignored), (Some(used(0, 0, 7)), ignored), "{count}");
    }
    let long = format!(r#"{{"usage":{{"prompt_tokens":{},"completion_tokens":7}}}}"#, "1".repeat(100));
    assert_eq!(read(JSON, &long).ignored, 1);
    let most = r#"{"usage":{"input_tokens":18446744073709551615,"cache_creation_input_tokens":1,"output_tokens":1}}"#;
    assert_eq!(read(JSON, most).usage, Some(used(u64::MAX, 0, 1)));
    let more_cached_than_read = r#"{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":9}}}"#;
    assert_eq!(read(JSON, more_cached_than_read).usage, Some(used(0, 5, 0)));
}

#[test]
fn of_each_count_the_greatest_is_used() {
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":4011,"output_tokens":1}}}"#;
    let zero =
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":0,"output_tokens":9}}"#;
    assert_eq!(read(EVENTS, &stream(&[start, zero])).usage, Some(used(4011, 0, 9)));
    let more = r#"{"usage":{"prompt_tokens":30,"completion_tokens":20}}"#;
    let less = r#"{"usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}"#;
    assert_eq!(read(EVENTS, &stream(&[more, less, "[DONE]"])).usage, Some(used(30, 0, 20)));
}

#[test]
fn the_output_is_at_least_the_total_less_the_input() {
    for (counts, usage) in [
        (r#""prompt_tokens":100,"completion_tokens":41,"total_tokens":9041"#, used(100, 0, 8941)),
        (r#""prompt_tokens":100,"completion_tokens":41,"total_tokens":141"#, used(100, 0, 41)),
        (r#""prompt_tokens":100,"completion_tokens":41,"total_tokens":14"#, used(100, 0, 41)),
        (r#""prompt_tokens":100,"completion_tokens":-5,"total_tokens":141"#, used(100, 0, 41)),
        (r#""prompt_tokens":8,"total_tokens":8"#, used(8, 0, 0)),
        (r#""total_tokens":5"#, used(0, 0, 5)),
    ] {
        assert_eq!(read(JSON, &format!("{{\"usage\":{{{counts}}}}}")).usage, Some(usage), "{counts}");
    }
    let gemini =
        r#"{"candidates":[],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":1,"totalTokenCount":800}}"#;
    assert_eq!(read(JSON, gemini).usage, Some(used(9, 0, 791)));
}

#[test]
fn values_may_follow_each_other() {
    let (first, second) =
        (r#"{"choices":[{"delta":{"content":"abc"}}]}"#, r#"{"usage":{"prompt_tokens":5,"completion_tokens":6}}"#);
    for body in [[first, second].join("\n"), [first, second].concat(), [first, second].join(" \r\n")] {
        let read = read("application/stream+json", &body);
        assert_eq!((read.usage, read.text), (Some(used(5, 0, 6)), 3));
    }
    assert_eq!(read(JSON, "{} x {\"usage\":{\"prompt_tokens\":5}}").usage, None);
}

#[test]
fn other_apis_are_read_by_pointers() {
    let pointer = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
    let read = |pointers: [&str; 4], content_type: &str, body: &str| {
        let [input, cached, output, total] = pointers.map(pointer);
        let source = UsageSource::from(&UsagePointers { input, cached, output, total });
        let whole = read_pieces(content_type, &source, [body.as_bytes()]);
        assert_eq!(read_pieces(content_type, &source, body.as_bytes().chunks(1)), whole);
        whole.usage
    };
    let cohere =
        r#"{"text":"Hi","meta":{"tokens":{"input_tokens":12,"output_tokens":3}},"usage":{"prompt_tokens":99}}"#;
    assert_eq!(
        read(["/meta/tokens/input_tokens", "", "/meta/tokens/output_tokens", ""], JSON, cohere),
        Some(used(12, 0, 3))
    );
    let counts = r#"{"counts":[10,4,3,20]}"#;
    assert_eq!(read(["/counts/0", "/counts/1", "/counts/2", ""], JSON, counts), Some(used(6, 4, 3)));
    assert_eq!(read(["/counts/0", "/counts/1", "", "/counts/3"], JSON, counts), Some(used(6, 4, 10)));
    assert_eq!(read(["/counts/0", "", "/counts/2", "/counts/3"], JSON, counts), Some(used(10, 0, 10)));
    assert_eq!(read(["", "", "", "/counts/3"], JSON, counts), Some(used(0, 0, 20)));
    assert_eq!(read(["/counts/9", "", "/x", ""], JSON, counts), None);
    let events = stream(&[r#"{"in":5,"out":1}"#, r#"{"out":2}"#, r#"{"in":null,"x":{"out":9}}"#, "[DONE]"]);
    assert_eq!(read(["/in", "", "/out", ""], EVENTS, &events), Some(used(5, 0, 2)));
}

#[test]
fn what_is_text_depends_on_what_is_there() {
    for (content_type, body, text) in [
        (JSON, r#"{"answer":"abc","id":"x","embedding":"AAAA","list":["d",{"e":"f"}]}"#, 6),
        (JSON, r#"{"answer":"abc","content":"d"}"#, 1),
        (JSON, r#"{"content":["a",{"x":["b"],"id":"no","data":{"content":"no"}}],"x":"no"}"#, 2),
        (JSON, r#"{"content":{"delta":"ab"},"delta":1,"text":"c"}"#, 3),
        (JSON, r#"{"content":{"delta":{"x":"ab"},"y":"c"},"x":"no"}"#, 3),
        (JSON, r#"{"answer":"abc","logprobs":{"content":[{"text":"no"}]}}"#, 3),
        (EVENTS, "data: {\"content\":\"abc\"}\n\ndata: {\"delta\":{\"content\":\"d\"}}\n\n", 1),
        (EVENTS, "data: {\"content\":\"abc\",\"delta\":1}\n\n", 3),
        (EVENTS, "data: {\"text\":\ndata: \"abc\"}\n\n", 3),
        (EVENTS, "data: {\"text\":\"abc\"", 3),
        (EVENTS, "data: hello you\n\ndata: [DONE]\n\n: comment\nevent: x\n\n", 8),
        (EVENTS, "data: {\"text\":\"abc\"}\n\ndata: {\"text\":\"d\",,,\n\ndata: {\"text\":\"ef\"}\n\n", 8),
        (JSON, "no json at all", 13),
        (JSON, "{\"text\":\"abc\"} more", 7),
        ("text/plain", "{\"text\":\"abc\"}", 14),
        ("", "abc", 3),
        ("application/problem+json; charset=utf-8", r#"{"text":"abc"}"#, 3),
        ("application/x-ndjson", "{\"text\":\"a\"}\n{\"text\":\n{\"text\":\"bc\"}\n\n", 3),
    ] {
        let found = read(content_type, body).text;
        assert_eq!(found, text, "{body}");
    }
}

#[test]
fn a_broken_event_does_not_spoil_the_next() {
    let last = r#"{"usage":{"prompt_tokens":5,"completion_tokens":6}}"#;
    for broken in [
        "{\"choices\":[{\"delta\":{\"content\":\"abc",
        "[[[[",
        "{\"a\\ud83d",
        "12",
        "}",
        "nul",
        "{\"usage\":{",
        "data: {",
    ] {
        assert_eq!(read(EVENTS, &stream(&[broken, last])).usage, Some(used(5, 0, 6)), "{broken}");
    }
}

#[test]
fn large_responses_are_read() {
    let text = "Grüße\\n".repeat(1 << 20);
    let event = format!(
        r#"{{"x":{}1{},"choices":[{{"delta":{{"content":"{text}"}}}}],"usage":{{"prompt_tokens":5}}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let body = stream(&[&event, "[DONE]"]);
    let found = read_pieces(EVENTS, &UsageSource::Auto, body.as_bytes().chunks(1000));
    assert_eq!((found.usage, found.text), (Some(used(5, 0, 0)), 8 << 20));
    let too_deep = format!(r#"{{"x":{}"#, "[".repeat(json::MAX_DEPTH + 9));
    assert_eq!(read_pieces(EVENTS, &UsageSource::Auto, [stream(&[&too_deep]).as_bytes()]).text, 10);
}

proptest! {
    #[test]
    fn cuts_change_nothing(
        parts in prop::collection::vec(
            prop::sample::select(vec!["{", "}", "[", "]", ":", ",", "\"delta\":", "\"content\":", "\"usage\":", "\"id\":", "\"a\\ud83d\\ude00é\"", "\"prompt_tokens\":", "\"response\":", "12", "\n\ndata:", "\r\n\r\ndata: ", "\n"]),
            0..40,
        ),
        kind in 0_usize..3, size in 1_usize..9,
    ) {
        let body = format!("data: {}", parts.concat());
        let content_type = [EVENTS, JSON, "application/x-ndjson"][kind];
        let whole = read_pieces(content_type, &UsageSource::Auto, [body.as_bytes()]);
        prop_assert_eq!(read_pieces(content_type, &UsageSource::Auto, body.as_bytes().chunks(size)), whole);
    }

    #[test]
    fn no_usage_is_more_than_what_was_said(counts in prop::collection::vec(prop::option::of(0_u64..1 << 60), 6)) {
        let names = ["prompt_tokens", "completion_tokens", "cached_tokens", "cache_read_input_tokens", "input_tokens", "cache_creation_input_tokens"];
        let members: Vec<String> = names.iter().zip(&counts).filter_map(|(name, count)| Some(format!("\"{name}\":{}", (*count)?))).collect();
        let found = read_pieces(JSON, &UsageSource::Auto, [format!("{{\"usage\":{{{}}}}}", members.join(",")).as_bytes()]);
        if let Some(Usage { input, cached, output }) = found.usage {
            prop_assert_eq!(output, counts[1].unwrap_or(0));
            match counts[0] {
                Some(prompt) => prop_assert_eq!(input + cached, prompt),
                None => prop_assert!(input + cached <= counts.iter().flatten().sum::<u64>()),
            }
        } else {
            prop_assert!(counts[0].or(counts[1]).or(counts[4]).is_none());
        }
    }
}
