//! Remembers which notices were sent, until a little after their window, as any limit counts: each notice is a key that a
//! limit admits once. So `snapshot` saves it, and of the gateways with a shared store one sends what all have seen. If servers
//! of the store do not answer, a notice may be sent several times, since it must not be lost.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::notice::Notice;
use crate::base::clock;
use crate::limit::{Limit, MAX_WINDOW, Rate, Strategy};
use crate::store::{Answer, Ask, Reserved, Store};

/// No limit of the configuration can have this name.
const NAME: &str = "#notices";
/// How long a notice is remembered: the shortest of these that is a little longer than its window.
const SPANS: [Duration; 4] =
    [Duration::from_secs(100), Duration::from_secs(4_000), Duration::from_secs(90_000), MAX_WINDOW];
/// Clocks of gateways differ a little.
const LONGER: Duration = Duration::from_secs(10);
/// No worker of the store sends notices.
const NO_WORKER: usize = usize::MAX;

static LIMITS: LazyLock<Vec<Arc<Limit>>> = LazyLock::new(|| {
    let rates = SPANS.iter().filter_map(|span| Rate::new(1, *span).ok()?.with_strategy(Strategy::FixedWindow).ok());
    rates.map(|rate| Arc::new(Limit::new(NAME, &[rate]))).collect()
});

/// The limits that remember notices in the store, like those of the configuration.
pub fn remembered<'a>() -> impl Iterator<Item = &'a Arc<Limit>> {
    LIMITS.iter()
}

fn ask(notice: &Notice) -> Option<Ask<'static>> {
    let lasts = |(span, _): &(&Duration, &Arc<Limit>)| **span >= notice.window + LONGER;
    let limit = SPANS.iter().zip(remembered()).find(lasts).map(|(_, limit)| limit).or(LIMITS.last())?;
    Some(Ask::new(limit, notice.id, 1))
}

/// Whether this gateway is the one to send the notice, for the first time.
pub(super) async fn claim(store: &Store, notice: &Notice) -> bool {
    let Some(ask) = ask(notice) else { return true };
    let reply = match store.decide(&[ask], clock::now(), NO_WORKER) {
        Answer::Now(reply) => Some(reply),
        Answer::Later(reply) => reply.await.ok(),
        Answer::Away => None,
    };
    reply.and_then(|reply| reply.verdict(ask.place)).is_none_or(|verdict| verdict.admitted)
}

/// Forgets a notice that was claimed, but not sent.
pub(super) fn give_back(store: &Store, notice: &Notice) {
    if let Some(ask) = ask(notice) {
        store.settle(Reserved::of_any(&ask, 1), 0, None, clock::now(), NO_WORKER);
    }
}
