//! Lines of JSON: from the gateway's own log and from those of other proxies. Only some fields of an object are read. The
//! others are skipped without a copy, because copies would be most of the work on a line.

use std::borrow::{Borrow, Cow};
use std::cell::OnceCell;
use std::collections::BTreeMap;

use http::{HeaderName, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::common_log::{address, header_value, request, request_line};
use super::fields::{Attribute, FieldNames, REQUEST_LINE, TOKENS};
use super::needs::Needs;
use super::record::{self, Line, Record, Spent, unreadable};
use crate::base::clock::Time;
use crate::tokens::Usage;

pub(super) fn read(line: &[u8], needs: &Needs, names: &FieldNames) -> Result<Line, &'static str> {
    let object = Object::read(line).ok_or(unreadable::JSON)?;
    // A call of Envoy has descriptors, but its line does not.
    if object.text("via").is_some_and(|via| via == "envoy") {
        return Ok(Line::Message);
    }
    let text = |attribute| names.of(&attribute).iter().find_map(|name| object.text(name));
    let (method, target) = (text(Attribute::Method), text(Attribute::Path));
    let read = match (&method, &target) {
        (Some(method), Some(target)) => request(method.as_bytes(), target.as_bytes()),
        _ => match object.text(REQUEST_LINE) {
            Some(line) => request_line(line.as_bytes()),
            None => match own_message(&object) {
                Some(line) => return Ok(line),
                None => Err(unreadable::NO_REQUEST),
            },
        },
    };
    let (method, uri) = read?;
    let time = text(Attribute::Time).ok_or(unreadable::NO_TIME)?;
    let time = record::time(&time).ok_or(unreadable::TIME)?;
    let client = match text(Attribute::Client) {
        Some(client) => address(client.as_bytes()).ok_or(unreadable::CLIENT),
        None => Err(unreadable::NO_CLIENT),
    };
    let client = match client {
        Ok(client) => Some(client),
        Err(why) if needs.client => return Err(why),
        Err(_) => None,
    };
    let host = text(Attribute::Host).map(Into::into);
    let status = text(Attribute::Status).and_then(|status| StatusCode::from_bytes(status.as_bytes()).ok());
    let header = |name: &HeaderName| header_value(name.clone(), text(Attribute::Header(name.clone()))?.as_bytes());
    let headers = needs.headers.iter().filter_map(header).collect();
    let time = Time::from_micros(time.micros().saturating_sub(own_duration(&object)));
    let spent = spent(&object, names);
    let bytes = text(Attribute::Bytes).and_then(|bytes| bytes.parse().ok());
    Ok(Line::Request(Box::new(Record { time, client, method, uri, host, headers, status, spent, bytes })))
}

fn spent(object: &Object<'_>, names: &FieldNames) -> Option<Spent> {
    let number = |name: &str| object.text(name).and_then(|number| number.parse().ok());
    names.of(&Attribute::Cost).iter().find_map(|name| number(name)).map(Spent::Cost).or_else(|| {
        let [input, output] = TOKENS.map(number);
        Some(Spent::Tokens(Usage { input: input?, cached: 0, output: output? }))
    })
}

/// In microseconds. The gateway writes the line of a request when the request ends.
fn own_duration(object: &Object<'_>) -> u64 {
    let is_own = object.text("message").is_some_and(|message| message == "request") && object.text("outcome").is_some();
    let micros = is_own.then(|| object.text("micros")).flatten();
    micros.and_then(|micros| micros.parse().ok()).unwrap_or(0)
}

/// `None` if the line is a request, or of another log.
fn own_message(object: &Object<'_>) -> Option<Line> {
    let is_own = ["timestamp", "level", "message"].iter().all(|name| object.text(name).is_some());
    let refusals = object.text("refusals").and_then(|refusals| refusals.parse().ok());
    is_own.then(|| refusals.map_or(Line::Message, Line::LeftOut))
}

/// The last field of each name.
#[derive(Debug, Deserialize)]
pub(super) struct Object<'a>(#[serde(borrow)] BTreeMap<Name<'a>, Field<'a>>);

/// Copied only if the name has escapes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl Borrow<str> for Name<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Deserialize)]
#[serde(from = "&RawValue", bound(deserialize = "'de: 'a"))]
struct Field<'a> {
    value: &'a RawValue,
    /// The value as an object, once it was needed.
    inside: OnceCell<Option<Box<Object<'a>>>>,
}

impl<'a> From<&'a RawValue> for Field<'a> {
    fn from(value: &'a RawValue) -> Self {
        Self { value, inside: OnceCell::new() }
    }
}

impl<'a> Object<'a> {
    /// `None` if the text is no valid JSON object.
    pub(super) fn read(text: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// The text of a field. `a.b` is the field `b` of the object `a`, unless there is a field `a.b`. The last name ignores
    /// the case of letters, because headers differ in it.
    pub(super) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        text(self.look_up(name)?)
    }

    fn look_up(&self, name: &str) -> Option<&'a RawValue> {
        if let Some(field) = self.0.get(name) {
            return Some(field.value);
        }
        let (outer, inner) = name.split_once('.')?;
        let field = self.0.get(outer)?;
        let inside = field.inside.get_or_init(|| Self::read(field.value.get().as_bytes()).map(Box::new)).as_ref()?;
        let ignoring_case = || inside.0.iter().find(|(name, _)| name.0.eq_ignore_ascii_case(inner));
        inside.look_up(inner).or_else(|| ignoring_case().map(|(_, field)| field.value))
    }
}

/// Some proxies write a list of values, and some write `-` or an empty text for no value.
fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let written = value.get();
    let text = match written.as_bytes().first()? {
        b'"' => {
            let inner = written.strip_prefix('"')?.strip_suffix('"')?;
            if inner.contains('\\') { Cow::Owned(serde_json::from_str(written).ok()?) } else { Cow::Borrowed(inner) }
        }
        b'[' => {
            let values: Vec<&RawValue> = serde_json::from_str(written).ok()?;
            return values.first().filter(|first| !first.get().starts_with('[')).and_then(|first| text(first));
        }
        b'{' | b't' | b'f' | b'n' => return None,
        _ => Cow::Borrowed(written),
    };
    (!text.is_empty() && text != "-").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::simulate::fields::Field;

    fn line(text: &str, fields: &[&str]) -> Result<Line, &'static str> {
        let needs = Needs { headers: ["x-api-key".parse().unwrap()].into(), client: true };
        let fields: Vec<Field> = fields.iter().map(|field| field.parse().unwrap()).collect();
        read(text.as_bytes(), &needs, &FieldNames::new(&needs.headers, &fields))
    }

    fn record(text: &str, fields: &[&str]) -> Box<Record> {
        match line(text, fields) {
            Ok(Line::Request(record)) => record,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn lines_of_many_proxies_are_read() {
        for text in [
            r#"{"timestamp":"2000-10-10T20:55:36.5Z","level":"INFO","message":"request","client":"192.0.2.1","method":"GET","host":"h","path":"/a","status":200,"outcome":"forwarded","micros":500000,"x-api-key":"k"}"#,
            r#"{"time_iso8601":"2000-10-10T20:55:36+00:00","remote_addr":"192.0.2.1","request":"GET /a HTTP/1.1","status":"200","http_host":"h","http_x_api_key":"k"}"#,
            r#"{"ts":971211336.0,"request":{"remote_ip":"192.0.2.1","method":"GET","host":"h","uri":"/a","headers":{"X-Api-Key":["k"]}},"status":200}"#,
            r#"{"StartUTC":"2000-10-10T20:55:36Z","ClientHost":"192.0.2.1","RequestMethod":"GET","RequestHost":"h","RequestPath":"/a","DownstreamStatus":200,"request_x-api-key":"k"}"#,
            r#"{"start_time":"2000-10-10T20:55:36.000Z","downstream_remote_address":"192.0.2.1:5000","method":"GET","authority":"h","path":"/a","response_code":200,"headers":{"x-api-key":"k"}}"#,
        ] {
            let record = record(text, &[]);
            assert_eq!(record.time.micros(), 971_211_336_000_000, "{text}");
            assert_eq!(record.client.unwrap().to_string(), "192.0.2.1", "{text}");
            assert_eq!((record.method.as_str(), record.uri.path(), record.host.as_deref()), ("GET", "/a", Some("h")));
            assert_eq!(record.status.unwrap().as_u16(), 200, "{text}");
            assert_eq!(record.headers[0].1, "k", "{text}");
        }
    }

    #[test]
    fn fields_can_be_named() {
        let text = r#"{"a":{"b":"192.0.2.1"},"client":"192.0.2.2","when":971211336,"verb":"PUT","p":"/","k.k":"K"}"#;
        let fields = ["client=a.b", "time=when", "method=verb", "path=p", "header:x-api-key=k.k"];
        let record = record(text, &fields);
        assert_eq!(record.client.unwrap().to_string(), "192.0.2.1");
        assert_eq!((record.method.as_str(), record.headers[0].1.to_str().unwrap()), ("PUT", "K"));
        assert_eq!(line(text, &["client=nobody", "time=when", "method=verb", "path=p"]), Err(unreadable::NO_CLIENT));
    }

    #[test]
    fn what_a_request_has_cost_is_read() {
        let text = |rest: &str| format!(r#"{{"time":1,"client":"192.0.2.1","method":"GET","path":"/"{rest}}}"#);
        let tokens = |input, output| Some(Spent::Tokens(Usage { input, cached: 0, output }));
        for (rest, fields, spent) in [
            ("", &[][..], None),
            (r#","tokens_input":7,"tokens_output":9"#, &[], tokens(7, 9)),
            (r#","tokens_input":7"#, &[], None),
            (r#","cost":5"#, &[], None),
            (r#","cost":5,"tokens_input":7,"tokens_output":9"#, &["cost=cost"], Some(Spent::Cost(5))),
            (r#","usage":{"total":"12"}"#, &["cost=usage.total"], Some(Spent::Cost(12))),
            (r#","cost":-5,"tokens_input":7,"tokens_output":9"#, &["cost=cost"], tokens(7, 9)),
            (r#","cost":1.5"#, &["cost=cost"], None),
        ] {
            assert_eq!(record(&text(rest), fields).spent, spent, "{rest}");
        }
    }

    #[test]
    fn other_lines_of_the_own_log_are_no_requests() {
        let own = |rest: &str| format!(r#"{{"timestamp":"2000-10-10T20:55:36Z","level":"INFO","message":"m"{rest}}}"#);
        assert_eq!(line(&own(""), &[]), Ok(Line::Message));
        assert_eq!(line(&own(r#","client":"192.0.2.1","refusals":7"#), &[]), Ok(Line::LeftOut(7)));
        let request = r#","client":"192.0.2.1","method":"POST","path":"/envoy.service""#;
        assert!(matches!(line(&own(request), &[]), Ok(Line::Request(_))));
        assert_eq!(line(&own(&format!(r#"{request},"via":"envoy""#)), &[]), Ok(Line::Message));
    }

    #[test]
    fn other_lines_say_why_they_are_not_read() {
        let valid = r#"{"time":1,"client":"192.0.2.1","method":"GET","path":"/"}"#;
        assert!(line(valid, &[]).is_ok());
        for (from, to, why) in [
            ("{", "{{", unreadable::JSON),
            (r#""time":1,"#, "", unreadable::NO_TIME),
            (r#""time":1"#, r#""time":"soon""#, unreadable::TIME),
            (r#""client":"192.0.2.1","#, "", unreadable::NO_CLIENT),
            ("192.0.2.1", "somebody", unreadable::CLIENT),
            (r#""method":"GET","#, "", unreadable::NO_REQUEST),
            (r#""/""#, r#""-""#, unreadable::NO_REQUEST),
            ("GET", "G T", unreadable::REQUEST),
            (r#""/""#, r#""/a b""#, unreadable::REQUEST),
        ] {
            assert_eq!(line(&valid.replacen(from, to, 1), &[]), Err(why), "{to}");
        }
        let deep = format!("{{\"time\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(line(&deep, &[]), Err(unreadable::NO_REQUEST), "it ends neither the stack nor the program");
    }

    #[test]
    fn fields_are_found_by_name() {
        let text =
            br#"{"a":"one","b":{"c":{"D-e":["x","y"]},"n":1.50},"b.n":"dotted","\u0061a":"A\u00e4\"","a":"two"}"#;
        let object = Object::read(text).unwrap();
        for (name, value) in [
            ("a", Some("two")),
            ("aa", Some("Aä\"")),
            ("b.c.D-e", Some("x")),
            ("b.c.d-E", Some("x")),
            ("b.n", Some("dotted")),
            ("A", None),
            ("b", None),
            ("b.c", None),
            ("b.c.f", None),
            ("a.b", None),
            ("", None),
            (".", None),
        ] {
            assert_eq!(object.text(name).as_deref(), value, "{name}");
        }
    }

    #[test]
    fn values_that_say_nothing_are_none() {
        let text = br#"{"a":"","b":"-","c":null,"d":true,"e":{},"f":[],"g":[["x"]],"h":[{}],"i":"\ud800","j":-1}"#;
        let object = Object::read(text).unwrap();
        for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
            assert_eq!(object.text(name), None, "{name}");
        }
        assert_eq!(object.text("j").unwrap(), "-1");
    }

    #[test]
    fn other_values_are_no_objects() {
        for text in ["", "[]", "1", "{", "{}x", "{\"a\"}", "{\"a\":}", "{\"a\":tru}", "{\"a\":\"\n\"}", "{1:2}"] {
            assert!(Object::read(text.as_bytes()).is_none(), "{text}");
        }
        assert!(Object::read(b"{\"a\":\"\xff\"}").is_none());
    }
}
