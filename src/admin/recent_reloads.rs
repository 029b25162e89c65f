//! The reloads of the configuration: how many there were, and how the last ones ended.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::reload::problems;
use crate::clock::Time;
use crate::config::Refusal;

/// How many reloads are remembered.
const REMEMBERED: usize = 10;
/// The most characters of a problem that are remembered. A text of the file may be part of it.
const MAX_CHARS: usize = 500;

/// See the head of this file.
#[derive(Debug)]
pub struct RecentReloads(Mutex<Counted>);

#[derive(Debug)]
struct Counted {
    succeeded: u64,
    refused: u64,
    /// When the configuration in force was put in force.
    last_success: Time,
    /// The last ones, the latest first.
    last: VecDeque<EndedReload>,
}

/// How a reload ended.
#[derive(Debug)]
struct EndedReload {
    at: Time,
    /// The first problem; `None` if it succeeded.
    problem: Option<Value>,
}

impl RecentReloads {
    /// None yet. The first configuration is in force since `now`.
    pub fn new(now: Time) -> Self {
        Self(Mutex::new(Counted { succeeded: 0, refused: 0, last_success: now, last: VecDeque::new() }))
    }

    /// A configuration is in force since `now`.
    pub fn succeeded(&self, now: Time) {
        let mut counted = self.0.lock();
        counted.succeeded += 1;
        counted.last_success = now;
        counted.remember(EndedReload { at: now, problem: None });
    }

    /// A configuration was refused at `now`.
    pub fn refused(&self, now: Time, why: &Refusal) {
        let mut problem = problems(why).into_iter().next().unwrap_or_default();
        for text in problem.as_object_mut().into_iter().flat_map(|fields| fields.values_mut()) {
            if let Value::String(text) = text
                && let Some((end, _)) = text.char_indices().nth(MAX_CHARS)
            {
                text.truncate(end);
            }
        }
        let mut counted = self.0.lock();
        counted.refused += 1;
        counted.remember(EndedReload { at: now, problem: Some(problem) });
    }

    /// How many have succeeded, and how many were refused.
    pub(super) fn counts(&self) -> (u64, u64) {
        let counted = self.0.lock();
        (counted.succeeded, counted.refused)
    }

    /// Whether the last one has succeeded, or there was none.
    pub(super) fn is_last_good(&self) -> bool {
        self.0.lock().last.front().is_none_or(|last| last.problem.is_none())
    }

    /// When the configuration in force was put in force.
    pub(super) fn last_success(&self) -> Time {
        self.0.lock().last_success
    }

    /// The last ones as JSON, the latest first.
    pub(super) fn describe(&self) -> Value {
        let describe = |reload: &EndedReload| {
            let result = if reload.problem.is_none() { "ok" } else { "refused" };
            json!({ "time": reload.at.seconds(), "result": result, "problem": reload.problem })
        };
        let counted = self.0.lock();
        json!({
            "ok": counted.succeeded,
            "refused": counted.refused,
            "recent": counted.last.iter().map(describe).collect::<Vec<_>>(),
        })
    }
}

impl Counted {
    fn remember(&mut self, reload: EndedReload) {
        self.last.truncate(REMEMBERED - 1);
        self.last.push_front(reload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered_with_their_first_problem() {
        let reloads = RecentReloads::new(Time::from_micros(0));
        for second in 1..=20 {
            reloads.succeeded(Time::from_micros(second * 1_000_000));
        }
        reloads.refused(Time::from_micros(21_000_000), &"é".repeat(10_000).into());
        let shown = reloads.describe();
        assert_eq!((shown["ok"].as_u64(), shown["refused"].as_u64()), (Some(20), Some(1)));
        let recent = shown["recent"].as_array().unwrap();
        assert_eq!(recent.len(), REMEMBERED);
        assert_eq!((&recent[0]["time"], &recent[0]["result"]), (&json!(21), &json!("refused")));
        assert_eq!(recent[0]["problem"]["message"].as_str().unwrap().chars().count(), MAX_CHARS);
        assert_eq!((&recent[1]["time"], &recent[1]["problem"]), (&json!(20), &Value::Null));
    }
}
