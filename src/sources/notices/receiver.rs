//! One receiver: the notices that wait for it, at most [`MOST`], and the task that sends them one after the other. A notice that
//! is not taken goes to the end of the queue, so that it does not keep others waiting, and the task pauses, the longer the
//! more have failed.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderValue, Method, Request, header};
use http_body_util::Full;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::notice::{Notice, SIGNATURE, signature};
use super::{Shared, claims};
use crate::base::back_off::{BackOff, jittered};
use crate::base::fingerprint::Fingerprint;
use crate::base::in_force::BackgroundTask;
use crate::config::NoticeReceiver;
use crate::net::fetch::{self, FetchError, Url};

const MOST: usize = 10_000;
/// Of one attempt.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSES: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// The least time between two lines of the log that say that a receiver takes no notices.
const QUIET: Duration = Duration::from_secs(60);

pub(super) struct Receiver {
    /// What identifies the receiver, also to other gateways.
    pub(super) name: Fingerprint,
    url: Url,
    terms: ArcSwap<NoticeReceiver>,
    queue: watch::Sender<Queue>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Queue {
    /// A notice stays here while it is sent, so it is counted whatever becomes of the sender.
    waiting: VecDeque<Arc<Notice>>,
    /// Whether the last attempt has failed.
    is_failing: bool,
    /// Whether nothing is added any more.
    has_ended: bool,
}

impl Receiver {
    pub(super) fn new(name: Fingerprint, terms: &NoticeReceiver, shared: Arc<Shared>) -> Self {
        let (url, terms) = (terms.url.clone(), ArcSwap::from_pointee(terms.clone()));
        Self { name, url, terms, queue: watch::Sender::default(), shared }
    }

    pub(super) fn set_terms(&self, terms: &NoticeReceiver) {
        self.terms.store(Arc::new(terms.clone()));
    }

    /// Never waits. Counts a notice that is not added.
    pub(super) fn add(&self, notice: Notice) {
        self.queue.send_modify(|queue| {
            if queue.has_ended {
                self.shared.counts.ended.one();
            } else if queue.waiting.len() >= MOST {
                self.shared.counts.full.one();
            } else {
                queue.waiting.push_back(Arc::new(notice));
            }
        });
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.borrow().waiting.len()
    }

    /// Completes when nothing waits, or when the receiver takes nothing.
    pub(super) async fn drained(&self) {
        let _ = self.queue.subscribe().wait_for(|queue| queue.waiting.is_empty() || queue.is_failing).await;
    }

    /// Drops what waits. What was not sent is forgotten, so that it is told if it happens again.
    pub(super) fn end(&self, why: &str) {
        let mut left = VecDeque::new();
        self.queue.send_modify(|queue| {
            queue.has_ended = true;
            left = mem::take(&mut queue.waiting);
        });
        self.shared.counts.ended.add(left.len() as u64);
        if let Some(store) = self.shared.store.load_full() {
            left.iter().filter(|notice| notice.is_claimed()).for_each(|notice| claims::give_back(&store, notice));
        }
        if !left.is_empty() {
            tracing::warn!(receiver = %self.url, notices = left.len(), why, "notices were not delivered");
        }
    }

    /// Waits for the first notice.
    async fn first(&self) -> Option<Arc<Notice>> {
        let mut queue = self.queue.subscribe();
        let filled = queue.wait_for(|queue| !queue.waiting.is_empty()).await.ok()?;
        filled.waiting.front().cloned()
    }

    /// Removes the first notice if it is this one, or moves it to the end if its attempt `has_failed`; `None` if there was no
    /// attempt.
    fn finish(&self, notice: &Arc<Notice>, has_failed: Option<bool>) {
        self.queue.send_modify(|queue| {
            let first = queue.waiting.pop_front_if(|first| Arc::ptr_eq(first, notice));
            queue.is_failing = has_failed.unwrap_or(queue.is_failing);
            queue.waiting.extend(first.filter(|_| has_failed == Some(true)));
        });
    }

    async fn claim(&self, notice: &Notice) -> bool {
        let is_claimed = match self.shared.store.load_full() {
            Some(store) if !notice.is_claimed() => claims::claim(&store, notice).await,
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
}

impl BackgroundTask for Receiver {
    const THREAD: &'static str = "notices";
    const REFUSED: &'static str = "cannot send notices";

    /// Never ends.
    async fn run(self: Arc<Self>) {
        let counts = &self.shared.counts;
        let (mut failures, mut logged) = (0, None::<Instant>);
        while let Some(notice) = self.first().await {
            if notice.is_expired(Instant::now()) {
                counts.expired.one();
                self.finish(&notice, None);
            } else if !self.claim(&notice).await {
                self.finish(&notice, None);
            } else if let Err(error) = self.send(&notice).await {
                counts.failed.one();
                failures += 1;
                // Only the first of several failures in a row is logged.
                if failures == 1 && logged.is_none_or(|logged| logged.elapsed() >= QUIET) {
                    logged = Some(Instant::now());
                    tracing::warn!(receiver = %self.url, %error, "notices cannot be delivered");
                }
                self.finish(&notice, Some(true));
                sleep(jittered(PAUSES.pause(failures), 0.5)).await;
            } else {
                counts.delivered.one();
                failures = 0;
                self.finish(&notice, Some(false));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::base::clock::Time;
    use crate::config;
    use crate::limit::{Limit, Reached};

    fn notice(number: usize) -> Notice {
        let limit = Limit::new("l", &["1/d".parse().unwrap()]);
        let reached = Reached { rate: 0, used: 1, capacity: 1, share: 1, until: Time::from_micros(1), window: 1 };
        let key = Fingerprint::of(&number.to_be_bytes());
        Notice::new(key, &limit, key, String::new(), 1, &reached).unwrap()
    }

    #[tokio::test]
    async fn the_queue_is_bounded_and_what_fails_goes_to_its_end() {
        let text = "[[notices]]\nurl = \"http://localhost/\"\n[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
        let config = config::parse(text.as_bytes(), "test", Path::new("")).unwrap();
        let shared = Arc::<Shared>::default();
        let receiver = Receiver::new(Fingerprint::of(b"r"), &config.notices[0], shared.clone());
        let lost = || (shared.counts.full.get(), shared.counts.ended.get());
        (0..MOST).for_each(|number| receiver.add(notice(number)));
        assert_eq!((lost(), receiver.waiting()), ((0, 0), MOST));
        receiver.add(notice(MOST));
        assert_eq!((lost(), receiver.waiting()), ((1, 0), MOST));
        let first = receiver.first().await.unwrap();
        receiver.finish(&first, Some(true));
        // Only the first notice is moved or removed.
        receiver.finish(&first, Some(true));
        receiver.finish(&first, None);
        assert_eq!(receiver.waiting(), MOST);
        let second = receiver.first().await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        receiver.finish(&second, Some(false));
        let moved = receiver.queue.borrow().waiting.back().cloned().unwrap();
        assert!(receiver.waiting() == MOST - 1 && Arc::ptr_eq(&moved, &first));
        receiver.end("of the test");
        receiver.add(notice(0));
        assert_eq!((lost(), receiver.waiting()), ((1, MOST as u64), 0));
    }
}
