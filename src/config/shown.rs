//! A configuration as JSON, as its text spells it: with every default, and without secrets. The tables of keys say what each value
//! is, so no key is named here.

use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

use super::document::Document;
use super::file::root;
use super::read::{Described, Shape, Table};
use super::secret::is_place;
use super::{Config, is_secret};
use crate::base::units::{duration, size, spelled_size};

const SECRET: &str = "***";

impl Config {
    /// The text is parsed again, since the JSON of ten thousand routes would take much memory all the time.
    pub fn shown(&self) -> Value {
        table(&root::TABLE, Document::of(self).parse().table.get_ref())
    }
}

fn table(keys: &Table, written: &DeTable<'_>) -> Value {
    let value_of = |key: Described| {
        let value = match written.get(key.name) {
            Some(written) => value(key.shape, written.get_ref()),
            None => DeValue::parse(key.default).map_or(Value::Null, |default| value(key.shape, default.get_ref())),
        };
        (key.name.to_owned(), value)
    };
    Value::Object((keys.keys)().into_iter().map(value_of).collect())
}

fn value(shape: &Shape, written: &DeValue<'_>) -> Value {
    shaped(shape, written).unwrap_or_else(|| plain(written))
}

/// `None` if the value does not have this shape.
fn shaped(shape: &Shape, written: &DeValue<'_>) -> Option<Value> {
    match (shape, written) {
        (Shape::Secret, written) => Some(json!(if written.as_str() == Some("") { "" } else { SECRET })),
        (Shape::Duration(_) | Shape::DurationOrNone, DeValue::String(text)) => {
            let duration = duration(text).ok().filter(|duration| *text != "0" || !duration.is_zero())?;
            Some(json!(humantime::format_duration(duration).to_string()))
        }
        (Shape::Size(_), DeValue::String(text)) => size(text).map(|bytes| json!(spelled_size(bytes))),
        (Shape::Decimal(_), DeValue::Integer(_) | DeValue::Float(_)) => plain(written).as_f64().map(Value::from),
        (Shape::Table(keys) | Shape::TableWithout(keys, _), DeValue::Table(written)) => Some(table(keys, written)),
        // Then the table has its defaults.
        (Shape::Table(keys), DeValue::Boolean(true)) => Some(table(keys, &DeTable::new())),
        (Shape::List(element, ..), DeValue::Array(list)) => {
            Some(list.iter().map(|element_written| value(element, element_written.get_ref())).collect())
        }
        (Shape::Named(element), DeValue::Table(written)) => Some(
            written.iter().map(|(name, one)| (name.get_ref().to_string(), value(element, one.get_ref()))).collect(),
        ),
        (Shape::Headers, DeValue::Table(written)) => Some(headers(written)),
        (Shape::Or(shapes), written) => shapes.iter().find_map(|shape| shaped(shape, written)),
        (Shape::Text | Shape::Pattern(_) | Shape::Words, DeValue::String(_))
        | (Shape::Number(..), DeValue::Integer(_))
        | (Shape::Flag, DeValue::Boolean(_))
        | (Shape::Values(_), DeValue::String(_) | DeValue::Boolean(_)) => Some(plain(written)),
        _ => None,
    }
}

/// Masks more names than those of credentials, because people choose header names for their own tokens.
fn headers(written: &DeTable<'_>) -> Value {
    const PARTS: [&str; 8] = ["auth", "cookie", "credential", "key", "passw", "secret", "signature", "token"];
    let shown = |name: &str, text: &str| {
        let is_masked = name.parse().as_ref().is_ok_and(is_secret) || PARTS.iter().any(|part| name.contains(part));
        json!(if is_masked || is_place(text) { SECRET } else { text })
    };
    let header = |name: &str, text: &str| (name.to_owned(), shown(&name.to_ascii_lowercase(), text));
    written.iter().map(|(name, text)| header(name.get_ref(), text.get_ref().as_str().unwrap_or_default())).collect()
}

fn plain(written: &DeValue<'_>) -> Value {
    match written {
        DeValue::String(text) => json!(text),
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).map_or(Value::Null, Value::from)
        }
        DeValue::Float(float) => float.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Boolean(flag) => json!(flag),
        DeValue::Array(_) | DeValue::Table(_) | DeValue::Datetime(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn values_are_spelled_in_one_way_and_secrets_are_masked() {
        let text = "[server]\nidle_timeout = \"75s\"\nmax_header_size = \"65536B\"\ninspect_body = \"2MiB\"\n\
                    partition_secret = \"hidden-hidden-hidden\"\n[admin]\nlisten = \"127.0.0.1:1\"\ntoken = \"\"\n\
                    [tracing]\nendpoint = \"http://127.0.0.1:2\"\nsample = 1\nheaders = { a = \"hidden\" }\n\
                    [upstreams.u]\nservers = [\"http://a\", { url = \"http://b\", weight = 0x10 }]\n\
                    [limits.l]\nkey = \"header:k\"\nrates = [\"1/s\"]\nquotas = { source = \"http://127.0.0.1/{key}?hidden\" }\n\
                    overrides = [{ keys = [\"hidden\"], exempt = true }]\n\
                    [[routes]]\npath = \"/*\"\nupstream = \"u\"\nheaders = { X-Api-Key = \"hidden\", x-beta = \"1\" }\n\
                    request_headers = { set = { cookie = \"hidden\" } }\n";
        let shown = parse(text.as_bytes(), "gateway.toml", std::path::Path::new(".")).unwrap().shown();
        assert!(!shown.to_string().contains("hidden"), "{shown:#}");
        let server = &shown["server"];
        assert_eq!([&server["idle_timeout"], &server["max_header_size"]], ["1m 15s", "64KiB"]);
        assert_eq!([&server["inspect_body"], &server["partition_secret"]], ["2MiB", SECRET]);
        assert_eq!((&shown["admin"]["token"], &shown["admin"]["read_token"]), (&json!(""), &Value::Null));
        assert_eq!((&shown["tracing"]["sample"], &shown["tracing"]["headers"]), (&json!(1.0), &json!({ "a": SECRET })));
        let upstream = &shown["upstreams"]["u"];
        assert_eq!(upstream["servers"], json!(["http://a", { "url": "http://b", "weight": 16 }]));
        assert_eq!((&upstream["eject"]["for"], &upstream["adaptive"]), (&json!("10s"), &json!(false)));
        assert_eq!(shown["routes"][0]["headers"], json!({ "X-Api-Key": SECRET, "x-beta": "1" }));
    }
}
