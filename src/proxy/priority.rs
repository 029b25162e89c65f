//! Sheds requests by their priority.

use http::{HeaderValue, header};

use super::{ConnectionContext, WorkerSnapshot};
use crate::base::clock::Time;
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::CompiledRoute;
use crate::request::identify::RequestAttributes;

/// The longest Retry-After, in seconds. It varies between clients, so that they do not come back at the same moment.
const LATEST_RETRY: u16 = 5;

/// The answer to a request that is shed; `None` if it passes.
pub(super) fn refuse(
    gateway: &WorkerSnapshot,
    route: &CompiledRoute,
    attributes: &RequestAttributes<'_>,
    connection: &ConnectionContext,
    now: Time,
) -> Option<LocalResponse> {
    let shedding = route.shedding.as_ref()?;
    let priority = shedding.priority(&route.limits, attributes, &mut connection.key_cache.borrow_mut());
    if shedding.admits(priority, attributes, now, connection.worker.index) {
        return None;
    }
    connection.key_cache.borrow_mut().shrink();
    let status = gateway.shedding.as_ref()?.settings.status;
    let mut answer =
        respond::problem(status, "The service is overloaded: requests of this priority are not served now.");
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(fastrand::u16(1..=LATEST_RETRY)));
    Some(answer)
}
