//! Makes a request for a stream ask for its usage: `stream_options.include_usage` becomes `true`, whatever its value,
//! wherever a server may look for it. All else stays the same.

use std::ops::Range;

use smallvec::SmallVec;

use super::Patch;
use crate::base::json::Kind;

/// As OpenAI's API spells them.
const OPTIONS: &[u8] = b"stream_options";
const INCLUDE: &[u8] = b"include_usage";

/// The options seen so far. Its methods have to be called for what is in the outermost object, and in each of the options.
#[derive(Debug, Default)]
pub(super) struct UsageAsking {
    patches: SmallVec<[Patch; 2]>,
    /// Whether the next member has exactly the name of the API.
    is_exact: bool,
    has_options: bool,
    open: Option<OpenOptions>,
    replaced: Option<Replaced>,
}

/// The options around the reader.
#[derive(Debug)]
struct OpenOptions {
    /// Where their members begin, and how many there are.
    at: usize,
    members: usize,
    /// Whether one of the members asks for the usage.
    includes: bool,
}

#[derive(Debug)]
struct Replaced {
    at: usize,
    deep: u32,
    with: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Asking {
    Options,
    Include,
}

impl UsageAsking {
    /// A name in the outermost object, or in an array or object directly in that.
    #[inline]
    pub(super) fn name(&mut self, name: Option<&[u8]>, is_outermost: bool) {
        self.is_exact = name.is_some_and(|name| name.len() >= INCLUDE.len() && matches!(name, OPTIONS | INCLUDE));
        if let (false, Some(open)) = (is_outermost, &mut self.open) {
            open.members += 1;
        }
    }

    pub(super) fn begin(&mut self, what: Asking, kind: Kind, at: usize, deep: u32) {
        self.note(what);
        if what == Asking::Options && kind == Kind::Object {
            self.open = Some(OpenOptions { at: at + 1, members: 0, includes: false });
        } else {
            let with = if what == Asking::Options { "{\"include_usage\":true}" } else { "true" };
            self.replaced = Some(Replaced { at, deep, with });
        }
    }

    /// Whether [`Self::end`] has to be called.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some() || self.replaced.is_some()
    }

    /// What began at the depth `deep` in arrays and objects ends before `at`.
    pub(super) fn end(&mut self, at: usize, deep: u32) {
        if let Some(replaced) = self.replaced.take_if(|replaced| replaced.deep == deep) {
            self.patches.push(Patch { at: replaced.at..at, with: replaced.with });
        } else if deep == 1
            && let Some(OpenOptions { at, members, includes: false }) = self.open.take()
        {
            let with = if members == 0 { "\"include_usage\":true" } else { "\"include_usage\":true," };
            self.patches.push(Patch { at: at..at, with });
        }
    }

    /// A number or another word.
    pub(super) fn word(&mut self, what: Asking, word: Option<&[u8]>, at: Range<usize>) {
        self.note(what);
        match what {
            Asking::Options => self.patches.push(Patch { at, with: "{\"include_usage\":true}" }),
            Asking::Include if word == Some(b"true") => {}
            Asking::Include => self.patches.push(Patch { at, with: "true" }),
        }
    }

    fn note(&mut self, what: Asking) {
        match (what, &mut self.open) {
            (Asking::Options, _) => self.has_options |= self.is_exact,
            (Asking::Include, Some(open)) => open.includes |= self.is_exact,
            (Asking::Include, None) => {}
        }
    }

    /// The changes in the order of their places. `members` is where the members of the body begin.
    pub(super) fn patches(mut self, members: usize) -> Vec<Patch> {
        if !self.has_options {
            self.patches.push(Patch { at: members..members, with: "\"stream_options\":{\"include_usage\":true}," });
        }
        self.patches.sort_by_key(|patch| patch.at.start);
        self.patches.into_vec()
    }
}
