//! Lets only whole events of a stream pass, so that it can be ended between two of them, and takes out the chunk that only says
//! the usage, where the gateway asked for it and the client did not.
//!
//! All other bytes pass unchanged, as soon as their event is complete.

use std::mem;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::response::ResponseReader;

/// Of an unfinished event no more bytes are held than this. A longer event passes as it comes.
const MAX_HELD: usize = 1 << 20;

/// See the head of this file.
pub struct EventFilter {
    reader: ResponseReader,
    /// Whether the chunk that only says the usage is taken out.
    hides_usage: bool,
    /// The beginning of the event.
    held: BytesMut,
    /// Whether the beginning of the event has passed, because it was too long to be held.
    has_passed: bool,
    /// Whether a line feed that comes next belongs to the end of a chunk that was taken out.
    drops_line_feed: bool,
}

impl EventFilter {
    /// Filters what this reader reads.
    pub fn new(reader: ResponseReader, hides_usage: bool) -> Self {
        Self { reader, hides_usage, held: BytesMut::new(), has_passed: false, drops_line_feed: false }
    }

    /// The reader, which has read all that was pushed.
    pub fn reader(&self) -> &ResponseReader {
        &self.reader
    }

    /// Reads the next piece, and returns what passes now.
    pub fn push(&mut self, piece: &Bytes) -> impl Iterator<Item = Bytes> + use<> {
        let mut passing = SmallVec::<[Bytes; 2]>::new();
        let Self { reader, hides_usage, held, has_passed, drops_line_feed } = self;
        // What comes before `from` has passed or was taken out, and what comes before `until` may pass.
        let mut from = usize::from(mem::take(drops_line_feed) && piece.first() == Some(&b'\n'));
        let mut until = from;
        reader.read_events(piece, |end, only_says_usage| {
            if only_says_usage && *hides_usage && !*has_passed {
                held.clear();
                passing.push(piece.slice(from..until));
                from = end;
            } else if !held.is_empty() {
                passing.push(held.split().freeze());
            }
            until = end;
            *has_passed = false;
        });
        match reader.events() {
            None => until = piece.len(),
            Some(events) => *drops_line_feed = from == piece.len() && from > 0 && events.is_behind_return(),
        }
        let rest = &piece[until..];
        if *has_passed || held.len() + rest.len() > MAX_HELD {
            *has_passed = true;
            passing.push(held.split().freeze());
            until = piece.len();
        } else {
            held.extend_from_slice(rest);
        }
        passing.push(piece.slice(from..until));
        passing.into_iter().filter(|part| !part.is_empty())
    }

    /// The stream has ended. Returns what was held.
    pub fn finish(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}
