//! What connections may keep in memory for clients or upstreams that do not read: each may keep a little, and more as long as
//! all connections of the process together do not keep too much.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use foldhash::fast::RandomState;

/// What a connection may always have, in bytes: more than the library takes of one stream.
const ALWAYS: usize = 128 << 10;
/// In bytes.
const MOST: usize = 1 << 20;
/// By how much it may have more at a time.
const STEP: usize = 64 << 10;
/// What all connections of the process may have beyond [`ALWAYS`].
static PROCESS: Pool = Pool::new(64 << 20);

/// What all connections together may keep beyond the little that each may, in bytes.
#[derive(Debug)]
pub(super) struct Pool(AtomicUsize);

impl Pool {
    pub(super) const fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }
}

/// One connection's share of a pool. Dropping it gives the share back.
#[derive(Debug)]
pub(super) struct Allowance {
    pool: &'static Pool,
    bytes: usize,
}

impl Allowance {
    pub(super) const fn new(pool: &'static Pool) -> Self {
        Self { pool, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the share to `wanted`, or as much as the pool allows, and returns it.
    pub(super) fn set(&mut self, wanted: usize) -> usize {
        let left = &self.pool.0;
        if wanted <= self.bytes {
            left.fetch_add(self.bytes - wanted, Ordering::Relaxed);
            self.bytes = wanted;
        } else {
            let take = |left: usize| Some(left - left.min(wanted - self.bytes));
            let (Ok(before) | Err(before)) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            self.bytes += before.min(wanted - self.bytes);
        }
        self.bytes
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The unsent bytes of each stream of one connection, and the streams that wait for room.
#[derive(Debug)]
pub(super) struct Unsent {
    of_streams: HashMap<u32, usize, RandomState>,
    all: usize,
    more: Allowance,
    waiting: Vec<Waker>,
}

impl Default for Unsent {
    fn default() -> Self {
        Self { of_streams: HashMap::default(), all: 0, more: Allowance::new(&PROCESS), waiting: Vec::new() }
    }
}

impl Unsent {
    /// Ready when the library may get more. Otherwise wakes the task when that may be so.
    pub(super) fn poll_room(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.all >= ALWAYS {
            let wanted = (self.all + STEP).min(MOST) - ALWAYS;
            let has = self.more.bytes();
            if self.all >= ALWAYS + if wanted > has { self.more.set(wanted) } else { has } {
                // A waiting stream polls again when its upstream sends more.
                if !self.waiting.iter().any(|waiting| waiting.will_wake(cx.waker())) {
                    self.waiting.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// The library gets so many bytes of a stream.
    pub(super) fn add(&mut self, stream: u32, bytes: usize) {
        *self.of_streams.entry(stream).or_default() += bytes;
        self.all += bytes;
    }

    /// So many bytes of a stream leave the library: they are sent, or the stream is reset.
    pub(super) fn remove(&mut self, stream: u32, bytes: usize) {
        let Some(of_stream) = self.of_streams.get_mut(&stream) else { return };
        let left = of_stream.saturating_sub(bytes);
        self.all -= *of_stream - left;
        *of_stream = left;
        if left == 0 {
            self.of_streams.remove(&stream);
        }
        // Not for each frame, because all waiting streams are woken.
        if !self.waiting.is_empty() && self.all <= ALWAYS.midpoint(self.more.bytes()) {
            self.waiting.drain(..).for_each(Waker::wake);
        }
        if self.all < ALWAYS && self.more.bytes() > 0 {
            self.more.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[test]
    fn all_together_have_no_more_than_the_pool() {
        static POOL: Pool = Pool::new(100);
        let (mut one, mut other) = (Allowance::new(&POOL), Allowance::new(&POOL));
        assert_eq!([one.set(60), other.set(60), one.set(70)], [60, 40, 60]);
        assert_eq!([one.set(30), other.set(60), other.set(90)], [30, 60, 70]);
        drop(one);
        assert_eq!((other.set(usize::MAX), other.bytes()), (100, 100));
        drop(other);
        assert_eq!(Allowance::new(&POOL).set(100), 100);
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn streams_wait_until_half_is_sent() {
        let (mut unsent, woken) = (Unsent::default(), Arc::new(Woken::default()));
        let waker = Waker::from(woken.clone());
        let cx = Context::from_waker(&waker);
        let mut streams = 0;
        while unsent.poll_room(&cx).is_ready() {
            streams += 1;
            unsent.add(streams, 16 << 10);
        }
        assert_eq!((unsent.all, streams), (MOST, 64));
        assert!(unsent.poll_room(&cx).is_pending());
        unsent.remove(1000, 1);
        (1..32).for_each(|stream| unsent.remove(stream, 16 << 10));
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        // The rest of one stream is dropped with it.
        unsent.remove(32, 1 << 10);
        unsent.remove(32, usize::MAX);
        assert_eq!((woken.0.load(Ordering::Relaxed), unsent.all), (1, MOST / 2), "once, although it has asked twice");
        assert!(unsent.poll_room(&cx).is_ready());
        (33..=streams).for_each(|stream| unsent.remove(stream, 16 << 10));
        assert_eq!((unsent.all, unsent.more.bytes(), unsent.of_streams.len()), (0, 0, 0));
    }
}
