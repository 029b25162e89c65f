//! What an attempt says about its endpoint: it is ejected after failures in a row.

use std::fmt::Display;
use std::time::Duration;

use http::StatusCode;

use super::Upstream;
use super::endpoint::Endpoint;
use super::error::{SendAgain, UpstreamError};
use crate::clock::{self, Time};

impl Upstream {
    /// Records a response of this endpoint. Its time is measured if the request was sent at `begun`.
    pub(super) fn answered(&self, endpoint: &Endpoint, status: StatusCode, begun: Option<Time>) {
        if matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT) {
            return self.failed_with(endpoint, &status);
        }
        let micros = |begun: Time| clock::now().micros().saturating_sub(begun.micros());
        endpoint.state.succeeded(begun.map(|begun| Duration::from_micros(micros(begun))));
    }

    /// Records that a request got no response, if the endpoint caused that.
    pub(super) fn failed(&self, endpoint: &Endpoint, error: &UpstreamError) {
        if error.again() != SendAgain::No {
            self.failed_with(endpoint, error);
        }
    }

    #[cold]
    fn failed_with(&self, endpoint: &Endpoint, why: &dyn Display) {
        if !endpoint.state.failed(&self.ejection) || !self.balancer.has_other(endpoint) {
            return;
        }
        if let Some(time) = endpoint.state.eject(&self.ejection, clock::now()) {
            self.balancer.refresh();
            let failures = endpoint.state.status().failures_in_row;
            tracing::warn!(
                upstream = self.name,
                server = %endpoint,
                failures,
                r#for = ?time,
                last = %why,
                "a server is ejected: it gets no requests for a time"
            );
        }
    }
}
