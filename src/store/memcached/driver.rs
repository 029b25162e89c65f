//! The driver: the one owner of the coordinator. It passes messages to it, hands out its replies, keeps the connections
//! going, and ends waits that have lasted long enough.
//!
//! All of it runs on one thread: one task for each connection, and one for the rest.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{self, Instant, sleep};

use super::batch::Due;
use super::commands::Commands;
use super::connection::{Connection, Failure};
use super::coordinator::Coordinator;
use super::health::Health;
use super::mailbox::Mailboxes;
use super::pacing::{self, Departure};
use super::refusals::RefusalCache;
use super::replies::Replies;
use crate::clock::micros;
use crate::deadline::Deadline;
use crate::{clock, config};

/// How often it is checked, before the process ends, whether everything is written.
const LAST_CHECKS: Duration = Duration::from_millis(1);

/// What the driver is made of. It may be sent to the thread on which the driver is to run.
pub(super) struct Setup {
    pub(super) config: config::Memcached,
    pub(super) workers: usize,
    pub(super) mailboxes: Arc<Mailboxes>,
    pub(super) health: Arc<Health>,
    pub(super) refusals: Arc<RefusalCache>,
    /// Closed when the driver has ended, or will never begin.
    pub(super) _done: watch::Sender<()>,
}

/// However the driver ends, and if it never begins, nobody waits for it in vain.
impl Drop for Setup {
    fn drop(&mut self) {
        self.mailboxes.clear();
    }
}

/// What the tasks share.
struct Driver {
    coordinator: RefCell<Coordinator>,
    mailboxes: Arc<Mailboxes>,
    health: Arc<Health>,
    /// The longest time that a request waits.
    timeout: Duration,
    /// For each server, that an exchange may be due.
    due: Vec<Notify>,
}

impl Setup {
    /// Runs until the mailboxes are closed, and then until Memcached has all that was admitted or `timeout` has passed.
    pub(super) async fn run(self) {
        let Self { config, workers, mailboxes, health, refusals, .. } = &self;
        let driver = Rc::new(Driver {
            coordinator: RefCell::new(Coordinator::new(config, *workers, health.clone(), refusals.clone())),
            mailboxes: mailboxes.clone(),
            health: health.clone(),
            timeout: config.timeout,
            due: config.servers.iter().map(|_| Notify::new()).collect(),
        });
        // They end when this ends.
        let mut connections = JoinSet::new();
        for server in 0..config.servers.len() {
            let driver = driver.clone();
            connections.spawn_local(async move { driver.serve(server).await });
        }
        driver.run().await;
        let end = Instant::now() + config.timeout;
        while !driver.coordinator.borrow().is_settled() && Instant::now() < end {
            sleep(LAST_CHECKS).await;
            driver.on_timer();
        }
    }
}

impl Driver {
    /// Passes messages on and does what is due at a certain time, until the mailboxes are closed.
    async fn run(&self) {
        let mut timer = Deadline::now();
        let mut is_open = true;
        while is_open {
            let next = self.on_timer();
            if next.is_some_and(|next| next <= Instant::now()) {
                // The connections have their turn first.
                yield_now().await;
                continue;
            }
            next.into_iter().for_each(|next| timer.set_at(next));
            tokio::select! {
                open = self.mailboxes.woken() => is_open = open,
                () = poll_fn(|cx| timer.poll(cx)), if next.is_some() => {}
            }
        }
        self.on_timer();
    }

    /// Does what is due by now; returns when there will be more to do.
    fn on_timer(&self) -> Option<Instant> {
        self.apply(|coordinator| coordinator.on_timer(Instant::now(), clock::now()));
        // Messages that were passed on may have added to it.
        self.coordinator.borrow_mut().next_timer()
    }

    /// Changes the coordinator, passes messages to it, hands out its replies, and wakes the connections that have
    /// something to send.
    fn apply<T>(&self, change: impl FnOnce(&mut Coordinator) -> T) -> T {
        let coordinator = &mut *self.coordinator.borrow_mut();
        let before = coordinator.next_timer();
        let result = change(coordinator);
        self.pass_messages(coordinator);
        self.health.know(coordinator.keys());
        for (worker, replies) in coordinator.take_replies() {
            self.mailboxes.reply(worker, replies);
        }
        let due = self.due.iter().enumerate().filter(|(server, _)| coordinator.due(*server) != Due::Never);
        due.for_each(|(_, due)| due.notify_one());
        if coordinator.next_timer().is_some_and(|next| before.is_none_or(|before| next < before)) {
            // `run` waits for a later timer, or only for a message.
            self.mailboxes.wake();
        }
        result
    }

    fn pass_messages(&self, coordinator: &mut Coordinator) {
        for message in self.mailboxes.take(coordinator.is_busy()) {
            let deadline = message.asked() + self.timeout;
            coordinator.submit(message, deadline);
        }
    }

    /// Keeps a server connected, for ever. Requests never find out for themselves that it is away: it is known here.
    async fn serve(&self, server: usize) {
        let mut failures = 0;
        loop {
            let (failure, lasted, was_good) = match self.connect(server).await {
                Ok(connection) => {
                    self.health.up(server);
                    self.apply(|coordinator| coordinator.up(server));
                    let begun = Instant::now();
                    let (failure, was_good) = self.exchange(server, connection).await;
                    (failure, Some(begun.elapsed()), was_good)
                }
                Err(failure) => (failure, None, false),
            };
            self.down(server, &failure);
            sleep(pacing::pause(&mut failures, lasted, was_good)).await;
        }
    }

    async fn connect(&self, server: usize) -> Result<Connection, Failure> {
        let connecting = Connection::open(&self.health.servers[server].address, self.timeout);
        tokio::pin!(connecting);
        match time::timeout(self.timeout, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                // Requests that have waited for it so far need not go on.
                self.down(server, &Failure::Silent);
                connecting.await
            }
        }
    }

    /// The server is away.
    fn down(&self, server: usize, failure: &Failure) {
        self.health.down(server, failure);
        self.apply(|coordinator| coordinator.down(server));
    }

    /// Begins exchanges when they are due and passes on the replies, until something fails. Returns what has failed,
    /// and whether any exchange has succeeded before.
    async fn exchange(&self, server: usize, mut connection: Connection) -> (Failure, bool) {
        let (mut commands, mut was_good) = (Commands::default(), false);
        let (mut departure, mut timer) = (Departure::default(), Deadline::now());
        loop {
            // The coordinator is asked each time: what has begun changes what is due.
            while self.is_now(server, &mut departure) {
                self.begin(server, &mut connection, &mut commands);
            }
            departure.at().into_iter().for_each(|at| timer.set_at(at));
            let transferred = tokio::select! {
                biased;
                transferred = connection.transfer() => transferred,
                () = self.due[server].notified() => continue,
                () = poll_fn(|cx| timer.poll(cx)), if departure.at().is_some() => continue,
            };
            let passed = transferred.and_then(|()| {
                connection.take_replies(|replies, begun| {
                    self.answered(server, replies, begun)?;
                    was_good = true;
                    Ok(())
                })
            });
            if let Err(failure) = passed {
                return (failure, was_good);
            }
        }
    }

    /// Whether an exchange with this server begins now.
    fn is_now(&self, server: usize, departure: &mut Departure) -> bool {
        departure.is_now(self.coordinator.borrow().due(server), Instant::now)
    }

    /// Begins the next exchange with a server.
    fn begin(&self, server: usize, connection: &mut Connection, commands: &mut Commands) {
        let mut coordinator = self.coordinator.borrow_mut();
        if coordinator.write(server, commands) {
            connection.begin(commands);
            self.health.round_trips.one();
        }
        if coordinator.is_busy() {
            self.mailboxes.set_busy();
        }
    }

    /// Passes on the replies to an exchange that was begun then.
    ///
    /// # Errors
    /// If the server has done nothing of what it was asked.
    fn answered(&self, server: usize, replies: Replies<'_>, begun: Instant) -> Result<(), Failure> {
        let ended = Instant::now();
        self.health.latency.observe(micros(ended.saturating_duration_since(begun)));
        let good = self.apply(|coordinator| {
            // A request that has asked meanwhile for a cell that was just read needs no other read.
            self.pass_messages(coordinator);
            coordinator.answered(server, replies, (begun, ended), clock::now())
        });
        match replies.failure() {
            Some(what) if !good => return Err(Failure::Failed(what.to_owned())),
            Some(what) => self.health.failed(server, what),
            None => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {

    use tokio::runtime::{Builder, LocalOptions};
    use tokio::sync::oneshot::error::TryRecvError;
    use tokio::task::spawn_local;
    use tokio::time::timeout;

    use super::*;
    use crate::config::Role;
    use crate::fingerprint::Fingerprint;
    use crate::limit::Limit;
    use crate::store::memcached::Memcached;
    use crate::store::{Answer, Ask};

    const LONG: Duration = Duration::from_secs(30);

    /// A store whose server is never reached.
    fn store(workers: usize) -> Memcached {
        let config = config::Memcached {
            servers: vec!["127.0.0.1:1".to_owned()],
            prefix: "gw".to_owned(),
            timeout: Duration::from_millis(20),
            on_error: config::OnError::Allow,
            strict: false,
        };
        Memcached::start(&config, workers).unwrap()
    }

    fn ask(store: &Memcached) -> Answer {
        let limit = Arc::new(Limit::new("l", &["10/s".parse().unwrap()]));
        let key = Fingerprint::of(b"k");
        let ask = Ask { limit: &limit, key, need: 1, cost: 1, settles: false, role: Role::Refuses, place: 0 };
        store.decide(&[ask], clock::now(), 0)
    }

    #[tokio::test]
    async fn the_end_does_not_wait_for_a_driver_that_was_never_run() {
        let store = store(1);
        let Answer::Later(mut reply) = ask(&store) else { panic!("it is decided already") };
        store.close();
        timeout(LONG, store.ended()).await.unwrap();
        assert_eq!(reply.try_recv(), Err(TryRecvError::Closed));
        let Answer::Later(mut reply) = ask(&store) else { panic!("it is decided already") };
        assert_eq!(reply.try_recv(), Err(TryRecvError::Closed));
    }

    #[test]
    fn the_only_worker_runs_the_driver_until_it_finishes() {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let store = store(1);
            let carrying = spawn_local(store.carry(0));
            let Answer::Later(reply) = ask(&store) else { panic!("it is decided already") };
            assert!(timeout(LONG, reply).await.unwrap().is_err(), "the server is away");
            store.close();
            timeout(LONG, store.ended()).await.unwrap();
            timeout(LONG, carrying).await.unwrap().unwrap();
        });
    }

    #[tokio::test]
    async fn a_thread_of_its_own_ends_with_the_store() {
        let store = store(2);
        let (carrying, ended) = (store.carry(0), store.ended());
        drop(store);
        timeout(LONG, carrying).await.unwrap();
        timeout(LONG, ended).await.unwrap();
    }
}
