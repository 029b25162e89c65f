//! A file that a key of the configuration names. Its problems are reported at that key.

use std::io::Error;
use std::path::PathBuf;

use crate::config::read::Field;
use crate::config::report::{self, quoted};

/// Per file.
pub(super) const MOST_REPORTED: usize = 20;

pub(super) struct NamedFile<'a> {
    pub(super) field: &'a Field<'a>,
    /// As written in the configuration.
    pub(super) name: &'a str,
    path: PathBuf,
}

impl<'a> NamedFile<'a> {
    /// Records the file as a part of the configuration. `None`, after a report, if the value is not a path.
    pub(super) fn new(field: &'a Field<'a>) -> Option<Self> {
        let name = field.text()?;
        let path = field.path(name)?;
        field.source.record(path.clone());
        Some(Self { field, name, path })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    pub(super) fn unreadable(&self, error: &Error) {
        let help = report::how_to_read(error.kind(), "a relative path starts at the folder of this file");
        self.field.report(format!("cannot read {}: {error}", quoted(self.name)), help);
    }

    pub(super) fn report(&self, line: u64, column: u64, message: &str, help: &str) {
        self.field.report(format!("{}:{line}:{column}: {message}", self.name), help);
    }

    pub(super) fn report_rest(&self, problems: usize) {
        if problems > MOST_REPORTED {
            self.field.report(format!("{}: and {} more problems", self.name, problems - MOST_REPORTED), "");
        }
    }
}
