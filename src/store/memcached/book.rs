//! The ledger and those who work on it, all on one thread: one task takes decisions in, one for each server exchanges,
//! and one ends waits that have lasted for long enough.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until};

use super::desk::Desks;
use super::health::Health;
use super::ledger::Ledger;
use super::link::{self, Failure};
use super::message::Replies;
use super::refused::Refused;
use super::removed::{self, InUse};
use super::servers::Due;
use super::wire::Answer;
use crate::{clock, config};

/// How often it is seen whether all is written, before the process ends.
const LAST_LOOKS: Duration = Duration::from_millis(1);

/// What the tasks share.
pub(super) struct Book {
    pub(super) ledger: RefCell<Ledger>,
    pub(super) health: Arc<Health>,
    /// The longest that anybody waits for an answer.
    pub(super) timeout: Duration,
    /// For each server, that something is due to be sent.
    due: Vec<Notify>,
    /// That somebody waits, after nobody did.
    waits: Notify,
    /// Where decisions come from.
    desks: Arc<Desks>,
    /// Where each worker's verdicts go.
    posts: Vec<UnboundedSender<Replies>>,
}

/// Clears the desks when the work ends, however it ends, or never begins: then nobody waits for it in vain.
pub(super) struct Closing(pub(super) Arc<Desks>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// What is to be done, before it is known on which thread.
pub(super) struct Work {
    pub(super) config: config::Memcached,
    pub(super) closing: Closing,
    pub(super) posts: Vec<UnboundedSender<Replies>>,
    pub(super) health: Arc<Health>,
    pub(super) refused: Arc<Refused>,
    pub(super) in_use: Arc<InUse>,
}

/// Works until the desks are closed, and then until Memcached knows all, or `timeout` has passed.
pub(super) async fn run(Work { config, closing, posts, health, refused, in_use }: Work) {
    let desks = closing.0.clone();
    let book = Rc::new(Book {
        ledger: RefCell::new(Ledger::new(&config, posts.len(), health.clone(), refused)),
        health,
        timeout: config.timeout,
        due: config.servers.iter().map(|_| Notify::new()).collect(),
        waits: Notify::new(),
        desks,
        posts,
    });
    for server in 0..config.servers.len() {
        let book = book.clone();
        spawn_local(async move { link::keep(&book, server).await });
    }
    let expiring = book.clone();
    spawn_local(async move { expiring.expire().await });
    let forgetting = book.clone();
    spawn_local(async move { removed::forget(&forgetting, &in_use).await });
    while book.desks.announced().await {
        book.tell(&mut book.ledger.borrow_mut());
    }
    book.tell(&mut book.ledger.borrow_mut());
    let end = Instant::now() + book.timeout;
    while !book.ledger.borrow().is_settled() && Instant::now() < end {
        sleep(LAST_LOOKS).await;
    }
}

impl Book {
    /// Ends waits that have lasted for long enough.
    async fn expire(&self) {
        loop {
            let next = {
                let mut ledger = self.ledger.borrow_mut();
                let next = ledger.expire(Instant::now());
                self.tell(&mut ledger);
                next
            };
            match next {
                Some(next) => sleep_until(next).await,
                None => self.waits.notified().await,
            }
        }
    }

    fn take_in(&self, ledger: &mut Ledger) {
        let nobody_waited = ledger.is_idle();
        for message in self.desks.take() {
            let deadline = message.asked() + self.timeout;
            ledger.submit(message, deadline);
        }
        if nobody_waited && !ledger.is_idle() {
            self.waits.notify_one();
        }
    }

    /// Takes in what is on the desks, sends off what was decided, and tells those who have something to send.
    fn tell(&self, ledger: &mut Ledger) {
        self.desks.set_busy(ledger.is_busy());
        self.take_in(ledger);
        for (worker, replies) in ledger.take_replies() {
            // With the other end gone, so is whoever waits.
            let _ = self.posts[worker].send(replies);
        }
        let due = self.due.iter().enumerate().filter(|(server, _)| ledger.due(*server) != Due::Never);
        due.for_each(|(_, due)| due.notify_one());
    }

    /// Writes the next exchange with a server; returns how many answers it gets.
    pub(super) fn compose(&self, server: usize, out: &mut Vec<u8>) -> usize {
        let mut ledger = self.ledger.borrow_mut();
        let answers = ledger.compose(server, out);
        if ledger.is_busy() {
            self.desks.set_busy(true);
        }
        answers
    }

    /// Waits until something is due to be sent to this server.
    pub(super) async fn wakes(&self, server: usize) {
        self.due[server].notified().await;
    }

    /// The address of a server, as it was configured.
    pub(super) fn address(&self, server: usize) -> &str {
        &self.health.servers[server].address
    }

    /// Takes over the answers to an exchange that was begun then; what one of them says if none is good.
    pub(super) fn answered(&self, server: usize, answers: &[Answer<'_>], begun: Instant) -> Result<(), String> {
        let mut ledger = self.ledger.borrow_mut();
        // Who has asked meanwhile for a cell that has just been read need not ask again.
        self.take_in(&mut ledger);
        let good = ledger.answered(server, answers, begun, clock::now());
        self.tell(&mut ledger);
        let failed = answers.iter().find_map(|answer| match answer {
            Answer::Failed(what) => Some((*what).to_owned()),
            _ => None,
        });
        match failed {
            Some(what) if !good => Err(what),
            Some(what) => {
                self.health.failed(server, &what);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The server answers.
    pub(super) fn up(&self, server: usize) {
        let mut ledger = self.ledger.borrow_mut();
        ledger.up(server);
        self.health.up(server);
        self.tell(&mut ledger);
    }

    /// The server is away.
    pub(super) fn down(&self, server: usize, failure: &Failure) {
        let mut ledger = self.ledger.borrow_mut();
        ledger.down(server);
        self.health.down(server, failure);
        // What was decided now may be owed to others.
        self.tell(&mut ledger);
    }
}
