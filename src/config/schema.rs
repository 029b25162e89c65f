//! The JSON schema of the file (draft 7), made from the tables of its keys. Editors use it to check a file and to complete keys.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::file::root;
use super::read::{Described, Shape, Table};
use crate::base::units::{spelled_duration, spelled_size};

const DURATION: &str = "^(0|\\s*([0-9][0-9.\\s]*(nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds?|secs?|s|minutes?|mins?|m|\
                        hours?|hrs?|h|days?|d|weeks?|wks?|w)\\s*)+)$";
const SIZE: &str = "^(0|[0-9]+(\\.[0-9]*)?\\s*([KkMmGgTtPp][Ii]?)?[Bb]|[0-9]+(\\.[0-9]*)?\\s*[KkMmGgTtPp][Ii]?)$";

pub fn schema() -> Value {
    let mut schema = table(&root::TABLE);
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!("gateway.toml");
    schema
}

fn table(table: &Table) -> Value {
    let keys = (table.keys)();
    let required: Vec<_> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let properties: Map<_, _> = keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    schema["description"] = json!(table.help.trim());
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(key: &Described) -> Value {
    let mut schema = shape(key.shape, &key.words);
    let bounds = match key.shape {
        Shape::Duration(allowed) => {
            format!(" From {} to {}.", spelled_duration(*allowed.start()), spelled_duration(*allowed.end()))
        }
        Shape::Size(allowed) => {
            format!(" From {} to {}.", spelled_size(*allowed.start()), spelled_size(*allowed.end()))
        }
        _ => String::new(),
    };
    let restart = if key.at_start { " A change needs a restart." } else { "" };
    schema["description"] = json!(format!("{}{bounds}{restart}", key.help.trim()));
    if let Some(default) = value(key.default) {
        schema["default"] = default;
    }
    if let Some(example) = value(key.example) {
        schema["examples"] = json!([example]);
    }
    schema
}

fn shape(form: &Shape, words: &[&str]) -> Value {
    match form {
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Number(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Shape::Decimal(most) => json!({ "type": "number", "minimum": 0, "maximum": most }),
        Shape::Duration(_) | Shape::DurationOrNone => {
            json!({ "title": "duration", "type": "string", "pattern": DURATION })
        }
        Shape::Size(_) => json!({ "title": "size", "type": "string", "pattern": SIZE }),
        Shape::Words => json!({ "type": "string", "enum": words }),
        Shape::Text | Shape::Secret => json!({ "type": "string" }),
        Shape::Pattern(pattern) => json!({ "type": "string", "pattern": pattern }),
        Shape::Values(values) => json!({ "enum": value(values) }),
        Shape::List(element, least, most) => {
            let mut list = json!({ "type": "array", "items": shape(element, words) });
            if *least > 0 {
                list["minItems"] = json!(least);
            }
            if *most < usize::MAX {
                list["maxItems"] = json!(most);
            }
            list
        }
        Shape::Table(keys) => table(keys),
        Shape::TableWithout(keys, missing) => {
            let mut table = table(keys);
            table["properties"].as_object_mut().map(|properties| properties.remove(*missing));
            table
        }
        Shape::Named(element) => json!({ "type": "object", "additionalProperties": shape(element, words) }),
        Shape::Headers => shape(&Shape::Named(&Shape::Text), words),
        Shape::Or(forms) => json!({ "anyOf": forms.iter().map(|form| shape(form, words)).collect::<Vec<_>>() }),
    }
}

/// A value in TOML syntax; `None` for an empty text.
fn value(text: &str) -> Option<Value> {
    toml::from_str::<BTreeMap<String, Value>>(&format!("value = {text}")).ok()?.remove("value")
}
