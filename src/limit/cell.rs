//! What a store holds for one key: the counts of every rate of a limit, as of some moment.

use std::mem::size_of;

use super::rate::Rate;
use super::sliding::Window;
use crate::clock::Time;

/// Larger than any count that admissions can lead to; what a store reads beyond it is cut to it.
const MAX_COUNT: u64 = 1 << 40;

/// A clock that steps back by less than this is waited for; by more, the counts move back with it.
const JITTER: u64 = 1_000_000;

/// For each rate in turn: the index of its newest bucket, then its counts, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell(Box<[u64]>);

impl Cell {
    /// A cell for `rates` in which nothing has been counted at `now`.
    pub fn new(rates: &[Rate], now: Time) -> Self {
        let mut words = Vec::with_capacity(rates.iter().map(|rate| rate.slots() + 1).sum());
        for rate in rates {
            words.push(now.micros() / rate.width());
            words.extend(std::iter::repeat_n(0, rate.slots()));
        }
        Self(words.into_boxed_slice())
    }

    /// The counts of each rate, newest first, with the index of its newest bucket.
    pub fn blocks_mut<'a>(&'a mut self, rates: &'a [Rate]) -> impl Iterator<Item = (&'a Rate, u64, &'a mut [u64])> {
        let mut rest = &mut self.0[..];
        rates.iter().map_while(move |rate| {
            let (block, tail) = std::mem::take(&mut rest).split_at_mut_checked(rate.slots() + 1)?;
            rest = tail;
            let (newest, counts) = block.split_first_mut()?;
            Some((rate, *newest, counts))
        })
    }

    /// Takes over counts read elsewhere: `read(rate, bucket)` for every counter that matters.
    pub fn fill(&mut self, rates: &[Rate], mut read: impl FnMut(usize, u64) -> u64) {
        for (position, (_, newest, counts)) in self.blocks_mut(rates).enumerate() {
            for (age, count) in (0..).zip(counts) {
                *count = newest.checked_sub(age).map_or(0, |bucket| read(position, bucket).min(MAX_COUNT));
            }
        }
    }

    /// Moves every rate's buckets on to `now`.
    ///
    /// A clock that went back a little (another thread read it a moment earlier) is waited for: the newest
    /// bucket stays the newest. One that was set back takes the counts along: they leave later, never earlier,
    /// so nobody gets a second helping and nobody waits for the old time to come again.
    pub fn advance(&mut self, rates: &[Rate], now: Time) {
        let mut rest = &mut self.0[..];
        for rate in rates {
            let Some((block, tail)) = std::mem::take(&mut rest).split_at_mut_checked(rate.slots() + 1) else { return };
            rest = tail;
            let Some((newest, counts)) = block.split_first_mut() else { return };
            let bucket = now.micros() / rate.width();
            if bucket > *newest {
                let by = usize::try_from(bucket - *newest).unwrap_or(usize::MAX);
                if by < counts.len() {
                    counts.copy_within(..counts.len() - by, by);
                    counts[..by].fill(0);
                } else {
                    counts.fill(0);
                }
                *newest = bucket;
            } else if *newest * rate.width() > now.micros().saturating_add(JITTER) {
                *newest = bucket;
            }
        }
    }

    /// The window of each rate at `now`, to which the cell has been advanced.
    pub(super) fn windows<'a>(&'a self, rates: &'a [Rate], now: Time) -> impl Iterator<Item = Window<'a>> {
        let mut rest = &self.0[..];
        rates.iter().map_while(move |rate| {
            let (block, tail) = rest.split_at_checked(rate.slots() + 1)?;
            rest = tail;
            let (newest, counts) = block.split_first()?;
            Some(Window::new(rate, counts, now.micros().saturating_sub(newest * rate.width())))
        })
    }

    /// Counts `cost` in the newest bucket of every rate.
    pub(super) fn charge(&mut self, rates: &[Rate], cost: u64) {
        for (_, _, counts) in self.blocks_mut(rates) {
            if let Some(newest) = counts.first_mut() {
                *newest = newest.saturating_add(cost).min(MAX_COUNT);
            }
        }
    }

    /// Whether nothing in it can matter at `now` or later.
    pub fn is_spent(&self, rates: &[Rate], now: Time) -> bool {
        let mut rest = &self.0[..];
        rates.iter().all(|rate| {
            let Some((block, tail)) = rest.split_at_checked(rate.slots() + 1) else { return true };
            rest = tail;
            (now.micros() / rate.width()).saturating_sub(block[0]) >= rate.slots() as u64
        })
    }

    /// Bytes that the counts take on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.0.len() * size_of::<u64>()
    }
}
