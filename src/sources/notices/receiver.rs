//! One receiver: its queue, and the task that sends the notices one after the other. A notice that is not taken goes to the
//! end of the queue, so that it does not keep others waiting, and the task pauses, the longer the more have failed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderValue, Method, Request, header};
use http_body_util::Full;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Shared;
use super::notice::{Notice, SIGNATURE, signature};
use super::queue::Queue;
use crate::base::back_off::{BackOff, jittered};
use crate::base::fingerprint::Fingerprint;
use crate::base::in_force::BackgroundTask;
use crate::config::NoticeReceiver;
use crate::net::fetch::{self, FetchError, Url};

/// Of one attempt.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSES: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// The least time between two lines of the log that say that a receiver takes no notices.
const QUIET: Duration = Duration::from_secs(60);

pub(super) struct Receiver {
    /// Unique in this process.
    pub(super) number: u64,
    /// What identifies the receiver to other gateways.
    pub(super) name: Fingerprint,
    url: Url,
    terms: ArcSwap<NoticeReceiver>,
    queue: Queue,
    shared: Arc<Shared>,
    /// Whether the last attempt has failed.
    is_failing: AtomicBool,
    /// An attempt has ended.
    tried: Notify,
}

impl Receiver {
    pub(super) fn new(name: Fingerprint, terms: &NoticeReceiver, shared: Arc<Shared>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            name,
            url: terms.url.clone(),
            terms: ArcSwap::from_pointee(terms.clone()),
            queue: Queue::default(),
            shared,
            is_failing: AtomicBool::new(false),
            tried: Notify::new(),
        }
    }

    pub(super) fn set_terms(&self, terms: &NoticeReceiver) {
        self.terms.store(Arc::new(terms.clone()));
    }

    /// Never waits.
    pub(super) fn add(&self, notice: Notice) {
        self.queue.add(notice, &self.shared.counts);
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Completes when nothing waits, or when the receiver takes nothing.
    pub(super) async fn drained(&self) {
        while self.waiting() > 0 && !self.is_failing.load(Ordering::Relaxed) {
            self.tried.notified().await;
        }
    }

    /// Drops what waits, and returns it.
    pub(super) fn end(&self, why: &str) -> VecDeque<Arc<Notice>> {
        let left = self.queue.end();
        self.shared.counts.ended.add(left.len() as u64);
        if !left.is_empty() {
            tracing::warn!(receiver = %self.url, notices = left.len(), why, "notices were not delivered");
        }
        left
    }

    async fn claim(&self, notice: &Notice) -> bool {
        let is_claimed = match self.shared.claims.load_full() {
            Some(claims) if !notice.is_claimed() => claims.claim(notice).await,
            _ => true,
        };
        if is_claimed {
            notice.set_claimed();
        }
        is_claimed
    }

    async fn send(&self, notice: &Notice) -> Result<(), FetchError> {
        let terms = self.terms.load_full();
        let body = notice.body();
        let signature = terms.secret.as_ref().and_then(|secret| signature(secret, &body));
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().extend(signature.map(|signature| (SIGNATURE, signature)));
        match fetch::status(&self.url, terms.tls.as_ref(), request, LIMIT).await? {
            status if status.is_success() => Ok(()),
            status => Err(FetchError::Status(status)),
        }
    }

    /// Logs only the first of several failures in a row.
    fn fails(&self, error: &FetchError, logged: &mut Option<Instant>) {
        self.shared.counts.failed.one();
        let was_failing = self.is_failing.swap(true, Ordering::Relaxed);
        if !was_failing && logged.is_none_or(|logged| logged.elapsed() >= QUIET) {
            *logged = Some(Instant::now());
            tracing::warn!(receiver = %self.url, %error, "notices cannot be delivered");
        }
    }

    fn works(&self) {
        self.shared.counts.delivered.one();
        self.is_failing.store(false, Ordering::Relaxed);
    }
}

impl BackgroundTask for Receiver {
    const THREAD: &'static str = "notices";
    const REFUSED: &'static str = "cannot send notices";

    /// Never ends.
    async fn run(self: Arc<Self>) {
        let (mut failures, mut logged) = (0, None);
        loop {
            let notice = self.queue.first().await;
            if notice.is_expired(Instant::now()) {
                self.shared.counts.expired.one();
                self.queue.remove(&notice);
            } else if !self.claim(&notice).await {
                self.queue.remove(&notice);
            } else if let Err(error) = self.send(&notice).await {
                self.queue.put_back(&notice);
                self.fails(&error, &mut logged);
                failures += 1;
                self.tried.notify_one();
                sleep(jittered(PAUSES.pause(failures), 0.5)).await;
                continue;
            } else {
                self.queue.remove(&notice);
                self.works();
                failures = 0;
            }
            self.tried.notify_one();
        }
    }
}
