//! Errors in the forms of providers of language models, as their client libraries read them.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::config::HeaderStyle;
use crate::limit::tokens::response::Provider;

/// The code of OpenAI, and the type of Anthropic, for what is used up.
const EXCEEDED: &str = "rate_limit_exceeded";
const RATE_LIMIT: &str = "rate_limit_error";

/// What clients are told when the tokens that they may use are used up.
const EXHAUSTED: &str = "The tokens that this client may use are used up.";

/// The event that ends a stream for which there is no room.
pub(crate) fn exhausted(provider: Option<Provider>) -> Bytes {
    match provider {
        Some(Provider::Anthropic) => format!("event: error\ndata: {}\n\n", anthropic(RATE_LIMIT, EXHAUSTED)),
        Some(Provider::Gemini) => {
            let error = json!({ "error": { "code": 429, "message": EXHAUSTED, "status": "RESOURCE_EXHAUSTED" } });
            format!("data: {error}\r\n\r\n")
        }
        Some(Provider::OpenAi) | None => format!("data: {}\n\n", openai("tokens", Some(EXCEEDED), EXHAUSTED)),
    }
    .into()
}

/// The error that a limit with these headers answers with this status; `None` where they are of no provider. `exceeded` is what
/// the limit counts, `tokens` or `requests`, if too much was used of it.
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

/// An error of OpenAI.
fn openai(kind: &str, code: Option<&str>, message: &str) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
}

/// An error of Anthropic.
fn anthropic(kind: &str, message: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
