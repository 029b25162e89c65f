//! What a store holds for one key: the state of every rate of a limit, as of some moment.

use smallvec::{SmallVec, smallvec};

use super::calendar::Calendar;
use super::more::More;
use super::moving::{self, Log};
use super::rate::{Rate, Strategy};
use super::{bucket, fixed, sliding};
use crate::clock::Time;

/// Larger than any count that admissions can lead to; what a store reads beyond it is cut to it.
pub(super) const MAX_COUNT: u64 = 1 << 40;

/// A clock that steps back by less than this is waited for; by more, the counts move back with it.
pub(super) const JITTER: u64 = 1_000_000;

/// The state of each rate in turn, in words: of a sliding window the index of its newest bucket and the counts, newest
/// first; of a fixed window its start and count; of a calendar's window its start, end and count; of a bucket the
/// moment and the units used then, high half first. Moving windows share the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub(super) words: SmallVec<[u64; 6]>,
    pub(super) more: Option<Box<More>>,
}

/// How many words hold the state of a rate.
fn words(rate: &Rate) -> usize {
    match rate.strategy() {
        Strategy::Sliding { precision, .. } => *precision as usize + 2,
        Strategy::Fixed => 2,
        Strategy::Moving => 0,
        Strategy::Bucket { .. } | Strategy::Calendar(_) => 3,
    }
}

/// Which word of a rate's block counts the bucket.
pub(super) fn word(rate: &Rate, block: &[u64], bucket: u64) -> Option<usize> {
    match rate.strategy() {
        Strategy::Sliding { .. } => {
            let age = usize::try_from(block.first()?.checked_sub(bucket)?).ok()?;
            (age + 1 < block.len()).then_some(age + 1)
        }
        Strategy::Calendar(_) => (*block.first()? / 1_000_000 == bucket).then_some(2),
        _ => None,
    }
}

/// The longest moving window among the rates.
pub(super) fn longest(rates: &[Rate]) -> Option<u64> {
    let moving = rates.iter().filter(|rate| *rate.strategy() == Strategy::Moving);
    moving.map(Rate::span).max()
}

/// Whether a moment lies further ahead than reading the clock at different times explains.
fn is_ahead(moment: u64, now: Time) -> bool {
    moment > now.micros().saturating_add(JITTER)
}

/// The words of each rate.
pub(super) fn split_mut<'a>(
    mut rest: &'a mut [u64],
    rates: &'a [Rate],
) -> impl Iterator<Item = (&'a Rate, &'a mut [u64])> {
    rates.iter().map_while(move |rate| {
        let (block, tail) = std::mem::take(&mut rest).split_at_mut_checked(words(rate))?;
        rest = tail;
        Some((rate, block))
    })
}

impl Cell {
    /// A cell for `rates` in which nothing has been counted at `now`.
    pub fn new(rates: &[Rate], now: Time) -> Self {
        let mut cell = Self { words: smallvec![0; rates.iter().map(words).sum()], more: None };
        for (rate, block) in cell.blocks_mut(rates) {
            match (rate.strategy(), block) {
                (Strategy::Sliding { .. }, [newest, ..]) => *newest = now.micros() / rate.width(),
                (Strategy::Calendar(calendar), [start, end, _]) => (*start, *end) = calendar.window(now),
                (Strategy::Bucket { .. }, [moment, ..]) => *moment = now.micros(),
                _ => {}
            }
        }
        cell
    }

    /// The words of each rate.
    pub(super) fn blocks_mut<'a>(&'a mut self, rates: &'a [Rate]) -> impl Iterator<Item = (&'a Rate, &'a mut [u64])> {
        split_mut(&mut self.words, rates)
    }

    pub(super) fn blocks<'a>(&'a self, rates: &'a [Rate]) -> impl Iterator<Item = (&'a Rate, &'a [u64])> {
        let mut rest = &self.words[..];
        rates.iter().map_while(move |rate| {
            let (block, tail) = rest.split_at_checked(words(rate))?;
            rest = tail;
            Some((rate, block))
        })
    }

    /// Every count that is a plain sum: the place of its rate, what names its bucket (an index, or the start of a
    /// calendar's window in seconds), and the count. The first of a rate is the one that is being added to.
    pub fn counts_mut<'a>(&'a mut self, rates: &'a [Rate]) -> impl Iterator<Item = (usize, u64, &'a mut u64)> {
        self.blocks_mut(rates).enumerate().flat_map(|(place, (rate, block))| {
            let (newest, counts) = match (rate.strategy(), block) {
                (Strategy::Sliding { .. }, [newest, counts @ ..]) => (*newest, counts),
                (Strategy::Calendar(_), [start, _, count]) => (*start / 1_000_000, std::slice::from_mut(count)),
                _ => (0, &mut [][..]),
            };
            (0..).zip(counts).map(move |(age, count)| (place, newest.saturating_sub(age), count))
        })
    }

    /// The buckets that are being added to: the place of each rate that is a plain sum, and its newest bucket.
    pub fn newest<'a>(&'a self, rates: &'a [Rate]) -> impl Iterator<Item = (usize, u64)> + 'a {
        self.blocks(rates).enumerate().filter_map(|(place, (rate, block))| match (rate.strategy(), block) {
            (Strategy::Sliding { .. }, [newest, ..]) => Some((place, *newest)),
            (Strategy::Calendar(_), [start, ..]) => Some((place, *start / 1_000_000)),
            _ => None,
        })
    }

    /// The count of one bucket of the rate at `place`, if it still matters.
    pub fn count(&self, rates: &[Rate], place: usize, bucket: u64) -> Option<u64> {
        let (rate, block) = self.blocks(rates).nth(place)?;
        block.get(word(rate, block, bucket)?).copied()
    }

    /// Corrects the count of one bucket of the rate at `place`, if it still matters.
    pub fn correct(&mut self, rates: &[Rate], place: usize, bucket: u64, correct: impl FnOnce(u64) -> u64) {
        if let Some((rate, block)) = self.blocks_mut(rates).nth(place)
            && let Some(word) = word(rate, block, bucket)
        {
            block[word] = correct(block[word]).min(MAX_COUNT);
        }
    }

    /// Takes over sums read elsewhere: `read(place of the rate, bucket)` for every one that matters.
    pub fn fill(&mut self, rates: &[Rate], mut read: impl FnMut(usize, u64) -> u64) {
        for (place, bucket, count) in self.counts_mut(rates) {
            *count = read(place, bucket).min(MAX_COUNT);
        }
    }

    /// Moves the state of every rate on to `now`.
    ///
    /// A clock that went back a little (another thread read it a moment earlier) is waited for. One that was set
    /// back takes the counts along: they leave later, never earlier, so nobody gets a second helping and nobody
    /// waits for the old time to come again.
    ///
    /// Returns whether another bucket or window of a plain sum is the newest now.
    pub fn advance(&mut self, rates: &[Rate], now: Time) -> bool {
        let (mut turned, mut is_set_back) = (false, false);
        for (rate, block) in self.blocks_mut(rates) {
            match (rate.strategy(), block) {
                (Strategy::Sliding { .. }, [newest, counts @ ..]) => turned |= slide(rate, newest, counts, now),
                (Strategy::Fixed, [start, count]) => {
                    if is_ahead(*start, now) {
                        *start = now.micros();
                    } else if now.micros().saturating_sub(*start) >= rate.span() {
                        *count = 0;
                    }
                }
                (Strategy::Calendar(calendar), [start, end, count]) => turned |= turn(calendar, start, end, count, now),
                (Strategy::Bucket { .. }, [moment, high, low]) => {
                    let left = bucket::drained(rate, join(*high, *low), now.micros().saturating_sub(*moment));
                    (*high, *low) = split(left);
                    is_set_back |= is_ahead(*moment, now);
                    if now.micros() > *moment || is_ahead(*moment, now) {
                        *moment = now.micros();
                    }
                }
                _ => {}
            }
        }
        if let Some(More { log, low_water }) = self.more.as_deref_mut() {
            if is_set_back {
                // How long they have been open is not known any more.
                low_water.clear();
            }
            if let Some(longest) = longest(rates) {
                if let Some(newest) = log.newest().filter(|newest| is_ahead(*newest, now)) {
                    log.shift(newest - now.micros());
                }
                log.forget(now.micros().saturating_sub(longest));
            }
        }
        turned
    }

    /// The state of each rate at `now`, to which the cell has been advanced.
    pub(super) fn gauges<'a>(&'a self, rates: &'a [Rate], now: Time) -> impl Iterator<Item = Gauge<'a>> {
        let now = now.micros();
        self.blocks(rates).map(move |(rate, block)| match (rate.strategy(), block) {
            (Strategy::Sliding { edge, .. }, [newest, counts @ ..]) => {
                let elapsed = now.saturating_sub(newest * rate.width());
                Gauge::Sliding(sliding::Window::new(rate, *edge, counts, elapsed))
            }
            (Strategy::Fixed, [start, count]) => {
                let left = start.saturating_add(rate.span()).saturating_sub(now.max(*start));
                Gauge::Fixed(fixed::Window::new(rate, *count, left))
            }
            (Strategy::Calendar(_), [_, end, count]) => {
                Gauge::Fixed(fixed::Window::new(rate, *count, end.saturating_sub(now)))
            }
            (Strategy::Bucket { burst }, [_, high, low]) => {
                Gauge::Bucket(bucket::Bucket::new(rate, *burst, join(*high, *low)))
            }
            _ => Gauge::Moving(moving::Window::new(rate, self.log(), now)),
        })
    }

    /// Counts `cost` at `now`, to which the cell has been advanced: against every rate, or if it came `since` only against
    /// those whose state is kept as a whole.
    pub(super) fn charge(&mut self, rates: &[Rate], now: Time, cost: u64, since: Option<Time>) {
        let add = |count: &mut u64| *count = count.saturating_add(cost).min(MAX_COUNT);
        let Self { words, more } = self;
        for (place, (rate, block)) in split_mut(words, rates).enumerate() {
            match (rate.strategy(), block) {
                _ if since.is_some() && rate.is_counted() => {}
                (Strategy::Sliding { .. }, [_, newest, ..]) => add(newest),
                (Strategy::Calendar(_), [.., count]) => add(count),
                (Strategy::Fixed, [start, count]) => {
                    if *count == 0 {
                        *start = now.micros();
                    }
                    // A window begins with the first request, whichever gateway it came to.
                    if let Some(since) = since.filter(|since| now.micros().saturating_sub(since.micros()) < rate.span())
                    {
                        *start = since.micros().min(*start);
                    }
                    add(count);
                }
                (Strategy::Bucket { .. }, [moment, high, low]) => {
                    let (before, most) = (join(*high, *low), bucket::units(rate, MAX_COUNT));
                    let followed = more.as_deref_mut().and_then(|more| more.low_water(place));
                    // What is charged again was in the bucket all the while.
                    if let Some(low_water) = followed.filter(|_| since.is_none()) {
                        low_water.note(*moment, before);
                    }
                    let used = before.saturating_add(bucket::units(rate, cost)).min(most);
                    (*high, *low) = split(used);
                }
                _ => {}
            }
        }
        if longest(rates).is_some() {
            more.get_or_insert_default().log.add(now.micros(), cost);
        }
    }

    /// Takes `cost` back from the rates whose state is kept as a whole.
    pub(super) fn take_back_whole(&mut self, rates: &[Rate], cost: u64) {
        for (rate, block) in self.blocks_mut(rates) {
            match (rate.strategy(), block) {
                (Strategy::Fixed, [_, count]) => *count = count.saturating_sub(cost),
                (Strategy::Bucket { .. }, [_, high, low]) => {
                    (*high, *low) = split(join(*high, *low).saturating_sub(bucket::units(rate, cost)));
                }
                _ => {}
            }
        }
        if let Some(More { log, .. }) = self.more.as_deref_mut() {
            log.take_back(cost);
        }
    }

    /// Whether nothing in it can matter at `now` or later.
    pub fn is_spent(&self, rates: &[Rate], now: Time) -> bool {
        self.is_over(rates, now, |_| true)
    }

    /// Whether nothing of the state that is kept as a whole can matter at `now` or later.
    pub fn is_whole_spent(&self, rates: &[Rate], now: Time) -> bool {
        self.is_over(rates, now, |rate| !rate.is_counted())
    }

    fn is_over(&self, rates: &[Rate], now: Time, of: impl Fn(&Rate) -> bool) -> bool {
        let now = now.micros();
        let words_are =
            self.blocks(rates).filter(|(rate, _)| of(rate)).all(|(rate, block)| match (rate.strategy(), block) {
                (Strategy::Sliding { .. }, [newest, counts @ ..]) => {
                    (now / rate.width()).saturating_sub(*newest) >= counts.len() as u64
                }
                (Strategy::Fixed, [start, count]) => *count == 0 || now.saturating_sub(*start) >= rate.span(),
                (Strategy::Calendar(_), [_, end, count]) => *count == 0 || now >= *end,
                (Strategy::Bucket { .. }, [moment, high, low]) => {
                    bucket::drained(rate, join(*high, *low), now.saturating_sub(*moment)) == 0
                }
                _ => true,
            });
        let newest = self.log().and_then(Log::newest);
        let gone = |newest: u64| longest(rates).is_none_or(|longest| now.saturating_sub(newest) >= longest);
        words_are && newest.is_none_or(gone)
    }

    /// The sizes of all allocations that it holds, in bytes.
    pub fn allocations(&self) -> impl Iterator<Item = usize> {
        let words = self.words.spilled().then(|| self.words.capacity() * size_of::<u64>());
        let more = self.more.iter().flat_map(|more| more.allocations());
        words.into_iter().chain(more).filter(|bytes| *bytes > 0)
    }

    /// The latest moment, in microseconds since 1970, that is noted in the state that is kept as a whole.
    pub(super) fn latest(&self, rates: &[Rate]) -> u64 {
        let moments = self.blocks(rates).filter_map(|(rate, block)| match (rate.strategy(), block) {
            (Strategy::Fixed | Strategy::Bucket { .. }, [moment, ..]) => Some(*moment),
            _ => None,
        });
        moments.chain(self.log().and_then(Log::newest)).max().unwrap_or(0)
    }

    /// The log of the moving windows.
    pub(super) fn log(&self) -> Option<&Log> {
        self.more.as_deref().map(|more| &more.log)
    }

    /// Replaces the log of the moving windows.
    pub(super) fn set_log(&mut self, log: Log) {
        self.more.get_or_insert_default().log = log;
    }
}

/// Whether another bucket is the newest now.
fn slide(rate: &Rate, newest: &mut u64, counts: &mut [u64], now: Time) -> bool {
    let begun = newest.saturating_mul(rate.width());
    if now.micros().checked_sub(begun).is_some_and(|elapsed| elapsed < rate.width()) {
        return false;
    }
    let bucket = now.micros() / rate.width();
    if bucket > *newest {
        let by = usize::try_from(bucket - *newest).unwrap_or(usize::MAX);
        if by < counts.len() {
            counts.copy_within(..counts.len() - by, by);
            counts[..by].fill(0);
        } else {
            counts.fill(0);
        }
    } else if !is_ahead(begun, now) {
        return false;
    }
    *newest = bucket;
    true
}

/// Whether another window is the current one now.
fn turn(calendar: &Calendar, start: &mut u64, end: &mut u64, count: &mut u64, now: Time) -> bool {
    if now.micros() >= *end {
        *count = 0;
    } else if !is_ahead(*start, now) {
        return false;
    }
    (*start, *end) = calendar.window(now);
    true
}

pub(super) fn join(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

#[expect(clippy::cast_possible_truncation, reason = "these are the two halves")]
pub(super) fn split(wide: u128) -> (u64, u64) {
    ((wide >> 64) as u64, wide as u64)
}

/// The state of one rate at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gauge<'a> {
    Sliding(sliding::Window<'a>),
    Fixed(fixed::Window<'a>),
    Moving(moving::Window<'a>),
    Bucket(bucket::Bucket<'a>),
}

impl Gauge<'_> {
    /// How much more fits now.
    pub(super) fn remaining(&self) -> u64 {
        match self {
            Self::Sliding(window) => window.remaining(),
            Self::Fixed(window) => window.remaining(),
            Self::Moving(window) => window.remaining(),
            Self::Bucket(bucket) => bucket.remaining(),
        }
    }

    /// Microseconds until `need` more fit if nothing else comes; 0 if they do now, `None` if they never will.
    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        match self {
            Self::Sliding(window) => window.wait(need),
            Self::Fixed(window) => window.wait(need),
            Self::Moving(window) => window.wait(need),
            Self::Bucket(bucket) => bucket.wait(need),
        }
    }
}
