//! What the access log says about a request. Queries and headers may have keys and tokens, so it says no query, and only two
//! headers in the Combined Log Format.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, Version};
use smallvec::SmallVec;

use crate::base::http::trace_context::TraceId;
use crate::request::decide::LimitMetrics;
use crate::tokens::Usage;
use crate::upstream::DestinationAddress;

#[derive(Clone, Debug)]
pub struct AccessLogEntry {
    pub client: IpAddr,
    pub method: Option<Method>,
    pub host: String,
    /// Without the query.
    pub path: String,
    pub version: Option<Version>,
    /// How another proxy asks about the request; `None` without one.
    pub via: Option<&'static str>,
    pub tls: Option<&'static str>,
    /// Referer and User-Agent, if the format has a place for them.
    pub referer: Option<HeaderValue>,
    pub user_agent: Option<HeaderValue>,
    /// The trace of the request, if its headers are known.
    pub trace: Option<TraceId>,
    pub limit: Option<Arc<LimitMetrics>>,
    /// The limits that only report that the request is over them.
    pub shadowed: SmallVec<[Arc<LimitMetrics>; 1]>,
    /// The limits without room whose pools were charged instead.
    pub overflowed: SmallVec<[Arc<LimitMetrics>; 1]>,
    /// How many more requests each limit that has decided admits.
    pub remaining: SmallVec<[(Arc<LimitMetrics>, u64); 2]>,
    pub held_micros: Option<u64>,
    pub server: Option<DestinationAddress>,
    /// Until the head of the response arrived.
    pub upstream_micros: Option<u64>,
    pub tokens: Option<Usage>,
    /// The bytes of the response's body that were sent so far.
    pub bytes: u64,
}

impl AccessLogEntry {
    pub fn new(client: IpAddr) -> Self {
        Self {
            client,
            method: None,
            host: String::new(),
            path: String::new(),
            version: None,
            via: None,
            tls: None,
            referer: None,
            user_agent: None,
            trace: None,
            limit: None,
            shadowed: SmallVec::new(),
            overflowed: SmallVec::new(),
            remaining: SmallVec::new(),
            held_micros: None,
            server: None,
            upstream_micros: None,
            tokens: None,
            bytes: 0,
        }
    }
}
