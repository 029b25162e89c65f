//! The driver owns the engine: it provides the time and the connections to the servers, passes bytes between them and the
//! engine, and hands out replies. All of it runs on one thread: one task for each connection, and one for the rest.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::Common;
use super::connection::Connection;
use super::engine::{Engine, Output};
use super::health;
use super::protocol::Protocol;
use super::slots::SlotMap;
use crate::base::clock;
use crate::base::deadline::Deadline;
use crate::config;

/// How often to check, before the process ends, whether everything is written.
const LAST_CHECKS: Duration = Duration::from_millis(1);
/// The longest time that a server may take to say where the slots are, and the time until one is asked again.
const NEXT_SLOTS: Duration = Duration::from_secs(1);

/// The parts of the driver. They may be sent to the thread on which the driver will run.
pub(super) struct Setup {
    pub(super) config: config::SharedStore,
    pub(super) protocol: Arc<dyn Protocol>,
    pub(super) common: Common,
    /// Closed when the driver has ended, or will never begin.
    pub(super) _done: watch::Sender<()>,
}

/// However the driver ends, even if it never begins, nobody waits for it in vain.
impl Drop for Setup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.common.health.lose_all();
        }
        self.common.mailboxes.clear();
    }
}

struct Driver {
    engine: RefCell<Engine>,
    protocol: Arc<dyn Protocol>,
    common: Common,
    /// For each server: wakes the task of its connection.
    outputs: RefCell<Vec<Rc<Notify>>>,
}

impl Setup {
    /// Runs until the mailboxes are closed, and then until the servers have all admissions or `timeout` has passed.
    pub(super) async fn run(self) {
        let Self { config, protocol, common, .. } = &self;
        let engine = Engine::new(config, &**protocol, common.clone(), Instant::now());
        let (engine, outputs) = (RefCell::new(engine), RefCell::default());
        let driver = Rc::new(Driver { engine, protocol: protocol.clone(), common: common.clone(), outputs });
        // Dropping the set ends the tasks.
        let mut tasks = JoinSet::new();
        driver.serve_all(&mut tasks);
        let watching = driver.clone();
        tasks.spawn_local(async move { health::watch(&*watching.protocol, &watching.common.health).await });
        if let Some(slots) = protocol.slot_map() {
            let (driver, nodes) = (driver.clone(), config.servers.clone());
            tasks.spawn_local(async move { driver.follow_slots(&slots, &nodes).await });
        }
        driver.run().await;
        let end = Instant::now() + config.timeout;
        while !driver.engine.borrow().is_written() && Instant::now() < end {
            sleep(LAST_CHECKS).await;
            driver.wake();
        }
    }
}

impl Driver {
    async fn run(&self) {
        let mut timer = Deadline::now();
        let mut is_open = true;
        while is_open {
            let next = self.wake();
            if next.is_some_and(|next| next <= Instant::now()) {
                // Let the connections run first.
                yield_now().await;
                continue;
            }
            next.into_iter().for_each(|next| timer.set_at(next));
            tokio::select! {
                open = self.common.mailboxes.woken() => is_open = open,
                () = poll_fn(|cx| timer.poll(cx)), if next.is_some() => {}
            }
        }
        self.wake();
    }

    /// Does what is due by now; returns when it must be called next.
    fn wake(&self) -> Option<Instant> {
        self.apply(|engine| engine.wake(Instant::now(), clock::now()));
        self.engine.borrow_mut().next_wake()
    }

    /// Tells the engine something, hands out its replies, and wakes the tasks of connections that have outputs.
    fn apply<T>(&self, tell: impl FnOnce(&mut Engine) -> T) -> T {
        let engine = &mut *self.engine.borrow_mut();
        let before = engine.next_wake();
        let result = tell(engine);
        for (worker, replies) in engine.take_replies() {
            self.common.mailboxes.reply(worker, replies);
        }
        let outputs = self.outputs.borrow();
        let concerned = outputs.iter().enumerate().filter(|(server, _)| engine.has_outputs(*server));
        concerned.for_each(|(_, outputs)| outputs.notify_one());
        if engine.next_wake().is_some_and(|next| before.is_none_or(|before| next < before)) {
            // `run` waits for a later timer, or only for a message.
            self.common.mailboxes.wake();
        }
        result
    }

    /// Serves each server that is not served yet.
    fn serve_all(self: &Rc<Self>, tasks: &mut JoinSet<()>) {
        let (served, addresses) = (self.outputs.borrow().len(), self.engine.borrow().addresses());
        for (server, address) in addresses.into_iter().enumerate().skip(served) {
            self.outputs.borrow_mut().push(Rc::default());
            let driver = self.clone();
            tasks.spawn_local(async move { driver.serve(server, address).await });
        }
    }

    /// Follows what connections learn about the slots of a cluster. When something may have moved, connects to a server, because
    /// each new connection learns where the slots are: to one that answers, or to one of these `nodes`. Does both at most once a
    /// second: a node that always names others would let the gateway connect to ever more.
    async fn follow_slots(self: Rc<Self>, slots: &SlotMap, nodes: &[String]) {
        // Dropping the set ends the tasks.
        let mut tasks = JoinSet::new();
        let mut learned = slots.subscribe();
        loop {
            tokio::select! {
                _ = learned.changed() => {}
                () = self.common.health.failing.notified() => {
                    let servers = self.common.health.servers();
                    let up: Vec<_> = servers.iter().filter(|server| server.is_up()).map(|server| &server.address).collect();
                    if let Some(node) = fastrand::choice(up).or_else(|| fastrand::choice(nodes))
                        && !matches!(timeout(NEXT_SLOTS, self.protocol.open(node)).await, Ok(Ok(_)))
                    {
                        self.common.health.failing.notify_one();
                    }
                }
            }
            let parts = learned.borrow_and_update().clone();
            self.apply(|engine| engine.follow_slots(&parts, Instant::now()));
            self.serve_all(&mut tasks);
            sleep(NEXT_SLOTS).await;
        }
    }

    async fn serve(&self, server: usize, address: String) {
        let mut connection = Connection::Closed;
        let woken = self.outputs.borrow()[server].clone();
        loop {
            let outputs = self.engine.borrow_mut().take_outputs(server);
            outputs.into_iter().for_each(|output| match output {
                Output::Connect => connection = Connection::Connecting(self.protocol.open(&address)),
                Output::Write(bytes) => connection.write(bytes),
                Output::Close => connection = Connection::Closed,
            });
            let proceeded = tokio::select! {
                biased;
                proceeded = connection.proceed() => proceeded,
                () = woken.notified() => continue,
            };
            match proceeded {
                Ok(None) => self.apply(|engine| engine.connected(server, Instant::now())),
                Ok(Some(socket)) => {
                    let receive =
                        |engine: &mut Engine| engine.received(server, &socket.input, Instant::now(), clock::now());
                    let (taken, answered) = self.apply(receive);
                    socket.take(taken, answered);
                }
                Err(failure) => self.apply(|engine| engine.failed(server, &failure, Instant::now())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::sync::oneshot::error::TryRecvError;
    use tokio::task::spawn_local;

    use super::*;
    use crate::base::fingerprint::Fingerprint;
    use crate::limit::Limit;
    use crate::store::shared::Shared;
    use crate::store::{Answer, Ask};

    const LONG: Duration = Duration::from_secs(30);

    fn store(workers: usize) -> Shared {
        let servers = vec!["127.0.0.1:1".to_owned()];
        let config = config::SharedStore {
            on_error: config::OnError::Allow,
            ..config::SharedStore::with_servers(config::Software::Memcached, servers)
        };
        Shared::start(&config, workers).unwrap()
    }

    fn ask(store: &Shared) -> Answer {
        let limit = Arc::new(Limit::new("l", &["10/s".parse().unwrap()]));
        let key = Fingerprint::of(b"k");
        store.decide(&[Ask::new(&limit, key, 1)], clock::now(), 0)
    }

    #[tokio::test]
    async fn the_end_does_not_wait_for_a_driver_that_was_never_run() {
        let store = store(1);
        let Answer::Later(mut reply) = ask(&store) else { panic!("it is decided already") };
        store.close();
        timeout(LONG, store.ended()).await.unwrap();
        assert_eq!(reply.try_recv().err(), Some(TryRecvError::Closed));
        let Answer::Later(mut reply) = ask(&store) else { panic!("it is decided already") };
        assert_eq!(reply.try_recv().err(), Some(TryRecvError::Closed));
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
