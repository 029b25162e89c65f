//! A request that comes again byte for byte, and the answer that it got: kept as they passed, so that the same request
//! can be given the same answer without being read. Pure.

/// Longer requests and answers are not kept, so that a connection never holds on to much.
const LONGEST: usize = 4096;

/// What one connection keeps.
#[derive(Debug, Default)]
pub(super) struct Repeat {
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

impl Repeat {
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

    /// An answer has gone out whole; `repeats` if the same might be given again.
    pub(super) fn answered(&mut self, repeats: bool) {
        self.stage = match self.stage {
            _ if !repeats => Stage::Nothing,
            Stage::Nothing | Stage::Wanted => Stage::Wanted,
            Stage::Answering | Stage::Known => Stage::Known,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request and its answer.
    fn exchange(repeat: &mut Repeat, request: &[u8], whole: bool, answer: &[&[u8]], repeats: bool) {
        repeat.received(request, whole);
        answer.iter().for_each(|bytes| repeat.sent(bytes));
        repeat.answered(repeats);
    }

    #[test]
    fn the_second_of_its_kind_is_kept() {
        let mut repeat = Repeat::default();
        exchange(&mut repeat, b"a", true, &[b"no"], true);
        assert!(!repeat.is_again(b"a"), "it might have been the only one");
        exchange(&mut repeat, b"a", true, &[b"n", b"o"], true);
        assert!(repeat.is_again(b"a") && !repeat.is_again(b"aa") && !repeat.is_again(b""));
        assert_eq!((repeat.request(), repeat.answer()), (&b"a"[..], &b"no"[..]));
        exchange(&mut repeat, b"b", true, &[b"No"], true);
        assert!(repeat.is_again(b"b") && !repeat.is_again(b"a"));
        assert_eq!(repeat.answer(), b"No");
    }

    #[test]
    fn what_was_not_seen_whole_or_may_not_be_repeated_is_not_kept() {
        let long = vec![b'x'; LONGEST + 1];
        for (request, whole, answer, repeats) in [
            (&b"b"[..], true, &b"ok"[..], false),
            (b"b", false, b"no", true),
            (&long, true, b"no", true),
            (b"b", true, &long, true),
        ] {
            let mut repeat = Repeat::default();
            exchange(&mut repeat, b"a", true, &[b"no"], true);
            exchange(&mut repeat, request, whole, &[answer], repeats);
            assert!(!repeat.is_again(request) && !repeat.is_again(b"a"));
        }
    }

    #[test]
    fn what_comes_before_the_answer_is_out_belongs_to_no_pair() {
        let mut repeat = Repeat::default();
        exchange(&mut repeat, b"a", true, &[b"no"], true);
        repeat.received(b"a", true);
        repeat.received(b"a", true);
        repeat.sent(b"no");
        repeat.answered(true);
        assert!(!repeat.is_again(b"a"));
    }
}
