//! A queue of lines for a writer that may block, because a reader that stops must not block workers.
//!
//! Lines go into one buffer, and a thread writes all of it at once. Lines that find the buffer full are dropped and counted.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::base::printable::with_escapes;

/// The most bytes that wait. The writer holds at most as many again, and a buffer may be up to twice as large as its content.
const ROOM: usize = 4 << 20;
/// A buffer that has grown larger than this is freed after use.
const KEPT: usize = 256 << 10;
/// How long `close` waits for a writer that makes no progress.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause before another try with a writer that would block.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Queue {
    room: usize,
    state: Mutex<State>,
    /// Signals new lines, or that the queue is closed.
    more: Condvar,
    /// Signals progress of the writer, or its end.
    written: Condvar,
    /// The number of lines that were not written, because the queue was full or the writer failed.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Complete lines that wait for the writing thread.
    waiting: Vec<u8>,
    /// How many writes have succeeded.
    progress: u64,
    is_idle: bool,
    /// The writing thread ends after the last line.
    is_closed: bool,
    is_done: bool,
}

impl Queue {
    /// Starts a thread that writes the lines of the queue to `writer`. If lines were dropped, `report` is called with their
    /// number after the next successful write. Fails when the system cannot start a thread.
    pub(super) fn start(writer: impl Write + Send + 'static, report: fn(u64)) -> io::Result<Arc<Self>> {
        Self::with_room(ROOM, writer, report)
    }

    fn with_room(room: usize, writer: impl Write + Send + 'static, report: fn(u64)) -> io::Result<Arc<Self>> {
        let (more, written) = (Condvar::new(), Condvar::new());
        let queue = Arc::new(Self { room, state: Mutex::default(), more, written, dropped: AtomicU64::new(0) });
        let writing = queue.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || writing.run(writer, report))?;
        Ok(queue)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Adds this number of lines, or drops them if there is no room for all of them.
    pub(super) fn push(&self, lines: &[u8], count: u64) {
        let mut state = self.state.lock();
        if lines.len() > self.room.saturating_sub(state.waiting.len()) {
            self.drop_lines(count);
            return;
        }
        state.waiting.extend_from_slice(lines);
        if std::mem::take(&mut state.is_idle) {
            self.more.notify_one();
        }
    }

    /// Ends the writing thread. Waits until all lines are written, as long as the writer makes progress.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.more.notify_one();
        while !state.is_done {
            let before = state.progress;
            if self.written.wait_for(&mut state, PATIENCE).timed_out() && state.progress == before {
                return;
            }
        }
    }

    fn drop_lines(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    fn run(&self, mut writer: impl Write, report: fn(u64)) {
        let (mut lines, mut reported) = (Vec::new(), 0);
        while self.take(&mut lines) {
            let is_written = self.put(&lines, &mut writer);
            let dropped = self.dropped.load(Ordering::Relaxed);
            // The report is a line itself, so it has to wait until the writer works again.
            if is_written && dropped > reported {
                report(dropped - reported);
                reported = dropped;
            }
            lines.clear();
            if lines.capacity() > KEPT {
                lines = Vec::new();
            }
        }
        self.state.lock().is_done = true;
        self.written.notify_one();
    }

    /// Waits for lines and moves all of them to `lines`. `false` if the queue is closed and empty.
    fn take(&self, lines: &mut Vec<u8>) -> bool {
        let mut state = self.state.lock();
        while state.waiting.is_empty() {
            if state.is_closed {
                return false;
            }
            state.is_idle = true;
            self.more.wait(&mut state);
        }
        state.is_idle = false;
        std::mem::swap(&mut state.waiting, lines);
        true
    }

    /// Writes lines in pieces. Returns whether all were written; the others are counted as dropped.
    fn put(&self, mut lines: &[u8], writer: &mut impl Write) -> bool {
        while !lines.is_empty() {
            match writer.write(lines) {
                Ok(0) => break,
                Ok(written) => {
                    lines = &lines[written..];
                    self.state.lock().progress += 1;
                    self.written.notify_one();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process that shares the file may have made it non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
                Err(_) => break,
            }
        }
        let left = memchr::memchr_iter(b'\n', lines).count() as u64;
        self.drop_lines(left);
        left == 0
    }
}

/// Each call must contain a complete line, as the formatter of log lines ensures.
impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(&with_escapes(line), 1);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use super::*;

    static REPORTED: AtomicU64 = AtomicU64::new(0);

    fn note(dropped: u64) {
        REPORTED.fetch_add(dropped, Ordering::Relaxed);
    }

    /// Writes up to `most` bytes per permission, and fails when no permissions are left.
    struct Slow {
        most: usize,
        allowed: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.allowed.recv().map_err(|_| ErrorKind::BrokenPipe)?;
            let piece = &bytes[..bytes.len().min(self.most)];
            let _ = self.taken.send(piece.to_vec());
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow(room: usize, most: usize, report: fn(u64)) -> (Arc<Queue>, Sender<()>, Receiver<Vec<u8>>) {
        let ((allow, allowed), (taken, took)) = (channel(), channel());
        let queue = Queue::with_room(room, Slow { most, allowed, taken }, report).unwrap();
        (queue, allow, took)
    }

    fn write(mut queue: &Queue, line: &str) {
        queue.write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn lines_are_written_completely_and_in_order() {
        let (queue, allow, took) = slow(1000, 3, |_| {});
        let lines: Vec<_> = (0..20).map(|number| format!("line {number}\n")).collect();
        lines.iter().for_each(|line| write(&queue, line));
        (0..1000).for_each(|_| allow.send(()).unwrap());
        queue.close();
        assert_eq!(took.try_iter().flatten().collect::<Vec<_>>(), lines.concat().into_bytes());
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn a_blocked_writer_delays_no_caller_and_dropped_lines_are_reported() {
        let (queue, allow, took) = slow(100, 1000, note);
        // Each line has ten bytes. Ten of them fit, besides those that the writer took before it blocked.
        let begun = Instant::now();
        (0..100_000).for_each(|_| write(&queue, "123456789\n"));
        assert!(begun.elapsed() < Duration::from_secs(20));
        queue.push("x\n".repeat(51).as_bytes(), 51);
        assert!((100_000 - 20 + 50..=100_000 + 50).contains(&queue.dropped()), "{}", queue.dropped());
        assert!(queue.state.lock().waiting.len() <= 100);
        (0..1000).for_each(|_| allow.send(()).unwrap());
        queue.close();
        let written = took.try_iter().map(|lines| lines.len() as u64 / 10).sum::<u64>();
        assert_eq!(written + queue.dropped(), 100_051);
        assert_eq!(REPORTED.load(Ordering::Relaxed), queue.dropped());
    }

    #[test]
    fn close_does_not_wait_for_a_blocked_writer() {
        let (queue, _allow, _took) = slow(100, 1, |_| {});
        write(&queue, "nobody reads this\n");
        let begun = Instant::now();
        queue.close();
        assert!((PATIENCE..PATIENCE * 15).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[test]
    fn lines_that_a_failed_writer_did_not_write_are_counted() {
        let (queue, allow, _took) = slow(1000, 8, |_| {});
        write(&queue, "one\ntwo\nthree\nfour\n");
        allow.send(()).unwrap();
        drop(allow);
        queue.close();
        assert_eq!(queue.dropped(), 2);
    }
}
