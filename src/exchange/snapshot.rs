//! The snapshot in force as one worker holds it: a request takes part in it without touching what other workers touch.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use crate::account::{Book, RouteTally, Sampler};
use crate::config::AccessLog;
use crate::gateway::Gateway;

/// Follows the swaps of a snapshot for one worker.
pub struct Snapshots {
    worker: usize,
    newest: RefCell<Cache<Arc<ArcSwap<Gateway>>, Arc<Gateway>>>,
    held: RefCell<Rc<Snapshot>>,
    sampler: Rc<Sampler>,
}

/// A snapshot with the books that this worker keeps for it.
pub struct Snapshot {
    gateway: Arc<Gateway>,
    /// By the index of the route.
    books: Vec<Rc<Book>>,
    unrouted: Rc<Book>,
}

impl Snapshots {
    /// Of the worker with this number.
    pub fn new(shared: Arc<ArcSwap<Gateway>>, worker: usize) -> Self {
        let sampler = Rc::default();
        let held = RefCell::new(Rc::new(Snapshot::new(shared.load_full(), worker, &sampler)));
        Self { worker, newest: RefCell::new(Cache::new(shared)), held, sampler }
    }

    /// The snapshot in force.
    pub fn current(&self) -> Rc<Snapshot> {
        let mut newest = self.newest.borrow_mut();
        let newest = newest.load();
        let mut held = self.held.borrow_mut();
        if !Arc::ptr_eq(newest, &held.gateway) {
            *held = Rc::new(Snapshot::new(newest.clone(), self.worker, &self.sampler));
        }
        held.clone()
    }

    /// Which refusals of this worker are written to the access log, where it is sampled.
    pub fn sampler(&self) -> &Rc<Sampler> {
        &self.sampler
    }
}

impl Snapshot {
    fn new(gateway: Arc<Gateway>, worker: usize, sampler: &Rc<Sampler>) -> Self {
        let sampler = (gateway.access_log == AccessLog::Sampled).then_some(sampler);
        let book =
            |tally: &Arc<RouteTally>, failures| Rc::new(Book::new(tally.clone(), failures, worker, sampler.cloned()));
        let books = gateway.served.iter().map(|route| book(&route.tally, route.failures.clone())).collect();
        let unrouted = book(&gateway.unrouted, None);
        Self { gateway, books, unrouted }
    }

    /// Where the requests of this route are counted, or those of none.
    pub fn book(&self, route: Option<usize>) -> &Rc<Book> {
        route.and_then(|index| self.books.get(index)).unwrap_or(&self.unrouted)
    }
}

impl Deref for Snapshot {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.gateway
    }
}
