//! When a source that is a server is asked again, and what is known about its last answer.
//!
//! A poll is a reload that may find nothing new, so at most one of both runs, and both have the same time limit. A text that
//! is in force is not parsed again. A refused text is parsed at each poll, because files that it names may exist by now.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::reload::Cause;
use crate::config::ReloadError;

pub(super) struct Polls {
    /// The interval, and when the next poll is due. `None` without polls.
    schedule: Option<(Duration, Instant)>,
    pub(super) cause: Cause,
    pub(super) last_refusal: Option<ReloadError>,
}

impl Polls {
    pub(super) fn new(every: Option<Duration>, last_refusal: Option<ReloadError>) -> Self {
        let schedule = every.map(|every| (every, Instant::now() + every));
        Self { schedule, cause: Cause::Asked, last_refusal }
    }

    /// Returns when the next poll is due. Without polls it waits for ever.
    pub(super) async fn due(&mut self) {
        match &mut self.schedule {
            Some((every, next)) => {
                sleep_until(*next).await;
                *next = Instant::now() + *every;
            }
            None => pending().await,
        }
    }

    /// Whether to report a refusal: a poll does not repeat what was already reported.
    pub(super) fn is_new(&mut self, cause: Cause, why: &ReloadError) -> bool {
        let is_known = cause == Cause::Poll && self.last_refusal.as_ref() == Some(why);
        self.last_refusal = Some(why.clone());
        !is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_poll_says_once_that_something_is_refused() {
        let mut polls = Polls::new(None, None);
        let refusals = ["a", "b"].map(|why| ReloadError::from(why.to_owned()));
        let mut told = |cause, index: usize| polls.is_new(cause, &refusals[index]);
        let poll = [
            (Cause::Poll, 0),
            (Cause::Poll, 0),
            (Cause::Asked, 0),
            (Cause::Poll, 0),
            (Cause::Poll, 1),
            (Cause::Poll, 0),
        ];
        assert_eq!(poll.map(|(cause, index)| told(cause, index)), [true, false, true, false, true, true]);
    }
}
