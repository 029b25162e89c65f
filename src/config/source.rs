//! Where a configuration comes from: a file. Nothing else knows that it is one.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{Config, Problems, parse, regular_file};

/// A source that can be loaded again and again.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// A TOML file, and the files that it names.
    File(PathBuf),
}

impl ConfigSource {
    /// Loads the configuration and checks it.
    ///
    /// # Errors
    /// All its [`Problems`] at once.
    pub fn load(&self) -> Result<Config, Problems> {
        let Self::File(path) = self;
        let bytes = regular_file::read(path).map_err(|error| Problems::unreadable(path, &error))?;
        let mut config = parse(&bytes, &path.display().to_string(), path.parent().unwrap_or(Path::new("")))?;
        config.files.insert(path.clone());
        Ok(config)
    }

    /// The problem of a source that cannot be read.
    pub fn unreadable(&self, error: &std::io::Error) -> Problems {
        let Self::File(path) = self;
        Problems::unreadable(path, error)
    }
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::File(path) = self;
        path.display().fmt(f)
    }
}
