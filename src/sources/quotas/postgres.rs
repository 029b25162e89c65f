//! Quotas from PostgreSQL: a row for each key, over one connection, on which changes are also announced.
//!
//! [`Postgres::run`] stays connected. Without a session, lookups fail at once, with the reason.

mod answer;
mod session;
mod transport;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::session::Session;
use super::{LookupError, QuotaAnswer, QuotaChange};
use crate::base::back_off::{BackOff, jittered};
use crate::config::PostgresSettings;

/// Pauses before connecting again. If a session lasted longer than the longest pause, its end counts as the first failure.
const PAUSES: BackOff = BackOff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// How often the same failure is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

pub struct Postgres {
    settings: PostgresSettings,
    changes: Box<dyn Fn(QuotaChange)>,
    /// The session, or why there is none; `None` before the first attempt has ended.
    state: watch::Sender<Option<Result<Rc<Session>, String>>>,
    /// What was logged last, and when.
    logged: RefCell<Option<(String, Instant)>>,
}

impl Postgres {
    /// [`Self::run`] connects. `changes` is called for what the database announces.
    pub fn new(settings: &PostgresSettings, changes: impl Fn(QuotaChange) + 'static) -> Self {
        let (state, logged) = Default::default();
        Self { settings: settings.clone(), changes: Box::new(changes), state, logged }
    }

    /// Stays connected, with growing pauses, and listens. Never returns; runs concurrently with [`Self::look_up`].
    pub async fn run(&self) {
        let (mut failures, mut was_connected) = (0_u32, false);
        loop {
            let mut connected_at = None;
            let why = match session::open(&self.settings, &self.changes).await {
                Ok(opened) => {
                    connected_at = Some(Instant::now());
                    self.state.send_replace(Some(Ok(opened.session.clone())));
                    tracing::info!(server = %self.settings.url, "connected to PostgreSQL for quotas");
                    *self.logged.borrow_mut() = None;
                    // Changes in the meantime were not announced.
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
            self.state.send_replace(Some(Err(why)));
            let was_stable = connected_at.is_some_and(|at| at.elapsed() > PAUSES.longest);
            failures = if was_stable { 1 } else { failures.saturating_add(1) };
            // With jitter, so gateways do not connect all at once.
            sleep(jittered(PAUSES.pause(failures), 0.5)).await;
        }
    }

    /// `None` if the key has no row, or one without any quota. Concurrent calls are pipelined over one connection. Dropping a
    /// call is safe. Fails when there is no answer, or one that cannot be used.
    pub async fn look_up(&self, key: &str) -> Result<Option<QuotaAnswer>, LookupError> {
        // PostgreSQL stores no text with a NUL, so there is no such row.
        if key.contains('\0') {
            return Ok(None);
        }
        let mut states = self.state.subscribe();
        let state = states.wait_for(Option::is_some).await.ok().and_then(|state| state.clone());
        match state {
            Some(Ok(session)) => session.look_up(key).await,
            Some(Err(why)) => Err(LookupError::Away(why)),
            None => Err(LookupError::Away("it is not connected".to_owned())),
        }
    }

    /// Logs the same failure at most once in [`LOG_EVERY`].
    fn log(&self, why: &str, message: &str) {
        let mut logged = self.logged.borrow_mut();
        if logged.as_ref().is_none_or(|(last, at)| last != why || at.elapsed() > LOG_EVERY) {
            tracing::warn!(server = %self.settings.url, error = why, "{message}");
            *logged = Some((why.to_owned(), Instant::now()));
        }
    }
}
