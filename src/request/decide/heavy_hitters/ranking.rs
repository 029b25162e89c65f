//! The most frequent keys of several sketches together.

use std::cmp::Reverse;
use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::Sketch;
use crate::base::fingerprint::Fingerprint;

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

    /// How often a key that is in none of the sketches may have come.
    pub fn unseen(&self) -> u64 {
        self.unseen + self.missed
    }

    /// The `most` keys that came most often, by the counts that are certain. Any other key came at most [`Ranking::unseen`]
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
