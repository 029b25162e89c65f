//! Where a [`Reader`](super::Reader) is: what it expects next, and one bit for each array and object around that.

use super::MAX_DEPTH;

/// What comes next.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum State {
    /// A value must come.
    #[default]
    Value,
    /// A value, or the end of an array.
    FirstItem,
    /// A name, or the end of an object.
    FirstName,
    Name,
    Colon,
    /// A comma, or the end of an array.
    NextItem,
    /// A comma, or the end of an object.
    NextMember,
    /// Only white space may come.
    Done,
    /// Something else came after the value.
    Trailing,
    String,
    Escape,
    /// The digits of `\u0000`.
    Unicode,
    Word,
    /// An array or object came that is nested deeper than [`MAX_DEPTH`].
    TooDeep,
    Broken,
}

/// The arrays and objects that the reader is in.
pub(super) struct Levels {
    /// Bits of the innermost ones, up to 63, the innermost one last, behind a bit that is 1. A set bit is an object. There
    /// are bits here if there are any in `outer`.
    last: u64,
    /// The ones before `last`, 63 in each.
    outer: Vec<u64>,
}

impl Default for Levels {
    fn default() -> Self {
        Self { last: 1, outer: Vec::new() }
    }
}

impl Levels {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.last == 1
    }

    /// Whether the innermost one is an object. The result means nothing outside of arrays and objects.
    #[inline]
    pub(super) fn is_in_object(&self) -> bool {
        self.last & 1 == 1
    }

    /// Returns whether the depth is still within [`MAX_DEPTH`].
    #[inline]
    pub(super) fn push(&mut self, is_object: bool) -> bool {
        if self.last >> 63 == 1 && !self.spill() {
            return false;
        }
        self.last = self.last << 1 | u64::from(is_object);
        true
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.last >>= 1;
        if self.last == 1 {
            self.last = self.outer.pop().unwrap_or(1);
        }
    }

    /// Makes room in `last`.
    #[inline(never)]
    fn spill(&mut self) -> bool {
        let has_room = (self.outer.len() + 1) * 63 < MAX_DEPTH;
        if has_room {
            self.outer.push(self.last);
            self.last = 1;
        }
        has_room
    }

    pub(super) fn clear(&mut self) {
        self.outer.clear();
        self.last = 1;
    }
}
