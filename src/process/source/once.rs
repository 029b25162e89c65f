//! A configuration from standard input or a pipe, which can be read once. So it is never reloaded.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::config::regular_file::MAX_BYTES;
use crate::config::{Document, Problems};

/// For the writer of the pipe to begin.
const UNTIL_BEGUN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct ReadOnce {
    /// `None` is standard input.
    path: Option<PathBuf>,
    was_read: Mutex<bool>,
}

impl ReadOnce {
    pub fn standard_input() -> Self {
        Self { path: None, was_read: Mutex::default() }
    }

    /// `None` if there is something other than a pipe at this path.
    pub fn pipe(path: &Path) -> Option<Self> {
        let is_pipe = path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
        is_pipe.then(|| Self { path: Some(path.to_owned()), was_read: Mutex::default() })
    }

    pub fn name(&self) -> String {
        self.path.as_ref().map_or("standard input".to_owned(), |path| path.display().to_string())
    }

    /// Works only the first time. Relative paths in the text are relative to the working directory.
    pub(super) fn document(&self) -> Result<Document<'static>, Problems> {
        let mut was_read = self.was_read.lock();
        let problem = |message: String, help: &str| Problems::without_text(&self.name(), message, help);
        if *was_read {
            let message = format!("the configuration came from {}, which can be read once only", self.name());
            return Err(problem(message, "restart the gateway, or let --config name a file"));
        }
        let read = match &self.path {
            Some(path) => read_pipe(path),
            None => read_standard_input(),
        };
        let bytes = read.map_err(|error| {
            problem(format!("cannot read the configuration: {error}"), "let the program that writes it start at once")
        })?;
        *was_read = true;
        Ok(Document::one(&self.name(), bytes, Some(Path::new(""))))
    }
}

fn read_standard_input() -> io::Result<Vec<u8>> {
    let input = io::stdin();
    if input.is_terminal() {
        return Err(io::Error::other("standard input is a terminal: nothing is piped into it"));
    }
    let mut bytes = Vec::new();
    input.lock().take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    bounded(bytes)
}

fn read_pipe(path: &Path) -> io::Result<Vec<u8>> {
    // A blocking open would wait for a writer.
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or_default();
    let mut pipe = File::options().read(true).custom_flags(flags).open(path)?;
    let (mut bytes, begun) = (Vec::new(), Instant::now());
    let mut buffer = vec![0; 1 << 16];
    while bytes.len() as u64 <= MAX_BYTES {
        match pipe.read(&mut buffer) {
            Ok(0) if bytes.is_empty() && begun.elapsed() < UNTIL_BEGUN => sleep(LOOK_EVERY),
            Ok(0) if bytes.is_empty() => return Err(io::Error::other("nobody writes into this pipe")),
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(LOOK_EVERY),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bounded(bytes)
}

fn bounded(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let is_bounded = bytes.len() as u64 <= MAX_BYTES;
    is_bounded.then_some(bytes).ok_or_else(|| io::Error::new(ErrorKind::FileTooLarge, "it is larger than 256 MiB"))
}
