//! `body` and `content_type` of a response that the configuration defines.

use http::{HeaderValue, StatusCode};
use serde_json::Value;

use super::read::{Section, Setting, Wrong};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const EXAMPLE: &str = "it is a type and a subtype, like \"application/json\" or \"text/html; charset=utf-8\"";

pub(super) fn read(
    section: &Section<'_>,
    body: &Setting<()>,
    content_type: &Setting<()>,
    status: StatusCode,
) -> (String, HeaderValue) {
    let field = section.field(body);
    let body = section.read_as(body, |field| field.text().map(str::to_owned));
    // RFC 9110, sections 15.3.5, 15.3.6 and 15.4.5.
    if let Some(field) = field.filter(|_| [204, 205, 304].contains(&status.as_u16()) && !body.is_empty()) {
        field.report(format!("a response with status {} has no body", status.as_u16()), "remove the body");
    }
    let given = section.field(content_type).and_then(|field| field.parse(self::content_type));
    if body.is_empty() && given.is_some() {
        section.refuse(&[content_type.name], "needs a `body`, and there is none", "add a body, or remove it");
    }
    let content_type = given.unwrap_or_else(|| if is_json(&body) { JSON } else { TEXT });
    (body, content_type)
}

/// Whether the text is a JSON object or array. A number or a word alone is probably plain text.
fn is_json(text: &str) -> bool {
    matches!(serde_json::from_str(text), Ok(Value::Object(_) | Value::Array(_)))
}

/// A media type (RFC 9110, section 8.3.1). Its parameters are not checked.
fn content_type(text: &str) -> Result<HeaderValue, Wrong> {
    let wrong = || Wrong::not(text, "a content type", EXAMPLE);
    let kind = text.split(';').next().unwrap_or_default();
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    let (first, second) = kind.split_once('/').ok_or_else(wrong)?;
    if !is_token(first) || !is_token(second.trim_end()) || text.trim() != text || !text.is_ascii() {
        return Err(wrong());
    }
    HeaderValue::from_str(text).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_json_when_it_sees_it() {
        for json in ["{}", "[]", "{\"error\": \"slow down\"}\n", " [1, 2]"] {
            assert!(is_json(json), "{json}");
        }
        for text in ["", "hello", "429", "\"slow\"", "null", "{", "{} {}", "{slow: down}", "<p>"] {
            assert!(!is_json(text), "{text}");
        }
        // Nested more deeply than the parser allows.
        assert!(!is_json(&"[".repeat(100_000)));
    }

    #[test]
    fn reads_content_types() {
        for text in ["text/html", "text/html; charset=utf-8", "application/vnd.api+json", "text/plain ;x=\"a b\""] {
            assert_eq!(content_type(text).unwrap(), text);
        }
        for text in ["", "json", "text/", "/html", " text/html", "text/html\n", "a/b/c", "text /html", "text/é"] {
            assert!(content_type(text).is_err(), "{text}");
        }
    }
}
