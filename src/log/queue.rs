//! Lines on their way to a writer that may stop: whoever hands one over never waits. What there is no room for is dropped
//! and counted.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The bytes that may wait. As many are with the writer at most, and buffers that grow are up to twice as large as what
/// is in them.
const ROOM: usize = 4 << 20;
/// A buffer that a burst has made larger than this is given back.
const KEPT: usize = 256 << 10;
/// How long the end waits for a writer that takes nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// A pause before a writer is tried again that was to say so instead of waiting.
const PAUSE: Duration = Duration::from_millis(10);

/// A queue of lines, to be written to like a file.
#[derive(Debug)]
pub(super) struct Queue {
    room: usize,
    state: Mutex<State>,
    /// There are lines, or the end has come.
    more: Condvar,
    /// A part was written, or the last of all.
    written: Condvar,
    /// Lines that were not written: there was no room, or the writer failed.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Whole lines that nobody has taken yet.
    waiting: Vec<u8>,
    /// How often the writer took something.
    progress: u64,
    /// Whether the thread that writes is waiting for lines.
    is_idle: bool,
    /// Whether the thread is to end when all is written.
    is_closed: bool,
    /// Whether the thread that writes has ended.
    is_done: bool,
}

impl Queue {
    /// A queue whose lines a thread of its own writes to `writer`. After lines were dropped, and written again, `report`
    /// is told how many.
    ///
    /// # Errors
    /// When the system refuses a thread.
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

    /// How many lines were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Hands over a line, or drops it.
    fn push(&self, line: &[u8]) {
        let mut state = self.state.lock();
        if line.len() > self.room.saturating_sub(state.waiting.len()) {
            self.drop_lines(1);
            return;
        }
        state.waiting.extend_from_slice(line);
        if std::mem::take(&mut state.is_idle) {
            self.more.notify_one();
        }
    }

    /// Ends the thread that writes. Waits until all are written, for as long as the writer takes some.
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

    /// Writes what comes until the end.
    fn run(&self, mut writer: impl Write, report: fn(u64)) {
        let (mut lines, mut reported) = (Vec::new(), 0);
        while self.take(&mut lines) {
            let is_written = self.put(&lines, &mut writer);
            let dropped = self.dropped.load(Ordering::Relaxed);
            // While the writer fails there is nobody to be told.
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

    /// Waits for lines and takes all of them; whether there are any.
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

    /// Writes lines piece by piece; whether all of them went out. Those that did not are counted.
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
                // Whoever shares the file may have set it so.
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
                Err(_) => break,
            }
        }
        let left = memchr::memchr_iter(b'\n', lines).count() as u64;
        self.drop_lines(left);
        left == 0
    }
}

/// A line that is formatted is written in one call.
impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
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

    /// A writer that takes `most` bytes at a time, each time it is allowed to, and fails when nobody allows it any more.
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
    fn lines_come_out_whole_and_in_order() {
        let (queue, allow, took) = slow(1000, 3, |_| {});
        let lines: Vec<_> = (0..20).map(|number| format!("line {number}\n")).collect();
        lines.iter().for_each(|line| write(&queue, line));
        (0..1000).for_each(|_| allow.send(()).unwrap());
        queue.close();
        assert_eq!(took.try_iter().flatten().collect::<Vec<_>>(), lines.concat().into_bytes());
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn a_writer_that_stops_holds_nobody_up_and_is_told_afterwards() {
        let (queue, allow, took) = slow(100, 1000, note);
        // Ten bytes each: ten fit, and those that the writer has taken before it stopped.
        let begun = Instant::now();
        (0..100_000).for_each(|_| write(&queue, "123456789\n"));
        assert!(begun.elapsed() < Duration::from_secs(20));
        write(&queue, &"x".repeat(101));
        assert!((100_000 - 20..=100_000).contains(&queue.dropped()), "{}", queue.dropped());
        assert!(queue.state.lock().waiting.len() <= 100);
        (0..1000).for_each(|_| allow.send(()).unwrap());
        queue.close();
        let written = took.try_iter().map(|lines| lines.len() as u64 / 10).sum::<u64>();
        assert_eq!(written + queue.dropped(), 100_001);
        assert_eq!(REPORTED.load(Ordering::Relaxed), queue.dropped());
    }

    #[test]
    fn the_end_does_not_wait_for_a_writer_that_has_stopped() {
        let (queue, _allow, _took) = slow(100, 1, |_| {});
        write(&queue, "nobody reads this\n");
        let begun = Instant::now();
        queue.close();
        assert!((PATIENCE..PATIENCE * 15).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_a_broken_writer_does_not_take_is_counted() {
        let (queue, allow, _took) = slow(1000, 8, |_| {});
        write(&queue, "one\ntwo\nthree\nfour\n");
        allow.send(()).unwrap();
        drop(allow);
        queue.close();
        assert_eq!(queue.dropped(), 2);
    }
}
