//! The text that is being read, with its errors and warnings so far.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::report::{Problem, Problems};
use crate::config::texts::{Texts, place};

/// A setting for which a change needs a restart.
#[derive(Clone, Debug)]
pub struct AtStart {
    /// The table and the key, like `server.workers`.
    pub key: String,
    /// In any form, only to be compared.
    pub value: String,
    /// The place of the key, or of its table if the key is absent.
    pub span: Range<usize>,
}

/// The place in the text does not matter.
impl PartialEq for AtStart {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.value) == (&other.key, &other.value)
    }
}

pub(in crate::config) struct Source<'a> {
    pub(in crate::config) texts: &'a Arc<Texts>,
    /// Where relative paths in the text start. `None` if the text is not from a file, so it can have none.
    pub(in crate::config) folder: Option<&'a Path>,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    files: RefCell<BTreeSet<PathBuf>>,
    pub(in crate::config) at_start: RefCell<Vec<AtStart>>,
    /// The names of all sections of the text.
    pub(in crate::config) sections: Cell<&'static [&'static str]>,
    /// Places of secrets, which messages hide.
    pub(super) secrets: RefCell<Vec<Range<usize>>>,
    /// The addresses of listeners.
    bound: RefCell<Vec<(SocketAddr, Range<usize>)>>,
}

impl<'a> Source<'a> {
    pub(in crate::config) fn new(texts: &'a Arc<Texts>, folder: Option<&'a Path>, problems: Vec<Problem>) -> Self {
        Self {
            texts,
            folder,
            problems: RefCell::new(problems),
            warnings: RefCell::default(),
            files: RefCell::default(),
            at_start: RefCell::default(),
            sections: Cell::default(),
            secrets: RefCell::default(),
            bound: RefCell::default(),
        }
    }

    /// The text at a place; `None` if a boundary is inside a character.
    pub(in crate::config) fn written(&self, span: Range<usize>) -> Option<&'a str> {
        self.texts.whole.get(span)
    }

    /// Another place, for a message: `on line 4`, or `at conf/b.toml:4:1` if there are several files.
    pub(in crate::config) fn elsewhere(&self, offset: usize) -> String {
        if self.texts.count() > 1 {
            return format!("at {}", self.texts.place(offset));
        }
        let (line, _) = place(&self.texts.whole, offset);
        format!("on line {line}")
    }

    /// Records a file that the text names.
    pub(in crate::config) fn record(&self, path: PathBuf) {
        self.files.borrow_mut().insert(path);
    }

    pub(in crate::config) fn files(&self) -> BTreeSet<PathBuf> {
        self.files.borrow().clone()
    }

    /// Records the place of a secret, which no message shows.
    pub(in crate::config) fn hide(&self, span: Range<usize>) {
        self.secrets.borrow_mut().push(span);
    }

    /// Records the address of a listener. Reports it if another listener has the port on this address, or if one of them has it on
    /// the wildcard address.
    pub(in crate::config) fn bind(&self, address: SocketAddr, span: Range<usize>) {
        let clashes = |(earlier, _): &&(SocketAddr, Range<usize>)| {
            let is_wild = earlier.ip().is_unspecified() || address.ip().is_unspecified();
            let is_shared = earlier.ip() == address.ip() || (earlier.is_ipv4() == address.is_ipv4() && is_wild);
            earlier.port() == address.port() && address.port() != 0 && is_shared
        };
        if let Some((earlier, at)) = self.bound.borrow().iter().find(clashes) {
            let message = format!("{address} is already in use by {earlier} {}", self.elsewhere(at.start));
            self.report(span.clone(), message, "give one of the listeners another port");
        }
        self.bound.borrow_mut().push((address, span));
    }

    pub(in crate::config) fn report(&self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.problems.borrow_mut().push(Problem::new(span, message, help));
    }

    pub(in crate::config) fn warn(&self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.warnings.borrow_mut().push(Problem::new(span, message, help));
    }

    pub(in crate::config) fn is_clean(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// In the order in which they were found.
    pub(in crate::config) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    /// Takes all errors, to be shown. There may be very many, so they are not copied.
    pub(in crate::config) fn errors(&self) -> Problems {
        let (secrets, files) = (self.secrets.borrow().clone(), self.files());
        Problems { secrets, files, ..Problems::new(self.texts.clone(), self.problems.take()) }
    }

    pub(in crate::config) fn warnings(&self) -> Problems {
        let secrets = self.secrets.borrow().clone();
        Problems { secrets, ..Problems::warnings(self.texts.clone(), self.warnings.borrow().clone()) }
    }
}
