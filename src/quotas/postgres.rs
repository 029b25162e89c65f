//! Quotas from PostgreSQL: a row for each key, over one connection, on which changes are announced too.
//!
//! [`Postgres::run`] keeps connected. While there is no session, lookups are told at once that the database is away.

mod columns;
mod failure;
mod session;
mod transport;
mod watched;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::session::Session;
use super::{LookupError, QuotaAnswer, QuotaChange};
use crate::config::PostgresSettings;

/// How long the first pause is before connecting again. It doubles with each failure, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause. A session that lasted longer was no failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often the same failure is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A PostgreSQL database that is asked for quotas.
pub struct Postgres {
    settings: PostgresSettings,
    changes: Box<dyn Fn(QuotaChange)>,
    state: watch::Sender<State>,
    /// What was logged last, and when.
    logged: RefCell<Option<(String, Instant)>>,
}

/// Whether the database can be asked.
#[derive(Clone)]
enum State {
    /// It was not tried yet.
    Connecting,
    Connected(Rc<Session>),
    /// Why it cannot.
    Away(String),
}

impl Postgres {
    /// A database that [`Self::run`] connects to. `changes` is told what it announces.
    pub fn new(settings: &PostgresSettings, changes: impl Fn(QuotaChange) + 'static) -> Self {
        let state = watch::Sender::new(State::Connecting);
        Self { settings: settings.clone(), changes: Box::new(changes), state, logged: RefCell::default() }
    }

    /// Keeps connected, with pauses that grow, and listens. It never returns, and runs beside [`Self::look_up`].
    pub async fn run(&self) {
        let (mut failures, mut was_connected) = (0_u32, false);
        loop {
            let mut connected_at = None;
            let why = match session::open(&self.settings, &self.changes).await {
                Ok(opened) => {
                    connected_at = Some(Instant::now());
                    self.state.send_replace(State::Connected(opened.session.clone()));
                    tracing::info!(server = %self.settings.url, "connected to PostgreSQL for quotas");
                    *self.logged.borrow_mut() = None;
                    // Nobody has told what changed meanwhile.
                    if was_connected && self.settings.channel.is_some() {
                        (self.changes)(QuotaChange::Any);
                    }
                    was_connected = true;
                    let refused = |why: &str| self.log(why, "PostgreSQL refuses the query for quotas");
                    opened.run(&self.changes, &refused).await
                }
                Err(why) => why,
            };
            self.log(&why, "PostgreSQL cannot be asked for quotas");
            self.state.send_replace(State::Away(why));
            let was_stable = connected_at.is_some_and(|at| at.elapsed() > LONGEST_PAUSE);
            failures = if was_stable { 0 } else { failures.saturating_add(1) };
            sleep(pause(failures)).await;
        }
    }

    /// What the database says about a key; `None` if it has no row, or one that says nothing. Concurrent calls are
    /// pipelined over one connection. A call that is dropped does no harm.
    ///
    /// # Errors
    /// When there is no answer, or one that cannot be used.
    pub async fn look_up(&self, key: &str) -> Result<Option<QuotaAnswer>, LookupError> {
        // No text in PostgreSQL has a NUL in it, so there is no such row.
        if key.contains('\0') {
            return Ok(None);
        }
        let mut states = self.state.subscribe();
        let tried = states.wait_for(|state| !matches!(state, State::Connecting)).await;
        let state = tried.map_or(State::Connecting, |state| state.clone());
        match state {
            State::Connected(session) => session.look_up(key).await,
            State::Away(why) => Err(LookupError::Away(why)),
            State::Connecting => Err(LookupError::Away("it is not connected".to_owned())),
        }
    }

    /// Logs a failure, the same one once in [`LOG_EVERY`].
    fn log(&self, why: &str, message: &str) {
        let mut logged = self.logged.borrow_mut();
        if logged.as_ref().is_none_or(|(last, at)| last != why || at.elapsed() > LOG_EVERY) {
            tracing::warn!(server = %self.settings.url, error = why, "{message}");
            *logged = Some((why.to_owned(), Instant::now()));
        }
    }
}

/// How long to wait after so many failures: half of it is random, so that gateways do not connect all at once.
fn pause(failures: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE);
    longest.mul_f64(1.0 - fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        for (failures, longest) in [(0, 100), (1, 200), (5, 3200), (6, 5000), (u32::MAX, 5000)] {
            let longest = Duration::from_millis(longest);
            let pauses: Vec<_> = (0..100).map(|_| pause(failures)).collect();
            assert!(pauses.iter().all(|pause| (longest / 2..=longest).contains(pause)), "{failures}: {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{failures}: always the same");
        }
    }
}
