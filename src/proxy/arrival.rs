//! A request that has arrived, before its record begins: the client's own, or the one about which another proxy asks, which
//! replaces the question, and passes all steps but the last one.

use http::request::Parts;
use http::{Response, header};

use super::{ConnectionContext, WorkerSnapshot};
use crate::base::clock::Time;
use crate::base::http::request_id::RequestId;
use crate::base::http::trace_context::TraceContext;
use crate::base::random::Random;
use crate::base::spans::{RequestDetails, RequestSpans};
use crate::config::{AccessLog, Scheme};
use crate::net::Traffic;
use crate::proxy::telemetry::{AccessLogEntry, ObservedBody, RequestRecord};
use crate::request::forward_auth;
use crate::request::identify::client::Client;
use crate::request::resolve::name_host;
use crate::server::{IncomingRequest, RequestGuard};

/// One request, and what is known about it before a route is found.
pub(super) struct Arrival<'a> {
    pub(super) connection: &'a ConnectionContext,
    pub(super) head: &'a Parts,
    pub(super) now: Time,
    pub(super) client: Client,
    pub(super) scheme: Scheme,
    pub(super) id: RequestId,
    /// Whether it is a HEAD request, whose answer has no body.
    pub(super) is_head: bool,
    /// How another proxy asks about the request; `None` without one.
    pub(super) via: Option<&'static str>,
    pub(super) guard: RequestGuard,
}

impl Arrival<'_> {
    /// Begins the record of the request on this route. The trace is only needed for the log and for spans.
    pub(super) fn open(
        self,
        gateway: &WorkerSnapshot,
        route: Option<usize>,
        host: &str,
        trace: impl Fn() -> Option<TraceContext>,
    ) -> RequestRecord {
        // Before any method is called, which would need the whole struct in memory.
        let Self { connection, head, now, client, scheme, id, is_head, via, guard } = self;
        let own = route.and_then(|index| gateway.served.get(index)).map(|route| route.body_timeout);
        own.into_iter().filter(|own| *own != gateway.body_timeout).for_each(|own| guard.limit_reading(own));
        let tracing = gateway.tracing.as_ref().and_then(|_| trace()).filter(|trace| trace.is_sampled);
        let spans = tracing.and_then(|trace| {
            let details = RequestDetails {
                method: &head.method,
                path: head.uri.path(),
                host,
                scheme: scheme.name(),
                version: head.version,
                client: client.address,
                route: route.and_then(|index| gateway.served.get(index)).map(|route| route.path.as_str()),
                request_id: id.as_str(),
            };
            begin_spans(gateway, &trace, &connection.worker.random, now, &details)
        });
        let header = |name| gateway.logs_headers.then(|| head.headers.get(name).cloned()).flatten();
        let entry = (gateway.access_log != AccessLog::Off).then(|| {
            Box::new(AccessLogEntry {
                method: Some(head.method.clone()),
                host: host.to_owned(),
                path: head.uri.path().to_owned(),
                version: Some(head.version),
                via,
                tls: connection.tls.as_ref().map(|tls| tls.version),
                referer: header(header::REFERER),
                user_agent: header(header::USER_AGENT),
                trace: trace().map(|trace| trace.id),
                ..AccessLogEntry::new(client.address)
            })
        });
        let method = (&head.method, is_head);
        RequestRecord::open(gateway.recorder(route).clone(), now, id, method, entry, spans, guard)
    }
}

#[cold]
fn begin_spans(
    gateway: &WorkerSnapshot,
    trace: &TraceContext,
    random: &Random,
    now: Time,
    details: &RequestDetails<'_>,
) -> Option<Box<RequestSpans>> {
    let sender = gateway.tracing.as_ref()?.exporter.sender.clone();
    Some(Box::new(RequestSpans::begin(sender, trace, random, now, details)))
}

/// The request about which `question` asks; `None` if `question` is a plain request, or is refused itself. The request has no
/// body, since proxies ask before they have read it. `response` refuses the request with `refused_status` until it is filled:
/// the proxy gets this where a client gets no answer. A plain request loses the headers by which it must not be decided.
pub(super) fn asked(
    connection: &ConnectionContext,
    gateway: &WorkerSnapshot,
    question: &mut IncomingRequest,
    response: &mut Response<ObservedBody>,
) -> Option<Box<IncomingRequest>> {
    name_host(&mut question.head);
    if connection.traffic == Traffic::Requests {
        gateway.resolver.remove_unforwarded(&mut question.head.headers, connection.peer);
        return None;
    }
    if question.ambiguity.is_some() {
        return None;
    }
    *response.status_mut() = gateway.refused_status;
    let (head, ambiguity) = match forward_auth::read(&question.head) {
        Ok(head) => (head, None),
        Err(why) => (question.head.clone(), Some(why)),
    };
    let (body, asks_for_websocket, interim, tunnel, is_unanswered) = (None, false, None, None, false);
    Some(Box::new(IncomingRequest { head, body, ambiguity, asks_for_websocket, interim, tunnel, is_unanswered }))
}
