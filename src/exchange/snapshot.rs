//! The snapshot in force as one worker holds it: a request takes part in it without touching what other workers touch.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use crate::account::Book;
use crate::gateway::{Gateway, Served};

/// Follows the swaps of a snapshot for one worker.
pub struct Snapshots {
    worker: usize,
    newest: RefCell<Cache<Arc<ArcSwap<Gateway>>, Arc<Gateway>>>,
    held: RefCell<Rc<Snapshot>>,
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
        let held = Snapshot::new(shared.load_full(), worker);
        Self { worker, newest: RefCell::new(Cache::new(shared)), held: RefCell::new(Rc::new(held)) }
    }

    /// The snapshot in force.
    pub fn current(&self) -> Rc<Snapshot> {
        let mut newest = self.newest.borrow_mut();
        let newest = newest.load();
        let mut held = self.held.borrow_mut();
        if !Arc::ptr_eq(newest, &held.gateway) {
            *held = Rc::new(Snapshot::new(newest.clone(), self.worker));
        }
        held.clone()
    }
}

impl Snapshot {
    fn new(gateway: Arc<Gateway>, worker: usize) -> Self {
        let book = |route: &Served| Rc::new(Book::new(route.tally.clone(), route.failures.clone(), worker));
        let books = gateway.served.iter().map(book).collect();
        let unrouted = Rc::new(Book::new(gateway.unrouted.clone(), None, worker));
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
