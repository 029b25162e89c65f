//! Keeps the text of a string with a meaning, such as the name of a model, as it arrives.

use smallvec::SmallVec;

use super::member::Member;

/// The longest text that is kept, in bytes. A longer one becomes empty.
const LONGEST: usize = 256;

/// A text that mostly needs no allocation.
pub(super) type ShortText = SmallVec<[u8; 32]>;

#[derive(Default)]
pub(super) struct KeptString {
    /// The member whose value the string is; `None` if no string is kept.
    member: Option<Member>,
    text: ShortText,
}

impl KeptString {
    /// Begins a string, which is kept if a member is given.
    pub(super) fn begin(&mut self, member: Option<Member>) {
        self.member = member;
        self.text.clear();
    }

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

    /// Ends the string. Returns it if it is kept and not empty.
    #[inline]
    pub(super) fn end(&mut self) -> Option<(Member, ShortText)> {
        let member = self.member.take()?;
        Some((member, std::mem::take(&mut self.text))).filter(|(_, text)| !text.is_empty())
    }
}
