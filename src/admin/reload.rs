//! Reloads of the configuration, or of the certificates alone: how many there were and how the last ones ended, and
//! `POST /api/reload`, for which the control thread reloads while the request waits.

use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::admin::dashboard::{EndedReload, Problem, ReloadNumbers, ReloadOutcome};
use crate::base::clock::Time;
use crate::config::{Config, Problems, ReloadError};
use crate::proxy::respond::{self, LocalResponse};

/// The configuration that is now in force, or why the file is refused.
pub type ReloadResult = Result<Arc<Config>, ReloadError>;

pub type ReloadAnswer = oneshot::Sender<ReloadResult>;

pub(super) async fn reload(reloads: &mpsc::Sender<ReloadAnswer>) -> Result<Value, LocalResponse> {
    match ask(reloads, |answer| answer, "requests for a reload").await? {
        Ok(config) => Ok(json!({ "reloaded": true, "warnings": list(&config.warnings) })),
        Err(refusal) => Err(refused(&refusal)),
    }
}

/// Asks the control thread, and waits for its result. `what` are such requests, of which only so many may wait.
pub(super) async fn ask<R, T>(
    control: &mpsc::Sender<R>,
    request: impl FnOnce(oneshot::Sender<T>) -> R,
    what: &str,
) -> Result<T, LocalResponse> {
    let (answer, result) = oneshot::channel();
    let unavailable = |why: &str| respond::problem(StatusCode::SERVICE_UNAVAILABLE, why);
    if let Err(TrySendError::Full(_)) = control.try_send(request(answer)) {
        return Err(unavailable(&format!("Too many {what} are waiting already.")));
    }
    result.await.map_err(|_| unavailable("The gateway is stopping."))
}

fn refused(refusal: &ReloadError) -> LocalResponse {
    let detail = match refusal {
        ReloadError::Invalid(_) => "The file is not valid, so nothing has changed.",
        ReloadError::Other(_) => "The file is refused, so nothing has changed.",
    };
    respond::problem_with(StatusCode::UNPROCESSABLE_ENTITY, detail, &problems(refusal))
}

/// At least one.
pub(super) fn problems(refusal: &ReloadError) -> Vec<Problem> {
    match refusal {
        ReloadError::Invalid(problems) => list(problems),
        ReloadError::Other(why) => vec![problem(None, why, None)],
    }
}

fn list(problems: &Problems) -> Vec<Problem> {
    let located = problems.located();
    let located = located.map(|(place, found)| problem(Some(place), &found.message, found.help.as_deref()));
    let hidden = problems.hidden();
    let more = (hidden > 0).then(|| problem(None, &format!("and {hidden} more"), None));
    located.chain(more).collect()
}

pub(super) fn problem(place: Option<String>, message: &str, help: Option<&str>) -> Problem {
    Problem { place, message: message.to_owned(), help: help.map(str::to_owned) }
}

const REMEMBERED: usize = 10;
/// In characters. A problem may quote text of the file.
const MAX_CHARS: usize = 500;

/// Shared between the thread that reloads and those that read.
#[derive(Debug)]
pub struct RecentReloads(Mutex<Recent>);

#[derive(Debug)]
struct Recent {
    numbers: ReloadNumbers,
    /// When what is in force came into force.
    last_success: Time,
    /// All problems of the present files; none if they are in force.
    problems: Vec<Problem>,
}

impl RecentReloads {
    /// What was read at the start is in force since `now`.
    pub fn new(now: Time) -> Self {
        let numbers = ReloadNumbers { ok: 0, refused: 0, current: true, recent: Vec::new() };
        Self(Mutex::new(Recent { numbers, last_success: now, problems: Vec::new() }))
    }

    pub fn succeeded(&self, now: Time) {
        let mut recent = self.0.lock();
        recent.numbers.ok += 1;
        recent.last_success = now;
        recent.remember(now, Vec::new());
    }

    /// The refused files are gone, and the present ones are in force already. Returns whether something was refused.
    pub fn recovered(&self) -> bool {
        let mut recent = self.0.lock();
        recent.problems.clear();
        !std::mem::replace(&mut recent.numbers.current, true)
    }

    pub fn refused(&self, now: Time, why: &ReloadError) {
        let shorten = |Problem { place, message, help }| Problem {
            place: place.map(shortened),
            message: shortened(message),
            help: help.map(shortened),
        };
        let problems = problems(why).into_iter().map(shorten).collect();
        let mut recent = self.0.lock();
        recent.numbers.refused += 1;
        recent.remember(now, problems);
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        self.0.lock().problems.clone()
    }

    pub(super) fn last_success(&self) -> Time {
        self.0.lock().last_success
    }

    pub(super) fn numbers(&self) -> ReloadNumbers {
        self.0.lock().numbers.clone()
    }
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
    }
    text
}

impl Recent {
    /// Without `problems`, the reload has succeeded.
    fn remember(&mut self, now: Time, problems: Vec<Problem>) {
        let (time, problem) = (now.seconds(), problems.first().cloned());
        let result = if problem.is_none() { ReloadOutcome::Ok } else { ReloadOutcome::Refused };
        self.numbers.current = problem.is_none();
        self.numbers.recent.truncate(REMEMBERED - 1);
        self.numbers.recent.insert(0, EndedReload { time, result, problem });
        self.problems = problems;
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
        let shown = reloads.numbers();
        assert_eq!((shown.ok, shown.refused, shown.recent.len()), (20, 1, REMEMBERED));
        let [last, before, ..] = &shown.recent[..] else { panic!("{shown:?}") };
        assert_eq!((last.time, last.result), (21, ReloadOutcome::Refused));
        assert_eq!(last.problem.as_ref().unwrap().message.chars().count(), MAX_CHARS);
        assert_eq!(reloads.problems().len(), 1);
        assert_eq!((before.time, before.result, &before.problem), (20, ReloadOutcome::Ok, &None));
        reloads.succeeded(Time::from_micros(22_000_000));
        assert_eq!(reloads.problems(), []);
        assert!(!reloads.recovered());
        reloads.refused(Time::from_micros(23_000_000), &"away".to_owned().into());
        assert!(!reloads.numbers().current && reloads.recovered() && reloads.problems().is_empty());
        let shown = reloads.numbers();
        assert_eq!((shown.ok, shown.current, shown.recent[0].result), (21, true, ReloadOutcome::Refused));
    }
}
