//! The lines of one worker's access log. The [`LineWriter`] gets them together, once the worker has done what was ready, so
//! that many lines take one lock.

use std::cell::RefCell;
use std::mem;

use tokio::sync::Notify;

use super::line_writer::LineWriter;

/// In bytes. With more than that, lines do not wait for the others.
const FULL: usize = 64 << 10;

#[derive(Debug)]
pub struct LineBuffer {
    writer: LineWriter,
    lines: RefCell<Lines>,
    has_lines: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    count: u64,
}

impl LineBuffer {
    pub fn new(writer: LineWriter) -> Self {
        Self { writer, lines: RefCell::default(), has_lines: Notify::new() }
    }

    /// Adds a line. `line` appends its text, without a line feed.
    pub fn write(&self, line: impl FnOnce(&mut Vec<u8>)) {
        let mut lines = self.lines.borrow_mut();
        line(&mut lines.bytes);
        lines.bytes.push(b'\n');
        lines.count += 1;
        if lines.bytes.len() > FULL {
            lines.pass_to(&self.writer);
        } else if lines.count == 1 {
            self.has_lines.notify_one();
        }
    }

    /// Passes on lines as long as it is polled. The runtime polls it after the tasks that were ready before the first line.
    pub async fn run(&self) {
        loop {
            self.has_lines.notified().await;
            self.flush();
        }
    }

    pub fn flush(&self) {
        self.lines.borrow_mut().pass_to(&self.writer);
    }
}

impl Lines {
    fn pass_to(&mut self, writer: &LineWriter) {
        if self.count > 0 {
            writer.write(&self.bytes, mem::take(&mut self.count));
            self.bytes.clear();
        }
    }
}

impl Drop for LineBuffer {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::base::threads::block_on;
    use crate::proxy::log::queue::Queue;

    struct Writes(Sender<Vec<u8>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn buffer() -> (LineBuffer, Receiver<Vec<u8>>) {
        let (writes, written) = channel();
        let queue = Queue::start(Writes(writes), |_| {}).unwrap();
        (LineBuffer::new(LineWriter::new(queue)), written)
    }

    fn add(buffer: &LineBuffer, text: &str) {
        buffer.write(|line| line.extend_from_slice(text.as_bytes()));
    }

    #[test]
    fn lines_of_tasks_that_are_ready_are_written_together() {
        let (buffer, written) = buffer();
        block_on(async {
            let others = async {
                for text in ["a", "b", "c"] {
                    add(&buffer, text);
                }
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            };
            tokio::select! { biased; () = others => {}, () = buffer.run() => {} }
        })
        .unwrap();
        assert_eq!(written.recv_timeout(Duration::from_secs(60)).unwrap(), b"a\nb\nc\n");
    }

    #[test]
    fn no_line_is_kept_behind() {
        let (buffer, written) = buffer();
        let long = "x".repeat(FULL);
        add(&buffer, &long);
        assert_eq!(written.recv_timeout(Duration::from_secs(60)).unwrap().len(), FULL + 1);
        add(&buffer, "last");
        drop(buffer);
        assert_eq!(written.recv_timeout(Duration::from_secs(60)).unwrap(), b"last\n");
    }
}
