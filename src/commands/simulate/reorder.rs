//! Sorts requests by time. Servers write a line when a request ends, so lines are a little out of order.
//!
//! A single line with a time in the future would make all later lines late. So a line that is more than a day ahead counts only
//! if the next line confirms it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::record::Record;
use crate::base::clock::micros;

/// In bytes: all requests of all logs that wait to be sorted. If the window has more, the window becomes shorter.
const MAX_BYTES: usize = 256 << 20;

/// In microseconds: a line that is further ahead of all others needs confirmation by the next line.
const LEAP: u64 = 86_400 * 1_000_000;

/// Requests that wait until no earlier one can come.
#[derive(Default)]
pub(super) struct Reorder {
    /// In microseconds.
    window: u64,
    /// By time, then by line.
    waiting: BTreeMap<(u64, u64), Box<Record>>,
    /// The latest time so far.
    newest: u64,
    newest_line: u64,
    /// A request far ahead of all others, and its line.
    leaping: Option<(Box<Record>, u64)>,
    /// The time of the last request that left.
    taken: u64,
    added: u64,
    bytes: usize,
    max_bytes: usize,
}

impl Reorder {
    /// Sorts within `window`. The `logs` share the memory.
    pub(super) fn new(window: Duration, logs: usize) -> Self {
        Self { window: micros(window), max_bytes: MAX_BYTES / logs.max(1), ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds the request of a line. Returns the number of a line that is not used, and why: it is this line or the previous one.
    pub(super) fn add(&mut self, record: Box<Record>, line: u64) -> Option<(u64, String)> {
        let time = record.time.micros();
        let is_ahead = time > self.newest.saturating_add(self.window.max(LEAP));
        match self.leaping.take() {
            None if is_ahead => {
                self.leaping = Some((record, line));
                None
            }
            None => self.place(record, line),
            Some((leaping, its_line)) if time >= leaping.time.micros().saturating_sub(self.window) => {
                // It is ahead of all others, so it is not late.
                self.place(leaping, its_line);
                self.add(record, line)
            }
            Some((leaping, its_line)) => match self.place(record, line) {
                // A late line says nothing about the previous one.
                Some(late) => {
                    self.leaping = Some((leaping, its_line));
                    Some(late)
                }
                None => {
                    let why = "its time is more than a day after those of the lines before and after it";
                    Some((its_line, why.to_owned()))
                }
            },
        }
    }

    /// Puts a request in its place, unless it is late.
    fn place(&mut self, record: Box<Record>, line: u64) -> Option<(u64, String)> {
        let time = record.time.micros();
        if time < self.newest.saturating_sub(self.window).max(self.taken) {
            let seconds = self.newest.saturating_sub(time) / 1_000_000;
            let newest = self.newest_line;
            let why = format!("its time is {seconds} s before that of line {newest}, more than --reorder allows");
            return Some((line, why));
        }
        if time > self.newest {
            (self.newest, self.newest_line) = (time, line);
        }
        self.bytes += record.bytes();
        self.waiting.insert((time, self.added), record);
        self.added += 1;
        None
    }

    /// The next request that no other one can precede. With `is_last`, no more lines come.
    pub(super) fn take(&mut self, is_last: bool) -> Option<Box<Record>> {
        if let Some((leaping, line)) = self.leaping.take_if(|_| is_last) {
            // It is ahead of all others, so it is not late.
            self.place(leaping, line);
        }
        let first = self.waiting.first_entry()?;
        let (time, _) = *first.key();
        let is_due = time <= self.newest.saturating_sub(self.window);
        if !is_due && !is_last && self.bytes <= self.max_bytes {
            return None;
        }
        let record = first.remove();
        self.bytes = self.bytes.saturating_sub(record.bytes());
        self.taken = time;
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};
    use proptest::prelude::*;

    use super::*;
    use crate::base::clock::Time;

    fn record(seconds: u64) -> Box<Record> {
        let (method, uri) = (Method::GET, Uri::from_static("/"));
        let time = Time::from_micros(seconds * 1_000_000);
        let headers = Vec::new();
        Box::new(Record {
            time,
            client: None,
            method,
            uri,
            host: None,
            headers,
            status: None,
            spent: None,
            bytes: None,
        })
    }

    /// The times in the order in which requests leave, and the number of late ones.
    fn sorted(reorder: &mut Reorder, times: &[u64]) -> (Vec<u64>, usize) {
        let (mut taken, mut late) = (Vec::new(), 0);
        for (line, time) in (1..).zip(times) {
            late += usize::from(reorder.add(record(*time), line).is_some());
            while let Some(record) = reorder.take(false) {
                taken.push(record.time.seconds());
            }
        }
        while let Some(record) = reorder.take(true) {
            taken.push(record.time.seconds());
        }
        (taken, late)
    }

    #[test]
    fn what_comes_within_the_window_is_sorted() {
        let mut reorder = Reorder::new(Duration::from_secs(10), 1);
        assert_eq!(sorted(&mut reorder, &[20, 15, 30, 20, 19, 25, 31, 20]), (vec![15, 20, 20, 25, 30, 31], 2));
    }

    #[test]
    fn a_late_request_says_what_it_comes_after() {
        let mut reorder = Reorder::new(Duration::from_secs(10), 1);
        for (line, time) in [(1, 20), (2, 90), (3, 85)] {
            assert_eq!(reorder.add(record(time), line), None);
        }
        let (line, why) = reorder.add(record(50), 4).unwrap();
        assert_eq!((line, &*why), (4, "its time is 40 s before that of line 2, more than --reorder allows"));
    }

    #[test]
    fn a_line_from_the_future_does_not_make_others_late() {
        const DAY: u64 = 86_400;
        let skipped = |times: &[u64]| {
            let mut reorder = Reorder::new(Duration::from_secs(10), 1);
            let lines = (1..).zip(times);
            let skipped: Vec<_> = lines.filter_map(|(line, time)| reorder.add(record(DAY + time), line)).collect();
            let mut left = Vec::new();
            while let Some(record) = reorder.take(true) {
                left.push(record.time.seconds() - DAY);
            }
            (left, skipped.iter().map(|(line, _)| *line).collect::<Vec<_>>())
        };
        assert_eq!(skipped(&[20, 21, 9 * DAY, 22, 23]), (vec![20, 21, 22, 23], vec![3]));
        assert_eq!(skipped(&[9 * DAY, 21, 22]), (vec![21, 22], vec![1]), "also at the beginning");
        assert_eq!(skipped(&[20, 9 * DAY]), (vec![20, 9 * DAY], vec![]), "or it is the last one");
        assert_eq!(skipped(&[20, 9 * DAY, 9 * DAY - 5, 21]), (vec![20, 9 * DAY - 5, 9 * DAY], vec![4]), "confirmed");
        assert_eq!(skipped(&[20, 9 * DAY, 5, 22]), (vec![20, 22], vec![3, 2]), "a late one decides nothing");
        assert!(skipped(&[20, 2 * DAY, 4 * DAY, 6 * DAY]).1.is_empty(), "a log with few lines");
        assert_eq!(skipped(&[20, 9 * DAY, 21, 99 * DAY, 22]).1, [2, 4]);
        assert_eq!(skipped(&[20, 2 * DAY, 99 * DAY, 2 * DAY + 1]).1, [3], "after a gap, too");
    }

    #[test]
    fn memory_is_bounded_by_a_shorter_window() {
        let mut reorder = Reorder { max_bytes: 3 * record(0).bytes(), ..Reorder::new(Duration::from_secs(1_000), 1) };
        assert_eq!(sorted(&mut reorder, &[10, 11, 9, 12, 8, 10]), (vec![9, 10, 10, 11, 12], 1));
        assert_eq!(reorder.bytes, 0);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_order_is_that_of_time(times: Vec<u16>, window in 0_u64..100_000) {
            let times: Vec<u64> = times.into_iter().map(u64::from).collect();
            let (taken, late) = sorted(&mut Reorder::new(Duration::from_secs(window), 1), &times);
            prop_assert!(taken.is_sorted());
            prop_assert_eq!(taken.len() + late, times.len());
            let mut newest = 0;
            let expected = times.iter().filter(|time| {
                newest = newest.max(**time);
                **time + window < newest
            });
            prop_assert_eq!(late, expected.count());
        }
    }
}
