//! A request that comes again byte for byte, and the answer that it got: kept as they passed, so that the same request
//! can be given the same answer without being read. Pure.

/// Longer requests and answers are not kept, so that a connection never holds on to much.
const LONGEST: usize = 4096;

/// What one connection keeps of the last exchange.
#[derive(Debug, Default)]
pub(super) struct Recording {
    request: Vec<u8>,
    answer: Vec<u8>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is kept.
    #[default]
    Nothing,
    /// The last answer was one that might be given again: the next request is worth keeping.
    Wanted,
    /// The request is kept, its answer is not all there.
    Answering,
    /// Both are kept, and whole.
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

    /// Bytes go to whoever reads them; `whole` if they are one request and nothing else.
    pub(super) fn received(&mut self, bytes: &[u8], whole: bool) {
        if self.stage == Stage::Nothing {
            return;
        }
        let keeps = whole && bytes.len() <= LONGEST && self.stage != Stage::Answering;
        self.stage = if keeps { Stage::Answering } else { Stage::Nothing };
        if keeps {
            self.request.clear();
            self.request.extend_from_slice(bytes);
            self.answer.clear();
        }
    }

    /// These bytes of an answer have gone out.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        if self.stage != Stage::Answering {
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
            Stage::Nothing | Stage::Wanted => Stage::Wanted,
            Stage::Answering | Stage::Known => Stage::Known,
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

    #[test]
    fn the_second_of_its_kind_is_kept() {
        let mut recording = Recording::default();
        exchange(&mut recording, b"a", true, &[b"no"], true);
        assert!(!recording.is_again(b"a"), "it might have been the only one");
        exchange(&mut recording, b"a", true, &[b"n", b"o"], true);
        assert!(recording.is_again(b"a") && !recording.is_again(b"aa") && !recording.is_again(b""));
        assert_eq!((recording.request(), recording.answer()), (&b"a"[..], &b"no"[..]));
        exchange(&mut recording, b"b", true, &[b"No"], true);
        assert!(recording.is_again(b"b") && !recording.is_again(b"a"));
        assert_eq!(recording.answer(), b"No");
    }

    #[test]
    fn what_was_not_seen_whole_or_may_not_be_repeated_is_not_kept() {
        let long = vec![b'x'; LONGEST + 1];
        for (request, whole, answer, may_repeat) in [
            (&b"b"[..], true, &b"ok"[..], false),
            (b"b", false, b"no", true),
            (&long, true, b"no", true),
            (b"b", true, &long, true),
        ] {
            let mut recording = Recording::default();
            exchange(&mut recording, b"a", true, &[b"no"], true);
            exchange(&mut recording, request, whole, &[answer], may_repeat);
            assert!(!recording.is_again(request) && !recording.is_again(b"a"));
        }
    }

    #[test]
    fn what_comes_before_the_answer_is_out_belongs_to_no_pair() {
        let mut recording = Recording::default();
        exchange(&mut recording, b"a", true, &[b"no"], true);
        recording.received(b"a", true);
        recording.received(b"a", true);
        recording.sent(b"no");
        recording.answered(true);
        assert!(!recording.is_again(b"a"));
    }
}
