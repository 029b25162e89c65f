//! The streams of a connection whose responses wait for the client. A client may stop to grant window to a stream for as
//! long as it likes; after `body_timeout` the stream is reset, and the other streams of the connection go on.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, header};
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::task::spawn_local;

use super::worker_state::{Coarse, WorkerState};

/// All streams of a connection, and where they run.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    all: Rc<RefCell<Vec<Weak<Progress>>>>,
    /// The stream whose task is about to be spawned.
    newest: Rc<RefCell<Option<Rc<Progress>>>>,
}

/// Whether the response of one stream waits for the client.
#[derive(Debug)]
pub(super) struct Progress {
    worker: Rc<WorkerState>,
    /// Since when the library has asked for no more of the body, although there may be more.
    waits_since: Cell<Option<Coarse>>,
    is_reset: Cell<bool>,
    /// Of the stream's task.
    waker: RefCell<Option<Waker>>,
}

impl Streams {
    /// A stream begins.
    pub(super) fn begin(&self, worker: &Rc<WorkerState>) -> Rc<Progress> {
        let progress = Rc::new(Progress {
            worker: worker.clone(),
            waits_since: Cell::new(None),
            is_reset: Cell::new(false),
            waker: RefCell::default(),
        });
        let mut all = self.all.borrow_mut();
        if all.len() == all.capacity() {
            all.retain(|progress| progress.strong_count() > 0);
        }
        all.push(Rc::downgrade(&progress));
        *self.newest.borrow_mut() = Some(progress.clone());
        progress
    }

    /// The next task that the library spawns sends what the tunnel of this stream writes, and can be reset like the stream.
    pub(super) fn begin_tunnel(&self, progress: &Rc<Progress>) {
        *self.newest.borrow_mut() = Some(progress.clone());
    }

    /// Resets the streams that have waited for their client for as long as `limit`.
    pub(super) fn reset_stalled(&self, now: Coarse, limit: Coarse) {
        self.all.borrow_mut().retain(|progress| {
            let Some(progress) = progress.upgrade() else { return false };
            if progress.waits_since.get().is_some_and(|since| now - since >= limit) {
                progress.is_reset.set(true);
                progress.waker.borrow().iter().for_each(Waker::wake_by_ref);
            }
            true
        });
    }
}

impl Progress {
    /// Whether the stream is reset because its client grants no window.
    pub(super) fn is_reset(&self) -> bool {
        self.is_reset.get()
    }

    /// Records that the client is not waited for.
    pub(super) fn goes_on(&self) {
        self.waits_since.set(None);
    }

    /// Records that the client is waited for from now on.
    pub(super) fn waits(&self) {
        self.waits_since.set(Some(self.worker.now()));
    }
}

/// Runs the tasks of the library: one for each stream, which is spawned right after the stream has begun.
impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, task: F) {
        let Some(progress) = self.newest.borrow_mut().take() else {
            spawn_local(task);
            return;
        };
        spawn_local(async move {
            let mut task = pin!(task);
            poll_fn(|cx| {
                if progress.is_reset.get() {
                    // The library resets the stream when its task is dropped.
                    return Poll::Ready(());
                }
                let polled = task.as_mut().poll(cx);
                let mut waker = progress.waker.borrow_mut();
                if polled.is_pending() && !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                polled
            })
            .await;
        });
    }
}

/// The body of a response, which records when the library asks for more of it.
pub(super) struct StreamBody<B> {
    body: B,
    progress: Rc<Progress>,
}

impl<B> StreamBody<B> {
    pub(super) fn new(body: B, progress: Rc<Progress>) -> Self {
        // It asks when the client has granted window.
        progress.waits();
        Self { body, progress }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for StreamBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, progress } = self.get_mut();
        let mut polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            drop_misplaced(trailers);
        }
        progress.waits_since.set(polled.is_ready().then(|| progress.worker.now()));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The headers that a response cannot have as trailers: those of a connection (RFC 9113, section 8.2.2), and those that have
/// to be known before the content (RFC 9110, section 6.5.1). For HTTP/1.1 the library drops them.
const MISPLACED: [HeaderName; 16] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::CACHE_CONTROL,
    header::AUTHORIZATION,
    header::MAX_FORWARDS,
    header::SET_COOKIE,
];

fn drop_misplaced(trailers: &mut HeaderMap) {
    MISPLACED.iter().for_each(|name| {
        trailers.remove(name);
    });
}
