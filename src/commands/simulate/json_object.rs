//! A JSON object of which only some fields are read. The others are skipped without a copy, because copies would be most
//! of the work on a line.

use std::borrow::{Borrow, Cow};
use std::cell::OnceCell;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

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
