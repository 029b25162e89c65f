//! Asks sources of quotas about the keys of a request.

use super::ConnectionContext;
use crate::base::clock::{self, Time};
use crate::proxy::snapshot::CompiledRoute;
use crate::request::decide::{self, ResolvedQuotas, StageRange};
use crate::request::identify::RequestAttributes;

/// Puts the quotas for the limits of `part` into `quotas`. Waits, and then updates `now`, only if a key is unknown.
pub(super) async fn resolve(
    route: &CompiledRoute,
    part: StageRange,
    attributes: &RequestAttributes<'_>,
    connection: &ConnectionContext,
    now: &mut Time,
    quotas: &mut ResolvedQuotas,
) {
    if !route.has_quotas {
        return;
    }
    let waits = {
        let key_cache = &mut connection.key_cache.borrow_mut();
        decide::resolve_quotas(&route.limits, part, attributes, key_cache, *now, quotas)
    };
    if let Some(waits) = waits {
        // Boxed because it is seldom needed and would make the future of each request larger.
        Box::pin(waits.finish(quotas)).await;
        *now = clock::now();
    }
}
