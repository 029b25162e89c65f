//! Passes bytes between the two sides of a tunnel until both have ended, one has failed, or a time limit is reached.
//!
//! Each direction reads into a buffer on the stack, and keeps only what the other side did not take. So a quiet tunnel needs
//! no buffers, a busy one at most one in each direction, and one side is read only as fast as the other side reads. What is
//! read passes when limits that count bytes have room for it.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::base::body_gate::Exhausted;
use crate::base::deadline::Deadline;
use crate::proxy::byte_meter::Direction as Way;
use crate::upstream::Upstream;

/// The most bytes of one read, and so the most that wait in one direction.
const READ: usize = 16 * 1024;

/// How long a tunnel may wait; `None` is no limit.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Waits {
    /// For a byte from either side.
    idle: Option<Duration>,
    /// For the client, while bytes wait for it, or while only the client has not ended.
    client: Option<Duration>,
    /// For the upstream, likewise.
    upstream: Option<Duration>,
}

impl Waits {
    /// `client` is how long the client may take to read something.
    pub(in crate::proxy) fn new(upstream: &Upstream, client: Option<Duration>) -> Self {
        Self { idle: upstream.config.tunnel_idle_timeout, client, upstream: upstream.config.read_timeout }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Upstream,
}

#[derive(Debug)]
pub(super) enum TunnelEnd {
    Closed,
    Failed(Side, io::Error),
    /// No byte came for this time.
    Idle(Duration),
    /// This side made no progress for this time.
    Stalled(Side, Duration),
    /// A limit has no room for more bytes.
    Exhausted,
}

/// Runs a tunnel. `pass` is ready when so many bytes of a direction may pass. Calls `to_client` with the number of bytes sent
/// to the client.
pub(super) async fn copy<C, U>(
    mut client: C,
    mut upstream: U,
    waits: Waits,
    mut pass: impl FnMut(&mut Context<'_>, Way, usize) -> Poll<Result<(), Exhausted>>,
    mut to_client: impl FnMut(usize),
) -> TunnelEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let (mut up, mut down) = (Direction::default(), Direction::default());
    let mut timer = Timer::new(waits, Instant::now());
    poll_fn(|cx| {
        let (was_over, before) = ((up.is_over, down.is_over), (up.passed, down.passed));
        let upward = up.poll(cx, &mut client, &mut upstream, |cx, bytes| pass(cx, Way::Request, bytes));
        let downward = down.poll(cx, &mut upstream, &mut client, |cx, bytes| pass(cx, Way::Response, bytes));
        let now = Instant::now();
        up.note_blocked(before.0, now);
        down.note_blocked(before.1, now);
        if was_over != (up.is_over, down.is_over) || before != (up.passed, down.passed) {
            timer.since = now;
        }
        to_client(usize::try_from(down.passed - before.1).unwrap_or_default());
        match (upward, downward) {
            (Poll::Ready(Err(Broken::Exhausted)), _) | (_, Poll::Ready(Err(Broken::Exhausted))) => {
                Poll::Ready(TunnelEnd::Exhausted)
            }
            (Poll::Ready(Err(Broken::Source(error))), _) | (_, Poll::Ready(Err(Broken::Target(error)))) => {
                Poll::Ready(TunnelEnd::Failed(Side::Client, error))
            }
            (Poll::Ready(Err(Broken::Target(error))), _) | (_, Poll::Ready(Err(Broken::Source(error)))) => {
                Poll::Ready(TunnelEnd::Failed(Side::Upstream, error))
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(TunnelEnd::Closed),
            _ => timer.poll(cx, &up, &down),
        }
    })
    .await
}

/// The connection of a direction that has failed.
enum Broken {
    Source(io::Error),
    Target(io::Error),
    Exhausted,
}

#[derive(Debug, Default)]
struct Direction {
    /// What was read but not taken by the target. Has no memory if empty.
    waiting: Vec<u8>,
    /// Whether what waits may pass.
    may_pass: bool,
    written: usize,
    passed: u64,
    /// Whether the source has ended.
    has_ended: bool,
    /// Whether the target has been told that the source has ended.
    is_over: bool,
    /// Since when the target has taken nothing, although something waits for it.
    blocked_since: Option<Instant>,
}

impl Direction {
    /// Passes as much as possible now. Ready when the source has ended and the target has been told.
    fn poll<S, T>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        target: &mut T,
        mut pass: impl FnMut(&mut Context<'_>, usize) -> Poll<Result<(), Exhausted>>,
    ) -> Poll<Result<(), Broken>>
    where
        S: AsyncRead + Unpin,
        T: AsyncWrite + Unpin,
    {
        if self.is_over {
            return Poll::Ready(Ok(()));
        }
        loop {
            if !self.waiting.is_empty() && !self.may_pass {
                ready!(pass(cx, self.waiting.len())).map_err(|Exhausted| Broken::Exhausted)?;
                self.may_pass = true;
            }
            ready!(self.poll_write(cx, target)).map_err(Broken::Target)?;
            if self.has_ended {
                ready!(Pin::new(&mut *target).poll_shutdown(cx)).map_err(Broken::Target)?;
                self.is_over = true;
                return Poll::Ready(Ok(()));
            }
            let mut space = [MaybeUninit::uninit(); READ];
            let mut read = ReadBuf::uninit(&mut space);
            match Pin::new(&mut *source).poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Broken::Source(error))),
                Poll::Pending => {
                    // The target may hold back what was written, for example to encrypt it together with more.
                    ready!(Pin::new(&mut *target).poll_flush(cx)).map_err(Broken::Target)?;
                    return Poll::Pending;
                }
            }
            let read = read.filled();
            self.has_ended = read.is_empty();
            let passes = if self.has_ended { Poll::Ready(Ok(())) } else { pass(cx, read.len()) };
            self.may_pass = passes.is_ready();
            if passes.is_pending() {
                self.waiting.extend_from_slice(read);
                return Poll::Pending;
            }
            ready!(passes).map_err(|Exhausted| Broken::Exhausted)?;
            let taken = match Pin::new(&mut *target).poll_write(cx, read) {
                _ if read.is_empty() => 0,
                Poll::Ready(taken) => taken.map_err(Broken::Target)?,
                Poll::Pending => 0,
            };
            self.passed += taken as u64;
            self.waiting.extend_from_slice(&read[taken..]);
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, target: &mut (impl AsyncWrite + Unpin)) -> Poll<io::Result<()>> {
        while self.written < self.waiting.len() {
            let taken = ready!(Pin::new(&mut *target).poll_write(cx, &self.waiting[self.written..]))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += taken;
            self.passed += taken as u64;
        }
        (self.waiting, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Records whether something waits for the target, which had taken `before` bytes before this poll.
    fn note_blocked(&mut self, before: u64, now: Instant) {
        let is_blocked = !self.waiting.is_empty() || (self.has_ended && !self.is_over);
        let since = self.blocked_since.filter(|_| self.passed == before).unwrap_or(now);
        self.blocked_since = is_blocked.then_some(since);
    }
}

struct Timer {
    waits: Waits,
    /// When the last byte passed, or a side ended.
    since: Instant,
    /// `None` while nothing is limited.
    deadline: Option<Deadline>,
}

impl Timer {
    fn new(waits: Waits, now: Instant) -> Self {
        Self { waits, since: now, deadline: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>, up: &Direction, down: &Direction) -> Poll<TunnelEnd> {
        let Waits { idle, client, upstream } = self.waits;
        // After one side has ended, only the other one can still send something.
        let waits = [
            (up.blocked_since, upstream, Side::Upstream),
            (up.is_over.then_some(self.since), upstream, Side::Upstream),
            (down.blocked_since, client, Side::Client),
            (down.is_over.then_some(self.since), client, Side::Client),
        ];
        let stalls = waits.into_iter().filter_map(|(since, limit, side)| {
            let limit = limit?;
            Some((since? + limit, TunnelEnd::Stalled(side, limit)))
        });
        let idle = idle.map(|limit| (self.since + limit, TunnelEnd::Idle(limit)));
        let Some((at, end)) = stalls.chain(idle).min_by_key(|(at, _)| *at) else {
            self.deadline = None;
            return Poll::Pending;
        };
        let deadline = self.deadline.get_or_insert_with(|| Deadline::at(at));
        deadline.set_at(at);
        ready!(deadline.poll(cx));
        Poll::Ready(end)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
    use tokio::task::{JoinHandle, spawn_local};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(400);
    const NONE: Waits = Waits { idle: None, client: None, upstream: None };

    /// A tunnel with pipes of this size: its client, its upstream, and its end with the number of bytes sent to the client.
    fn tunnel(waits: Waits, size: usize) -> (DuplexStream, DuplexStream, JoinHandle<(TunnelEnd, usize)>) {
        let ((client, near), (far, upstream)) = (duplex(size), duplex(size));
        let running = spawn_local(async move {
            let mut sent = 0;
            let end = copy(near, far, waits, |_, _, _| Poll::Ready(Ok(())), |bytes| sent += bytes).await;
            (end, sent)
        });
        (client, upstream, running)
    }

    fn run(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build_local(tokio::runtime::LocalOptions::default()).unwrap();
        runtime.block_on(test);
    }

    #[test]
    fn bytes_pass_in_both_directions_at_once() {
        run(async {
            for size in [1, 100, 100_000] {
                let (client, upstream, running) = tunnel(NONE, size);
                let sent: Vec<u8> = (0..200_000_u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
                let echo = spawn_local(async move {
                    let (mut reader, mut writer) = split(upstream);
                    tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                    writer.shutdown().await.unwrap();
                });
                let (mut reader, mut writer) = split(client);
                let whole = sent.clone();
                let writing = spawn_local(async move {
                    writer.write_all(&whole).await.unwrap();
                    writer.shutdown().await.unwrap();
                });
                let mut received = Vec::new();
                reader.read_to_end(&mut received).await.unwrap();
                writing.await.unwrap();
                echo.await.unwrap();
                assert!(received == sent, "size {size}");
                let (end, bytes) = running.await.unwrap();
                assert!(matches!(end, TunnelEnd::Closed) && bytes == sent.len(), "{end:?}");
            }
        });
    }

    #[test]
    fn a_side_that_has_ended_still_receives() {
        run(async {
            let (mut client, mut upstream, running) = tunnel(NONE, 10);
            client.write_all(b"last").await.unwrap();
            client.shutdown().await.unwrap();
            let mut all = Vec::new();
            upstream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"last");
            tokio::time::sleep(LIMIT).await;
            upstream.write_all(b"answer").await.unwrap();
            upstream.shutdown().await.unwrap();
            let mut all = Vec::new();
            client.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"answer");
            assert!(matches!(running.await.unwrap().0, TunnelEnd::Closed));
        });
    }

    #[test]
    fn a_side_is_read_only_as_far_as_the_other_one_reads() {
        run(async {
            let (mut client, _upstream, running) = tunnel(NONE, 100);
            let mut written = 0;
            while let Ok(taken) = tokio::time::timeout(LIMIT, client.write(&[0; 50])).await {
                written += taken.unwrap();
            }
            // The two pipes, and one read.
            assert!((200..=200 + READ).contains(&written), "{written}");
            assert!(!running.is_finished());
        });
    }

    #[test]
    fn each_wait_has_its_limit() {
        run(async {
            // Without limits.
            let (_client, _upstream, running) = tunnel(NONE, 10);
            tokio::time::sleep(3 * LIMIT).await;
            assert!(!running.is_finished());

            let (mut client, mut upstream, running) = tunnel(Waits { idle: Some(LIMIT), ..NONE }, 10);
            for _ in 0..5 {
                tokio::time::sleep(LIMIT / 2).await;
                client.write_all(b"a").await.unwrap();
                upstream.read_u8().await.unwrap();
            }
            tokio::time::sleep(LIMIT / 2).await;
            assert!(!running.is_finished());
            assert!(matches!(running.await.unwrap().0, TunnelEnd::Idle(_)));

            // A client that reads nothing cannot keep the tunnel open by sending.
            let waits = Waits { client: Some(LIMIT), upstream: Some(3 * LIMIT), ..NONE };
            let (mut client, mut upstream, running) = tunnel(waits, 10);
            upstream.write_all(&[0; 20]).await.unwrap();
            upstream.write_all(&[0; 5]).await.unwrap();
            let mut sent = 0;
            while !running.is_finished() {
                tokio::time::sleep(LIMIT / 4).await;
                let _ = client.write_all(b"a").await;
                sent += 1;
            }
            assert!((3..9).contains(&sent), "{sent}");
            assert!(matches!(running.await.unwrap().0, TunnelEnd::Stalled(Side::Client, _)));

            // Likewise an upstream, and one that does not end when its client has.
            let (mut client, _upstream, running) = tunnel(waits, 10);
            client.write_all(&[0; 20]).await.unwrap();
            client.write_all(&[0; 5]).await.unwrap();
            assert!(matches!(running.await.unwrap().0, TunnelEnd::Stalled(Side::Upstream, _)));
            let (mut client, _upstream, running) = tunnel(waits, 10);
            client.shutdown().await.unwrap();
            let begun = Instant::now();
            assert!(matches!(running.await.unwrap().0, TunnelEnd::Stalled(Side::Upstream, _)));
            assert!(begun.elapsed() >= 3 * LIMIT);
        });
    }

    #[test]
    fn it_is_known_which_side_has_failed() {
        run(async {
            for fails in [Side::Client, Side::Upstream] {
                let (client, upstream, running) = tunnel(NONE, 10);
                let (mut stays, goes) = if fails == Side::Client { (upstream, client) } else { (client, upstream) };
                drop(goes);
                // The other side is told that nothing more comes. What it sends then has nowhere to go.
                assert_eq!(stays.read(&mut [0]).await.unwrap(), 0);
                stays.write_all(b"a").await.unwrap();
                assert!(matches!(running.await.unwrap().0, TunnelEnd::Failed(side, _) if side == fails));
            }
        });
    }
}
