//! The most frequent keys of a stream, in bounded memory and with a bounded error: the Space-Saving algorithm of Metwally,
//! Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (ICDT 2005).
//!
//! A sketch has [`CAPACITY`] places. A key that has a place is counted exactly. Another key takes the place of the key with
//! the least count, continues from that count, and remembers it as its error. So after `N` keys, no count is too low, none is
//! too high by more than its error, no error exceeds `N / CAPACITY`, and each key that came more than `N / CAPACITY` times
//! has a place.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::base::fingerprint::Fingerprint;

pub const CAPACITY: usize = 128;

/// The most bytes of a key's text that are kept.
pub const LONGEST_TEXT: usize = 64;

/// Replaces the omitted characters of a text.
const LEFT_OUT: char = '\u{2026}';

/// How many characters at the end of a long text are kept.
const KEPT_AT_END: usize = 4;

#[derive(Debug, Default)]
pub struct Sketch {
    places: Vec<Place>,
    /// The place of each key in `places`. The hashes are seeded, so nobody can choose keys that collide.
    index: HashTable<u8>,
    seed: RandomState,
    /// Places that had the least count, `floor`, at the last search. Counts only grow.
    least: Vec<u8>,
    floor: u64,
    /// Keys that were not counted because the sketch was being read.
    pub missed: u64,
}

#[derive(Debug)]
struct Place {
    key: Fingerprint,
    /// How often the key came at most.
    count: u64,
    /// By how much `count` may be too high.
    error: u64,
    /// Empty unless `has_text`. The next key reuses its memory.
    text: String,
    has_text: bool,
}

impl Sketch {
    /// Counts a key. `text` is called at once while there is room, otherwise when the key comes a second time, because most
    /// keys in a flood of invented ones come once.
    pub fn record(&mut self, key: Fingerprint, text: impl FnOnce() -> String) {
        let Self { places, index, seed, .. } = self;
        let hash = seed.hash_one(key);
        if let Some(at) = index.find(hash, |at| places[usize::from(*at)].key == key) {
            let place = &mut places[usize::from(*at)];
            place.count += 1;
            if !place.has_text {
                place.write(&text());
            }
            return;
        }
        if places.len() < CAPACITY {
            let mut place = Place { key, count: 1, error: 0, text: String::new(), has_text: false };
            place.write(&text());
            let at = u8::try_from(places.len()).unwrap_or(u8::MAX);
            index.insert_unique(hash, at, |other| seed.hash_one(places[usize::from(*other)].key));
            places.push(place);
            return;
        }
        let at = self.least();
        let Self { places, index, seed, .. } = self;
        if let Ok(entry) = index.find_entry(seed.hash_one(places[usize::from(at)].key), |other| *other == at) {
            entry.remove();
        }
        index.insert_unique(hash, at, |other| seed.hash_one(places[usize::from(*other)].key));
        let place = &mut places[usize::from(at)];
        place.key = key;
        place.error = place.count;
        place.count += 1;
        place.has_text = false;
        place.text.clear();
    }

    pub fn clear(&mut self) {
        let Self { places, index, seed: _, least, floor, missed } = self;
        places.clear();
        index.clear();
        least.clear();
        (*floor, *missed) = (0, 0);
    }

    /// How often a key without a place may have come.
    fn unseen(&self) -> u64 {
        let least = self.places.iter().map(|place| place.count).min().filter(|_| self.places.len() == CAPACITY);
        least.unwrap_or(0)
    }

    fn least(&mut self) -> u8 {
        loop {
            while let Some(at) = self.least.pop() {
                if self.places[usize::from(at)].count == self.floor {
                    return at;
                }
            }
            self.floor = self.places.iter().map(|place| place.count).min().unwrap_or(0);
            let all = (0..).zip(&self.places);
            self.least.extend(all.filter(|(_, place)| place.count == self.floor).map(|(at, _)| at));
        }
    }
}

impl Place {
    fn write(&mut self, text: &str) {
        self.text.reserve_exact(LONGEST_TEXT);
        push_kept(&mut self.text, text);
        self.has_text = true;
    }
}

pub fn kept_text(text: &str) -> String {
    let mut kept = String::new();
    push_kept(&mut kept, text);
    kept
}

fn push_kept(kept: &mut String, text: &str) {
    let (begin, end) = shortened(text);
    kept.push_str(begin);
    if !end.is_empty() {
        kept.push(LEFT_OUT);
        kept.push_str(end);
    }
}

/// The beginning and the end of a long text. The end of a short text is empty.
fn shortened(text: &str) -> (&str, &str) {
    if text.len() <= LONGEST_TEXT {
        return (text, "");
    }
    let end = text.char_indices().rev().nth(KEPT_AT_END - 1).map_or(text.len(), |(at, _)| at);
    let room = LONGEST_TEXT - LEFT_OUT.len_utf8() - (text.len() - end);
    (&text[..text.floor_char_boundary(room)], &text[end..])
}

/// A frequent key, as several sketches together know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyHitter {
    pub key: Fingerprint,
    /// The text of the key, or its beginning and its end if it is long.
    pub text: String,
    /// How often the key came at least.
    pub count: u64,
    /// How much more often than `count` the key may have come.
    pub error: u64,
}

#[derive(Debug, Default)]
pub struct Ranking {
    sums: HashMap<Fingerprint, Sum, RandomState>,
    /// How often a key that is in none of the sketches may have come, besides those that were `missed`.
    unseen: u64,
    missed: u64,
}

/// The sums of one key over the sketches that have it.
#[derive(Debug, Default)]
struct Sum {
    text: Option<String>,
    count: u64,
    error: u64,
    /// The part of [`Ranking::unseen`] from these sketches.
    seen: u64,
}

impl Ranking {
    pub fn add(&mut self, sketch: &Sketch) {
        let unseen = sketch.unseen();
        self.unseen += unseen;
        self.missed += sketch.missed;
        for place in &sketch.places {
            let sum = self.sums.entry(place.key).or_default();
            sum.count += place.count - place.error;
            sum.error += place.error;
            sum.seen += unseen;
            if sum.text.is_none() && place.has_text {
                sum.text = Some(place.text.clone());
            }
        }
    }

    /// The `most` keys that came most often, by the counts that are certain. Any other key came at most `unseen + missed`
    /// times more often than the last of these, or than once if there are fewer than `most`.
    pub fn top(self, most: usize) -> Vec<HeavyHitter> {
        let (unseen, missed) = (self.unseen, self.missed);
        let found = self.sums.into_iter().filter_map(|(key, Sum { text, count, error, seen })| {
            // A key without a text came once since it got its place, so it may have come no more often than unseen keys.
            Some(HeavyHitter { key, text: text?, count, error: error + (unseen - seen) + missed })
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by_key(|hitter| (Reverse(hitter.count), Reverse(hitter.error), hitter.key));
        found.truncate(most);
        found
    }
}

#[cfg(test)]
mod tests;
