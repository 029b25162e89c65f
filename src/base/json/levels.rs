//! Which arrays and objects the reader is in: a bit for each.

use smallvec::SmallVec;

use super::MAX_DEPTH;

/// The arrays and objects that the reader is in.
pub(super) struct Levels {
    /// Whether each is an object, the innermost one last. These are the last ones, up to 63, behind a bit that is 1.
    last: u64,
    /// These are those before them, 63 each.
    outer: SmallVec<[u64; 2]>,
}

impl Default for Levels {
    fn default() -> Self {
        Self { last: 1, outer: SmallVec::new() }
    }
}

impl Levels {
    /// Whether the reader is in none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.last == 1 && self.outer.is_empty()
    }

    /// Whether the innermost one is an object. If there is none, this says nothing.
    #[inline]
    pub(super) fn is_in_object(&self) -> bool {
        self.last & 1 == 1
    }

    /// Enters one. Returns whether that was possible: [`MAX_DEPTH`] are the most.
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

    /// Makes room for the next one.
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
        *self = Self::default();
    }
}
