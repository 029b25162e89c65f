//! A request that comes again byte for byte, and the answer that it got: kept as they passed, so that the same request
//! can be given the same answer without being read. Pure.

use std::hash::BuildHasher;
use std::time::UNIX_EPOCH;

use foldhash::fast::FixedState;
use memchr::memmem;

use crate::clock::Time;

/// Longer requests and answers are not kept, so that a connection never holds on to much.
const LONGEST: usize = 4096;

/// What one connection keeps of its last exchange.
#[derive(Debug, Default)]
pub(super) struct Recording {
    request: Vec<u8>,
    answer: Vec<u8>,
    stage: Stage,
}

/// Only what comes again is worth keeping: of a request that was not like the one before there is a hash at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// There is nothing of the last exchange.
    #[default]
    Nothing,
    /// An exchange is under way, of whose request there is the hash.
    Hashed(u64),
    /// Its answer might be given again. There is no hash if the one before was not such, or if several came at once.
    Noted(Option<u64>),
    /// An exchange is under way whose request is kept, and of its answer what has gone out.
    On,
    /// Request and answer are kept, and whole. The answer is dated with this second.
    Known(u64),
}

impl Recording {
    /// Whether these bytes are the request that was last answered, when its answer is known.
    pub(super) fn is_again(&self, bytes: &[u8]) -> bool {
        matches!(self.stage, Stage::Known(_)) && self.request == bytes
    }

    /// The request that is kept.
    pub(super) fn request(&self) -> &[u8] {
        &self.request
    }

    /// The answer to it.
    pub(super) fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// Whether the answer that is known says what time it is.
    pub(super) fn is_dated(&self, now: Time) -> bool {
        self.stage == Stage::Known(now.seconds())
    }

    /// Whether the exchange under way is kept.
    pub(super) fn is_on(&self) -> bool {
        self.stage == Stage::On
    }

    /// Bytes go to whoever reads them; `whole` if they are one request and nothing else.
    pub(super) fn received(&mut self, bytes: &[u8], whole: bool) {
        let stage = match self.stage {
            _ if !whole || bytes.len() > LONGEST => Stage::Nothing,
            Stage::Known(_) if self.request == bytes => Stage::On,
            Stage::Noted(_) | Stage::Known(_) => {
                // The same seed everywhere: who finds two requests with one hash has them kept, which harms nobody.
                let hash = FixedState::default().hash_one(bytes);
                if self.stage == Stage::Noted(Some(hash)) { Stage::On } else { Stage::Hashed(hash) }
            }
            // An exchange may be under way, whose answer would be taken for this one's.
            Stage::Nothing | Stage::Hashed(_) | Stage::On => Stage::Nothing,
        };
        self.enter(stage);
        if self.is_on() {
            self.request.clear();
            self.request.extend_from_slice(bytes);
        }
    }

    /// These bytes of an answer have gone out, or none have yet.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        match self.stage {
            Stage::On if self.answer.len() + bytes.len() <= LONGEST => self.answer.extend_from_slice(bytes),
            Stage::Hashed(_) => {}
            // It answers something that did not come alone, so what comes next may be received before it is out. That
            // would then be the first of its kind, and not kept for that reason alone.
            _ => self.enter(Stage::Nothing),
        }
    }

    /// An answer has gone out whole; `may_repeat` if the same might be given again.
    pub(super) fn answered(&mut self, may_repeat: bool) {
        let stage = match self.stage {
            _ if !may_repeat => Stage::Nothing,
            Stage::Nothing => Stage::Noted(None),
            Stage::Hashed(hash) => Stage::Noted(Some(hash)),
            Stage::On => date(&self.answer).map_or(Stage::Nothing, Stage::Known),
            stage => stage,
        };
        self.enter(stage);
    }

    fn enter(&mut self, stage: Stage) {
        match (self.stage, stage) {
            (Stage::Nothing, Stage::Nothing) | (_, Stage::Known(_)) => {}
            (_, Stage::On) => self.answer.clear(),
            _ => (self.request, self.answer) = (Vec::new(), Vec::new()),
        }
        self.stage = stage;
    }
}

/// The second that an answer is dated with.
fn date(answer: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"\r\ndate: ";
    let value = &answer[memmem::find(answer, NAME)? + NAME.len()..];
    let value = std::str::from_utf8(value.get(..memmem::find(value, b"\r\n")?)?).ok()?;
    Some(httpdate::parse_http_date(value).ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NO: &[u8] = b"no\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";
    const LATER: &[u8] = b"no\r\ndate: Sun, 06 Nov 1994 08:49:38 GMT\r\n\r\n";
    const THEN: Time = Time::from_micros(784_111_777_999_999);

    /// One request and its answer.
    fn exchange(recording: &mut Recording, request: &[u8], whole: bool, answer: &[&[u8]], may_repeat: bool) {
        recording.received(request, whole);
        answer.iter().for_each(|bytes| recording.sent(bytes));
        recording.answered(may_repeat);
    }

    /// One that is about to be kept.
    fn noted() -> Recording {
        let mut recording = Recording::default();
        exchange(&mut recording, b"a", true, &[NO], true);
        exchange(&mut recording, b"a", true, &[NO], true);
        assert!(!recording.is_again(b"a"), "it might have been the only one");
        recording
    }

    #[test]
    fn what_comes_again_is_kept() {
        let mut recording = noted();
        exchange(&mut recording, b"a", true, &[&NO[..9], &NO[9..]], true);
        assert!(recording.is_again(b"a") && !recording.is_again(b"aa") && !recording.is_again(b""));
        assert_eq!((recording.request(), recording.answer()), (&b"a"[..], NO));
        exchange(&mut recording, b"a", true, &[LATER], true);
        assert!(!recording.is_dated(THEN) && recording.is_dated(THEN.after(Duration::from_micros(1))));
        exchange(&mut recording, b"b", true, &[NO], true);
        assert!(!recording.is_again(b"b") && !recording.is_again(b"a"));
        exchange(&mut recording, b"b", true, &[NO], true);
        assert!(recording.is_again(b"b"));
        assert!(recording.answer() == NO && recording.is_dated(THEN));
    }

    #[test]
    fn what_takes_turns_is_not_kept() {
        let mut recording = noted();
        for _ in 0..4 {
            exchange(&mut recording, b"b", true, &[NO], true);
            exchange(&mut recording, b"a", true, &[NO], true);
            assert!(recording.request().is_empty());
        }
    }

    #[test]
    fn what_was_not_seen_whole_or_may_not_be_repeated_is_not_kept() {
        let long = vec![b'x'; LONGEST + 1];
        for (request, whole, answer, may_repeat) in [
            (&b"a"[..], true, NO, false),
            (b"a", false, NO, true),
            (&long, true, NO, true),
            (b"a", true, &long, true),
            (b"a", true, b"no", true),
            (b"a", true, b"no\r\ndate: yesterday\r\n\r\n", true),
            (b"a", true, b"no\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT", true),
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
            (0..=before).for_each(|_| exchange(&mut recording, b"a", true, &[NO], true));
            recording.received(b"a", true);
            recording.received(b"a", true);
            recording.sent(NO);
            recording.answered(true);
            assert!(!recording.is_again(b"a"));
            recording.sent(NO);
            recording.answered(true);
            assert!(!recording.is_again(b"a"));
        }
    }

    #[test]
    fn what_has_yet_to_go_belongs_to_no_pair() {
        // Of two requests that came together, the first is answered, and the second waits for the client.
        for waits in [&b""[..], b"n"] {
            let mut recording = Recording::default();
            recording.received(b"ab", false);
            recording.sent(NO);
            recording.answered(true);
            recording.sent(waits);
            recording.received(b"c", true);
            recording.sent(b"o");
            recording.sent(NO);
            recording.answered(true);
            recording.received(b"c", true);
            assert!(!recording.is_on(), "what came first may be the other's");
        }
    }
}
