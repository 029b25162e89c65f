//! Forwards one request to its upstream, with the target and the host that its server gets.

use std::borrow::Cow;
use std::fmt::Display;
use std::net::SocketAddr;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, Version, header};
use hyper::ext::ReasonPhrase;

use super::finish::fill;
use super::tunnel::{accepts, new_key};
use super::{ConnectionContext, WorkerSnapshot};
use crate::base::http::path::BadPath;
use crate::base::http::request_id::REQUEST_ID;
use crate::base::http::trace_context::TraceContext;
use crate::base::reason::Reason;
use crate::config::{HeaderChanges, PathRules, Scheme, SentPath, UNLIMITED};
use crate::proxy::respond::{self, grpc};
use crate::proxy::snapshot::{CompiledRoute, Forwarding};
use crate::proxy::telemetry::{ObservedBody, Outcome, RequestRecord, ResponseContent};
use crate::request::decide::CostKnown;
use crate::request::identify::client::Client;
use crate::request::route::rewrite;
use crate::server::IncomingRequest;
use crate::upstream::{
    BodyRules, Connections, Endpoint, ForwardedHeader, ForwardedInfo, Origin, PassInterim, Progress, RequestClient,
    RequestHead, Unanswered, UpstreamBody, UpstreamError, UpstreamRequest,
};

/// The Retry-After if the servers have too many requests. When they have room again is unknown, but mostly soon.
const RETRY_SOON: HeaderValue = HeaderValue::from_static("1");

/// `None` if no headers change.
type Changes<'a> = Option<&'a HeaderChanges<HeaderValue>>;

pub(super) struct UpstreamCall<'a> {
    pub(super) gateway: &'a WorkerSnapshot,
    pub(super) route: &'a CompiledRoute,
    pub(super) forwarding: &'a Forwarding,
    /// The changes of the headers of the request, and of those of its responses.
    pub(super) changes: (Changes<'a>, Changes<'a>),
    pub(super) connection: &'a ConnectionContext,
    pub(super) client: Client,
    pub(super) scheme: Scheme,
    pub(super) trace: Option<TraceContext>,
    /// The hash of the key by which the upstream chooses a server.
    pub(super) balanced_by: Option<u64>,
}

impl UpstreamCall<'_> {
    /// The client's address, with its port if it is the peer.
    fn client_socket(&self) -> SocketAddr {
        let is_peer = self.client.address == self.connection.peer;
        SocketAddr::new(self.client.address, if is_peer { self.connection.port } else { 0 })
    }

    fn forwarded_header(&self) -> ForwardedHeader {
        let hop = if self.connection.tls.is_some() { Scheme::Https } else { Scheme::Http };
        ForwardedHeader { keeps: self.client.forwarded.kept(), hop: self.gateway.forwarded.then_some(hop) }
    }

    /// Adds to the response what its server determines, for a client with these request headers.
    fn receive(&self, body: &mut UpstreamBody, fields: &HeaderMap, response: &mut Response<ObservedBody>) {
        if let Some(Ok(reason)) = body.take_reason().map(ReasonPhrase::try_from) {
            response.extensions_mut().insert(reason);
        }
        if let Some(origins) = &self.forwarding.own_origins {
            origins.replace(response, self.scheme, fields);
        }
    }

    /// Forwards the request and fills `response`. A failure is recorded and becomes a response. Also returns whether the
    /// response tells the cost of the request.
    pub(super) async fn forward(
        &self,
        request: &mut IncomingRequest,
        record: &mut RequestRecord,
        response: &mut Response<ObservedBody>,
    ) -> (Outcome, CostKnown) {
        let IncomingRequest { head, body, asks_for_websocket, interim, .. } = request;
        let key = (*asks_for_websocket && head.version == Version::HTTP_2).then(new_key);
        if let Some(Ok(key)) = key.as_deref().map(HeaderValue::from_str) {
            head.headers.insert(header::SEC_WEBSOCKET_KEY, key);
        }
        let Forwarding { upstream, path, preserve_host, .. } = self.forwarding;
        let (request_headers, response_headers) = self.changes;
        let target = match onward(&head.uri, path, self.gateway.resolver.paths) {
            Ok(target) => target,
            Err(why) => {
                let answer = respond::closing(respond::problem(StatusCode::BAD_REQUEST, why.detail()));
                fill(response, record, answer);
                return (Outcome::Refused, CostKnown::FromResponse);
            }
        };
        if is_last_hop(&head.method, &mut head.headers) {
            fill(response, record, respond::of_last_hop(head));
            return (Outcome::Responded, CostKnown::FromResponse);
        }
        // A client may send no Host header in HTTP/1.0, and an empty one in HTTP/1.1. The upstream always gets one.
        let preserve_host = *preserve_host && head.headers.get(header::HOST).is_some_and(|host| !host.is_empty());
        let progress = Progress::default();
        let pass = interim.as_ref().map(|client| {
            |mut response: Response<()>| {
                progress.has_response.set(true);
                if let Some(changes) = response_headers {
                    changes.hide(response.headers_mut());
                }
                client.send(response);
            }
        });
        let fields = &head.headers;
        let head = RequestHead {
            method: &head.method,
            target: &target,
            headers: fields,
            preserve_host,
            forwarded: ForwardedInfo {
                peer: &self.connection.address,
                client: Some(self.client.address).filter(|client| *client != self.connection.peer),
                trusted: self.client.via_trusted,
                version: head.version,
                scheme: self.scheme,
                header: self.forwarded_header(),
                certificate: self.connection.certificate(),
                origin: Some(Origin { id: &record.id, trace: self.trace.as_ref(), spans: record.spans() }),
            },
            changes: request_headers,
            asks_for_websocket: *asks_for_websocket,
        };
        let call_timeout = grpc::content_type(head.method, head.headers).and_then(|_| grpc::timeout(head.headers));
        let body = body.take();
        let outbound = UpstreamRequest {
            head,
            body: body.as_ref().map(|_| BodyRules {
                counted: &self.route.single,
                timeout: self.route.body_timeout,
                // An inspected body was measured already, and may have grown since.
                max_size: if self.route.inspector.is_some() { UNLIMITED } else { self.route.max_body_size },
            }),
            timeout: self.route.timeout,
            client: Some(RequestClient {
                address: self.client_socket(),
                balanced_by: self.balanced_by,
                interim: pass.as_ref().map(|pass| pass as &PassInterim<'_>),
                worker: self.connection.worker.index,
            }),
            response_changes: response_headers,
            progress: &progress,
        };
        let on_failure = |endpoint: &Endpoint, error: &UpstreamError| {
            record.failed_attempt(error.reason(), endpoint, error);
        };
        let ConnectionContext { worker, bound, .. } = self.connection;
        let (connections, headers) = (Connections { pools: &worker.pools, bound }, response.headers_mut());
        let sent = match call_timeout {
            None => upstream.send(connections, &outbound, body, headers, &on_failure).await,
            Some(limit) => upstream.send_within(limit, connections, &outbound, body, headers, &on_failure).await,
        };
        let (begun, is_begun) = (progress.begun.get(), progress.is_begun.get());
        match with_handshake(key, sent, response.headers()) {
            Ok((status, mut body)) => {
                record.responded(|| body.server().cloned(), begun);
                *response.status_mut() = status;
                response.headers_mut().insert(REQUEST_ID, record.id.to_header());
                self.receive(&mut body, fields, response);
                response.body_mut().content = ResponseContent::Upstream(body);
                (Outcome::Forwarded, CostKnown::FromBody)
            }
            Err(unanswered) => {
                let cost = if is_begun { CostKnown::Never } else { CostKnown::FromResponse };
                (fail(record, response, &unanswered), cost)
            }
        }
    }
}

/// Turns the response into an error if it accepts a WebSocket but does not prove that its server read the key.
#[inline]
fn with_handshake(
    key: Option<String>,
    sent: Result<(StatusCode, UpstreamBody), Unanswered>,
    headers: &HeaderMap,
) -> Result<(StatusCode, UpstreamBody), Unanswered> {
    match (key, &sent) {
        (Some(key), Ok((StatusCode::SWITCHING_PROTOCOLS, _))) if !accepts(headers, &key) => {
            let error = UpstreamError::Bad("a handshake of WebSocket with a wrong key");
            Err(Unanswered { endpoint: None, error })
        }
        _ => sent,
    }
}

fn fail(record: &mut RequestRecord, response: &mut Response<ObservedBody>, unanswered: &Unanswered) -> Outcome {
    let Unanswered { endpoint, error } = unanswered;
    let reason = error.reason();
    let server = endpoint.as_ref().map_or(&"" as &dyn Display, |endpoint| endpoint);
    record.fail(reason, server, error);
    let mut answer = respond::problem(error.status(), error.detail());
    if matches!(reason, Reason::MaxInFlight | Reason::Exhausted) {
        answer.headers_mut().insert(header::RETRY_AFTER, RETRY_SOON);
    }
    let (outcome, answer) = match reason {
        _ if reason.is_upstreams() => (Outcome::Failed, answer),
        // The client has stopped waiting, as if it had left.
        Reason::GrpcTimeout => (Outcome::Abandoned, answer),
        // The next bytes on the connection are the rest of this request's body.
        _ => (Outcome::Refused, respond::closing(answer)),
    };
    fill(response, record, answer);
    outcome
}

/// The target for the upstream, in origin form: the path that it gets, and the query of the request.
fn onward<'a>(uri: &'a Uri, sent: &SentPath, paths: PathRules) -> Result<Cow<'a, str>, BadPath> {
    let path = rewrite::sent(sent, uri.path(), paths)?;
    Ok(match (uri.path_and_query(), uri.query()) {
        // Nearly all paths are forwarded as they came.
        (Some(whole), _) if path.len() == uri.path().len() && whole.as_str().starts_with(&*path) => {
            Cow::Borrowed(whole.as_str())
        }
        (_, Some(query)) => Cow::Owned(format!("{path}?{query}")),
        (_, None) => path,
    })
}

/// Whether the client asks this gateway itself (RFC 9110, section 7.6.2). Otherwise decrements Max-Forwards.
fn is_last_hop(method: &Method, headers: &mut HeaderMap) -> bool {
    if !matches!(*method, Method::OPTIONS | Method::TRACE) {
        return false;
    }
    let left = headers.get(header::MAX_FORWARDS).and_then(|left| left.to_str().ok()?.trim().parse::<u32>().ok());
    if let Some(left) = left.and_then(|left| left.checked_sub(1)) {
        headers.insert(header::MAX_FORWARDS, left.into());
    }
    left == Some(0)
}
