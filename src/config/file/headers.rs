//! Names and values of headers in a route: those that a request needs, and those that a response gets.

use http::{HeaderName, HeaderValue, header};

use crate::config::read::{Field, Wrong, report_repeated};
use crate::config::report::quoted;
use crate::config::{HeaderChanges, values};

/// The most names in one list.
const MOST: usize = 64;

/// Headers that the gateway writes, or that belong to the connection.
const WRITTEN_BY_THE_GATEWAY: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Reads a table of headers with values. `read` reads a value.
pub(super) fn table<'a, T>(
    field: &Field<'a>,
    title: &str,
    read: impl Fn(&HeaderName, &'a str) -> Result<T, Wrong>,
) -> Option<Vec<(HeaderName, T)>> {
    if !field.is_table() {
        let help = format!("write names and values in braces: {} = {{ \"x-beta\" = \"1\" }}", title.trim_matches('`'));
        field.mistyped("a table", help);
        return None;
    }
    let mut headers: Vec<(HeaderName, T)> = Vec::new();
    let mut whole = true;
    for (key, field) in field.section(title)?.entries() {
        let name = match values::header(key.text) {
            Ok(name) => name,
            Err(wrong) => {
                field.source.report(key.span, wrong.message, wrong.help);
                whole = false;
                continue;
            }
        };
        if headers.iter().any(|(earlier, _)| *earlier == name) {
            let help = "upper and lower case are the same in the name of a header";
            field.source.report(key.span, format!("the header `{name}` is listed twice"), help);
        }
        let value = field.parse(|text| read(&name, text));
        whole &= value.is_some();
        headers.extend(value.map(|value| (name, value)));
    }
    whole.then_some(headers)
}

/// The value of a header.
pub(super) fn value(text: &str) -> Result<HeaderValue, Wrong> {
    HeaderValue::from_str(text).ok().filter(|_| text.trim() == text).ok_or_else(|| {
        Wrong::new(
            format!("{} is not the value of a header", quoted(text)),
            "a value is visible ASCII characters, without spaces around them",
        )
    })
}

/// Reads `response_headers`.
pub(super) fn changes(field: &Field<'_>) -> Option<HeaderChanges> {
    if !field.is_table() {
        let help = "write response_headers = { set = { \"x-frame-options\" = \"DENY\" }, remove = [\"server\"] }";
        field.mistyped("a table", help);
        return None;
    }
    let section = field.section("`response_headers`")?;
    let listed = |key| section.field(key).map_or(Some(Vec::new()), |field| written(&field, &format!("`{key}`")));
    let (set, add) = (listed("set"), listed("add"));
    let remove = section.field("remove").map_or(Some(Vec::new()), |field| removed(&field, set.as_deref()));
    section.close(&[]);
    Some(HeaderChanges { set: set?, add: add?, remove: remove? })
}

fn written(field: &Field<'_>, title: &str) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let names = if field.is_table() { field.section(title).map(|section| section.entries()) } else { None };
    for (key, _) in names.into_iter().flatten() {
        if values::header(key.text).is_ok_and(|name| WRITTEN_BY_THE_GATEWAY.contains(&name)) {
            field.source.report(key.span, format!("the header `{}` cannot be changed", key.text), BY_THE_GATEWAY);
        }
    }
    table(field, title, |name, text| match name {
        name if *name == header::STRICT_TRANSPORT_SECURITY => transport_security(text),
        _ => value(text),
    })
}

const BY_THE_GATEWAY: &str = "remove it: the gateway writes this header, or it belongs to the connection";

fn removed(field: &Field<'_>, set: Option<&[(HeaderName, HeaderValue)]>) -> Option<Vec<HeaderName>> {
    let list = field.list("[\"server\"]")?;
    field.at_most(&list, MOST);
    let names: Vec<_> = list.iter().filter_map(|field| Some((field.parse(values::header)?, field.clone()))).collect();
    report_repeated(&names, "this header", "list it once");
    for (name, field) in &names {
        if WRITTEN_BY_THE_GATEWAY.contains(name) {
            field.report(format!("the header `{name}` cannot be removed"), BY_THE_GATEWAY);
        }
        if set.is_some_and(|set| set.iter().any(|(other, _)| other == name)) {
            let help = "`set` replaces every other value, so it need not be removed";
            field.report(format!("the header `{name}` is in `set` and in `remove`"), help);
        }
    }
    (names.len() == list.len()).then(|| names.into_iter().map(|(name, _)| name).collect())
}

/// Reads the value of Strict-Transport-Security (RFC 6797, section 6.1). Browsers ignore a value that is not valid, so
/// nobody would notice.
fn transport_security(text: &str) -> Result<HeaderValue, Wrong> {
    let ages = text.split(';').filter_map(|directive| {
        let (name, age) = directive.split_once('=')?;
        name.trim().eq_ignore_ascii_case("max-age").then(|| age.trim().trim_matches('"'))
    });
    match ages.collect::<Vec<_>>()[..] {
        [age] if !age.is_empty() && age.bytes().all(|byte| byte.is_ascii_digit()) => value(text),
        _ => Err(Wrong::new(
            format!("{} has no valid `max-age`", quoted(text)),
            "it needs a number of seconds, once: \"max-age=31536000; includeSubDomains\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_transport_security_needs_an_age() {
        for text in ["max-age=0", "max-age=31536000; includeSubDomains; preload", "includeSubDomains;Max-Age=\"1\" "] {
            assert!(transport_security(text.trim()).is_ok(), "{text}");
        }
        for text in ["", "31536000", "max-age", "max-age=", "max-age=1y", "max-age=-1", "max-age=1; max-age=2"] {
            assert!(transport_security(text).is_err(), "{text}");
        }
    }
}
