//! The rest of a request's body after a response that the gateway gives without it: a short rest is read, so that the client
//! can use its connection again. Otherwise the client is told that the connection ends.
//!
//! The HTTP library reads what has come already. If there is more, it closes the connection after the response, and a
//! client that was not told so may send its next request into the close.

use std::time::Duration;

use http::header::{CONNECTION, EXPECT};
use http::request::Parts;
use http::{HeaderValue, Response};
use http_body::Body;
use http_body_util::BodyExt;

use super::client_body::ClientBody;
use super::connection_state::ConnectionState;

/// The longest rest that is read, in bytes.
const MOST: usize = 64 << 10;
/// How long the response waits for the rest: clients send head and body at nearly the same time.
const LONGEST: Duration = Duration::from_secs(1);

/// Ends the body of a request, if the handler has left it, before this response is sent. A body that is still on its way to an
/// upstream is left when the response ends, which one without a body does at once.
pub(super) async fn end<B: Body>(
    body: Option<ClientBody>,
    request: &Parts,
    response: &mut Response<B>,
    state: &ConnectionState,
) {
    // A client that waits until it is asked for its body does not send it after a response (RFC 9110, section 10.1.1).
    if let Some(body) = body
        && !response.headers().contains_key(CONNECTION)
        && !request.headers.contains_key(EXPECT)
        && body.size_hint().lower() <= MOST as u64
        && !body.has_come()
    {
        let _ = tokio::time::timeout(LONGEST, read(body)).await;
    }
    if state.has_left_body() || response.body().is_end_stream() && state.is_in_body() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Reads a body until it ends, or until it is too long.
async fn read(mut body: ClientBody) {
    let mut left = MOST;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, bytes::Bytes::len);
        let Some(rest) = left.checked_sub(length) else { return };
        left = rest;
    }
}
