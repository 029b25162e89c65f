//! `POST /api/reload`: the control thread reloads, and the request waits for its result.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::admin::dashboard::Problem;
use crate::config::{Config, Problems, ReloadError};
use crate::proxy::respond::{self, LocalResponse};

/// The configuration that is now in force, or why the file is refused.
pub type ReloadResult = Result<Arc<Config>, ReloadError>;

pub type ReloadAnswer = oneshot::Sender<ReloadResult>;

/// Requests that wait for the control thread.
const MAX_WAITING: usize = 32;

pub fn channel() -> (mpsc::Sender<ReloadAnswer>, mpsc::Receiver<ReloadAnswer>) {
    mpsc::channel(MAX_WAITING)
}

pub(super) async fn reload(reloads: &mpsc::Sender<ReloadAnswer>) -> LocalResponse {
    let (answer, result) = oneshot::channel();
    if let Err(TrySendError::Full(_)) = reloads.try_send(answer) {
        return respond::problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many requests for a reload are waiting already.",
        );
    }
    match result.await {
        Ok(Ok(config)) => super::json(&json!({ "reloaded": true, "warnings": list(&config.warnings) })),
        Ok(Err(refusal)) => refused(&refusal),
        Err(_) => respond::problem(StatusCode::SERVICE_UNAVAILABLE, "The gateway is stopping."),
    }
}

fn refused(refusal: &ReloadError) -> LocalResponse {
    let detail = match refusal {
        ReloadError::Invalid(_) => "The file is not valid, so nothing has changed.",
        ReloadError::Other(_) => "The file is refused, so nothing has changed.",
    };
    respond::problem_with(StatusCode::UNPROCESSABLE_ENTITY, detail, &as_json(problems(refusal)))
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

pub(super) fn as_json(problems: impl IntoIterator<Item = Problem>) -> Vec<Value> {
    problems.into_iter().map(|problem| json!(problem)).collect()
}
