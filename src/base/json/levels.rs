//! Which arrays and objects the reader is in: a bit for each.

use smallvec::SmallVec;

/// The arrays and objects that the reader is in.
#[derive(Default)]
pub(super) struct Levels {
    depth: usize,
    /// Whether each is an object, the innermost one last. These are the last ones, up to 64.
    last: u64,
    /// These are those before them.
    outer: SmallVec<[u64; 2]>,
}

impl Levels {
    /// How many they are.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Whether the innermost one is an object.
    #[inline]
    pub(super) fn is_in_object(&self) -> bool {
        self.last & 1 == 1
    }

    #[inline]
    pub(super) fn push(&mut self, is_object: bool) {
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            self.outer.push(self.last);
        }
        self.last = self.last << 1 | u64::from(is_object);
        self.depth += 1;
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.last >>= 1;
        self.depth -= 1;
        if self.depth.is_multiple_of(64) {
            self.last = self.outer.pop().unwrap_or_default();
        }
    }

    pub(super) fn clear(&mut self) {
        self.depth = 0;
        self.outer.clear();
    }
}
