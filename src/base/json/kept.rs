//! The beginning of a name or of a word that has come in several parts.

/// What has been kept of a name or a word.
#[derive(Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    /// How long it is, also if it is too long to be kept.
    length: usize,
}

impl Kept {
    /// How long it is, in bytes.
    #[inline]
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Keeps the next part, if it is `most` bytes long at most with it.
    pub(super) fn push(&mut self, part: &[u8], most: usize) {
        self.length += part.len();
        if self.length <= most {
            self.bytes.extend_from_slice(part);
        }
    }

    /// All of it, with its last part; `None` if it is longer than `most` bytes.
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
