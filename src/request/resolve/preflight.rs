//! Whether a request is a preflight, by which a browser asks before it sends another one.

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, Method};

/// The method of the request about which a browser asks; `None` if the request is no preflight.
pub fn requested_method(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if *method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    let mut asked = headers.get_all(ACCESS_CONTROL_REQUEST_METHOD).iter();
    let method = asked.next().filter(|_| asked.next().is_none())?;
    Method::from_bytes(method.as_bytes()).ok()
}
