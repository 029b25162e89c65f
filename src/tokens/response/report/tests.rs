//! Tests of when a usage is final, and of what else a response states about its answer.

use crate::tokens::response::{ResponseReader, UsagePointers, UsageSource};

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

fn stream(events: &[&str]) -> String {
    events.iter().fold(String::new(), |stream, data| stream + "data: " + data + "\n\n")
}

/// Whether a response states its usage, and will not state more.
#[track_caller]
fn is_said(content_type: &str, body: &str) -> bool {
    let read = |size: usize| {
        let mut reader = ResponseReader::new(content_type, &UsageSource::Auto);
        body.as_bytes().chunks(size).for_each(|piece| reader.read(piece));
        reader.says_usage()
    };
    let whole = read(body.len());
    assert_eq!([1, 7, 100].map(read), [whole; 3], "{body}");
    whole
}

#[test]
fn an_early_count_is_no_final_one() {
    let start =
        r#"{"type":"message_start","message":{"stop_reason":null,"usage":{"input_tokens":9,"output_tokens":1}}}"#;
    let text = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hello"}}"#;
    let failed = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let last = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}"#;
    let stop = r#"{"type":"message_stop"}"#;
    for (events, said) in [
        (&[start][..], false),
        (&[start, stop], false),
        (&[start, text, stop], false),
        (&[start, text, failed], false),
        (&[start, text, last], true),
        (&[start, text, last, stop], true),
        (&[start, last], true),
        (&[start, text, last, text], false),
        (&[start, text, &last.replace("15", "0")], false),
        (&[start, text, &last.replace("15", "-5")], false),
        (&[start, text, &last.replace("15", "null"), stop], false),
        (&[start, text, &last.replace("15", "-5,\"total_tokens\":40")], false),
    ] {
        assert_eq!(is_said(EVENTS, &stream(events)), said, "{events:?}");
    }
    let gemini = |text: &str, finish: &str, output: u64| {
        format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"text":"{text}"}}]}}{finish}}}],"usageMetadata":{{"promptTokenCount":9,"candidatesTokenCount":{output}}}}}"#
        )
    };
    let (one, last) = (gemini("Hello", "", 1), gemini(" you", r#","finishReason":"STOP""#, 9));
    for (parts, said) in [(&[&*one][..], false), (&[&one, &one], false), (&[&one, &last], true)] {
        assert_eq!(is_said(EVENTS, &stream(parts)), said, "{parts:?}");
        assert_eq!(is_said(JSON, &format!("[{}]", parts.join(",\r\n"))), said, "{parts:?}");
        assert_eq!(is_said("application/jsonl", &(parts.join("\n") + "\n")), said, "{parts:?}");
    }
    assert!(is_said(JSON, &one), "what is no stream says it once");
    let chunk = |delta: &str, finish: &str, usage: &str| {
        format!(r#"{{"choices":[{{"delta":{{{delta}}},"finish_reason":{finish}}}],"usage":{usage}}}"#)
    };
    let usage = r#"{"prompt_tokens":9,"completion_tokens":1}"#;
    let (role, hello) =
        (chunk(r#""role":"assistant","content":"""#, "null", usage), chunk(r#""content":"Hello""#, "null", "null"));
    let (both, end) = (chunk(r#""content":"Hello""#, "null", usage), chunk("", "\"stop\"", "null"));
    let alone = format!(r#"{{"choices":[],"usage":{usage}}}"#);
    for (events, said) in [
        (&[&*role][..], false),
        (&[&role, &hello, &end], false),
        (&[&role, &both], false),
        (&[&role, &hello, &alone, "[DONE]"], true),
        (&[&role, &hello, &end, &alone, "[DONE]"], true),
        (&[&role, &hello, &alone, &hello], false),
        (&[&role, &hello, &chunk("", "\"stop\"", usage), "[DONE]"], true),
        (&[&role, &hello, &chunk("", "\"\"", usage), "[DONE]"], false),
    ] {
        assert_eq!(is_said(EVENTS, &stream(events)), said, "{events:?}");
    }
    let response = |kind: &str, status: &str| {
        format!(
            r#"{{"type":"response.{kind}","response":{{"status":"{status}","usage":{{"input_tokens":9,"output_tokens":1}}}}}}"#
        )
    };
    let delta = r#"{"type":"response.output_text.delta","delta":"Hello"}"#;
    for (events, said) in [
        (&[&*response("in_progress", "in_progress")][..], false),
        (&[&*response("created", "queued"), delta], false),
        (&[&*response("created", "queued"), delta, &response("completed", "completed")], true),
        (&[delta, &*response("incomplete", "incomplete")], true),
    ] {
        assert_eq!(is_said(EVENTS, &stream(events)), said, "{events:?}");
    }
}

#[test]
fn a_count_beside_an_answer_is_final_when_all_answers_have_finished() {
    let chunk = |index: &str, content: &str, finish: &str| {
        let usage = r#"{"prompt_tokens":9,"completion_tokens":1}"#;
        format!(
            r#"{{"choices":[{{"finish_reason":{finish},{index}"delta":{{"content":"{content}"}}}}],"usage":{usage}}}"#
        )
    };
    let (first, second, beyond) = (r#""index":0,"#, r#""index":1,"#, r#""index":127,"#);
    let stop = r#""stop""#;
    let alone = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    for (events, said) in [
        (&[&*chunk(first, "a", stop), &chunk(second, "b", "null")][..], false),
        (&[&chunk(second, "b", "null"), &chunk("", "a", stop)], false),
        (&[&chunk(second, "b", "null"), &chunk(first, "a", stop), &chunk(second, "", stop)], true),
        (&[&chunk(second, "b", "null"), &chunk(first, "a", stop), &chunk(second, "c", stop), "[DONE]"], true),
        (&[&chunk(first, "a", stop), &chunk(second, "b", "null"), alone], true),
        (&[&chunk(second, "b", stop)], true),
        (&[&chunk(first, "a", stop), &chunk(beyond, "b", stop)], false),
        (&[&chunk(first, "a", stop), &chunk(beyond, "b", stop), alone], true),
    ] {
        assert_eq!(is_said(EVENTS, &stream(events)), said, "{events:?}");
    }
    let two = |last: &str| {
        format!(
            r#"{{"candidates":[{{"finishReason":"STOP"}},{{"content":{{"parts":[{{"text":"b"}}]}},"index":1{last}}}],"usageMetadata":{{"promptTokenCount":9,"candidatesTokenCount":1}}}}"#
        )
    };
    assert!(!is_said(EVENTS, &stream(&[&two("")])));
    assert!(is_said(EVENTS, &stream(&[&two(""), &two(r#","finishReason":"STOP""#)])));
}

#[test]
fn a_failure_before_the_end_states_no_usage() {
    let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":1}"#;
    let text = |finish: &str| {
        format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"Hello"}},"finish_reason":{finish}}}]}}"#)
    };
    let (error, both) = (r#"{"error":{"message":"x"}}"#, format!(r#"{{"error":{{"message":"x"}},{usage}}}"#));
    let alone = format!(r#"{{"choices":[],{usage}}}"#);
    let (going, stopped) = (text("null"), text(r#""stop""#));
    for (events, said) in [
        (&[&*going, &both][..], false),
        (&[&going, &alone, error], false),
        (&[&stopped, &alone, error], true),
        (&[&stopped, &both], true),
        (&[&going, &alone.replace('{', r#"{"error":null,"#)], true),
    ] {
        assert_eq!(is_said(EVENTS, &stream(events)), said, "{events:?}");
    }
    assert!(is_said(JSON, &both), "what is no stream says it once");
}

#[test]
fn what_says_nothing_is_no_usage() {
    let chat = |text: &str, counts: &str| {
        format!(r#"{{"choices":[{{"message":{{"content":"{text}"}},"finish_reason":"stop"}}],"usage":{{{counts}}}}}"#)
    };
    let text = "x".repeat(460);
    for (body, said) in [
        (chat(&text, r#""prompt_tokens":0,"completion_tokens":0,"total_tokens":0"#), false),
        (chat(&text, r#""prompt_tokens":11,"completion_tokens":0"#), false),
        (chat(&text, r#""prompt_tokens":11,"completion_tokens":-5"#), false),
        (chat(&text, r#""prompt_tokens":11"#), false),
        (chat(&text, r#""prompt_tokens":"11","completion_tokens":5"#), false),
        (chat(&text, r#""completion_tokens":5"#), false),
        (chat(&text, r#""prompt_tokens":11,"completion_tokens":5"#), true),
        (chat("", r#""prompt_tokens":11,"completion_tokens":0"#), true),
        (chat(&text, r#""prompt_tokens":11,"completion_tokens":-5,"total_tokens":16"#), false),
        (chat(&text, r#""prompt_tokens":-5,"completion_tokens":10,"total_tokens":12"#), false),
        (chat(&text, r#""prompt_tokens":1,"completion_tokens":"500","total_tokens":51"#), false),
        (chat(&text, r#""prompt_tokens":1,"completion_tokens":1.5,"total_tokens":51"#), false),
        (chat(&text, r#""prompt_tokens":11,"completion_tokens":null,"total_tokens":16"#), true),
        (r#"{"object":"list","data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":8}}"#.to_owned(), true),
        (
            r#"{"object":"list","data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":0,"total_tokens":0}}"#.to_owned(),
            false,
        ),
        (r#"{"object":"response","status":"queued","usage":{"input_tokens":5,"output_tokens":1}}"#.to_owned(), false),
        (r#"{"usage":{"prompt_tokens":5,"completion_tokens":6}"#.to_owned(), false),
    ] {
        assert_eq!(is_said(JSON, &body), said, "{body}");
    }
}

#[test]
fn an_answer_says_its_model_its_end_and_its_failure() {
    let read = |body: &str| {
        let mut reader = ResponseReader::new(EVENTS, &UsageSource::Auto);
        body.as_bytes().chunks(3).for_each(|piece| reader.read(piece));
        let models: Vec<_> = reader.models().map(String::from_utf8_lossy).collect();
        let model = (!models.is_empty()).then(|| models.join(" "));
        (model, reader.findings.ending.is_complete(), reader.findings.ending.has_failed)
    };
    let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(300));
    for (event, model, is_complete, has_failed) in [
        (r#"{"model":"lar\u0067e","choices":[{"finish_reason":null}],"error":null}"#, Some("large"), false, false),
        (r#"{"message":{"model":"claude"}}"#, Some("claude"), false, false),
        (r#"{"response":{"model":"o1","status":"completed","error":null}}"#, Some("o1"), true, false),
        (r#"{"response":{"model":"a"},"model":"b","modelVersion":"a"}"#, Some("a b"), false, false),
        (r#"{"modelVersion":"gemini","candidates":[{"finishReason":"STOP"}]}"#, Some("gemini"), true, false),
        (
            r#"{"choices":[{"model":"no","finish_reason":"stop","delta":{"model":"no"}}],"model":null}"#,
            None,
            true,
            false,
        ),
        (r#"{"error":{"message":"no"}}"#, None, false, true),
        (r#"{"type":"error","code":"x"}"#, None, false, true),
        (r#"{"error":"no"}"#, None, false, true),
        (r#"{"a":{"b":{"c":{"d":{"finish_reason":"stop"}}}}}"#, None, false, false),
        (&long, None, false, false),
    ] {
        let found = read(&stream(&[event]));
        assert_eq!(found, (model.map(str::to_owned), is_complete, has_failed), "{event}");
    }
}

#[test]
fn a_reason_to_finish_counts_only_in_an_answer() {
    for (content_type, event, is_complete) in [
        (EVENTS, r#"{"delta":{"stop_reason":"end_turn"}}"#, true),
        (EVENTS, r#"{"response":{"candidates":[{"finishReason":"MAX_TOKENS"}]}}"#, true),
        (EVENTS, r#"{"output":{"choices":[{"finish_reason":"stop"}]}}"#, true),
        (JSON, r#"{"stop_reason":"end_turn"}"#, true),
        (EVENTS, r#"{"stop_reason":"end_turn"}"#, false),
        (EVENTS, r#"{"choices":[{"finish_reason":""}]}"#, false),
        (EVENTS, r#"{"choices":[{"finish_reason":"null"}]}"#, false),
        (EVENTS, r#"{"candidates":[{"finishReason":"FINISH_REASON_UNSPECIFIED"}]}"#, false),
        (EVENTS, r#"{"choices":[{"delta":{"finish_reason":"stop"}}]}"#, false),
        (EVENTS, r#"{"choices":[[{"finish_reason":"stop"}]]}"#, false),
        (EVENTS, r#"{"response":{"metadata":{"finish_reason":"x"}}}"#, false),
        (EVENTS, r#"{"metadata":{"stop_reason":"x","choices":[{"finish_reason":"x"}]}}"#, false),
        (EVENTS, r#"{"content_block":{"input":{"stop_reason":"x"}}}"#, false),
    ] {
        let mut reader = ResponseReader::new(content_type, &UsageSource::Auto);
        let body = if content_type == JSON { event.to_owned() } else { stream(&[event]) };
        body.as_bytes().chunks(3).for_each(|piece| reader.read(piece));
        assert_eq!(reader.findings.ending.is_complete(), is_complete, "{event}");
    }
}

#[test]
fn an_unknown_api_says_its_usage_after_all_that_may_be_text() {
    let pointer = |text: &str| Some(text.parse().unwrap());
    let of = |input, output| UsageSource::from(&UsagePointers { input, output, ..UsagePointers::default() });
    let pointers = of(pointer("/usage/prompt_tokens"), pointer("/usage/completion_tokens"));
    let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":1}"#;
    let (alone, empty) = (format!("{{{usage}}}"), format!(r#"{{"tok":"",{usage}}}"#));
    let (text, both) = (r#"{"tok":"x"}"#, format!(r#"{{"tok":"x",{usage}}}"#));
    let known = format!(r#"{{"text":"x",{usage}}}"#);
    // If it is whole, and if it breaks off: without and with pointers.
    for (parts, expected) in [
        (&[&*alone, text][..], [false; 4]),
        (&[text, &alone], [true; 4]),
        (&[text, &empty, "[DONE]"], [true; 4]),
        (&[text, &both], [false, false, true, false]),
        (&[&both, text], [false; 4]),
        (&[&known, &known], [false, false, true, false]),
        (&[r#"{"text":"x","id":"y"}"#, &alone, r#"{"id":"y"}"#], [true; 4]),
    ] {
        for (content_type, body) in [(EVENTS, stream(parts)), ("application/x-ndjson", parts.join("\n") + "\n")] {
            let said = [&UsageSource::Auto, &pointers].map(|source| {
                let mut reader = ResponseReader::new(content_type, source);
                body.as_bytes().chunks(7).for_each(|piece| reader.read(piece));
                [reader.says_usage(), reader.says_usage_before_end(1)]
            });
            assert_eq!(said.concat(), expected, "{body}");
        }
    }
    // A document of its own is whole.
    let mut reader = ResponseReader::new(JSON, &pointers);
    reader.read(both.as_bytes());
    assert!(reader.says_usage_before_end(1) && is_said(JSON, &both));
}
