//! The most frequent keys of several sketches together.

use std::cmp::Reverse;
use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::Sketch;
use crate::base::fingerprint::Fingerprint;

/// A key that came often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyHitter {
    pub key: Fingerprint,
    /// Its text; if that is long, its beginning and its end.
    pub text: String,
    /// It came at least so often.
    pub count: u64,
    /// And at most so much more often.
    pub error: u64,
}

/// What several sketches have counted.
#[derive(Debug, Default)]
pub struct Ranking {
    sums: HashMap<Fingerprint, Sum, RandomState>,
    /// How often a key may have come that is in none of the sketches.
    unseen: u64,
    missed: u64,
}

/// Of one key, in the sketches that have it.
#[derive(Debug, Default)]
struct Sum {
    text: Option<String>,
    count: u64,
    error: u64,
    /// What [`Ranking::unseen`] has for these sketches.
    seen: u64,
}

impl Ranking {
    /// Adds what a sketch has counted.
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

    /// How often a key may have come that is in none of the sketches.
    pub fn unseen(&self) -> u64 {
        self.unseen + self.missed
    }

    /// The keys that came most often, by the counts that are certain; at most `most`. A key that is not among them came at
    /// most [`Ranking::unseen`] times more often than the last of them, or than once if there are fewer.
    pub fn top(self, most: usize) -> Vec<HeavyHitter> {
        let (unseen, missed) = (self.unseen, self.missed);
        let found = self.sums.into_iter().filter_map(|(key, Sum { text, count, error, seen })| {
            // A key without a text came once since it has its place, so no more is known about it than about the others.
            Some(HeavyHitter { key, text: text?, count, error: error + (unseen - seen) + missed })
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by_key(|hitter| (Reverse(hitter.count), Reverse(hitter.error), hitter.key));
        found.truncate(most);
        found
    }
}
