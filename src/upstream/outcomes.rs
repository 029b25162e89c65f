//! What an attempt says about its endpoint: it is ejected after failures in a row.

use std::fmt::Display;

use http::StatusCode;

use super::Upstream;
use super::again::Ending;
use super::endpoint::Endpoint;
use super::error::{Failed, UpstreamError};
use super::in_flight::InFlight;
use crate::base::clock;

impl Upstream {
    /// Records a response.
    pub(super) fn answered(&self, in_flight: &InFlight, status: StatusCode) {
        let mut failures = self.ejection.iter().flat_map(|rules| &rules.statuses);
        let is_failure = failures.any(|statuses| statuses.contains(&status.as_u16()));
        // An error can be much faster than the work would have been.
        in_flight.answered(!is_failure && !status.is_server_error());
        let endpoint = in_flight.endpoint();
        match status {
            _ if is_failure => self.failed_with(endpoint, &status),
            // It is the application that fails: another server would be asked for the same in vain.
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                endpoint.state.answered_in_vain();
            }
            _ => endpoint.state.succeeded(),
        }
    }

    /// Records that a request got no response, if the endpoint caused that.
    pub(super) fn failed(&self, in_flight: &InFlight, failed: &Failed) {
        in_flight.failed(&failed.error);
        self.failed_at(in_flight.endpoint(), &failed.error);
    }

    /// Records that an endpoint has failed so.
    pub(super) fn failed_at(&self, endpoint: &Endpoint, error: &UpstreamError) {
        if error.ending() != Ending::Final {
            self.failed_with(endpoint, error);
        }
    }

    #[cold]
    fn failed_with(&self, endpoint: &Endpoint, why: &dyn Display) {
        let failures = endpoint.state.failed();
        let Some(rules) = &self.ejection else { return };
        if failures < rules.failures || !self.balancer.has_other(endpoint) {
            return;
        }
        if let Some(time) = endpoint.state.eject(rules, clock::monotonic()) {
            self.balancer.refresh();
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
