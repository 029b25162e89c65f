//! Errors in the forms of providers of language models, as their client libraries read them.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::limit::tokens::response::Provider;

/// What clients are told when the tokens that they may use are used up.
const EXHAUSTED: &str = "The tokens that this client may use are used up.";

/// The event that ends a stream for which there is no room.
pub(crate) fn exhausted(provider: Option<Provider>) -> Bytes {
    match provider {
        Some(Provider::Anthropic) => format!("event: error\ndata: {}\n\n", anthropic(EXHAUSTED)),
        Some(Provider::Gemini) => {
            let error = json!({ "error": { "code": 429, "message": EXHAUSTED, "status": "RESOURCE_EXHAUSTED" } });
            format!("data: {error}\r\n\r\n")
        }
        Some(Provider::OpenAi) | None => format!("data: {}\n\n", openai(EXHAUSTED, "tokens")),
    }
    .into()
}

/// An error of OpenAI about what is limited: `tokens` or `requests`.
pub(crate) fn openai(message: &str, kind: &str) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": null, "code": "rate_limit_exceeded" } })
}

/// An error of Anthropic.
pub(crate) fn anthropic(message: &str) -> Value {
    json!({ "type": "error", "error": { "type": "rate_limit_error", "message": message } })
}
