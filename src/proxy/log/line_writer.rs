//! Writes lines of the access log, to a file of its own or to the log. It never waits: see [`Queue`].

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

use super::queue::Queue;

/// The owner and the group may read the file.
const MODE: u32 = 0o640;

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

    /// Appends to this file, which is created if it does not exist.
    ///
    /// # Errors
    /// When it cannot be opened, or the system cannot start a thread.
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

    /// Writes this number of lines, each of which ends with a line feed. All bytes are characters that no terminal obeys.
    pub(super) fn write(&self, lines: &[u8], count: u64) {
        self.queue.push(lines, count);
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
