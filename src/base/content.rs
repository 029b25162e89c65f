//! Which responses have content.

use http::{Method, StatusCode};

/// Whether a response has no content, whatever its headers say (RFC 9110, section 6.4.1).
pub fn has_no_content(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}
