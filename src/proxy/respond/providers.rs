//! Errors in the formats of providers of language models, as their client libraries read them.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::config::HeaderStyle;
use crate::tokens::response::{Parts, Provider};

const EXCEEDED: &str = "rate_limit_exceeded";
const RATE_LIMIT: &str = "rate_limit_error";

const EXHAUSTED: &str = "This client has used up its tokens.";

/// The last bytes of a stream that is cut because no tokens are left, after a whole part of it. `sequence_number` is that of
/// its last event, if its events have numbers.
pub(crate) fn exhausted(
    provider: Option<Provider>,
    parts: Parts,
    sequence_number: Option<u64>,
    has_begun: bool,
) -> Bytes {
    let error = match provider {
        Some(Provider::Anthropic) => anthropic(RATE_LIMIT, EXHAUSTED),
        Some(Provider::Gemini) => {
            json!({ "error": { "code": 429, "message": EXHAUSTED, "status": "RESOURCE_EXHAUSTED" } })
        }
        // The documented fields, and the error from which OpenAI's libraries make an exception.
        Some(Provider::OpenAiResponses) => json!({
            "type": "error", "code": EXCEEDED, "message": EXHAUSTED, "param": null,
            "sequence_number": sequence_number.unwrap_or(0),
            "error": openai("tokens", Some(EXCEEDED), EXHAUSTED)["error"],
        }),
        Some(Provider::OpenAi) | None => openai("tokens", Some(EXCEEDED), EXHAUSTED),
    };
    let (begin, end) = match (parts, provider) {
        (Parts::Events, Some(Provider::Anthropic | Provider::OpenAiResponses)) => ("event: error\ndata: ", "\n\n"),
        (Parts::Events, Some(Provider::Gemini)) => ("data: ", "\r\n\r\n"),
        (Parts::Events, _) => ("data: ", "\n\n"),
        (Parts::Lines, _) => ("", "\n"),
        (Parts::Elements, _) if has_begun => (",\r\n", "\r\n]"),
        (Parts::Elements, _) => ("[", "\r\n]"),
        (Parts::Values, _) => ("\n", "\n"),
    };
    format!("{begin}{error}{end}").into()
}

/// The error with this status of a limit with headers of this style; `None` if the style is no provider's. `exceeded` is the
/// unit of the exceeded limit, `tokens` or `requests`.
pub(super) fn error(style: HeaderStyle, status: StatusCode, exceeded: Option<&str>, message: &str) -> Option<Bytes> {
    let error = match (style, exceeded) {
        (HeaderStyle::OpenAi, Some(unit)) => openai(unit, Some(EXCEEDED), message),
        (HeaderStyle::OpenAi, None) if status.is_client_error() => openai("invalid_request_error", None, message),
        (HeaderStyle::OpenAi, None) => openai("server_error", None, message),
        (HeaderStyle::Anthropic, Some(_)) => anthropic(RATE_LIMIT, message),
        (HeaderStyle::Anthropic, None) => {
            let kind = match status.as_u16() {
                403 => "permission_error",
                413 => "request_too_large",
                400..500 => "invalid_request_error",
                _ => "api_error",
            };
            anthropic(kind, message)
        }
        _ => return None,
    };
    Some(error.to_string().into())
}

fn openai(kind: &str, code: Option<&str>, message: &str) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
}

fn anthropic(kind: &str, message: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
