//! A file that a key of the configuration names. Its problems are reported at that key.

use std::io::Error;
use std::path::PathBuf;

use crate::config::read::Field;
use crate::config::report::{self, quoted};

/// The maximum number of problems that are reported for one file.
pub(super) const MOST_REPORTED: usize = 20;

/// A file, with the value that names it.
pub(super) struct NamedFile<'a> {
    /// The value that names it.
    pub(super) field: &'a Field<'a>,
    /// The name as written there.
    pub(super) name: &'a str,
    path: PathBuf,
}

impl<'a> NamedFile<'a> {
    /// The file is recorded as a part of the configuration. `None` if the value is not the path of a file, which is
    /// reported.
    pub(super) fn new(field: &'a Field<'a>) -> Option<Self> {
        let name = field.text()?;
        let path = field.path(name)?;
        field.source.record(path.clone());
        Some(Self { field, name, path })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Reports that it cannot be read.
    pub(super) fn unreadable(&self, error: &Error) {
        let help = report::how_to_read(error.kind(), "its path starts at the folder of this file");
        self.field.report(format!("cannot read {}: {error}", quoted(self.name)), help);
    }

    /// Reports a problem at a place in the file.
    pub(super) fn report(&self, line: u64, column: u64, message: &str, help: &str) {
        self.field.report(format!("{}:{line}:{column}: {message}", self.name), help);
    }

    /// Reports how many of `problems` were left out.
    pub(super) fn report_rest(&self, problems: usize) {
        if problems > MOST_REPORTED {
            self.field.report(format!("{}: and {} more problems", self.name, problems - MOST_REPORTED), "");
        }
    }
}
