//! A request to an upstream, independent of the protocol.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Response, Version, header};

use super::load::ClientBit;
use crate::base::clock::Monotonic;
use crate::base::http::header_rules::{FORWARDED, FORWARDED_FOR};
use crate::base::http::request_id::RequestId;
use crate::base::http::trace_context::TraceContext;
use crate::base::spans::RequestSpans;
use crate::config::{HeaderChanges, Scheme};
use crate::net::tls::ClientCertificate;
use crate::request::identify::ambiguity::SingleSources;

/// Passes an interim response to the client, without waiting for it.
pub type PassInterim<'a> = dyn Fn(Response<()>) + 'a;

pub struct UpstreamRequest<'a> {
    pub head: RequestHead<'a>,
    /// `None` if it has no body.
    pub body: Option<BodyRules<'a>>,
    /// The longest time for the head of the response, instead of the upstream's own limit.
    pub timeout: Option<Duration>,
    /// `None` if the gateway itself asks.
    pub client: Option<RequestClient<'a>>,
    /// What the route changes about the headers of its responses, so that no trailer brings back what they hide.
    pub response_changes: Option<&'a HeaderChanges<HeaderValue>>,
    pub progress: &'a Progress,
}

pub struct RequestHead<'a> {
    pub method: &'a Method,
    /// The path and query, in origin form.
    pub target: &'a str,
    pub headers: &'a HeaderMap,
    /// Whether the upstream gets the client's Host header, which then must not be empty, instead of its own authority.
    pub preserve_host: bool,
    pub forwarded: ForwardedInfo<'a>,
    /// What the route changes about the headers, after everything else is written.
    pub changes: Option<&'a HeaderChanges<HeaderValue>>,
    /// Whether the upstream is asked for a WebSocket. Then the response may be 101, and its body becomes a tunnel.
    pub asks_for_websocket: bool,
}

#[derive(Clone, Copy)]
pub struct BodyRules<'a> {
    /// The sources of keys and costs, which must not be in trailers, too.
    pub counted: &'a Arc<SingleSources>,
    /// The longest time for which the client may send nothing of an incomplete body; `None` is no limit.
    pub timeout: Option<Duration>,
    /// In bytes.
    pub max_size: u64,
}

#[derive(Clone, Copy)]
pub struct RequestClient<'a> {
    /// The port is 0 if only a proxy in front knows it.
    pub address: SocketAddr,
    /// The hash of the key by which the upstream chooses a server, if it does so by keys and the request has one.
    pub balanced_by: Option<u64>,
    /// Takes interim responses other than `100 Continue`, each as soon as it has come; `None` if they are dropped.
    pub interim: Option<&'a PassInterim<'a>>,
    pub worker: usize,
}

/// How far a request has come, over all attempts to send it.
#[derive(Default)]
pub struct Progress {
    /// Whether a server may have got a part of it, and may have acted on it.
    pub is_begun: Cell<bool>,
    /// Whether a part of a response was passed on. From then on the request is not sent again.
    pub has_response: Cell<bool>,
    /// When it was sent first, after it had waited for a server. `None` if it was not sent.
    pub begun: Cell<Option<Monotonic>>,
}

impl UpstreamRequest<'_> {
    /// `None` if the gateway itself asks.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.client.map(|client| client.address)
    }

    pub(super) fn client_bit(&self) -> ClientBit {
        self.address().map_or(ClientBit::OWN, |address| ClientBit::of(address.ip()))
    }

    /// The client's address if the client may send many requests at a time. `None` behind a trusted proxy, whose clients share
    /// its connections.
    pub(super) fn many_from(&self) -> Option<IpAddr> {
        let ForwardedInfo { version, trusted, .. } = self.head.forwarded;
        self.address().filter(|_| version == Version::HTTP_2 && !trusted).map(|client| client.ip())
    }

    /// Whether all requests on the client's connection are certainly of one client.
    pub(super) fn is_of_one_client(&self) -> bool {
        let RequestHead { headers, forwarded, .. } = &self.head;
        let is_of_one = forwarded.version < Version::HTTP_2 && !forwarded.trusted;
        let by_proxy =
            || [header::VIA.as_str(), FORWARDED, FORWARDED_FOR].iter().any(|name| headers.contains_key(*name));
        self.client.is_some() && is_of_one && !by_proxy()
    }

    pub(super) fn body_timeout(&self) -> Option<Duration> {
        self.body.and_then(|body| body.timeout)
    }

    pub(super) fn spans(&self) -> Option<&RequestSpans> {
        self.head.forwarded.origin.and_then(|origin| origin.spans)
    }
}

impl RequestHead<'_> {
    /// The Host header: that of the route, else `authority`, else the client's.
    pub(super) fn host<'h>(&'h self, authority: Option<&'h HeaderValue>) -> Option<&'h HeaderValue> {
        let set = self.changes.and_then(|changes| changes.set.iter().find(|(name, _)| *name == header::HOST));
        set.map(|(_, host)| host).or(authority).or_else(|| self.headers.get(header::HOST))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ForwardedInfo<'a> {
    /// The address of the peer of the connection, as text.
    pub peer: &'a str,
    /// The client's address if the peer is a trusted proxy, so that they differ.
    pub client: Option<IpAddr>,
    /// Whether the peer is a trusted proxy, whose headers about the client are used.
    pub trusted: bool,
    /// Of the client's request.
    pub version: Version,
    /// How the client has sent its request, as far as the gateway knows.
    pub scheme: Scheme,
    /// What becomes of Forwarded (RFC 7239), which says all this, too.
    pub header: ForwardedHeader,
    pub certificate: Option<&'a ClientCertificate>,
    /// `None` for a request of the gateway itself.
    pub origin: Option<Origin<'a>>,
}

impl ForwardedInfo<'_> {
    pub(super) const OWN: Self = Self {
        peer: "127.0.0.1",
        client: None,
        trusted: false,
        version: Version::HTTP_11,
        scheme: Scheme::Http,
        header: ForwardedHeader { keeps: 0, hop: None },
        certificate: None,
        origin: None,
    };
}

/// Identifies a client's request in logs and traces.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    pub id: &'a RequestId,
    /// `None` if it belongs to no trace.
    pub trace: Option<&'a TraceContext>,
    /// `None` if they are not recorded.
    pub spans: Option<&'a RequestSpans>,
}

impl Origin<'_> {
    /// The `traceparent` that is sent; `None` if the client's passes as it is.
    pub(super) fn traceparent(&self) -> Option<[u8; 55]> {
        self.trace?.sent(self.spans.and_then(RequestSpans::attempt))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardedHeader {
    /// How many of the last elements are passed on, because trusted proxies have written them. A client may have written the
    /// others.
    pub keeps: usize,
    /// The scheme of the peer's connection, if an element for the peer is written.
    pub hop: Option<Scheme>,
}
