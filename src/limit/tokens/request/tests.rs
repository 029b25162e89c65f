//! Tests of what is found in the bodies of requests.

use proptest::prelude::*;

use super::*;

fn read(body: &[u8], pointers: &[&str]) -> Inspected {
    let pointers: Vec<Pointer> = pointers.iter().map(|text| text.parse().unwrap()).collect();
    inspect(body, &Pointers::new(&pointers))
}

fn value(text: &str) -> Found {
    Found::Value(text.to_owned())
}

const CHAT: &str = r#"{
  "model": "gpt-4o-mini",
  "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Gr\u00fc\u00dfe \ud83d\ude00"}]}
  ],
  "max_completion_tokens": 300, "n": 2, "temperature": 0.7, "stream": true
}"#;

#[test]
fn reads_a_chat_completion() {
    let read = read(
        CHAT.as_bytes(),
        &["/model", "/temperature", "/messages/1/role", "/messages", "/user", "/messages/0/content"],
    );
    let inserted = Patch { at: 1..1, with: r#""stream_options":{"include_usage":true},"# };
    assert_eq!(
        read,
        Inspected {
            form: Form::Json,
            found: vec![
                value("gpt-4o-mini"),
                value("0.7"),
                value("user"),
                Found::Missing,
                Found::Missing,
                value("Be brief.")
            ],
            text: ("gpt-4o-mini".len()
                + "system".len()
                + "Be brief.".len()
                + "user".len()
                + "text".len()
                + "Grüße 😀".len()) as u64,
            max_output: Some(600),
            streams: true,
            has_messages: true,
            include_usage: Some(inserted),
        }
    );
}

#[test]
fn reads_requests_of_other_apis() {
    let anthropic = br#"{"model":"claude-sonnet-4-5","max_tokens":1024,"messages":[{"role":"user","content":"Hi"}],"system":"Brief"}"#;
    let body = read(anthropic, &["/model"]);
    assert_eq!(
        (&body.found[..], body.max_output, body.text, body.streams),
        (&[value("claude-sonnet-4-5")][..], Some(1024), 28, false)
    );
    let gemini =
        br#"{"contents":[{"parts":[{"text":"Hi"}]}],"generationConfig":{"maxOutputTokens":800,"candidateCount":3}}"#;
    let body = read(gemini, &[]);
    assert_eq!((body.max_output, body.text, body.has_messages), (Some(2400), 2, false));
    let responses = br#"{"model":"gpt-5","input":"Hi","max_output_tokens":50,"stream":true}"#;
    let body = read(responses, &[]);
    assert_eq!((body.max_output, body.streams, body.has_messages, body.include_usage), (Some(50), true, false, None));
}

#[test]
fn the_greatest_maximum_counts_whatever_it_is_called() {
    for (body, most) in [
        (r"{}", None),
        (r#"{"max_tokens":1,"max_completion_tokens":9,"max_output_tokens":5}"#, Some(9)),
        (r#"{"max_tokens":9,"max_tokens":1}"#, Some(9)),
        (r#"{"max_tokens":1,"MAX_TOKEN\u017f":7,"max_to\u212Aens":8}"#, Some(8)),
        (r#"{"n":3,"N":4}"#, None),
        (r#"{"n":3,"N":4,"max_tokens":5}"#, Some(20)),
        (r#"{"n":0,"max_tokens":5}"#, Some(5)),
        (r#"{"max_tokens":1e3,"n":2.0}"#, Some(2000)),
        (r#"{"max_tokens":-5,"n":-1}"#, None),
        (r#"{"max_tokens":5,"n":-1}"#, Some(5)),
        (r#"{"max_tokens":0.5,"max_completion_tokens":1e300,"max_output_tokens":"9"}"#, None),
        (r#"{"max_tokens":true,"max_completion_tokens":null,"max_output_tokens":[9]}"#, None),
        (r#"{"max_tokens":18446744073709551615,"n":2}"#, Some(u64::MAX)),
        (r#"{"a":{"max_tokens":9},"messages":[{"max_tokens":9}]}"#, None),
        (r#"{"generation_config":{"maxOutputTokens":2,"candidate_count":3}}"#, Some(6)),
        (r#"[{"max_tokens":9}]"#, None),
    ] {
        let read = read(body.as_bytes(), &[]);
        assert_eq!((read.max_output, read.form), (most, Form::Json), "{body}");
    }
}

#[test]
fn what_is_there_twice_is_ambiguous() {
    for body in [
        r#"{"model":"a","model":"a"}"#,
        r#"{"model":"a","mod\u0065l":"b"}"#,
        r#"{"model":"a","Model":"b"}"#,
        r#"{"model":"a","MODEL":null}"#,
        r#"{"model":null,"model":"b"}"#,
        r#"{"model":{},"model":"b"}"#,
        r#"{"model":[1],"x":[{"model":1}],"modeL":2}"#,
    ] {
        assert_eq!(read(body.as_bytes(), &["/model"]).found, [Found::Ambiguous], "{body}");
    }
    for body in
        [r#"{"tas\u212a":"a","task":"b"}"#, r#"{"taſk":"a","task":"b"}"#, "{\"ta\\u017Fk\":\"a\",\"TASK\":\"b\"}"]
    {
        assert_eq!(read(body.as_bytes(), &["/task"]).found, [Found::Ambiguous], "{body}");
    }
    for body in [
        r#"{"a":{"b":1},"A":{"b":2}}"#,
        r#"{"a":{"b":1},"a":{}}"#,
        r#"{"a":null,"a":{"b":1}}"#,
        r#"{"a":{"b":1,"B":1}}"#,
        r#"{"a":[0],"a":{"b":1}}"#,
    ] {
        assert_eq!(read(body.as_bytes(), &["/a/b"]).found, [Found::Ambiguous], "{body}");
    }
    let body = br#"{"a":{"b":1,"x":1,"x":2},"c":3,"c":4}"#;
    assert_eq!(
        read(body, &["/a/b", "/c", "/A/B", "/a/c"]).found,
        [value("1"), Found::Ambiguous, value("1"), Found::Missing]
    );
}

#[test]
fn values_have_one_form() {
    for (text, found) in [
        (r#""a\u0062""#, value("ab")),
        (r#""""#, value("")),
        (r#""\ud800""#, value("\u{fffd}")),
        ("1", value("1")),
        ("1.0", value("1")),
        ("1e0", value("1")),
        ("-0", value("0")),
        ("true", Found::Missing),
        ("null", Found::Missing),
        ("NaN", Found::Missing),
        ("{\"a\":1}", Found::Missing),
        ("[\"a\"]", Found::Missing),
    ] {
        assert_eq!(read(format!("{{\"m\":{text}}}").as_bytes(), &["/m"]).found, [found], "{text}");
    }
    assert_eq!(read(b"{\"m\":\"\xff\"}", &["/m"]).found, [value("\u{fffd}")]);
    let long = format!("{{\"m\":1.{}}}", "0".repeat(100));
    assert_eq!(read(long.as_bytes(), &["/m"]).found, [Found::Ambiguous]);
    assert_eq!(read(b"\"root\"", &["", "/a"]).found, [value("root"), Found::Missing]);
}

/// Some servers read a value, and do not look at what follows it.
#[test]
fn a_value_counts_whatever_follows_it() {
    for rest in [" x", "{}", "{\"m\":\"b\"}", "\n{\"m\":\"b\"}\n", "]", "\"m\""] {
        let body = format!("{{\"m\":\"a\"}}{rest}");
        let read = read(body.as_bytes(), &["/m"]);
        assert_eq!((read.found, read.text), (vec![value("a")], body.len() as u64), "{body}");
    }
    let stream = read(format!("{CHAT} x").as_bytes(), &[]);
    assert!(stream.streams && stream.include_usage.is_none());
}

#[test]
fn a_stream_is_whatever_a_server_may_take_for_one() {
    for (value, streams) in [
        ("true", true),
        ("1", true),
        ("\"true\"", true),
        ("false", false),
        ("0", false),
        ("null", false),
        ("[]", false),
    ] {
        assert_eq!(read(format!("{{\"stream\":{value}}}").as_bytes(), &[]).streams, streams, "{value}");
    }
}

#[test]
fn what_is_no_json_is_text() {
    for body in ["", "model=a", "{\"m\":\"a\"", "{\"m\":\"a\",}", "{'m':'a'}"] {
        let read = read(body.as_bytes(), &["/m"]);
        assert_eq!(
            (read.form, &read.found[..], read.text),
            (Form::Other, &[Found::Missing][..], body.len() as u64),
            "{body}"
        );
    }
    assert_eq!(read("\u{feff}{\"m\":\"a\"}".as_bytes(), &["/m"]).found, [value("a")]);
}

#[test]
fn other_encodings_are_told_apart() {
    let utf16: Vec<u16> = CHAT.encode_utf16().collect();
    let little: Vec<u8> = utf16.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let big: Vec<u8> = utf16.iter().flat_map(|unit| unit.to_be_bytes()).collect();
    let wide: Vec<u8> = CHAT.chars().flat_map(|char| u32::from(char).to_le_bytes()).collect();
    let wide_big: Vec<u8> = CHAT.chars().flat_map(|char| u32::from(char).to_be_bytes()).collect();
    for body in [little, big, wide, wide_big] {
        for mark in [&b""[..], b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\0\0", b"\0\0\xfe\xff"] {
            let body = [mark, &body].concat();
            let read = read(&body, &["/model"]);
            assert_eq!(
                (read.form, &read.found[..], read.text),
                (Form::OtherEncoding, &[Found::Missing][..], body.len() as u64)
            );
        }
    }
    assert_eq!(read(b"{\0", &[]).form, Form::OtherEncoding);
    assert_eq!(read(b"\"abc\0\"", &[]).form, Form::Json);
}

#[test]
fn the_stream_is_asked_for_its_usage() {
    for (options, patched) in [
        (r#","stream_options":null"#, r#","stream_options":{"include_usage":true}"#),
        (r#","stream_options":{}"#, r#","stream_options":{"include_usage":true}"#),
        (r#","stream_options":{ }"#, r#","stream_options":{"include_usage":true }"#),
        (r#","stream_options":{"x":1}"#, r#","stream_options":{"include_usage":true,"x":1}"#),
        (
            r#","stream_options":{"x":{"include_usage":true}}"#,
            r#","stream_options":{"include_usage":true,"x":{"include_usage":true}}"#,
        ),
        (r#","stream_options":{"include_usage":false}"#, r#","stream_options":{"include_usage":true}"#),
        (r#","stream_options":{"include_usage" : null }"#, r#","stream_options":{"include_usage" : true }"#),
        (
            r#","stream_options":{"include_usage":true,"include_usage":false}"#,
            r#","stream_options":{"include_usage":true,"include_usage":true}"#,
        ),
        (
            r#","stream_options":{"include_usage":true},"stream_options":{}"#,
            r#","stream_options":{"include_usage":true},"stream_options":{"include_usage":true}"#,
        ),
        (r#","stream_options":{"include_usage":true}"#, ""),
        (r#","stream_options":{"include_usage":false,"include_usage":true}"#, ""),
        (r#","stream_options":{"include_usage":"yes"}"#, ""),
        (r#","stream_options":{"include_usage":[]}"#, ""),
        (r#","stream_options":[]"#, ""),
        (r#","stream_options":true"#, ""),
        (r#","stream_options":"{}""#, ""),
    ] {
        let body = |options: &str| format!(r#"{{"messages":[],"stream":true{options}}}"#);
        let original = body(options);
        let patch = read(original.as_bytes(), &[]).include_usage;
        let result = patch.map(|Patch { at, with }| [&original[..at.start], with, &original[at.end..]].concat());
        assert_eq!(result, (!patched.is_empty()).then(|| body(patched)), "{options}");
    }
    for body in [
        r#"{"messages":[],"stream":false}"#,
        r#"{"messages":[]}"#,
        r#"{"messages":null,"stream":true}"#,
        r#"{"prompt":"a","stream":true}"#,
    ] {
        assert_eq!(read(body.as_bytes(), &[]).include_usage, None, "{body}");
    }
    let twice = br#"{"messages":[],"Stream":true,"stream":false}"#;
    assert!(read(twice, &[]).streams);
}

#[test]
fn deep_bodies_are_read() {
    let body = format!(r#"{{"x":{}1{},"m":"a"}}"#, "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(read(body.as_bytes(), &["/m"]).found, [value("a")]);
}

proptest! {
    #[test]
    fn a_patched_body_has_the_usage_and_all_that_it_had(
        before in prop::collection::vec(("[a-c]{1,3}", any::<u8>()), 0..3), options in prop::option::of(prop::collection::vec(("[a-c]|include_usage", any::<Option<bool>>()), 0..3)),
    ) {
        let mut body = serde_json::Map::new();
        for (name, number) in before {
            body.insert(name, number.into());
        }
        body.insert("messages".to_owned(), serde_json::json!([]));
        body.insert("stream".to_owned(), true.into());
        if let Some(options) = options {
            let members: serde_json::Map<String, serde_json::Value> = options.into_iter().map(|(name, value)| (name, value.into())).collect();
            body.insert("stream_options".to_owned(), members.into());
        }
        let text = serde_json::to_string_pretty(&body).unwrap();
        let patched = match read(text.as_bytes(), &[]).include_usage {
            Some(Patch { at, with }) => [&text[..at.start], with, &text[at.end..]].concat(),
            None => text,
        };
        body.entry("stream_options").or_insert(serde_json::json!({}))["include_usage"] = true.into();
        prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&patched).unwrap(), serde_json::Value::from(body));
    }
}
