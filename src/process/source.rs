//! Where a configuration comes from. No other module has to know the kind of source. One from standard input or a pipe can be
//! read once, so it is never reloaded.

mod folder;
mod remote;

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::config::regular_file::{self, MAX_BYTES};
use crate::config::{Admin, Config, Document, Problems};

pub(super) use folder::{Version, files as folder_files, version};
pub use remote::Remote;

#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// A TOML file, or a folder of such files, and the files that they name. The kind may change between two loads.
    Path(PathBuf),
    /// A pipe or standard input, which can be read once.
    Once(Arc<ReadOnce>),
    Remote(Arc<Remote>),
}

/// What the gateway starts with.
pub struct Loaded {
    pub config: Config,
    /// Why the source cannot be used, if the configuration is the copy of what it had before.
    pub instead_of: Option<Problems>,
}

pub struct NoStart {
    /// Why there is no configuration.
    pub text: String,
    /// Whether the source could not be asked, so that a later start may succeed with the same command line.
    pub is_away: bool,
}

impl From<Problems> for NoStart {
    fn from(problems: Problems) -> Self {
        Self { text: problems.to_string(), is_away: false }
    }
}

impl ConfigSource {
    /// Loads the configuration and checks it. The error has all its [`Problems`].
    pub fn load(&self) -> Result<Config, Problems> {
        match self {
            Self::Path(path) => {
                let mut config = read(path)?.config()?;
                config.files.insert(path.clone());
                Ok(config)
            }
            Self::Once(once) => once.document()?.config(),
            Self::Remote(remote) => remote.load(),
        }
    }

    /// Like [`Self::load`]; `None` if a server still has what is in force.
    pub fn poll(&self) -> Result<Option<Config>, Problems> {
        match self {
            Self::Path(_) | Self::Once(_) => self.load().map(Some),
            Self::Remote(remote) => remote.poll(),
        }
    }

    /// Loads at the start of the gateway: the copy is used if the source cannot be. The error says why neither can be used.
    pub fn load_first(&self) -> Result<Loaded, NoStart> {
        let problems = match self.load() {
            Ok(config) => return Ok(Loaded { config, instead_of: None }),
            Err(problems) => problems,
        };
        let text = match self.remote().map_or(Ok(None), Remote::load_copy) {
            Ok(Some(config)) => return Ok(Loaded { config, instead_of: Some(problems) }),
            Ok(None) => problems.to_string(),
            Err(why) => format!("{problems}\n\nthe last good copy cannot be used either: {why}"),
        };
        Err(NoStart { text, is_away: self.remote().is_some_and(|remote| remote.status.lock().error.is_some()) })
    }

    /// Loads `[admin]` alone, for commands that ask a running gateway: the rest of the text may have become wrong meanwhile.
    /// The error has the [`Problems`] because of which the admin listener's address is unknown.
    pub fn load_admin(&self) -> Result<Option<Admin>, Problems> {
        match self {
            Self::Path(path) => read(path)?.admin(),
            Self::Once(once) => once.document()?.admin(),
            Self::Remote(remote) => remote.load_admin(),
        }
    }

    pub fn unreadable(&self, error: &io::Error) -> Problems {
        let help = match self {
            Self::Path(path) => return Problems::unreadable(path, error),
            Self::Once(_) => "let the program that writes it finish",
            Self::Remote(_) => "check that its server answers at this URL",
        };
        Problems::without_text(&self.to_string(), format!("cannot read the configuration: {error}"), help)
    }

    /// `None` if the source is no server.
    pub fn remote(&self) -> Option<&Remote> {
        match self {
            Self::Path(_) | Self::Once(_) => None,
            Self::Remote(remote) => Some(remote),
        }
    }
}

fn read(path: &Path) -> Result<Document<'_>, Problems> {
    let unreadable = |error| Problems::unreadable(path, &error);
    if path.is_dir() {
        return Ok(Document::of_folder(path, folder::read(path).map_err(unreadable)?));
    }
    let bytes = regular_file::read(path).map_err(unreadable)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(Document::one(&path.display().to_string(), bytes, Some(folder)))
}

/// Without secrets.
impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Once(once) => f.write_str(&once.name()),
            Self::Remote(remote) => remote.fmt(f),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &Path) -> String {
        ConfigSource::Path(path.to_owned()).load().unwrap_err().to_string()
    }

    #[test]
    fn unreadable_files_are_explained() {
        let missing = problems(Path::new("/nonexistent/gateway.toml"));
        assert!(missing.contains("No such file") && missing.contains("--> /nonexistent/gateway.toml"), "{missing}");
        let folder = problems(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        assert!(folder.contains("the folder has no file whose name ends with .toml"), "{folder}");
    }
}
