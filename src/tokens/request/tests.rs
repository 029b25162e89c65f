//! Tests of what is found in the bodies of requests.

mod apis;
mod maxima;
mod told_apart;

use proptest::prelude::*;

use super::*;
use crate::base::json::MAX_DEPTH;

/// Reads a body for the API that has the maximum in it.
fn read(body: &[u8], pointers: &[&str]) -> Inspected {
    let has = |part: &str| memchr::memmem::find(body, part.as_bytes()).is_some();
    let api = match () {
        () if has("generation") => Api::GenerateContent,
        () if has("max_completion_tokens") => Api::Chat,
        () if has("max_output_tokens") && !has("max_tokens") => Api::Responses,
        () => Api::Completions,
    };
    let pointers = BodyPointers::new(&pointers.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
    let mut inspection = Inspection::new(&pointers, api);
    pieces(body).for_each(|piece| inspection.read(piece));
    inspection.finish(body.len() as u64)
}

/// The body for the upstream, if it can be made to ask for its usage.
fn asking(body: &str) -> Option<String> {
    let mut asking = body.to_owned();
    let patches = read(body.as_bytes(), &[]).usage_patches?;
    patches.into_iter().rev().for_each(|Patch { at, with }| asking.replace_range(at, with));
    Some(asking)
}

fn value(text: &str) -> PointedTo {
    PointedTo::Value(text.to_owned())
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
    let names = ["model", "messages", "role", "content", "role", "content", "type", "text"];
    let names = names.concat() + "max_completion_tokens" + "n" + "temperature" + "stream";
    let texts = ["gpt-4o-mini", "system", "Be brief.", "user", "text", "Grüße 😀"];
    assert_eq!(
        read,
        Inspected {
            form: Form::Json,
            documents: vec![vec![
                value("gpt-4o-mini"),
                value("0.7"),
                value("user"),
                PointedTo::Missing,
                PointedTo::Missing,
                value("Be brief.")
            ]],
            elements: None,
            input: InputSize { text: (names.len() + texts.concat().len()) as u64, words: 3, parts: 0 },
            output: AskedOutput { most: 300, is_bounded: true, is_uncertain: false, answers: 2 },
            streams: true,
            is_background: false,
            usage_patches: Some(vec![inserted]),
            repeated: None,
        }
    );
}

#[test]
fn reads_requests_of_other_apis() {
    let anthropic = br#"{"model":"claude-sonnet-4-5","max_tokens":1024,"messages":[{"role":"user","content":"Hi"}],"system":"Brief"}"#;
    let body = read(anthropic, &["/model"]);
    assert_eq!(
        (&body.documents[0][..], body.output.tokens(7), body.input.text, body.streams),
        (&[value("claude-sonnet-4-5")][..], 1024, 28 + "modelmax_tokensmessagesrolecontentsystem".len() as u64, false)
    );
    let gemini =
        br#"{"contents":[{"parts":[{"text":"Hi"}]}],"generationConfig":{"maxOutputTokens":800,"candidateCount":3}}"#;
    let body = read(gemini, &[]);
    let names = "contentspartstextgenerationConfigmaxOutputTokenscandidateCount";
    assert_eq!((body.output.tokens(7), body.input.text), (2400, 2 + names.len() as u64));
    let responses = br#"{"model":"gpt-5","input":"Hi","max_output_tokens":50,"stream":true}"#;
    let body = read(responses, &[]);
    assert_eq!((body.output.tokens(7), body.streams), (50, true));
}

#[test]
fn the_input_is_all_that_is_in_the_body() {
    for (body, text, words) in [
        (r#"{"a":"bc"}"#, 3, 0),
        (r#"{"a":[1,-2.5,1e9,true,false,null]}"#, 1, 3),
        (r#"{"a":[{"b":[1,true,false,null],"c":true}]}"#, 3, 5),
        (r#"{"":{"bcd":{"e":""}}}"#, 4, 0),
        (r#"{"caf\u00e9":0}"#, 5, 1),
        ("[1,2]", 0, 2),
    ] {
        assert_eq!(read(body.as_bytes(), &[]).input, InputSize { text, words, parts: 0 }, "{body}");
    }
    let prompt = format!(r#"{{"prompt":[1{}]}}"#, ",1".repeat(39_999));
    assert_eq!(read(prompt.as_bytes(), &[]).input.tokens(0), 40_002);
    for (name, length) in [("n".repeat(100_000), 100_000), ("\\u006e".repeat(1000), 1000)] {
        let body = format!(r#"{{"{name}":true}}"#);
        assert_eq!(read(body.as_bytes(), &[]).input.text, length);
    }
    let number = format!("[{}]", "1".repeat(100_000));
    assert_eq!(read(number.as_bytes(), &[]).input, InputSize { text: 100_000, words: 1, parts: 0 });
    assert_eq!(InputSize { text: 9, words: 2, parts: 3 }.tokens(1000), 3005);
    assert_eq!(InputSize { text: 9, words: u64::MAX, parts: u64::MAX }.tokens(1000), u64::MAX);
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
        assert_eq!(read(body.as_bytes(), &["/model"]).documents[0], [PointedTo::Ambiguous], "{body}");
    }
    for body in
        [r#"{"tas\u212a":"a","task":"b"}"#, r#"{"taſk":"a","task":"b"}"#, "{\"ta\\u017Fk\":\"a\",\"TASK\":\"b\"}"]
    {
        assert_eq!(read(body.as_bytes(), &["/task"]).documents[0], [PointedTo::Ambiguous], "{body}");
    }
    for body in [
        r#"{"a":{"b":1},"A":{"b":2}}"#,
        r#"{"a":{"b":1},"a":{}}"#,
        r#"{"a":null,"a":{"b":1}}"#,
        r#"{"a":{"b":1,"B":1}}"#,
        r#"{"a":[0],"a":{"b":1}}"#,
    ] {
        assert_eq!(read(body.as_bytes(), &["/a/b"]).documents[0], [PointedTo::Ambiguous], "{body}");
    }
    let body = br#"{"a":{"b":1,"x":1,"x":2},"c":3,"c":4}"#;
    assert_eq!(
        read(body, &["/a/b", "/c", "/A/B", "/a/c"]).documents[0],
        [value("1"), PointedTo::Ambiguous, value("1"), PointedTo::Missing]
    );
}

#[test]
fn what_means_something_to_the_gateway_is_not_there_twice() {
    for (body, repeated) in [
        (r#"{"max_tokens":1,"max_tokens":1}"#, Some("/max_tokens")),
        (r#"{"max_tokens":1,"MAX_TOKEN\u017f":7}"#, Some("/max_tokens")),
        (r#"{"n":null,"N":4}"#, Some("/n")),
        (
            r#"{"generationConfig":{"maxOutputTokens":1},"GenerationConfig":{}}"#,
            Some("/generationConfig/maxOutputTokens"),
        ),
        (r#"{"stream":false,"Stream":true}"#, Some("/stream")),
        (r#"{"stream_options":{"include_usage":true,"Include_Usage":false}}"#, Some("/stream_options/include_usage")),
        (r#"{"background":true,"bac\u212Aground":false}"#, Some("/background")),
        (r#"{"max_tokens":1,"max_completion_tokens":9}"#, None),
        (r#"{"user":1,"user":2,"tools":[{"n":1,"n":2}]}"#, None),
    ] {
        let found = read(body.as_bytes(), &[]).repeated.map(|pointer| pointer.to_string());
        assert_eq!(found.as_deref(), repeated, "{body}");
    }
    let many = format!(r#"{{"stream":true{}}}"#, r#","stream_options":{}"#.repeat(1000));
    assert!(read(many.as_bytes(), &[]).usage_patches.unwrap().len() < 4);
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
        ("true", PointedTo::Missing),
        ("null", PointedTo::Missing),
        ("NaN", PointedTo::Missing),
        ("{\"a\":1}", PointedTo::Missing),
        ("[\"a\"]", PointedTo::Missing),
    ] {
        assert_eq!(read(format!("{{\"m\":{text}}}").as_bytes(), &["/m"]).documents[0], [found], "{text}");
    }
    assert_eq!(read(b"{\"m\":\"\xff\"}", &["/m"]).documents[0], [value("\u{fffd}")]);
    let long = format!("{{\"m\":1.{}}}", "0".repeat(100));
    assert_eq!(read(long.as_bytes(), &["/m"]).documents[0], [PointedTo::Ambiguous]);
    assert_eq!(read(b"\"root\"", &["", "/a"]).documents[0], [value("root"), PointedTo::Missing]);
}

/// Some servers read a value and ignore what follows it.
#[test]
fn a_value_counts_whatever_follows_it() {
    for rest in [" x", "{}", "{\"m\":\"b\"}", "\n{\"m\":\"b\"}\n", "]", "\"m\""] {
        let body = format!("{{\"m\":\"a\"}}{rest}");
        let read = read(body.as_bytes(), &["/m"]);
        assert_eq!((&read.documents[0], read.input.text), (&vec![value("a")], body.len() as u64), "{body}");
        assert_eq!(read.form, Form::AlmostJson, "{body}");
    }
    let stream = read(format!("{CHAT} x").as_bytes(), &[]);
    assert!(stream.streams && stream.usage_patches.is_none());
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
        ("[]", true),
        ("[0]", true),
        ("{}", true),
    ] {
        assert_eq!(read(format!("{{\"stream\":{value}}}").as_bytes(), &[]).streams, streams, "{value}");
    }
}

#[test]
fn what_is_no_json_is_text() {
    for body in ["", "model=a", "{\"m\":\"a\"", "{\"m\":\"a\",}", "{'m':'a'}"] {
        let read = read(body.as_bytes(), &["/m"]);
        assert_eq!(
            (read.form, &read.documents[0][..], read.input.text),
            (Form::Other, &[PointedTo::Missing][..], body.len() as u64),
            "{body}"
        );
    }
    assert_eq!(read("\u{feff}{\"m\":\"a\"}".as_bytes(), &["/m"]).documents[0], [value("a")]);
}

#[test]
fn what_is_nested_too_deeply_is_told_apart() {
    let deep = ["[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1)].concat();
    for body in [format!(r#"{{"x":{deep},"m":"a"}}"#), format!(r#"{{"m":"a","x":{deep}}}"#), format!("[{deep}]")] {
        let read = read(body.as_bytes(), &["/m"]);
        assert_eq!((read.form, read.input.text), (Form::TooDeep, body.len() as u64));
    }
    assert_eq!(read(format!("x {deep}").as_bytes(), &["/m"]).form, Form::Other);
}

#[test]
fn what_is_almost_json_is_told_apart() {
    for body in [
        r#"{"m":"a","x":NaN}"#,
        r#"{"m":"a","x":-Infinity}"#,
        r#"{"m":"a","x":True}"#,
        r#"{"m":"a","x":01}"#,
        r#"{"m":"a","x":.5}"#,
        r#"{"m":"a","x":+1}"#,
        r#"{"m":"a","x":0x1f}"#,
        "{\"m\":\"a\",\"x\":\"line\nfeed\"}",
        "{\"m\":\"a\",\"x\ty\":1}",
        "{\"m\":\"a\"} // comment",
        "{\"m\":\"a\"},",
    ] {
        let read = read(body.as_bytes(), &["/m"]);
        assert_eq!((read.form, &read.documents[0][..]), (Form::AlmostJson, &[value("a")][..]), "{body}");
    }
    for body in
        [&b"{\"m\":\"a\",\"x\":\"\xff\"}"[..], b"{\"m\":\"a\",\"mod\xffel\":1}", b"{\"m\":\"a\",\"x\":\"\xc3\"}"]
    {
        assert_eq!(read(body, &["/m"]).form, Form::AlmostJson, "{}", body.escape_ascii());
    }
    for body in [r#"{"m":"a",}"#, r#"/* comment */{"m":"a"}"#, r#"{m:"a"}"#, r#"{"m":"\x61"}"#, "1 2", ""] {
        assert_eq!(read(body.as_bytes(), &["/m"]).form, Form::Other, "{body}");
    }
    for body in ["\u{feff}{\"x\":[-0.5e+3,1E9,0]} ", "\"\\ud800\"", "{\"\u{7f}\":\"\u{2028}\"}"] {
        assert_eq!(read(body.as_bytes(), &[]).form, Form::Json, "{body}");
    }
    // A body is not cut within a character.
    for at in PIECE - 4..PIECE {
        let body = format!(r#"["{}é€😀{}"]"#, "x".repeat(at - 2), "é".repeat(PIECE));
        assert_eq!(pieces(body.as_bytes()).map(<[u8]>::len).sum::<usize>(), body.len());
        assert!(pieces(body.as_bytes()).all(|piece| str::from_utf8(piece).is_ok() && piece.len() <= PIECE));
        assert_eq!(read(body.as_bytes(), &[]).form, Form::Json);
    }
    assert_eq!(pieces(&vec![0x80; 3 * PIECE]).map(<[u8]>::len).sum::<usize>(), 3 * PIECE);
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
            assert!(has_other_encoding(&[mark, &body].concat()));
        }
    }
    assert!(has_other_encoding(b"{\0"));
    assert!(!has_other_encoding(b"\"abc\0\"") && !has_other_encoding(b"") && !has_other_encoding(CHAT.as_bytes()));
}

#[test]
fn what_comes_later_is_told() {
    for (value, is_background) in [
        ("true", true),
        ("1", true),
        ("2.5", true),
        ("\"true\"", true),
        ("\" YES\"", true),
        ("\"1\"", true),
        ("false", false),
        ("null", false),
        ("0", false),
        ("\"false\"", false),
        ("\" False\"", false),
        ("\"\"", false),
        ("\"0.0\"", false),
        ("\"enabled\"", true),
        ("\"null\"", true),
        ("\"transparent\"", false),
        ("\"opaque\"", false),
        ("\"auto\"", false),
        ("[]", true),
        ("[1]", true),
        ("{}", true),
        ("{\"enabled\":true}", true),
    ] {
        for name in ["background", "Bac\\u212Aground"] {
            let body = format!(r#"{{"{name}":{value}}}"#);
            assert_eq!(read(body.as_bytes(), &[]).is_background, is_background, "{body}");
        }
    }
    assert!(!read(br#"{"tools":[{"background":true}]}"#, &[]).is_background);
    assert!(read(br#"{"batch":{"inputConfig":{"requests":{}}}}"#, &[]).is_background);
}

#[test]
fn deep_bodies_are_read() {
    let body = format!(r#"{{"x":{}1{},"m":"a"}}"#, "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(read(body.as_bytes(), &["/m"]).documents[0], [value("a")]);
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
        let asking = asking(&text).unwrap();
        body.entry("stream_options").or_insert(serde_json::json!({}))["include_usage"] = true.into();
        prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&asking).unwrap(), serde_json::Value::from(body));
    }
}

#[test]
fn a_text_that_is_too_long_is_not_kept() {
    let keys = BodyPointers::new(&["/user".parse().unwrap()]);
    for (length, is_kept) in [(MAX_TEXT, true), (MAX_TEXT + 1, false), (MAX_TEXT * 5, false)] {
        let text = "u".repeat(length);
        let found = &inspect(format!(r#"{{"user": "{text}"}}"#).as_bytes(), &keys).documents[0];
        let expected = if is_kept { PointedTo::Value(text) } else { PointedTo::Ambiguous };
        assert!(*found == [expected], "{length}");
    }
}
