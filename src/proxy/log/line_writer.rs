//! Writes lines of the access log, to a file of its own or to the log. It never waits: see [`Queue`].
//!
//! The writer gets the lines of a worker together, once the worker has done what was ready, so that many lines take one lock.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use tokio::sync::Notify;

use super::queue::Queue;

/// The owner and the group may read the file.
const MODE: u32 = 0o640;
/// In bytes. With more than that, lines do not wait for the others.
const FULL: usize = 64 << 10;

#[derive(Clone, Debug)]
pub struct LineWriter {
    queue: Arc<Queue>,
    /// Whether to open the file again; `None` if the lines go to the log.
    reopens: Option<Arc<AtomicBool>>,
}

impl LineWriter {
    pub(super) fn new(log: Arc<Queue>) -> Self {
        Self { queue: log, reopens: None }
    }

    /// Appends to this file, which is created if it does not exist. Fails when it cannot be opened, or the system cannot start
    /// a thread.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let reopens = Arc::new(AtomicBool::new(false));
        let file = ReopenedFile {
            path: path.to_owned(),
            file: open(path)?,
            reopens: reopens.clone(),
            is_at_end_of_line: true,
        };
        let report = |lines| tracing::warn!(lines, "lines of the access log were dropped: they could not be written");
        Ok(Self { queue: Queue::start(file, report)?, reopens: Some(reopens) })
    }

    /// Makes the next line go to the file that has the path then. Returns whether there is a file.
    pub fn reopen(&self) -> bool {
        self.reopens.as_ref().map(|reopens| reopens.store(true, Ordering::Relaxed)).is_some()
    }

    pub(super) fn dropped(&self) -> u64 {
        // The log counts its own lines.
        self.reopens.as_ref().map_or(0, |_| self.queue.dropped())
    }

    pub(super) fn close(&self) {
        if self.reopens.is_some() {
            self.queue.close();
        }
    }
}

/// A file that is opened again on request, so that it can be renamed.
#[derive(Debug)]
struct ReopenedFile {
    path: PathBuf,
    file: File,
    reopens: Arc<AtomicBool>,
    /// Only then is the file opened again, so no line is split between two files.
    is_at_end_of_line: bool,
}

impl Write for ReopenedFile {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if self.is_at_end_of_line && self.reopens.swap(false, Ordering::Relaxed) {
            match open(&self.path) {
                Ok(file) => self.file = file,
                Err(error) => {
                    let file = self.path.display();
                    tracing::error!(%file, %error, "cannot open the access log again: the previous file is used");
                }
            }
        }
        let written = self.file.write(lines)?;
        if let Some(last) = written.checked_sub(1).and_then(|last| lines.get(last)) {
            self.is_at_end_of_line = *last == b'\n';
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Opens a file without blocking. Otherwise opening a named pipe would wait for a reader.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    OpenOptions::new().create(true).append(true).mode(MODE).custom_flags(flags).open(path)
}

/// The lines of one worker.
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
            writer.queue.push(&self.bytes, mem::take(&mut self.count));
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
