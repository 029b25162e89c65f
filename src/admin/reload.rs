//! `POST /api/reload`: the control thread reloads, and the request waits for its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::clock::{self, Time};
use crate::config::{Config, Problems, Refusal};
use crate::metrics::Counter;
use crate::respond::{self, LocalResponse};

/// The result of a reload: the configuration that is in force now, or why the file is refused.
pub type ReloadResult = Result<Arc<Config>, Refusal>;

/// How reloads have ended. Only the control thread adds to it.
#[derive(Debug)]
pub struct ReloadCounts {
    succeeded: Counter,
    refused: Counter,
    is_last_good: AtomicBool,
    /// When a configuration was put in force last, in microseconds.
    last_success: AtomicU64,
}

impl ReloadCounts {
    /// Of a process whose first configuration was put in force just now.
    pub fn begin() -> Self {
        let (succeeded, refused) = (Counter::default(), Counter::default());
        let last_success = AtomicU64::new(clock::now().micros());
        Self { succeeded, refused, is_last_good: AtomicBool::new(true), last_success }
    }

    /// Counts a configuration that was put in force.
    pub fn succeed(&self) {
        self.succeeded.one();
        self.last_success.store(clock::now().micros(), Ordering::Relaxed);
        self.is_last_good.store(true, Ordering::Relaxed);
    }

    /// Counts a configuration that was refused.
    pub fn refuse(&self) {
        self.refused.one();
        self.is_last_good.store(false, Ordering::Relaxed);
    }

    /// How many reloads have succeeded.
    pub fn succeeded(&self) -> u64 {
        self.succeeded.get()
    }

    /// How many reloads were refused.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Whether the last reload has succeeded, or there was none.
    pub fn is_last_good(&self) -> bool {
        self.is_last_good.load(Ordering::Relaxed)
    }

    /// When the configuration in force was put in force.
    pub fn last_success(&self) -> Time {
        Time::from_micros(self.last_success.load(Ordering::Relaxed))
    }
}

/// Where a request for a reload gets its result.
pub type ReloadAnswer = oneshot::Sender<ReloadResult>;

/// The most requests for a reload that wait for the control thread.
const MAX_WAITING: usize = 32;

/// What asks the control thread to reload, and what the control thread reads.
pub fn channel() -> (mpsc::Sender<ReloadAnswer>, mpsc::Receiver<ReloadAnswer>) {
    mpsc::channel(MAX_WAITING)
}

/// Reloads and waits for the result.
pub(super) async fn reload(reloads: &mpsc::Sender<ReloadAnswer>) -> LocalResponse {
    let (answer, result) = oneshot::channel();
    if let Err(TrySendError::Full(_)) = reloads.try_send(answer) {
        return respond::problem(StatusCode::SERVICE_UNAVAILABLE, "Too many requests for a reload wait already.");
    }
    match result.await {
        Ok(Ok(config)) => super::json(&json!({ "reloaded": true, "warnings": list(&config.warnings) })),
        Ok(Err(refusal)) => refused(&refusal),
        Err(_) => respond::problem(StatusCode::SERVICE_UNAVAILABLE, "The gateway is stopping."),
    }
}

/// The problem document of a refused file, with all its problems.
fn refused(refusal: &Refusal) -> LocalResponse {
    let (detail, problems) = match refusal {
        Refusal::Invalid(problems) => ("The file is not valid, so nothing has changed.", list(problems)),
        Refusal::Other(why) => ("The file is refused, so nothing has changed.", vec![problem(None, why, None)]),
    };
    respond::problem_with(StatusCode::UNPROCESSABLE_ENTITY, detail, &problems)
}

fn list(problems: &Problems) -> Vec<Value> {
    let located = problems.located();
    let located = located.map(|(place, found)| problem(Some(&place), &found.message, found.help.as_deref()));
    let hidden = problems.hidden();
    let more = (hidden > 0).then(|| problem(None, &format!("and {hidden} more"), None));
    located.chain(more).collect()
}

/// One problem of a file or a body.
pub(super) fn problem(place: Option<&str>, message: &str, help: Option<&str>) -> Value {
    json!({ "place": place, "message": message, "help": help })
}
