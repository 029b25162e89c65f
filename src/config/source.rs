//! Where a configuration comes from: a file. Nothing else knows that it is one.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{Admin, Config, Problems, parse, parse_admin, regular_file};

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
        let mut config = self.read(parse)?;
        config.files.insert(path.clone());
        Ok(config)
    }

    /// Loads `[admin]` alone, for those who ask a gateway that runs: the rest of the file may have become wrong meanwhile.
    ///
    /// # Errors
    /// The [`Problems`] because of which it is unknown where the admin listener is.
    pub fn load_admin(&self) -> Result<Option<Admin>, Problems> {
        self.read(parse_admin)
    }

    fn read<T>(&self, parse: impl Fn(&[u8], &str, &Path) -> Result<T, Problems>) -> Result<T, Problems> {
        let Self::File(path) = self;
        let bytes = regular_file::read(path).map_err(|error| Problems::unreadable(path, &error))?;
        parse(&bytes, &path.display().to_string(), path.parent().unwrap_or(Path::new("")))
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
