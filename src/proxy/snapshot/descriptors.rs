//! Joins the limits of several descriptors as if they were those of one route, so one decision covers all of them.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::{Action, CompiledRoute};
use crate::config::UNLIMITED;
use crate::proxy::respond::rate_limit_headers::RateLimitHeaders;

impl CompiledRoute {
    /// Joins limits, each given by a compiled rule and a place in it. `None` if there are none.
    pub fn of_descriptors<'r>(limits: impl Iterator<Item = (&'r Self, usize)> + Clone) -> Option<Self> {
        let (first, _) = limits.clone().next()?;
        let headers = limits.clone().map(|(route, at)| (&*route.rate_limit_headers, at));
        let rate_limit_headers = Arc::new(RateLimitHeaders::joined(headers));
        let limits = limits.enumerate().map(|(place, (route, at))| route.limits[at].of_descriptor(place));
        let limits: Vec<_> = limits.collect();
        let content_type = HeaderValue::from_static("application/grpc");
        Some(Self {
            metrics: first.metrics.clone(),
            path: first.path.clone(),
            single: Arc::default(),
            tokens: Vec::new(),
            has_quotas: limits.iter().any(|limit| limit.quotas.is_some()),
            limits,
            rate_limit_headers,
            action: Action::Respond { status: StatusCode::OK, body: Bytes::new(), content_type },
            max_body_size: UNLIMITED,
            inspector: None,
            body_timeout: None,
            timeout: None,
            request_headers: None,
            response_headers: None,
            cors: None,
            balance_key: None,
            failures: None,
            shedding: None,
        })
    }
}
