//! Lets only whole parts of a stream pass (events, lines, elements or values), so that the stream can be ended between two
//! parts. Removes the event that only states the usage if the gateway asked for it and the client did not.
//!
//! All other bytes pass unchanged, as soon as their part is complete.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::response::ResponseReader;

/// The most bytes of an incomplete part that are held. A longer part passes as it comes.
const MAX_HELD: usize = 1 << 20;

/// Holds back the incomplete part of one stream.
pub struct StreamFilter {
    /// Has read all that was pushed.
    pub reader: ResponseReader,
    /// Whether to remove the event that only states the usage.
    hides_usage: bool,
    held: BytesMut,
    /// Whether the beginning of the part has passed, because it was too long to be held.
    has_passed: bool,
    /// Whether the last part was removed.
    took_out: bool,
}

impl StreamFilter {
    pub fn new(reader: ResponseReader, hides_usage: bool) -> Self {
        Self { reader, hides_usage, held: BytesMut::new(), has_passed: false, took_out: false }
    }

    /// Whether only whole parts of a stream have passed.
    pub fn is_between_parts(&self) -> bool {
        !self.has_passed && self.reader.parts().is_some()
    }

    pub fn push(&mut self, piece: &Bytes) -> impl Iterator<Item = Bytes> + use<> {
        let mut passing = SmallVec::<[Bytes; 2]>::new();
        let Self { reader, hides_usage, held, has_passed, took_out } = self;
        // A line feed may belong to the end of the last event.
        let is_between =
            held.is_empty() && !*has_passed && reader.events().is_some_and(|events| events.is_behind_return);
        // What comes before `until` may pass, and what comes before `from` has passed or was removed.
        let mut until = usize::from(is_between && piece.first() == Some(&b'\n'));
        let mut from = if *took_out { until } else { 0 };
        reader.read_parts(piece, |end, only_says_usage| {
            *took_out = only_says_usage && *hides_usage && !*has_passed;
            if *took_out {
                held.clear();
                passing.push(piece.slice(from..until));
                from = end;
            } else if !held.is_empty() {
                passing.push(held.split().freeze());
            }
            until = end;
            *has_passed = false;
        });
        if reader.parts().is_none() {
            until = piece.len();
        }
        let rest = &piece[until..];
        if *has_passed || held.len() + rest.len() > MAX_HELD {
            *has_passed = true;
            passing.push(held.split().freeze());
            until = piece.len();
        } else {
            held.extend_from_slice(rest);
        }
        passing.push(piece.slice(from..until));
        passing.into_iter().filter(|part| !part.is_empty())
    }

    pub fn finish(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Usage;
    use super::super::response::UsageSource;
    use super::*;

    fn filter(content_type: &str) -> StreamFilter {
        StreamFilter::new(ResponseReader::new(content_type, &UsageSource::Auto), true)
    }

    fn passed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut filter = filter("text/event-stream");
        let mut passed: Vec<u8> =
            pieces.into_iter().flat_map(|piece| filter.push(&Bytes::copy_from_slice(piece))).flatten().collect();
        passed.extend(filter.finish());
        String::from_utf8(passed).unwrap()
    }

    const EXTRA: &str =
        "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\n";
    const CHUNK: &str = "data: {\"id\":\"1\",\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    #[test]
    fn only_the_extra_chunk_is_taken_out() {
        let stream = [CHUNK, EXTRA, DONE].concat();
        assert_eq!(passed([stream.as_bytes()]), [CHUNK, DONE].concat());
        for line_end in ["\n", "\r", "\r\n"] {
            let of = |parts: &[&str]| parts.concat().replace('\n', line_end);
            for size in 1..200 {
                let stream = of(&[": x\n\n", CHUNK, EXTRA, EXTRA, "event: e\n", CHUNK, EXTRA, "\n", DONE]);
                let rest = of(&[": x\n\n", CHUNK, "event: e\n", CHUNK, "\n", DONE]);
                assert_eq!(passed(stream.as_bytes().chunks(size)), rest, "{size}");
            }
        }
    }

    #[test]
    fn what_is_no_extra_chunk_passes() {
        for data in [
            r#"{"choices":[],"usage":null}"#,
            r#"{"choices":[],"prompt_filter_results":[]}"#,
            r#"{"usage":{"prompt_tokens":5}}"#,
            r#"{"choices":[null],"usage":{}}"#,
            r#"{"choices":["a"],"usage":{}}"#,
            r#"{"choices":[{}],"usage":{}}"#,
            r#"{"choices":[[]],"usage":{}}"#,
            r#"{"choices":{},"usage":{}}"#,
            r#"{"choices":[],"usage":[]}"#,
            r#"{"choices":[],"choices":[1],"usage":{}}"#,
            r#"{"choices":[],"usage":{},"usage":null}"#,
            r#"[{"choices":[],"usage":{}}]"#,
            r#"{"response":{"choices":[],"usage":{}}}"#,
            r#"{"choices":[],"usage":{}"#,
            r#"{"choices":[],"usage":{}} x"#,
            "[DONE]",
        ] {
            let event = format!("data: {data}\n\n");
            assert_eq!(passed([event.as_bytes()]), event);
        }
        for unfinished in ["data: {\"choices\":[],\"usage\":{}}\n", "data: {\"choices\":[],\"us"] {
            assert_eq!(passed(unfinished.as_bytes().chunks(5)), unfinished);
        }
        let mut filter = filter("application/json");
        let json = Bytes::from_static(b"{\"choices\":[],");
        assert_eq!(filter.push(&json).collect::<Vec<_>>(), [json]);
    }

    #[test]
    fn events_pass_when_they_are_complete() {
        let mut filter = filter("text/event-stream");
        let mut push = |text: &str| {
            let passed: Vec<u8> = filter.push(&Bytes::copy_from_slice(text.as_bytes())).flatten().collect();
            String::from_utf8(passed).unwrap()
        };
        assert_eq!(push(CHUNK), CHUNK);
        assert_eq!(push("data: {"), "");
        assert_eq!(push("}\n\ndata: 1\n\ndata"), "data: {}\n\ndata: 1\n\n");
        assert_eq!(push(": 2\r\n\r"), "data: 2\r\n\r");
        assert_eq!(push("\n"), "\n");
        assert_eq!(push(CHUNK), CHUNK);
        assert_eq!(push(EXTRA), "");
        assert_eq!(filter.reader.findings.report.usage(), Some(Usage { input: 5, cached: 0, output: 6 }));
        let whole = Bytes::from_static(CHUNK.as_bytes());
        assert_eq!(filter.push(&whole).next().unwrap().as_ptr(), whole.as_ptr(), "it was copied");
    }

    #[test]
    fn lines_elements_and_values_pass_when_they_are_complete() {
        let check = |content_type: &str, pieces: &[(&str, &str)]| {
            let mut filter = filter(content_type);
            for (piece, passes) in pieces {
                let passed: Vec<u8> = filter.push(&Bytes::copy_from_slice(piece.as_bytes())).flatten().collect();
                assert_eq!(String::from_utf8(passed).unwrap(), *passes, "{content_type}: {piece}");
            }
            let rest = String::from_utf8(filter.finish().to_vec()).unwrap();
            let passed = pieces.iter().map(|(_, passes)| *passes).collect::<String>() + &rest;
            assert_eq!(passed, pieces.iter().map(|(piece, _)| *piece).collect::<String>());
        };
        check("application/x-ndjson", &[("{\"a\":1}\n{\"a", "{\"a\":1}\n"), ("\":2}\n\n", "{\"a\":2}\n\n"), ("{", "")]);
        check(
            "application/json",
            &[
                ("[", ""),
                ("{\"a\":[1,{}", ""),
                ("]}\n,{\"b", "[{\"a\":[1,{}]}"),
                ("\":2},1", "\n,{\"b\":2}"),
                (" ]", ",1 ]"),
            ],
        );
        check("application/json", &[("{\"a\":", "{\"a\":"), ("1}\n", "1}\n")]);
        check("application/json", &[("{\"a\":", "{\"a\":"), ("1}{\"b\"", "1}"), (":2} {", "{\"b\":2}"), ("}", " {}")]);
        check("text/plain", &[("[", "["), ("{}", "{}")]);
    }

    #[test]
    fn no_more_than_a_mebibyte_is_held() {
        let mut filter = filter("text/event-stream");
        let mut push = |bytes: Vec<u8>| filter.push(&Bytes::from(bytes)).map(|part| part.len()).sum::<usize>();
        assert_eq!(push(b"data: {\"choices\":[],\"usage\":{},\"x\":\"".to_vec()), 0);
        let first = MAX_HELD - 36;
        assert_eq!(push(vec![b'x'; first]), 0);
        assert_eq!(push(vec![b'x'; 2]), MAX_HELD + 2);
        assert_eq!(push(vec![b'x'; 5]), 5);
        assert_eq!(push(b"\"}\n\ndata: ".to_vec()), 4, "the beginning has passed, so all of it passes");
        assert_eq!(push(EXTRA.as_bytes()[6..].to_vec()), 0, "the next one is held again");
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(
            parts in prop::collection::vec(prop::sample::select(vec![CHUNK, EXTRA, DONE, "\n", "\r", "data: x", ": y\n"]), 0..12), size in 1_usize..300,
        ) {
            let stream = parts.concat();
            prop_assert_eq!(passed(stream.as_bytes().chunks(size)), passed([stream.as_bytes()]));
        }
    }
}
