//! The text that is being read, with its errors and warnings so far.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;

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
}

impl<'a> Source<'a> {
    pub(in crate::config) fn new(name: &'a str, text: &'a str, folder: &'a Path, problems: Vec<Problem>) -> Self {
        Self { name, text, folder, problems: RefCell::new(problems), warnings: RefCell::default() }
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
