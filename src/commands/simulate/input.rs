//! Merges all logs: their requests in the order of time, and the lines that could not be used.
//!
//! Each log is sorted on its own before the merge. So rotated files can have any order, and logs of several servers can
//! be read together.

use std::time::Duration;

use serde::Serialize;

use super::common_log;
use super::fields::FieldNames;
use super::json_line;
use super::lines::{Lines, Text, unwrapped};
use super::needs::{Needs, Seen};
use super::record::{Line, Record, unreadable};
use super::reorder::Reorder;

/// Skipped lines that the report lists.
const MAX_SHOWN: usize = 20;

pub(super) struct Input {
    logs: Vec<Log>,
    needs: Needs,
    names: FieldNames,
    pub(super) seen: Seen,
    pub(super) skipped: Skipped,
    /// Why logs could not be read to their ends.
    pub(super) broken: Vec<String>,
}

struct Log {
    lines: Lines,
    reorder: Reorder,
    is_at_end: bool,
    /// The next request, once it is known.
    next: Option<Box<Record>>,
}

#[derive(Debug, Default)]
pub(super) struct Skipped {
    pub(super) unreadable: u64,
    /// Too much out of order to be sorted.
    pub(super) late: u64,
    /// The first skipped lines.
    pub(super) first: Vec<SkippedLine>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct SkippedLine {
    pub(super) file: String,
    /// From 1.
    pub(super) line: u64,
    pub(super) why: String,
}

impl Skipped {
    pub(super) fn all(&self) -> u64 {
        self.unreadable + self.late
    }

    /// Lists one of the first skipped lines.
    fn list(&mut self, file: &str, line: u64, why: &str) {
        if self.first.len() < MAX_SHOWN {
            self.first.push(SkippedLine { file: file.to_owned(), line, why: why.to_owned() });
        }
    }
}

impl Input {
    /// Each log is sorted within `window`.
    pub(super) fn new(logs: Vec<Lines>, needs: Needs, names: FieldNames, window: Duration) -> Self {
        let count = logs.len();
        let log = |lines| Log { lines, reorder: Reorder::new(window, count), is_at_end: false, next: None };
        Self {
            logs: logs.into_iter().map(log).collect(),
            seen: Seen::default(),
            needs,
            names,
            skipped: Skipped::default(),
            broken: Vec::new(),
        }
    }

    /// Reads about this many requests in advance, to learn what the log has.
    pub(super) fn look_ahead(&mut self, requests: usize) {
        let each = requests.div_ceil(self.logs.len().max(1));
        for at in 0..self.logs.len() {
            while self.logs.get(at).is_some_and(|log| !log.is_at_end && log.reorder.len() < each) {
                self.read_line(at);
            }
        }
    }

    pub(super) fn next(&mut self) -> Option<Box<Record>> {
        for at in 0..self.logs.len() {
            while let Some(log) = self.logs.get_mut(at).filter(|log| log.next.is_none()) {
                log.next = log.reorder.take(log.is_at_end);
                if log.next.is_some() || log.is_at_end {
                    break;
                }
                self.read_line(at);
            }
        }
        let earliest = self.logs.iter_mut().filter(|log| log.next.is_some());
        earliest.min_by_key(|log| log.next.as_ref().map(|record| record.time)).and_then(|log| log.next.take())
    }

    fn read_line(&mut self, at: usize) {
        let Some(Log { lines, reorder, is_at_end, .. }) = self.logs.get_mut(at) else { return };
        let number = lines.number + 1;
        let read = match lines.next() {
            Ok(Some(Text::Whole(line))) if line.trim_ascii().is_empty() => return,
            Ok(Some(Text::Whole(line))) => {
                let line = unwrapped(line.trim_ascii_start());
                if line.starts_with(b"{") {
                    self.seen.json = true;
                    json_line::read(&line, &self.needs, &self.names)
                } else {
                    common_log::read(&line, &self.needs).map(Line::Request)
                }
            }
            Ok(Some(Text::Long)) => Err(unreadable::LONG),
            Ok(None) => {
                *is_at_end = true;
                return;
            }
            Err(error) => {
                self.broken.push(format!("{} cannot be read after line {}: {error}", lines.name, lines.number));
                *is_at_end = true;
                return;
            }
        };
        match read {
            Ok(Line::Request(record)) => {
                self.seen.note(&record);
                if let Some((number, why)) = reorder.add(record, number) {
                    self.skipped.late += 1;
                    self.skipped.list(&lines.name, number, &why);
                }
            }
            Ok(Line::Message) => {}
            Ok(Line::LeftOut(requests)) => self.seen.left_out = self.seen.left_out.saturating_add(requests),
            Err(why) => {
                self.skipped.unreadable += 1;
                self.skipped.list(&lines.name, number, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Cursor;

    use super::*;

    fn common(second: u64, path: &str) -> String {
        format!("192.0.2.1 - - [10/Oct/2000:13:55:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 1\n")
    }

    fn input(logs: &[&str]) -> Input {
        let lines = |(at, text): (usize, &&str)| {
            Lines::new(&format!("log {at}"), Cursor::new((*text).to_owned().into_bytes())).unwrap()
        };
        let needs = Needs { headers: HashSet::new(), client: true };
        let names = FieldNames::new(&HashSet::new(), &[]);
        Input::new(logs.iter().enumerate().map(lines).collect(), needs, names, Duration::from_secs(5))
    }

    fn paths(input: &mut Input) -> Vec<String> {
        std::iter::from_fn(|| input.next()).map(|record| record.uri.path().to_owned()).collect()
    }

    #[test]
    fn the_lines_of_the_documentation_are_read() {
        let page = include_str!("../../../docs/simulate.md");
        let (_, lines) = page.split_once("```lines\n").unwrap();
        let (lines, _) = lines.split_once("```").unwrap();
        let mut input = input(&[lines]);
        let read: Vec<_> = std::iter::from_fn(|| input.next()).collect();
        assert_eq!((read.len(), &input.skipped.first), (lines.lines().count(), &Vec::new()));
        for record in read {
            assert_eq!((record.client.unwrap().to_string().as_str(), record.uri.path()), ("203.0.113.7", "/a"));
        }
    }

    #[test]
    fn logs_are_merged_by_time() {
        let newer = common(30, "/d") + &common(40, "/f");
        let older = common(10, "/b") + &common(9, "/a") + &common(20, "/c");
        let other = common(35, "/e");
        let mut input = input(&[&newer, &older, &other]);
        input.look_ahead(2);
        assert_eq!(paths(&mut input), ["/a", "/b", "/c", "/d", "/e", "/f"]);
        assert!(input.skipped.first.is_empty());
    }

    #[test]
    fn lines_that_are_skipped_are_known_by_number() {
        let text = format!("{}\n  \nnonsense\n{}{{\n{}", common(20, "/a"), common(30, "/b"), common(3, "/late"));
        let mut input = input(&[&text]);
        assert_eq!(paths(&mut input), ["/a", "/b"]);
        assert_eq!((input.skipped.unreadable, input.skipped.late), (2, 1));
        let lines: Vec<_> = input.skipped.first.iter().map(|skipped| (skipped.line, &*skipped.why)).collect();
        let late = "its time is 27 s before that of line 5, more than --reorder allows";
        assert_eq!(lines, [(4, unreadable::FORMAT), (6, unreadable::JSON), (7, late)]);
    }
}
