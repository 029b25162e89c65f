//! The paths of files that values name.

use std::path::{Path, PathBuf};

use super::Field;
use crate::config::report::quoted;

impl Field<'_> {
    /// The path of the file `name`, which this value names. `None` if it begins nowhere, which is reported.
    pub(in crate::config) fn path(&self, name: &str) -> Option<PathBuf> {
        if Path::new(name).is_absolute() {
            return Some(PathBuf::from(name));
        }
        let path = self.source.folder.map(|folder| folder.join(name));
        if path.is_none() {
            let message =
                format!("{} is a relative path, but this text is not in a folder of this machine", quoted(name));
            self.report(message, "write an absolute path");
        }
        path
    }
}
