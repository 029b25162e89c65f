//! A file that a key of the configuration names: what is wrong with it is told at that key.

use std::io::Error;
use std::path::PathBuf;

use crate::config::read::Field;
use crate::config::report::{self, quoted};

/// Problems of one file that are told.
pub(super) const MOST_TOLD: usize = 20;

/// See the head of this file.
pub(super) struct NamedFile<'a> {
    /// The value that names it.
    pub(super) field: &'a Field<'a>,
    /// As it names it.
    pub(super) name: &'a str,
}

impl<'a> NamedFile<'a> {
    /// `None` if the value is not a text, which is then reported.
    pub(super) fn new(field: &'a Field<'a>) -> Option<Self> {
        field.text().map(|name| Self { field, name })
    }

    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        self.field.source.folder.join(self.name)
    }

    /// Reports that it cannot be read.
    pub(super) fn unreadable(&self, error: &Error) {
        let help = report::how_to_read(error.kind(), "it is looked for in the folder of this file");
        self.field.report(format!("cannot read {}: {error}", quoted(self.name)), help);
    }

    /// Reports something at a place in the file.
    pub(super) fn report(&self, line: u64, column: u64, message: &str, help: &str) {
        self.field.report(format!("{}:{line}:{column}: {message}", self.name), help);
    }

    /// Reports how many problems were not reported.
    pub(super) fn report_rest(&self, told: usize) {
        if told > MOST_TOLD {
            self.field.report(format!("{}: and {} more problems", self.name, told - MOST_TOLD), "");
        }
    }
}
