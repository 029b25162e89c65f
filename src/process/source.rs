//! Where a configuration comes from. No other module has to know the kind of source.

mod folder;
mod once;
mod remote;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::admin::{ConfigOrigin, RemoteStatus};
use crate::config::{Admin, Config, Document, Problems, regular_file};

pub(super) use folder::{Version, files as folder_files};
pub use once::ReadOnce;
pub use remote::Remote;
pub(super) use remote::RemoteDocument;

#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// A TOML file, or a folder of such files, and the files that they name. The kind may change between two loads.
    Path(PathBuf),
    /// A pipe or standard input, which can be read once.
    Once(Arc<ReadOnce>),
    Remote(Arc<Remote>),
}

#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// `None` if the configuration is from files.
    pub document: Option<RemoteDocument>,
    /// Why the source cannot be used, if the configuration is the copy of what it had before.
    pub instead_of: Option<Problems>,
}

#[derive(Debug)]
pub struct NoStart {
    pub problems: Problems,
    /// `None` if there is no copy.
    pub copy: Option<String>,
    /// Whether the source could not be asked, so that a later start may succeed with the same command line.
    pub is_away: bool,
}

impl From<Config> for Loaded {
    fn from(config: Config) -> Self {
        Self { config, document: None, instead_of: None }
    }
}

impl From<(Config, RemoteDocument)> for Loaded {
    fn from((config, document): (Config, RemoteDocument)) -> Self {
        Self { document: Some(document), ..config.into() }
    }
}

impl From<Problems> for NoStart {
    fn from(problems: Problems) -> Self {
        Self { problems, copy: None, is_away: false }
    }
}

impl fmt::Display for NoStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problems.fmt(f)?;
        match &self.copy {
            Some(why) => write!(f, "\n\nthe last good copy cannot be used either: {why}"),
            None => Ok(()),
        }
    }
}

impl ConfigSource {
    /// Loads the configuration and checks it.
    ///
    /// # Errors
    /// All its [`Problems`] at once.
    pub fn load(&self) -> Result<Loaded, Problems> {
        match self {
            Self::Path(path) => {
                let mut config = read(path)?.config()?;
                config.files.insert(path.clone());
                Ok(config.into())
            }
            Self::Once(once) => Ok(once.document()?.config()?.into()),
            Self::Remote(remote) => remote.load().map(Loaded::from),
        }
    }

    /// Like [`Self::load`]; `None` if a server still has what is in force.
    ///
    /// # Errors
    /// As with [`Self::load`].
    pub fn poll(&self) -> Result<Option<Loaded>, Problems> {
        match self {
            Self::Path(_) | Self::Once(_) => self.load().map(Some),
            Self::Remote(remote) => Ok(remote.poll()?.map(Loaded::from)),
        }
    }

    /// Loads at the start of the gateway: the copy is used if the source cannot be.
    ///
    /// # Errors
    /// Why neither can be used.
    pub fn load_first(&self) -> Result<Loaded, NoStart> {
        let problems = match self.load() {
            Ok(loaded) => return Ok(loaded),
            Err(problems) => problems,
        };
        let copy = match self {
            Self::Path(_) | Self::Once(_) => Ok(None),
            Self::Remote(remote) => remote.load_copy(),
        };
        let is_away = self.remote().is_some_and(|remote| remote.status().error.is_some());
        match copy {
            Ok(Some(config)) => Ok(Loaded { instead_of: Some(problems), ..config.into() }),
            Ok(None) => Err(NoStart { problems, copy: None, is_away }),
            Err(why) => Err(NoStart { problems, copy: Some(why), is_away }),
        }
    }

    /// Loads `[admin]` alone, for commands that ask a running gateway: the rest of the text may have become wrong meanwhile.
    ///
    /// # Errors
    /// The [`Problems`] because of which the admin listener's address is unknown.
    pub fn load_admin(&self) -> Result<Option<Admin>, Problems> {
        match self {
            Self::Path(path) => read(path)?.admin(),
            Self::Once(once) => once.document()?.admin(),
            Self::Remote(remote) => remote.load_admin(),
        }
    }

    pub fn unreadable(&self, error: &std::io::Error) -> Problems {
        match self {
            Self::Path(path) => Problems::unreadable(path, error),
            Self::Once(once) => {
                let message = format!("cannot read the configuration: {error}");
                Problems::without_text(&once.name(), message, "let the program that writes it finish")
            }
            Self::Remote(remote) => {
                let help = "check that its server answers at this URL";
                Problems::without_text(&remote.to_string(), format!("cannot read the configuration: {error}"), help)
            }
        }
    }

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

impl ConfigOrigin for ConfigSource {
    fn server(&self) -> Option<RemoteStatus> {
        self.remote().map(Remote::status)
    }
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
