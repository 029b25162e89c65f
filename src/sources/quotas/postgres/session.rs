//! A session with PostgreSQL: one connection, on which the query is prepared once and lookups are pipelined.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Error, NoTls, Statement};

use super::answer::{self, Columns};
use super::transport::{self, Transport, Watched};
use crate::config::PostgresSettings;
use crate::sources::quotas::{LookupError, QuotaAnswer, QuotaChange};

/// The longest time from the first packet to a usable session.
pub(super) const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// The maximum number of lookups without an answer. Others wait, since the library has no limit.
pub(super) const MOST_IN_FLIGHT: usize = 128;

/// How long a server may be silent while a lookup is in flight. A server that only waits for a lock answers sooner, since its
/// statements have a time limit.
const SILENCE_LIMIT: Duration = Duration::from_secs(3);

/// After this time without traffic, the server is probed.
const PROBE_AFTER: Duration = Duration::from_secs(5);

/// How often both limits are checked, and a refused query is prepared again.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The half of a connection that reads and writes.
type Wire = tokio_postgres::Connection<Watched<Box<dyn Transport>>, NoTlsStream>;

/// The query as the server has prepared it.
struct Prepared {
    statement: Statement,
    columns: Columns,
}

pub(super) struct Session {
    client: Arc<Client>,
    query: String,
    /// The error is why the server refuses the query.
    prepared: RefCell<Result<Arc<Prepared>, String>>,
    places: Arc<Semaphore>,
    /// When the first of the lookups in flight was sent.
    busy_since: Cell<Instant>,
    /// When the server last sent something.
    heard: Rc<Cell<Instant>>,
}

/// A new session, and its connection, which [`Self::run`] drives.
pub(super) struct Opened {
    pub(super) session: Rc<Session>,
    wire: Wire,
}

/// Connects to the first server of the URL that accepts a session, and listens on the channel, if there is one. The error says
/// why none of them does: a message for people.
pub(super) async fn open(settings: &PostgresSettings, changes: &dyn Fn(QuotaChange)) -> Result<Opened, String> {
    let mut failures = Vec::new();
    for (host, port) in settings.url.servers() {
        let why = match timeout(OPEN_LIMIT, open_at(settings, host, port, changes)).await {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(why)) => why,
            Err(_) => format!("it does not answer within {}", humantime::format_duration(OPEN_LIMIT)),
        };
        failures.push(match host {
            Host::Tcp(name) => format!("{name}:{port}: {why}"),
            Host::Unix(folder) => format!("{}:{port}: {why}", folder.display()),
        });
    }
    Err(failures.join("; "))
}

async fn open_at(
    settings: &PostgresSettings,
    host: &Host,
    port: u16,
    changes: &dyn Fn(QuotaChange),
) -> Result<Opened, String> {
    let stream = transport::connect(host, port, settings.url.tls, settings.tls.as_ref()).await;
    let (stream, heard) = Watched::new(stream.map_err(|error| error.to_string())?);
    // TLS is already in `stream`.
    let mut config = (*settings.url.config).clone();
    config.ssl_mode(SslMode::Disable);
    let (client, mut wire) = config.connect_raw(stream, NoTls).await.map_err(|error| answer::describe(&error))?;
    let set_up = async {
        if let Some(channel) = &settings.channel {
            // The configuration accepts no names with quotes.
            client.batch_execute(&format!("LISTEN \"{channel}\"")).await.map_err(|error| answer::describe(&error))?;
        }
        match prepare(&client, &settings.query).await {
            Ok(prepared) => Ok(Ok(Arc::new(prepared))),
            Err(LookupError::Unusable(why)) => Ok(Err(why)),
            Err(LookupError::Away(why) | LookupError::Unanswered(why)) => Err(why),
        }
    };
    let prepared = tokio::select! {
        prepared = set_up => prepared?,
        why = drive(&mut wire, changes) => return Err(why),
    };
    let session = Session {
        client: Arc::new(client),
        query: settings.query.clone(),
        prepared: RefCell::new(prepared),
        places: Arc::new(Semaphore::new(MOST_IN_FLIGHT)),
        busy_since: Cell::new(Instant::now()),
        heard,
    };
    Ok(Opened { session: Rc::new(session), wire })
}

impl Opened {
    /// Drives the connection until it ends, and returns why. `refused` is called with the reason while the server refuses the
    /// query.
    pub(super) async fn run(mut self, changes: &dyn Fn(QuotaChange), refused: &dyn Fn(&str)) -> String {
        tokio::select! {
            // Data that has arrived must be read before the server counts as silent.
            biased;
            why = drive(&mut self.wire, changes) => why,
            why = self.session.watch(changes, refused) => why,
        }
    }
}

/// Reads and writes, and passes announcements on.
async fn drive(wire: &mut Wire, changes: &dyn Fn(QuotaChange)) -> String {
    loop {
        match poll_fn(|cx| wire.poll_message(cx)).await {
            None => return "the connection was closed".to_owned(),
            Some(Err(error)) => return answer::describe(&error),
            Some(Ok(AsyncMessage::Notification(announced))) => changes(match announced.payload() {
                "" => QuotaChange::Any,
                key => QuotaChange::Key(key.to_owned()),
            }),
            Some(Ok(_)) => {}
        }
    }
}

async fn prepare(client: &Client, query: &str) -> Result<Prepared, LookupError> {
    let statement = client.prepare_typed(query, &[Type::TEXT]).await.map_err(|error| answer::of_query(&error))?;
    let parameters = statement.params().len();
    if parameters != 1 {
        let why = format!("the query has {parameters} parameters, and only $1 has a value");
        return Err(LookupError::Unusable(why));
    }
    let columns = Columns::find(statement.columns()).map_err(LookupError::Unusable)?;
    Ok(Prepared { statement, columns })
}

enum Asked {
    Answered(Result<Option<QuotaAnswer>, LookupError>),
    /// The query must be prepared again.
    Outdated(String),
}

impl Session {
    /// Dropping this future is safe: the answer is still read. Fails when there is none, or one that cannot be used.
    pub(super) async fn look_up(&self, key: &str) -> Result<Option<QuotaAnswer>, LookupError> {
        let prepared = self.prepared.borrow().clone().map_err(LookupError::Unusable)?;
        match self.ask(&prepared, key).await? {
            Asked::Answered(answer) => return answer,
            Asked::Outdated(_) => self.prepare_again(&prepared).await?,
        }
        let prepared = self.prepared.borrow().clone().map_err(LookupError::Unusable)?;
        match self.ask(&prepared, key).await? {
            Asked::Answered(answer) => answer,
            Asked::Outdated(why) => Err(LookupError::Unusable(why)),
        }
    }

    async fn ask(&self, prepared: &Arc<Prepared>, key: &str) -> Result<Asked, LookupError> {
        let place = self.place().await?;
        let (client, prepared, key) = (self.client.clone(), prepared.clone(), key.to_owned());
        let (sender, answer) = oneshot::channel();
        // A task of its own keeps the place until the answer is there, even if nobody waits any longer. The task ends at the
        // latest with the connection.
        tokio::spawn(async move {
            let asked = prepared.ask(&client, &key).await;
            drop(place);
            // Perhaps nobody waits any longer.
            let _ = sender.send(asked);
        });
        answer.await.map_err(|_| LookupError::Away("the connection was closed".to_owned()))
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, LookupError> {
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(|_| LookupError::Away("the connection was closed".to_owned()))?;
        if self.places.available_permits() + 1 == MOST_IN_FLIGHT {
            self.busy_since.set(Instant::now());
        }
        Ok(place)
    }

    /// Prepares the query again, unless that was done since `outdated` was in use.
    async fn prepare_again(&self, outdated: &Arc<Prepared>) -> Result<(), LookupError> {
        let is_current =
            |current: &Result<Arc<Prepared>, _>| current.as_ref().is_ok_and(|current| !Arc::ptr_eq(current, outdated));
        if is_current(&self.prepared.borrow()) {
            return Ok(());
        }
        let _place = self.place().await?;
        let prepared = prepare(&self.client, &self.query).await?;
        *self.prepared.borrow_mut() = Ok(Arc::new(prepared));
        Ok(())
    }

    /// Returns when the server has been silent for too long. Probes the server if there is no other traffic. Prepares a
    /// refused query again until the server accepts it.
    async fn watch(&self, changes: &dyn Fn(QuotaChange), refused: &dyn Fn(&str)) -> String {
        let mut checks = interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut probes = JoinSet::new();
        loop {
            checks.tick().await;
            while probes.try_join_next().is_some() {}
            let is_idle = self.places.available_permits() == MOST_IN_FLIGHT;
            let quiet = self.heard.get().elapsed();
            if !is_idle && quiet.min(self.busy_since.get().elapsed()) > SILENCE_LIMIT {
                return format!("it has sent nothing for {}", humantime::format_duration(SILENCE_LIMIT));
            }
            if is_idle && quiet > PROBE_AFTER {
                let Ok(place) = self.place().await else { continue };
                let client = self.client.clone();
                probes.spawn(async move {
                    // The answer is noticed where bytes are read.
                    let _ = client.batch_execute("").await;
                    drop(place);
                });
            }
            let refusal = self.prepared.borrow().as_ref().err().cloned();
            if let Some(why) = refusal {
                refused(&why);
                self.prepare_refused(changes).await;
            }
        }
    }

    async fn prepare_refused(&self, changes: &dyn Fn(QuotaChange)) {
        let Ok(_place) = self.place().await else { return };
        match timeout(SILENCE_LIMIT, prepare(&self.client, &self.query)).await {
            Ok(Ok(prepared)) => {
                *self.prepared.borrow_mut() = Ok(Arc::new(prepared));
                // Lookups in the meantime have no answer.
                changes(QuotaChange::Any);
            }
            Ok(Err(LookupError::Unusable(why))) => *self.prepared.borrow_mut() = Err(why),
            // The next check finds out whether the server is still there.
            Ok(Err(LookupError::Away(_) | LookupError::Unanswered(_))) | Err(_) => {}
        }
    }
}

impl Prepared {
    async fn ask(&self, client: &Client, key: &str) -> Asked {
        let read = async {
            let mut rows = pin!(client.query_raw(&self.statement, [key]).await?);
            let (mut first, mut count) = (None, 0_u64);
            // Rows after the first are read too, since later lookups wait for them.
            while let Some(row) = rows.try_next().await? {
                count += 1;
                first.get_or_insert(row);
            }
            Ok::<_, Error>((first, count))
        };
        Asked::Answered(match read.await {
            Ok((Some(row), 1)) => self.columns.read(&row),
            Ok((None, _)) => Ok(None),
            Ok((Some(_), count)) => Err(LookupError::Unusable(format!("the query returns {count} rows"))),
            Err(error) if answer::is_outdated(&error) => return Asked::Outdated(answer::describe(&error)),
            Err(error) => Err(answer::of_query(&error)),
        })
    }
}
