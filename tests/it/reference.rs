//! docs/reference.md is the output of `gateway schema` as a page.

use std::fmt::Write;
use std::fs;

use serde_json::Value;

use crate::schema::schema;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference.md");

const HEAD: &str = "\
# Reference

All keys of gateway.toml, by table. A small file needs [upstreams](#upstreamsname), [limits](#limitsname) and
[routes](#routes). You choose each `NAME`; a table in `[[...]]` may come several times, and `table` means that a key has a
section of its own.

A change takes effect at a reload, unless the key is one that needs a restart. A *duration* is a text such as `\"250ms\"`,
`\"10s\"`, `\"10m\"`, `\"1h\"` or `\"7d\"`; a *size* one such as `\"64KiB\"` or `\"1MiB\"`.

`gateway schema` prints the same for editors: with

    gateway schema > gateway.schema.json

beside a file whose first line is `#:schema ./gateway.schema.json`, an editor with
[Taplo](https://taplo.tamasfe.dev) (in Visual Studio Code: Even Better TOML) completes keys, shows what they mean, and marks
what is not valid.

`UPDATE=1 cargo test --test it reference` writes this page, from the tables that [src/config/file.rs](../src/config/file.rs) joins,
from which the gateway reads the file, too.
";

const TAIL: &str = "
## Other maxima

| what | at most |
|---|---|
| the number in a rate, a burst, a cost | 4 294 967 296 (2^32) |
| the period of a rate | 1 s to 31 days |
| the number in a rate of a moving window | 10 000 |
| keys in a file of overrides; known keys | 1 000 000 |
| patterns with `*` of a limit | 1 000 |
| overrides of the admin API at the same time; the time of one | 10 000; 1 s to 31 days |
| a file that the configuration names | 256 MiB |
| names of limits, upstreams and captures; the prefix of keys in a shared store | 64 characters |
| headers for a collector of traces | 16 |

A larger value is an error, whose message contains the allowed range.
";

fn toml(value: &Value) -> String {
    match value {
        Value::Array(elements) => format!("[{}]", elements.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) if entries.is_empty() => "{}".to_owned(),
        Value::Object(entries) => {
            let entries: Vec<_> = entries.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        scalar => scalar.to_string(),
    }
}

fn code(value: &Value) -> String {
    format!("`{}`", toml(value).replace('|', "\\|"))
}

fn takes(schema: &Value) -> String {
    let choice = |list: &[String]| match list {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        list => list.concat(),
    };
    if let Some(title) = schema["title"].as_str() {
        return title.to_owned();
    }
    if let Some(values) = schema["enum"].as_array() {
        return choice(&values.iter().map(code).collect::<Vec<_>>());
    }
    if let Some(forms) = schema["anyOf"].as_array() {
        return choice(&forms.iter().map(takes).collect::<Vec<_>>());
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => "`true` or `false`".to_owned(),
        "integer" | "number" => format!("{} to {}", schema["minimum"], schema["maximum"]),
        "array" => match schema["maxItems"].as_u64() {
            Some(most) => format!("list of up to {most}: {}", takes(&schema["items"])),
            None => format!("list: {}", takes(&schema["items"])),
        },
        "object" if schema["properties"].is_object() => "table".to_owned(),
        "object" => format!("{} by name", takes(&schema["additionalProperties"])),
        _ => "text".to_owned(),
    }
}

/// All tables in a value, each with its title.
pub(crate) fn tables<'a>(path: &str, is_list: bool, schema: &'a Value, found: &mut Vec<(String, &'a Value)>) {
    schema["anyOf"].as_array().into_iter().flatten().for_each(|form| tables(path, is_list, form, found));
    if schema["items"].is_object() {
        tables(path, true, &schema["items"], found);
    }
    if schema["additionalProperties"].is_object() {
        tables(&format!("{path}.NAME"), false, &schema["additionalProperties"], found);
    }
    let Some(keys) = schema["properties"].as_object() else { return };
    let title = if is_list { format!("[[{path}]]") } else { format!("[{path}]") };
    if found.iter().all(|(other, _)| other.trim_matches(['[', ']']) != path) {
        found.push((title, schema));
        for (key, schema) in keys {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            tables(&path, false, schema, found);
        }
    }
}

/// The description of a table or key, with links to other pages.
fn about(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap().replace('|', "\\|");
    let mut parts = text.split("(docs/");
    let mut linked = parts.next().unwrap().to_owned();
    for part in parts {
        let (page, rest) = part.split_once(')').unwrap();
        write!(linked, "([{page}]({page})){rest}").unwrap();
    }
    linked
}

fn page() -> String {
    let (schema, mut found, mut page) = (schema(), Vec::new(), HEAD.to_owned());
    tables("", false, &schema, &mut found);
    for (title, table) in &found[1..] {
        write!(
            page,
            "\n## {title}\n\n{}\n\n| key | takes | default | example | meaning |\n|---|---|---|---|---|\n",
            about(table)
        )
        .unwrap();
        for (name, key) in table["properties"].as_object().unwrap() {
            let is_required =
                table["required"].as_array().is_some_and(|required| required.iter().any(|other| other == name));
            let default =
                if is_required { "required".to_owned() } else { key.get("default").map_or(String::new(), code) };
            let example = key["examples"].get(0).map_or(String::new(), code);
            writeln!(page, "| `{name}` | {} | {default} | {example} | {} |", takes(key), about(key)).unwrap();
        }
    }
    page + TAIL
}

#[test]
fn the_reference_is_what_the_gateway_reads() {
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    assert_eq!(
        page,
        fs::read_to_string(PAGE).unwrap_or_default(),
        "UPDATE=1 cargo test --test it reference writes it again"
    );
}
