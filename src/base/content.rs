//! Which responses have content. Pure.

use http::{Method, StatusCode};

/// Whether a response with this status to a request with this method has no content, whatever its headers say (RFC 9110,
/// section 6.4.1).
pub fn has_no_content(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}
