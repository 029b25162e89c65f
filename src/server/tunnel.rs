//! Tunnels: once both sides have agreed on another protocol, only bytes pass.

use std::pin::Pin;

use h2::ext::Protocol;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, header};

use crate::base::http::header_list;
use crate::net::Duplex;

/// What a handler does with the client's stream once its response has accepted a tunnel.
pub type Tunnel = Box<dyn FnOnce(TunnelStream) -> Pin<Box<dyn Future<Output = ()>>>>;

pub type TunnelStream = Box<dyn Duplex>;

/// Whether a request asks for a WebSocket in HTTP/1.1 (RFC 6455, section 4.1; RFC 9110, section 7.8). A request with a body
/// or with `Connection: close` is an ordinary one.
pub(super) fn asks_for_websocket(head: &Parts, has_body: bool) -> bool {
    head.method == Method::GET
        && !has_body
        && has_token(&head.headers, &header::UPGRADE, b"websocket")
        && has_token(&head.headers, &header::CONNECTION, b"upgrade")
        && !has_token(&head.headers, &header::CONNECTION, b"close")
}

/// Turns an extended CONNECT for a WebSocket in HTTP/2 (RFC 8441, section 5) into the GET that it would be in HTTP/1.1, so that
/// it has the same routes and limits. Returns whether it is one.
pub(super) fn take_extended_connect(head: &mut Parts) -> bool {
    let is_websocket = head.extensions.get::<Protocol>().is_some_and(|protocol| protocol.as_str() == "websocket");
    let asks = head.method == Method::CONNECT && is_websocket;
    if asks {
        head.method = Method::GET;
    }
    asks
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &[u8]) -> bool {
    header_list::members(headers, name).any(|found| found.eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_a_whole_handshake_asks_for_a_websocket() {
        let asks = |method: Method, fields: &[(&str, &str)], has_body| {
            let mut request = Request::builder().method(method);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            asks_for_websocket(&request.body(()).unwrap().into_parts().0, has_body)
        };
        let asked = [("upgrade", "websocket"), ("connection", "upgrade")];
        assert!(asks(Method::GET, &asked, false));
        assert!(asks(Method::GET, &[("upgrade", "h2c, WebSocket"), ("connection", "keep-alive, Upgrade")], false));
        assert!(asks(Method::GET, &[("upgrade", "h2c"), asked[0], ("connection", "x"), asked[1]], false));
        for (method, fields, has_body) in [
            (Method::POST, &asked[..], false),
            (Method::GET, &asked, true),
            (Method::GET, &asked[..1], false),
            (Method::GET, &asked[1..], false),
            (Method::GET, &[("upgrade", "h2c"), asked[1]], false),
            (Method::GET, &[("upgrade", "websockets"), asked[1]], false),
            (Method::GET, &[asked[0], ("connection", "upgrade, close")], false),
        ] {
            assert!(!asks(method.clone(), fields, has_body), "{method} {fields:?} {has_body}");
        }
    }
}
