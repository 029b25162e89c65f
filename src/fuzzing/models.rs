//! Properties of the readers of JSON and of responses of language models.

use std::ops::Range;

use bytes::Bytes;
use serde_json::{Map, Value, from_slice};

use crate::base::json::{Kind, Reader, Visit, normal};
use crate::tokens::filter::StreamFilter;
use crate::tokens::request::{BodyPointers, Form, Patch, inspect};
use crate::tokens::response::{ResponseReader, UsageSource};

/// A document: the reader agrees with serde_json, however the document is cut into pieces. After a patch, it is still JSON.
pub(super) fn json(bytes: &[u8]) {
    let whole = Built::read([bytes]);
    for size in [1, 3, 64] {
        assert_eq!(Built::read(bytes.chunks(size)), whole, "{size}");
    }
    let inspected = inspect(bytes, &BodyPointers::new(&[]));
    let Ok(value) = from_slice::<Value>(bytes) else { return };
    // serde_json gives this name a special meaning.
    if bytes.windows(11).any(|part| part == b"$serde_json") {
        return;
    }
    assert!(whole.is_whole && inspected.form == Form::Json);
    assert!(whole.is_cut || whole.value() == Some(&value));
    for (at, part) in &whole.ended {
        assert!(whole.is_cut || from_slice::<Value>(&bytes[at.clone()]).is_ok_and(|value| value == *part), "{at:?}");
    }
    if let Some(patches) = inspected.usage_patches {
        let mut patched = bytes.to_vec();
        patches.iter().rev().for_each(|Patch { at, with }| drop(patched.splice(at.clone(), with.bytes())));
        assert_eq!(inspect(&patched, &BodyPointers::new(&[])).usage_patches, Some(Vec::new()));
        assert!(from_slice::<Value>(&patched).is_ok());
    }
}

/// A document that is built from what is read.
#[derive(Debug, Default, PartialEq)]
struct Built {
    /// The arrays and objects that have begun, with their places and the name of the next member. The first contains the
    /// document.
    open: Vec<(usize, Value, String)>,
    string: Vec<u8>,
    /// The values that have ended, with their places.
    ended: Vec<(Range<usize>, Value)>,
    /// Whether something was too long.
    is_cut: bool,
    read: usize,
    is_whole: bool,
}

impl Built {
    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut built = Self { open: vec![(0, Value::Array(Vec::new()), String::new())], ..Self::default() };
        let mut reader = Reader::default();
        built.read = pieces.into_iter().map(|piece| reader.read(piece, &mut built)).sum();
        built.is_whole = reader.finish(&mut built);
        built
    }

    fn value(&self) -> Option<&Value> {
        self.open[0].1.get(0)
    }

    fn ended(&mut self, at: Range<usize>, value: Value) {
        self.ended.push((at, value.clone()));
        match self.open.last_mut() {
            Some((_, Value::Array(items), _)) => items.push(value),
            Some((_, Value::Object(members), name)) => drop(members.insert(name.clone(), value)),
            _ => unreachable!(),
        }
    }
}

impl Visit for Built {
    fn name(&mut self, name: Option<&[u8]>, _: usize) {
        self.is_cut |= name.is_none();
        if let (Some((_, _, next)), Some(name)) = (self.open.last_mut(), name) {
            *next = String::from_utf8_lossy(name).into_owned();
        }
    }

    fn begin(&mut self, kind: Kind, at: usize) {
        let value = match kind {
            Kind::Object => Value::Object(Map::new()),
            Kind::Array => Value::Array(Vec::new()),
            Kind::String => Value::Null,
        };
        self.open.push((at, value, String::new()));
    }

    fn text(&mut self, part: &[u8]) {
        self.string.extend_from_slice(part);
    }

    fn end(&mut self, kind: Kind, at: usize) {
        let Some((begin, mut value, _)) = self.open.pop() else { unreachable!() };
        if kind == Kind::String {
            value = String::from_utf8_lossy(&std::mem::take(&mut self.string)).into();
        }
        self.ended(begin..at, value);
    }

    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>) {
        self.is_cut |= word.is_none();
        let value = word.and_then(|word| from_slice::<Value>(word).ok());
        if let (Some(Value::Number(_)), Some(Ok(word))) = (&value, word.map(str::from_utf8)) {
            let form = normal(word.as_bytes()).unwrap_or_else(|| panic!("{word} is a number"));
            assert_eq!(normal(form.as_bytes()).as_ref(), Some(&form));
            assert_eq!(form.parse::<f64>(), word.parse());
        }
        self.ended(at, value.unwrap_or_default());
    }
}

/// A content type in the first line, then a response: the pieces in which it comes do not matter, and everything except extra
/// chunks passes.
pub(super) fn responses(bytes: &[u8]) {
    let (content_type, body) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    let (Ok(content_type), Some(body)) = (str::from_utf8(content_type), body.get(1..)) else { return };
    let read = |size: usize| {
        let mut filter = StreamFilter::new(ResponseReader::new(content_type, &UsageSource::Auto), true);
        let pieces = body.chunks(size).map(Bytes::copy_from_slice);
        let mut passed: Vec<u8> = pieces.flat_map(|piece| filter.push(&piece)).flatten().collect();
        let reader = &filter.reader;
        let (findings, models) = (&reader.findings, reader.models().map(<[u8]>::to_vec).collect::<Vec<_>>());
        let answer = (reader.says_usage(), findings.ending.is_complete(), models);
        let found = (findings.report.usage(), reader.text(), findings.provider, findings.report.ignored, answer);
        passed.extend(filter.finish());
        (passed, found)
    };
    let whole = read(body.len().max(1));
    for size in [1, 3, 64] {
        assert_eq!(read(size), whole, "{size}");
    }
    let (mut passed, (_, text, ..)) = (&whole.0[..], whole.1);
    assert!(text <= body.len() as u64 * 3, "a byte that is no character may become three");
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("text/event-stream") {
        assert_eq!(passed, body);
        return;
    }
    for (event, is_extra) in events(body) {
        if is_extra == Some(true) {
            continue;
        }
        match passed.strip_prefix(event) {
            Some(rest) => passed = rest,
            None => assert_eq!(is_extra, None, "{}", event.escape_ascii()),
        }
    }
    assert!(passed.is_empty());
}

/// The events of a stream, and whether each is an extra chunk; `None` if serde_json cannot parse it.
fn events(mut rest: &[u8]) -> Vec<(&[u8], Option<bool>)> {
    let mut events = Vec::new();
    while !rest.is_empty() {
        let (mut length, mut data) = (0, Vec::new());
        let is_whole = loop {
            let line = &rest[length..];
            let Some(end) = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else { break false };
            length += end + if line[end..].starts_with(b"\r\n") { 2 } else { 1 };
            let line = &line[..end];
            let line =
                line.strip_prefix(b"\xef\xbb\xbf").filter(|_| events.is_empty() && data.is_empty()).unwrap_or(line);
            if line.is_empty() {
                break true;
            }
            data.extend(line.strip_prefix(b"data:").unwrap_or_default());
            data.push(b'\n');
        };
        let length = if is_whole { length } else { rest.len() };
        let is_extra = from_slice::<Value>(&data).map(|value| {
            is_whole && value["usage"].is_object() && value["choices"].as_array().is_some_and(Vec::is_empty)
        });
        events.push((&rest[..length], is_extra.ok()));
        rest = &rest[length..];
    }
    events
}
