//! A request that comes again byte for byte, and the answer that it got: kept as they passed, so that the same request
//! can be given the same answer without being read. Pure.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

/// Longer requests and answers are not kept, so that a connection never holds on to much.
const LONGEST: usize = 4096;

/// What one connection keeps of its last exchange.
#[derive(Debug, Default)]
pub(super) struct Recording {
    request: Vec<u8>,
    answer: Vec<u8>,
    stage: Stage,
}

/// Only what comes again is worth keeping: of the first of its kind there is a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// There is nothing of the last exchange.
    #[default]
    Nothing,
    /// An exchange is under way, of whose request there is the hash.
    Hashed(u64),
    /// Its answer might be given again. Without a hash nobody knew that before.
    Noted(Option<u64>),
    /// An exchange is under way whose request is kept, and of its answer what has gone out.
    On,
    /// Request and answer are kept, and whole.
    Known,
}

impl Recording {
    /// Whether these bytes are the request that was last answered, when its answer is known.
    pub(super) fn is_again(&self, bytes: &[u8]) -> bool {
        self.stage == Stage::Known && self.request == bytes
    }

    /// The request that is kept.
    pub(super) fn request(&self) -> &[u8] {
        &self.request
    }

    /// The answer to it.
    pub(super) fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// Whether the exchange under way is kept.
    pub(super) fn is_on(&self) -> bool {
        self.stage == Stage::On
    }

    /// Bytes go to whoever reads them; `whole` if they are one request and nothing else.
    pub(super) fn received(&mut self, bytes: &[u8], whole: bool) {
        self.stage = match self.stage {
            _ if !whole || bytes.len() > LONGEST => Stage::Nothing,
            Stage::Known if self.request == bytes => Stage::On,
            Stage::Noted(_) | Stage::Known => {
                // The same seed everywhere: who finds two requests with one hash has them kept, which harms nobody.
                let hash = FixedState::default().hash_one(bytes);
                if self.stage == Stage::Noted(Some(hash)) { Stage::On } else { Stage::Hashed(hash) }
            }
            // The answer to an exchange under way would be taken for this one's.
            Stage::Nothing | Stage::Hashed(_) | Stage::On => Stage::Nothing,
        };
        if self.is_on() {
            self.request.clear();
            self.request.extend_from_slice(bytes);
            self.answer.clear();
        }
    }

    /// These bytes of an answer have gone out.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        if !self.is_on() {
            return;
        }
        if self.answer.len() + bytes.len() <= LONGEST {
            self.answer.extend_from_slice(bytes);
        } else {
            self.stage = Stage::Nothing;
        }
    }

    /// An answer has gone out whole; `may_repeat` if the same might be given again.
    pub(super) fn answered(&mut self, may_repeat: bool) {
        self.stage = match self.stage {
            _ if !may_repeat => Stage::Nothing,
            Stage::Nothing => Stage::Noted(None),
            Stage::Hashed(hash) => Stage::Noted(Some(hash)),
            Stage::On => Stage::Known,
            noted_or_known => noted_or_known,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request and its answer.
    fn exchange(recording: &mut Recording, request: &[u8], whole: bool, answer: &[&[u8]], may_repeat: bool) {
        recording.received(request, whole);
        answer.iter().for_each(|bytes| recording.sent(bytes));
        recording.answered(may_repeat);
    }

    /// One that is about to be kept.
    fn noted() -> Recording {
        let mut recording = Recording::default();
        exchange(&mut recording, b"a", true, &[b"no"], true);
        exchange(&mut recording, b"a", true, &[b"no"], true);
        assert!(!recording.is_again(b"a"), "it might have been the only one");
        recording
    }

    #[test]
    fn what_comes_again_is_kept() {
        let mut recording = noted();
        exchange(&mut recording, b"a", true, &[b"n", b"o"], true);
        assert!(recording.is_again(b"a") && !recording.is_again(b"aa") && !recording.is_again(b""));
        assert_eq!((recording.request(), recording.answer()), (&b"a"[..], &b"no"[..]));
        exchange(&mut recording, b"a", true, &[b"later"], true);
        assert_eq!(recording.answer(), b"later");
        exchange(&mut recording, b"b", true, &[b"No"], true);
        assert!(!recording.is_again(b"b") && !recording.is_again(b"a"));
        exchange(&mut recording, b"b", true, &[b"No"], true);
        assert!(recording.is_again(b"b"));
        assert_eq!(recording.answer(), b"No");
    }

    #[test]
    fn what_takes_turns_is_not_kept() {
        let mut recording = noted();
        for _ in 0..4 {
            exchange(&mut recording, b"b", true, &[b"no"], true);
            exchange(&mut recording, b"a", true, &[b"no"], true);
            assert!(recording.request().is_empty());
        }
    }

    #[test]
    fn what_was_not_seen_whole_or_may_not_be_repeated_is_not_kept() {
        let long = vec![b'x'; LONGEST + 1];
        for (request, whole, answer, may_repeat) in [
            (&b"a"[..], true, &b"ok"[..], false),
            (b"a", false, b"no", true),
            (&long, true, b"no", true),
            (b"a", true, &long, true),
        ] {
            let mut recording = noted();
            exchange(&mut recording, request, whole, &[answer], may_repeat);
            assert!(!recording.is_again(request) && !recording.is_again(b"a"));
        }
    }

    #[test]
    fn what_comes_before_the_answer_is_out_belongs_to_no_pair() {
        for before in [0, 1] {
            let mut recording = Recording::default();
            (0..=before).for_each(|_| exchange(&mut recording, b"a", true, &[b"no"], true));
            recording.received(b"a", true);
            recording.received(b"a", true);
            recording.sent(b"no");
            recording.answered(true);
            assert!(!recording.is_again(b"a"));
            recording.sent(b"no");
            recording.answered(true);
            assert!(!recording.is_again(b"a"));
        }
    }
}
