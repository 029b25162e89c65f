//! A request that has arrived, and of which no record has begun.

use http::header;
use http::request::Parts;

use super::{ConnectionContext, WorkerSnapshot};
use crate::clock::Time;
use crate::config::AccessLog;
use crate::identify::client::Client;
use crate::request_id::RequestId;
use crate::server::RequestGuard;
use crate::telemetry::{AccessLogEntry, RequestRecord};
use crate::trace_context::TraceId;

/// See the head of this file.
pub(super) struct Arrival<'a> {
    pub(super) connection: &'a ConnectionContext,
    pub(super) head: &'a Parts,
    pub(super) now: Time,
    pub(super) client: Client,
    pub(super) id: RequestId,
    pub(super) guard: RequestGuard,
}

impl Arrival<'_> {
    /// Begins the record of the request on this route, if there is one. The trace is only needed for the log.
    pub(super) fn open(
        self,
        gateway: &WorkerSnapshot,
        route: Option<usize>,
        host: &str,
        trace: impl FnOnce() -> TraceId,
    ) -> RequestRecord {
        let Self { connection, head, now, client, id, guard } = self;
        let header = |name| gateway.logs_headers.then(|| head.headers.get(name).cloned()).flatten();
        let entry = (gateway.access_log != AccessLog::Off).then(|| {
            Box::new(AccessLogEntry {
                method: Some(head.method.clone()),
                host: host.to_owned(),
                path: head.uri.path().to_owned(),
                version: Some(head.version),
                tls: connection.tls.as_ref().map(|tls| tls.version),
                referer: header(header::REFERER),
                user_agent: header(header::USER_AGENT),
                trace: Some(trace()),
                ..AccessLogEntry::new(client.address)
            })
        });
        RequestRecord::open(gateway.recorder(route).clone(), now, id, &head.method, entry, guard)
    }
}
