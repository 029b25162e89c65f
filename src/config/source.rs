//! Where a configuration comes from. Nothing else knows what kind of source it is.

use std::fmt;
use std::path::{Path, PathBuf};

use super::document::Document;
use super::{Admin, Config, Problems, folder, regular_file};

/// A source that can be loaded again and again.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// A TOML file, or a folder of such files, and the files that they name. What it is may change between two loads.
    Path(PathBuf),
}

impl ConfigSource {
    /// Loads the configuration and checks it.
    ///
    /// # Errors
    /// All its [`Problems`] at once.
    pub fn load(&self) -> Result<Config, Problems> {
        let Self::Path(path) = self;
        let mut config = read(path)?.config()?;
        config.files.insert(path.clone());
        Ok(config)
    }

    /// Loads `[admin]` alone, for those who ask a gateway that runs: the rest of the text may have become wrong meanwhile.
    ///
    /// # Errors
    /// The [`Problems`] because of which it is unknown where the admin listener is.
    pub fn load_admin(&self) -> Result<Option<Admin>, Problems> {
        let Self::Path(path) = self;
        read(path)?.admin()
    }

    /// The problem of a source that cannot be read.
    pub fn unreadable(&self, error: &std::io::Error) -> Problems {
        let Self::Path(path) = self;
        Problems::unreadable(path, error)
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

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Path(path) = self;
        path.display().fmt(f)
    }
}
