//! Tests of two distinctions: parts that are not text, and requests that have to be made to ask for their usage.

use super::*;

#[test]
fn the_stream_is_asked_for_its_usage() {
    for (options, asking_options) in [
        (r#""stream_options":null"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{ }"#, r#""stream_options":{"include_usage":true }"#),
        (r#""stream_options":{"x":1}"#, r#""stream_options":{"include_usage":true,"x":1}"#),
        (
            r#""stream_options":{"x":{"include_usage":true}}"#,
            r#""stream_options":{"include_usage":true,"x":{"include_usage":true}}"#,
        ),
        (r#""stream_options":{"include_usage":false}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{"include_usage" : null }"#, r#""stream_options":{"include_usage" : true }"#),
        // Values of other types.
        (r#""stream_options":{"include_usage":0}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{"include_usage":1}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{"include_usage":"no"}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{"include_usage":"true","x":"y"}"#, r#""stream_options":{"include_usage":true,"x":"y"}"#),
        (r#""stream_options":{"include_usage":[{"a":["b"]},2]}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{"include_usage":{"include_usage":1}}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":[{"include_usage":false}]"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":true"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":"{}""#, r#""stream_options":{"include_usage":true}"#),
        // Names in another case.
        (
            r#""stream_options":{"Include_U\u017fage":false}"#,
            r#""stream_options":{"include_usage":true,"Include_U\u017fage":true}"#,
        ),
        (r#""stream_options":{"include\u005fusage":false}"#, r#""stream_options":{"include\u005fusage":true}"#),
    ] {
        let body = |options: &str| format!(r#"{{"stream":true,{options}}}"#);
        assert_eq!(asking(&body(options)), Some(body(asking_options)), "{options}");
        assert_eq!(asking(&body(asking_options)), Some(body(asking_options)), "{options}");
    }
    let other = r#""stream_options":{"include_usage":true},"#;
    assert_eq!(
        asking(r#"{"STREAM_OPTIONS":{"include_usage":false},"stream":true}"#).unwrap(),
        format!(r#"{{{other}"STREAM_OPTIONS":{{"include_usage":true}},"stream":true}}"#)
    );
    assert_eq!(asking(r#" {"stream":1}"#).unwrap(), format!(r#" {{{other}"stream":1}}"#));
    for body in [r#"[{"stream":true}]"#, "\"a\"", "{\"stream\":true} x", "{\"stream\":true"] {
        assert_eq!(asking(body), None, "{body}");
    }
}

#[test]
fn parts_that_are_no_text_are_counted() {
    for (body, parts) in [
        (r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://a.test/b.png"}}]}]}"#, 1),
        (r#"{"messages":[{"content":[{"type":"image_url","image_url":"https://a.test/b.png"}]}]}"#, 1),
        (r#"{"messages":[{"content":[{"Image_URL":{"url":"a"}},{"image_url":{"url":"b"}}]}]}"#, 2),
        (r#"{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]}]}"#, 1),
        (r#"{"messages":[{"content":[{"type":"file","file":{"file_id":"f-1"}}]}]}"#, 1),
        (r#"{"messages":[{"role":"assistant","audio":{"id":"a-1"}}],"audio":{"voice":"alloy"}}"#, 1),
        (r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"a","detail":"low"}]}]}"#, 1),
        (
            r#"{"input":[{"role":"user","content":[{"type":"input_file","file_url":"a"},{"type":"input_image","file_id":"b"}]}]}"#,
            2,
        ),
        (r#"{"input":"Hi","previous_response_id":"resp_1"}"#, 1),
        (r#"{"input":"Hi","previous_response_id":null,"conversation":null}"#, 0),
        (r#"{"input":"Hi","conversation":{"id":"conv_1"}}"#, 1),
        (r#"{"input":"Hi","conversation":"conv_1"}"#, 1),
        (r#"{"input":"Hi","prompt":{"id":"p_1"}}"#, 1),
        (r#"{"prompt":["a","b"]}"#, 0),
        (r#"{"input":[{"type":"item_reference","id":"msg_1"},{"id":"msg_2"},{"id":"msg_3","type":null}]}"#, 3),
        (
            r#"{"input":[{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Hi"}]}]}"#,
            0,
        ),
        (
            r#"{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]}"#,
            1,
        ),
        (r#"{"messages":[{"content":[{"type":"image","source":{"type":"file","file_id":"f"}}]}]}"#, 1),
        (
            r#"{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"a"}}]}]}]}"#,
            1,
        ),
        (
            r#"{"messages":[{"content":[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{}},{"source":{}}]}}]}]}"#,
            3,
        ),
        (
            r#"{"messages":[{"content":[{"type":"tool_use","input":{"file":"a.txt","image_url":{}}}]}],"tools":[{"image_url":"a"}]}"#,
            0,
        ),
        (
            r#"{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"AAAA"}},{"file_data":{"file_uri":"gs://a"}}]}]}"#,
            2,
        ),
        (
            r#"{"contents":[{"parts":[{"functionCall":{"args":{"source":"a"}}}]}],"cachedContent":"cachedContents/1"}"#,
            1,
        ),
        (r#"{"messages":[{"images":["AAAA","BBBB"],"content":"a"}]}"#, 2),
        (r#"{"images":["AAAA",{"image_url":"a"}]}"#, 2),
        (r#"{"messages":[{"content":"the source of image_url is data"}]}"#, 0),
        (r#"{"messages":[{"content":[{"type":"document_url","document_url":"https://a.test/b.pdf"}]}]}"#, 1),
        (r#"{"messages":[{"content":[{"type":"input_video","input_video":{"url":"https://a.test/b.mp4"}}]}]}"#, 1),
        (r#"{"file_ids":["f-1","f-2"]}"#, 2),
        (r#"{"input":[{"file_ids":["f-1","f-2",{}],"x":["a"]}]}"#, 3),
        (r#"{"tools":[{"container":{"type":"auto","file_ids":["f-1","f-2"]},"x":["a"]},{"file_ids":["f-3"]}]}"#, 3),
        (r#"{"tools":[{"file_ids":["f-1"],"x":{"y":["a",{"z":"b"}]}},["a"],"b"]}"#, 1),
        (r#"{"tools":[{"parameters":{"properties":{"file_ids":{"type":"array","items":{"type":"string"}}}}}]}"#, 0),
        (r#"{"messages":[{"content":[{"type":"tool_use","input":{"file_ids":["f-1"]}}]}]}"#, 0),
        (r#"{"tools":[{"file_ids":["f-1"]}],"messages":[{"content":[{"image_url":"a"}]}]}"#, 2),
        // Results of tools, and documents.
        (
            r#"{"contents":[{"parts":[{"functionResponse":{"response":{"result":"a"},"parts":[{"inlineData":{}}]}}]}]}"#,
            1,
        ),
        (r#"{"documents":[{"content":[{"type":"image_url","image_url":{"url":"a"}}]},"b"],"images":["c"]}"#, 2),
        (r#"{"documents":{"image_url":"a"}}"#, 1),
    ] {
        assert_eq!(read(body.as_bytes(), &[]).input.parts, parts, "{body}");
    }
}

/// A picture in a request is not text, but text that is declared as a picture counts as text.
#[test]
fn data_of_parts_is_no_text() {
    let data = "iVBORw0KGgo_-+/".repeat(1000) + "==";
    let escaped = data.replace('/', r"\/");
    let text = "words and more words ".repeat(1000);
    let of = |body: String| {
        let InputSize { text, parts, .. } = read(body.as_bytes(), &[]).input;
        assert_eq!(parts, 1, "{}", &body[..100]);
        text
    };
    for body in [
        format!(r#"{{"messages":[{{"content":[{{"image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"image_url":{{"url":"data:image\/png;base64,{escaped}"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"image_url":"data:;base64,{data}"}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"file":{{"file_data":"data:application/pdf;base64,{data}"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"source":{{"data":"{data}","media_type":"image\/png"}}}}]}}]}}"#),
        format!(r#"{{"contents":[{{"parts":[{{"inline_data":{{"mime_type":"audio/mp3","data":"{data}"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"images":["{data}"]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"input_audio":{{"data":"{data}","format":"wav"}}}}]}}]}}"#),
    ] {
        assert!(of(body) < 200);
    }
    for body in [
        format!(r#"{{"messages":[{{"content":[{{"image_url":{{"url":"{text}"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"image_url":{{"url":"data:{text}"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"image_url":{{"url":"data:text/plain;base64,{data}"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"file":{{"filename":"{data}"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"source":{{"data":"{data}","media_type":"Text/plain"}}}}]}}]}}"#),
        format!(r#"{{"messages":[{{"content":[{{"source":{{"type":"text","data":"{data}"}}}}]}}]}}"#),
        format!(r#"{{"contents":[{{"parts":[{{"inlineData":{{"mimeType":"application/json","data":"{data}"}}}}]}}]}}"#),
    ] {
        assert!(of(body) > 10_000);
    }
    // Lines as programs write them in base64, and lines of words.
    let lines = |length: usize| format!("{}{}", "A".repeat(length), r"\n").repeat(1000);
    let body =
        |data: &str| format!(r#"{{"messages":[{{"content":[{{"image_url":"data:image/png;base64,{data}"}}]}}]}}"#);
    assert!(of(body(&lines(76))) < 200);
    assert!(of(body(&lines(8))) > 7000);
    let body = format!(r#"{{"messages":[{{"content":"{data}","data":"{data}"}}]}}"#);
    assert!(read(body.as_bytes(), &[]).input.text > 2 * data.len() as u64);
}

/// Results of tools and documents have members of any names.
#[test]
fn results_of_tools_have_no_data() {
    let words = "words".repeat(2000);
    for (body, after) in [
        (r#"{"contents":[{"parts":[{"functionResponse":{"name":"f","response":{"image":"WORDS"}}}]}],"x":["#, ""),
        (r#"{"contents":[{"parts":[{"functionResponse":{"response":{"a":[{"image":{"url":"WORDS"}}]}}}]}],"x":["#, ""),
        (r#"{"contents":[{"parts":[{"functionResponse":{"response":{"images":["WORDS",["WORDS"]]}}}]}],"x":["#, ""),
        (r#"{"documents":[{"data":{"image":"WORDS"}}],"x":["#, ""),
        (r#"{"documents":[{"image":{"image":{"data":"WORDS"}}}],"x":["#, ""),
        (r#"{"documents":{"url":"WORDS","image_url":"WORDS"},"x":["#, ""),
        (r#"{"tool_results":[{"outputs":[{"image":"WORDS"}]}],"x":["#, ""),
        (r#"{"tools":[{"parameters":{"file_ids":["WORDS"],"image":"WORDS"}}],"x":["#, ""),
        // Data beside them is none of their text.
        (r#"{"images":["AAAA",{"data":"AAAA","response":{"image":"WORDS"}}],"x":["#, r#"{"image":"AAAA"}"#),
    ] {
        let whole = format!("{body}{after}]}}").replace("WORDS", &words);
        let texts = body.matches("WORDS").count() as u64 * 10_000;
        let text = read(whole.as_bytes(), &[]).input.text;
        assert!((texts..texts + 100).contains(&text), "{text}: {body}");
        let data = whole.matches("AAAA").count() as u64 * 4;
        let names = read(whole.replace("AAAA", "").as_bytes(), &[]).input.text;
        assert_eq!(text, names, "{data} bytes of data: {body}");
    }
}
