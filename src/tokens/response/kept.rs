//! The text of a string that means something, such as the name of a model, as far as it has come.

use smallvec::SmallVec;

use super::member::Member;

/// The longest text that is known, in bytes; a longer one is none.
const LONGEST: usize = 256;

/// A text that mostly needs no memory.
pub(super) type ShortText = SmallVec<[u8; 32]>;

/// The beginning of a string that is being read.
#[derive(Default)]
pub(super) struct KeptString {
    /// The member whose value it is; `None` if no string is kept.
    member: Option<Member>,
    text: ShortText,
}

impl KeptString {
    /// A string begins, which is kept if a member is given.
    pub(super) fn begin(&mut self, member: Option<Member>) {
        self.member = member;
        self.text.clear();
    }

    /// Its next part.
    #[inline]
    pub(super) fn push(&mut self, part: &[u8]) {
        if self.member.is_some() {
            if self.text.len() + part.len() <= LONGEST {
                self.text.extend_from_slice(part);
            } else {
                self.begin(None);
            }
        }
    }

    /// It ends. Returns it, if it is kept and there is some.
    #[inline]
    pub(super) fn end(&mut self) -> Option<(Member, ShortText)> {
        let member = self.member.take()?;
        Some((member, std::mem::take(&mut self.text))).filter(|(_, text)| !text.is_empty())
    }
}
