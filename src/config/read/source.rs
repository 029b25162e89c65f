//! The text that is being read, with its errors and warnings so far.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::config::report::{Problem, Problems};

/// The text that is being read, with its errors and warnings so far.
pub(in crate::config) struct Source<'a> {
    /// The name of the file as the user wrote it.
    pub(in crate::config) name: &'a str,
    pub(in crate::config) text: &'a str,
    /// The folder where relative paths in the file start.
    pub(in crate::config) folder: &'a Path,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    files: RefCell<BTreeSet<PathBuf>>,
}

impl<'a> Source<'a> {
    pub(in crate::config) fn new(name: &'a str, text: &'a str, folder: &'a Path, problems: Vec<Problem>) -> Self {
        Self {
            name,
            text,
            folder,
            problems: RefCell::new(problems),
            warnings: RefCell::default(),
            files: RefCell::default(),
        }
    }

    /// The path of a file that the text names, which is recorded.
    pub(in crate::config) fn file(&self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        self.files.borrow_mut().insert(path.clone());
        path
    }

    /// All files that the text names so far.
    pub(in crate::config) fn files(&self) -> BTreeSet<PathBuf> {
        self.files.borrow().clone()
    }

    pub(in crate::config) fn report(&self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.problems.borrow_mut().push(problem(span, message, help));
    }

    /// Records a setting that is valid, but probably not intended.
    pub(in crate::config) fn warn(&self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.warnings.borrow_mut().push(problem(span, message, help));
    }

    pub(in crate::config) fn is_clean(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    pub(in crate::config) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    /// All warnings so far, in the order of the file.
    pub(in crate::config) fn warnings(&self) -> Problems {
        Problems::warnings(self.name, self.text, self.warnings.borrow().clone())
    }
}

fn problem(span: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Problem {
    let help = Some(help.into()).filter(|help: &String| !help.is_empty());
    Problem { span, message: message.into(), help }
}
