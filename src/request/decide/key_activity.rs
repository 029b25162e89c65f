//! Which keys of a limit came most often, and which it refused most often, in the last half hour to hour.
//!
//! Each worker counts in its own sketches, which are added up for display. A worker never waits: while its sketches are being
//! read, it only counts how many keys it could not record, and this count becomes part of the error.
//!
//! A key with a place costs about 100 instructions, a new one in a flood of new keys about 250. Its text is read from the
//! request when it gets a place in a sketch with room, or when it comes again, because most invented keys come once.

use parking_lot::Mutex;

use super::heavy_hitters::{HeavyHitter, Ranking, Sketch};
use super::{DecisionInput, RouteLimit};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::base::metrics::{Counter, PerWorker};
use crate::request::identify::key_text::written_text;

/// Half an hour, in microseconds. The current period and the last one are shown.
const PERIOD: u64 = 1_800_000_000;

#[derive(Debug, Default)]
pub struct KeyActivity {
    /// `None` before the first request.
    periods: Mutex<Option<Box<Periods>>>,
    /// What could not be recorded yet. The next request that can be recorded adds it.
    missed: Missed,
}

#[derive(Debug, Default)]
struct Missed {
    requests: Counter,
    refusals: Counter,
    /// How much of `requests` and `refusals` was added already.
    added: [Counter; 2],
}

#[derive(Debug)]
struct Periods {
    /// The number of the current period since 1970. All workers use the same periods.
    number: u64,
    current: Sketches,
    last: Sketches,
}

#[derive(Debug, Default)]
struct Sketches {
    requests: Sketch,
    refusals: Sketch,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopKeys {
    /// Among all requests about which the limit has decided.
    pub most_busy: Vec<HeavyHitter>,
    /// Among those that were over the limit, or blocked.
    pub most_refused: Vec<HeavyHitter>,
}

impl RouteLimit {
    pub(super) fn record_key(&self, input: &DecisionInput<'_, '_>, key: Fingerprint, is_refused: bool) {
        if self.counts_keys {
            self.count_key(input, key, is_refused);
        }
    }

    /// Not inline, because only a gateway with an admin API counts which keys come.
    #[inline(never)]
    fn count_key(&self, input: &DecisionInput<'_, '_>, key: Fingerprint, is_refused: bool) {
        let text = || written_text(&self.key.parts(input.attributes));
        self.metrics.keys.of(input.worker).record(key, is_refused, input.now, text);
    }
}

impl KeyActivity {
    /// Counts a request of this key at `now`. `text` is called only if the text of the key is needed.
    pub fn record(&self, key: Fingerprint, is_refused: bool, now: Time, text: impl Fn() -> String) {
        let Some(mut periods) = self.periods.try_lock() else {
            self.missed.requests.one();
            if is_refused {
                self.missed.refusals.one();
            }
            return;
        };
        let number = number(now);
        let periods = periods.get_or_insert_with(|| Box::new(Periods::new(number)));
        if number != periods.number {
            periods.begin(number);
        }
        self.missed.move_to(&mut periods.current);
        periods.current.requests.record(key, &text);
        if is_refused {
            periods.current.refusals.record(key, &text);
        }
    }
}

impl Missed {
    fn move_to(&self, sketches: &mut Sketches) {
        let counted = [(&self.requests, &mut sketches.requests), (&self.refusals, &mut sketches.refusals)];
        for ((counter, sketch), added) in counted.into_iter().zip(&self.added) {
            let new = counter.get() - added.get();
            if new > 0 {
                sketch.missed += new;
                added.add(new);
            }
        }
    }
}

impl Periods {
    fn new(number: u64) -> Self {
        Self { number, current: Sketches::default(), last: Sketches::default() }
    }

    /// Begins a period. Ignores the previous period, which comes after a hold or if the clock was set back a little.
    fn begin(&mut self, number: u64) {
        if number + 1 == self.number {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.last);
        self.current.clear();
        if number != self.number + 1 {
            self.last.clear();
        }
        self.number = number;
    }

    fn shown(&self, number: u64) -> impl Iterator<Item = &Sketches> {
        let (is_last, is_current) = (number == self.number + 1, number == self.number || number + 1 == self.number);
        let current = (is_current || is_last).then_some(&self.current);
        current.into_iter().chain(is_current.then_some(&self.last))
    }
}

impl Sketches {
    fn clear(&mut self) {
        self.requests.clear();
        self.refusals.clear();
    }
}

fn number(now: Time) -> u64 {
    now.micros() / PERIOD
}

/// Since when the keys that are shown at `now` have been counted: half an hour to an hour earlier.
pub fn shown_since(now: Time) -> Time {
    Time::from_micros(number(now).saturating_sub(1) * PERIOD)
}

impl TopKeys {
    pub fn of(workers: &PerWorker<KeyActivity>, now: Time, most: usize) -> Self {
        let (mut requests, mut refusals) = (Ranking::default(), Ranking::default());
        for worker in workers.iter() {
            let periods = worker.periods.lock();
            for sketches in periods.iter().flat_map(|periods| periods.shown(number(now))) {
                requests.add(&sketches.requests);
                refusals.add(&sketches.refusals);
            }
        }
        Self { most_busy: requests.top(most), most_refused: refusals.top(most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000 * PERIOD;

    fn key(name: &str) -> Fingerprint {
        Fingerprint::of(name.as_bytes())
    }

    fn record(activity: &KeyActivity, name: &str, is_refused: bool, micros: u64) {
        activity.record(key(name), is_refused, Time::from_micros(micros), || name.to_owned());
    }

    /// Formats each key as `name count+error`.
    fn shown(hitters: &[HeavyHitter]) -> Vec<String> {
        hitters.iter().map(|HeavyHitter { text, count, error, .. }| format!("{text} {count}+{error}")).collect()
    }

    fn busy(workers: &PerWorker<KeyActivity>, micros: u64) -> Vec<String> {
        shown(&TopKeys::of(workers, Time::from_micros(micros), 10).most_busy)
    }

    #[test]
    fn the_keys_of_all_workers_are_added_up() {
        let workers = PerWorker::<KeyActivity>::new(3);
        for worker in 0..3 {
            (0..=worker).for_each(|_| record(workers.of(worker), "a", false, START));
            record(workers.of(worker), "b", worker > 0, START);
        }
        let top = TopKeys::of(&workers, Time::from_micros(START), 10);
        assert_eq!(shown(&top.most_busy), ["a 6+0", "b 3+0"]);
        assert_eq!(shown(&top.most_refused), ["b 2+0"]);
        assert_eq!(shown(&TopKeys::of(&workers, Time::from_micros(START), 1).most_busy), ["a 6+0"]);
    }

    #[test]
    fn a_key_is_shown_for_half_an_hour_to_an_hour() {
        let workers = PerWorker::<KeyActivity>::new(1);
        let activity = workers.of(0);
        record(activity, "first", true, START);
        record(activity, "last", false, START + PERIOD - 1);
        assert_eq!(shown_since(Time::from_micros(START + 7)), Time::from_micros(START - PERIOD));
        assert_eq!(busy(&workers, START + 2 * PERIOD - 1).len(), 2);
        assert_eq!(
            busy(&workers, START + 2 * PERIOD),
            Vec::<String>::new(),
            "nothing new came, and the old is not shown"
        );
        record(activity, "next", false, START + PERIOD);
        assert_eq!(busy(&workers, START + PERIOD), ["first 1+0", "last 1+0", "next 1+0"].map(str::to_owned).sorted());
        record(activity, "later", false, START + 2 * PERIOD);
        assert_eq!(busy(&workers, START + 2 * PERIOD), ["next 1+0", "later 1+0"].map(str::to_owned).sorted());
        record(activity, "much later", false, START + 4 * PERIOD);
        assert_eq!(busy(&workers, START + 4 * PERIOD), ["much later 1+0"]);
    }

    trait Sorted {
        fn sorted(self) -> Vec<String>;
    }

    impl<const N: usize> Sorted for [String; N] {
        /// Sorts as keys with equal counts are sorted.
        fn sorted(self) -> Vec<String> {
            let mut list = self.to_vec();
            list.sort_by_key(|text| key(text.rsplit_once(' ').unwrap().0));
            list
        }
    }

    #[test]
    fn a_clock_that_is_set_back_loses_little() {
        let workers = PerWorker::<KeyActivity>::new(1);
        let activity = workers.of(0);
        record(activity, "a", false, START);
        // Another thread has read the clock a little later, or the clock was corrected.
        record(activity, "a", false, START - 1);
        record(activity, "a", false, START);
        assert_eq!(
            (busy(&workers, START), busy(&workers, START - 1)),
            (vec!["a 3+0".to_owned()], vec!["a 3+0".to_owned()])
        );
        // The clock was wrong by days.
        record(activity, "a", false, START - 100 * PERIOD);
        assert_eq!(busy(&workers, START - 100 * PERIOD), ["a 1+0"]);
    }

    #[test]
    fn a_worker_does_not_wait_while_its_keys_are_read() {
        let workers = PerWorker::<KeyActivity>::new(1);
        let activity = workers.of(0);
        record(activity, "a", true, START);
        let reading = activity.periods.lock();
        (0..3).for_each(|_| record(activity, "a", false, START));
        record(activity, "a", true, START);
        drop(reading);
        record(activity, "a", false, START);
        let top = TopKeys::of(&workers, Time::from_micros(START), 10);
        assert_eq!((shown(&top.most_busy), shown(&top.most_refused)), (vec!["a 2+4".into()], vec!["a 1+1".into()]));
    }
}
