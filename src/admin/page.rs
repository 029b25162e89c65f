//! The dashboard: one page that loads nothing from elsewhere, and headers that enforce this.
//!
//! The page holds no secrets, so it needs no token: it asks the user for one and sends it with each API request. The page
//! is part of the binary. Its Content-Security-Policy has the hashes of its style and its script.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_FRAME_OPTIONS};
use http::{HeaderValue, StatusCode};

use crate::proxy::respond::{self, LocalResponse};

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The page, with places for the style and the script.
const FRAME: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
/// One script, cut into files by subject. Each file uses only those before it.
const SCRIPT: &str = concat!(
    include_str!("page/elements.js"),
    include_str!("page/format.js"),
    include_str!("page/series.js"),
    include_str!("page/charts.js"),
    include_str!("page/api.js"),
    include_str!("page/panels.js"),
    include_str!("page/limits.js"),
    include_str!("page/keys.js"),
    include_str!("page/actions.js"),
    include_str!("page/main.js"),
);

static PAGE: LazyLock<Bytes> = LazyLock::new(|| FRAME.replace("{{style}}", STYLE).replace("{{script}}", SCRIPT).into());

/// The page may use only its own style and script, and ask only its own server. Names and keys come from clients, so the
/// script may not turn text into HTML (Trusted Types, <https://www.w3.org/TR/trusted-types/>).
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let (style, script) = (source(STYLE), source(SCRIPT));
    let policy = format!(
        "default-src 'none'; connect-src 'self'; img-src data:; style-src {style}; script-src {script}; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    );
    // It has only printable characters.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The source that allows exactly this text inside the page (Content Security Policy Level 3, section 2.3.1,
/// <https://www.w3.org/TR/CSP3/>).
fn source(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

pub(super) fn respond() -> LocalResponse {
    let mut response = respond::with_body(StatusCode::OK, HTML, PAGE.clone());
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}
