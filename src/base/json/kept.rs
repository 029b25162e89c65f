//! The beginning of a name or word that came in several parts.

#[derive(Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    /// In bytes, also if the name or word is too long to be kept.
    length: usize,
}

impl Kept {
    #[inline]
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Keeps the next part, if all parts together have at most `most` bytes.
    pub(super) fn push(&mut self, part: &[u8], most: usize) {
        self.length += part.len();
        if self.length <= most {
            self.bytes.extend_from_slice(part);
        }
    }

    /// The name or word with its last part; `None` if it is longer than `most` bytes.
    #[inline]
    pub(super) fn whole<'a>(&'a mut self, last: &'a [u8], most: usize) -> Option<&'a [u8]> {
        if self.length == 0 && last.len() <= most {
            return Some(last);
        }
        self.push(last, most);
        (self.length <= most).then_some(&self.bytes)
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.length = 0;
    }
}
