//! The WebSocket handshake with an upstream, for a client that has none because it speaks HTTP/2.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, header};

/// A server appends this to the key before it hashes both (RFC 6455, section 1.3).
const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

pub(in crate::proxy) fn new_key() -> String {
    // The key only shows that the server speaks WebSocket, so it need not be secret.
    STANDARD.encode(fastrand::u128(..).to_ne_bytes())
}

/// Whether these response headers answer a handshake with this key (RFC 6455, section 4.1).
pub(in crate::proxy) fn accepts(headers: &HeaderMap, key: &str) -> bool {
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{SUFFIX}").as_bytes()));
    headers.get(header::SEC_WEBSOCKET_ACCEPT).is_some_and(|found| found.as_bytes() == accept.as_bytes())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_example_of_the_standard_is_accepted() {
        let answer = |accept| HeaderMap::from_iter([(header::SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static(accept))]);
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        assert!(accepts(&answer("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), key));
        assert!(!accepts(&answer("s3pPLMBiTxaQ9kYGzzhZRbK+xO0="), key) && !accepts(&HeaderMap::new(), key));
        let keys = [new_key(), new_key()];
        assert!(keys[0] != keys[1] && keys[0].len() == 24);
    }
}
