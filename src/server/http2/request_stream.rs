//! One request on a stream of HTTP/2 and its response, in a task of its own, so that a stream that waits holds up no other.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::ext::Protocol;
use h2::{Reason, SendStream};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;

use super::received_bodies::ReceivedBody;
use super::stream_io::{StreamBody, StreamTunnel};
use super::streams::{InterimResponses, Stream};
use super::windows::poll_granted;
use crate::base::clock;
use crate::base::http::has_no_content;
use crate::base::http::header_rules::remove_hop_by_hop;
use crate::server::connection_state::{ConnectionState, Flush, RequestGuard};
use crate::server::worker_state::WorkerState;
use crate::server::{Handler, IncomingRequest};

/// Ends at once if the client resets the stream, or the connection ends.
pub(super) async fn serve<H: Handler>(
    handler: Rc<H>,
    request: Request<Option<ReceivedBody>>,
    stream: Rc<Stream>,
    guard: RequestGuard,
    connection: Rc<ConnectionState>,
) {
    let (mut head, received) = request.into_parts();
    join_cookies(&mut head.headers);
    let asks_for_websocket = take_extended_connect(&mut head);
    let ambiguity = ambiguity(&head);
    let (body, through) = match asks_for_websocket {
        true => (None, Some(received)),
        false => (received.map(|received| body(&head, received, &stream).into()), None),
    };
    let (interim, tunnel, is_unanswered) = (Some(InterimResponses(stream.clone())), None, false);
    let mut incoming = IncomingRequest { head, body, ambiguity, asks_for_websocket, interim, tunnel, is_unanswered };
    let mut response = Response::default();
    if !respond(&*handler, &mut incoming, &mut response, &stream, guard).await {
        return;
    }
    if incoming.is_unanswered {
        drop((incoming, response));
        return stream.refuse();
    }
    let (method, tunnel) = (std::mem::take(&mut incoming.head.method), incoming.tunnel.take());
    // Frees the unread rest of the request's body.
    drop(incoming);
    if asks_for_websocket && tunnel.is_none() && response.status().is_success() {
        // The client would take a success for a tunnel (RFC 8441, section 5).
        *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
    }
    let has_no_content = has_no_content(&method, response.status());
    let (mut head, body) = response.into_parts();
    let is_over = body.is_end_stream();
    let length = if is_over || head.status == StatusCode::NO_CONTENT { None } else { body.size_hint().exact() };
    complete(&mut head.headers, length, stream.worker());
    let is_end = tunnel.is_none() && (is_over || has_no_content);
    let sender = match stream.respond(Response::from_parts(head, ()), is_end) {
        Ok(sender) => sender,
        Err(error) => return tracing::debug!(%error, "the client does not wait for its response"),
    };
    match tunnel.zip(through) {
        Some((tunnel, received)) => {
            tunnel(Box::new(StreamTunnel { received, unread: Bytes::new(), sender, stream })).await;
        }
        None if is_end => {}
        None => {
            let (waiting, is_last, broken, waits_for_room) = (Bytes::new(), false, None, false);
            let mut sender =
                ResponseSender { sender, body, stream, waiting, is_last, connection, broken, waits_for_room };
            if let Err(error) = poll_fn(|cx| sender.poll_body(cx)).await {
                tracing::debug!(%error, "the client does not wait for the rest of its response");
            }
        }
    }
}

/// Makes the fields of a response those of HTTP/2 (RFC 9113, section 8.2.2), and adds a Date, and the `length` of its content
/// if that is known.
fn complete(headers: &mut HeaderMap, length: Option<u64>, worker: &WorkerState) {
    remove_hop_by_hop(headers);
    headers.entry(header::DATE).or_insert_with(|| worker.date.at(clock::now()));
    if let Some(length) = length {
        headers.entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
}

fn body(head: &Parts, received: ReceivedBody, stream: &Rc<Stream>) -> StreamBody {
    let is_continue = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if head.headers.get(header::EXPECT).is_some_and(is_continue) {
        stream.expects_continue.set(true);
    }
    // The library has checked that it is a number.
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    StreamBody::new(received, stream.clone(), length)
}

/// Lets the handler fill the response. Returns whether it has, which fails if the client resets the stream.
async fn respond<H: Handler>(
    handler: &H,
    incoming: &mut IncomingRequest,
    response: &mut Response<H::Body>,
    stream: &Stream,
    guard: RequestGuard,
) -> bool {
    let mut responding = pin!(handler.handle(incoming, response, guard));
    poll_fn(|cx| match responding.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => stream.poll_reset(cx).map(|()| false),
    })
    .await
}

/// Sends the body of a response as the client grants window. The library never gets more than the window, so whatever it has
/// is sent as soon as the client reads anything.
struct ResponseSender<B> {
    sender: SendStream<Bytes>,
    body: B,
    stream: Rc<Stream>,
    waiting: Bytes,
    /// Whether `waiting` is the end of the body.
    is_last: bool,
    connection: Rc<ConnectionState>,
    /// If the body has broken off: the flush of what came before.
    broken: Option<Flush>,
    /// Whether it waits until the client reads other responses on the connection.
    waits_for_room: bool,
}

impl<B: Body<Data = Bytes> + Unpin> ResponseSender<B> {
    /// Fails when the stream has ended.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            if let Some(flush) = &self.broken {
                if self.sender.poll_reset(cx).is_pending() {
                    ready!(self.connection.poll_flushed(*flush, cx));
                }
                // The client must not take the body for complete. The body has recorded why.
                self.sender.send_reset(Reason::INTERNAL_ERROR);
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_waiting(cx))?;
            if self.is_last {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_room(cx))?;
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                return self.sender.poll_reset(cx).map(|reset| Err(reset?.into()));
            };
            let Some(frame) = frame else { return Poll::Ready(self.sender.send_data(Bytes::new(), true)) };
            let Ok(frame) = frame else {
                // The library would drop what it has not written yet.
                self.broken = Some(self.connection.flush());
                continue;
            };
            match frame.into_data() {
                Ok(data) => {
                    self.is_last = self.body.is_end_stream();
                    if data.is_empty() && self.is_last {
                        return Poll::Ready(self.sender.send_data(data, true));
                    }
                    self.waiting = data;
                }
                Err(frame) => {
                    let Ok(trailers) = frame.into_trailers() else { continue };
                    return Poll::Ready(self.sender.send_trailers(trailers));
                }
            }
        }
    }

    /// Ready when the library may get more, or the stream is reset.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        match self.stream.poll_room(cx) {
            Poll::Ready(()) => {
                if std::mem::take(&mut self.waits_for_room) {
                    self.stream.goes_on();
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                self.waits_for_room = true;
                self.stream.waits();
                self.sender.poll_reset(cx).map(|reset| Err(reset?.into()))
            }
        }
    }

    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        while !self.waiting.is_empty() {
            ready!(self.poll_room(cx))?;
            let Self { sender, stream, waiting, is_last, .. } = self;
            let Poll::Ready(granted) = poll_granted(sender, waiting.len(), cx) else {
                stream.waits();
                return Poll::Pending;
            };
            let granted = granted.unwrap_or(Err(Reason::CANCEL.into()))?;
            stream.goes_on();
            let part = waiting.split_to(granted);
            stream.send(sender, part, *is_last && waiting.is_empty())?;
        }
        Poll::Ready(Ok(()))
    }
}

/// Joins the cookies of a request, which a client may send in several lines (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let mut joined = BytesMut::from(first.as_bytes());
    for line in [second].into_iter().chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    // Valid values stay valid when they are joined.
    if let Ok(joined) = HeaderValue::from_maybe_shared(joined.freeze()) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Why a request must not be served; `None` if it may. The HTTP library accepts heads in HTTP/2 that HTTP/1.1 has not, and
/// upstreams would read such a request in another way than the gateway has counted it.
fn ambiguity(head: &Parts) -> Option<&'static str> {
    if !matches!(head.uri.scheme_str(), None | Some("http" | "https")) {
        return Some("The scheme is not http or https.");
    }
    // The library accepts `*`, and an empty path before a query.
    let has_absolute_path = || head.uri.path_and_query().is_some_and(|path| path.as_str().starts_with('/'));
    if head.method != Method::CONNECT && !has_absolute_path() {
        return Some("The path does not begin with a slash.");
    }
    if head.headers.get(header::HOST).is_some_and(HeaderValue::is_empty) {
        return Some("The Host header is empty.");
    }
    if head.headers.get(header::CONTENT_LENGTH).is_some_and(HeaderValue::is_empty) {
        return Some("The content-length header has no number.");
    }
    has_blank_edges(&head.headers).then_some("A header begins or ends with a blank.")
}

/// Whether a value begins or ends with a blank (RFC 9113, section 8.2.1). In HTTP/1.1 the blank does not belong to the value,
/// so a client would get a new counter for each number of blanks.
fn has_blank_edges(headers: &HeaderMap) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    headers.values().map(HeaderValue::as_bytes).any(|value| is_blank(value.first()) || is_blank(value.last()))
}

/// Turns an extended CONNECT for a WebSocket in HTTP/2 (RFC 8441, section 5) into the GET that it would be in HTTP/1.1, so that
/// it has the same routes and limits. Returns whether it is one.
fn take_extended_connect(head: &mut Parts) -> bool {
    let is_websocket = head.extensions.get::<Protocol>().is_some_and(|protocol| protocol.as_str() == "websocket");
    let asks = head.method == Method::CONNECT && is_websocket;
    if asks {
        head.method = Method::GET;
    }
    asks
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn cookies_become_one_line() {
        for (lines, expected) in
            [(&[][..], None), (&["a=1"], Some("a=1")), (&["a=1", "b=2; c=3", ""], Some("a=1; b=2; c=3; "))]
        {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| {
                headers.append(header::COOKIE, HeaderValue::from_static(line));
            });
            join_cookies(&mut headers);
            let joined: Vec<_> = headers.get_all(header::COOKIE).iter().map(|line| line.to_str().unwrap()).collect();
            assert_eq!(joined, Vec::from_iter(expected));
        }
    }

    fn of(uri: &str, fields: &[(&'static str, &'static str)]) -> Option<&'static str> {
        let mut request = Request::get(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        ambiguity(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn heads_of_http_1_are_not_ambiguous() {
        for uri in ["http://a/", "https://a:1/b?c", "/only/a/path", "http://a//b"] {
            let fields = [("a", ""), ("b", "a \t b"), ("c", "\""), ("content-length", "0")];
            assert_eq!(of(uri, &fields), None, "{uri}");
        }
    }

    #[test]
    fn what_only_http_2_carries_is_ambiguous() {
        let none = ("a", "");
        for (uri, field, word) in [
            ("ftp://a/", none, "scheme"),
            ("httpss://a/", none, "scheme"),
            ("*", none, "slash"),
            ("http://a/", ("host", ""), "Host"),
            ("/", ("content-length", ""), "number"),
            ("/", ("a", " b"), "blank"),
            ("/", ("a", "\tb"), "blank"),
            ("/", ("a", "b "), "blank"),
            ("/", ("a", "b\t"), "blank"),
            ("/", ("a", " "), "blank"),
        ] {
            let found = of(uri, &[("first", "x"), field]).unwrap();
            assert!(found.contains(word), "{uri} {field:?}: {found}");
        }
    }
}
