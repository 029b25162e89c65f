//! Bounds the memory of the bodies that one worker reads before it decides about their requests.
//!
//! A client may hold back the end of as many bodies as it has requests in flight. If all bodies together take too much, the
//! client whose bodies take most loses the largest of them. So no client waits for another one, and a client with one body
//! keeps it. A body that has arrived at the first look is not counted: `inspect_body` bounds it, and it is gone soon.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::task::{Context, Waker};

use slab::Slab;

use crate::net::network_of;

#[derive(Debug, Default)]
pub struct BodyMemory {
    bodies: RefCell<Slab<Reading>>,
    used: Cell<usize>,
}

/// A body that has arrived in part.
#[derive(Debug)]
struct Reading {
    client: IpAddr,
    bytes: usize,
    is_given_up: bool,
    waker: Option<Waker>,
}

/// The share of one body in the memory. Dropping it frees the share.
#[derive(Debug)]
pub(super) struct BodyShare<'m> {
    memory: &'m BodyMemory,
    client: IpAddr,
    /// The most that all bodies of the worker may take, in bytes.
    most: usize,
    place: Option<usize>,
}

impl BodyMemory {
    /// An empty share for a body of this client. All shares together may take `most` bytes.
    pub(super) fn share(&self, client: IpAddr, most: usize) -> BodyShare<'_> {
        BodyShare { memory: self, client: network_of(client), most, place: None }
    }

    /// Gives up bodies until the others take `most` bytes at most.
    fn bound(&self, most: usize) {
        while self.used.get() > most {
            let mut bodies = self.bodies.borrow_mut();
            let Some(body) = largest_of_greediest(&bodies).and_then(|place| bodies.get_mut(place)) else { return };
            self.used.set(self.used.get() - std::mem::take(&mut body.bytes));
            body.is_given_up = true;
            if let Some(waker) = body.waker.take() {
                waker.wake();
            }
        }
    }
}

fn largest_of_greediest(bodies: &Slab<Reading>) -> Option<usize> {
    let mut clients: HashMap<IpAddr, (usize, usize, usize)> = HashMap::new();
    for (place, body) in bodies.iter().filter(|(_, body)| !body.is_given_up) {
        let (total, largest, of) = clients.entry(body.client).or_insert((0, 0, place));
        *total += body.bytes;
        if body.bytes > *largest {
            (*largest, *of) = (body.bytes, place);
        }
    }
    clients.into_values().max().map(|(_, _, place)| place)
}

impl BodyShare<'_> {
    pub(super) fn set(&mut self, bytes: usize) {
        let BodyMemory { bodies, used } = self.memory;
        let client = self.client;
        {
            let mut bodies = bodies.borrow_mut();
            let new = || Reading { client, bytes: 0, is_given_up: false, waker: None };
            let place = *self.place.get_or_insert_with(|| bodies.insert(new()));
            let Some(body) = bodies.get_mut(place).filter(|body| !body.is_given_up) else { return };
            used.set(used.get() - body.bytes + bytes);
            body.bytes = bytes;
        }
        self.memory.bound(self.most);
    }

    /// Whether the body has to be given up. If not, the task is woken when that changes.
    pub(super) fn poll_given_up(&self, cx: &Context<'_>) -> bool {
        let mut bodies = self.memory.bodies.borrow_mut();
        let Some(body) = self.place.and_then(|place| bodies.get_mut(place)) else { return false };
        body.waker = Some(cx.waker().clone());
        body.is_given_up
    }
}

impl Drop for BodyShare<'_> {
    fn drop(&mut self) {
        let body = self.place.and_then(|place| self.memory.bodies.borrow_mut().try_remove(place));
        self.memory.used.set(self.memory.used.get() - body.map_or(0, |body| body.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given_up(shares: &[BodyShare<'_>]) -> Vec<usize> {
        let cx = Context::from_waker(Waker::noop());
        (0..shares.len()).filter(|at| shares[*at].poll_given_up(&cx)).collect()
    }

    #[test]
    fn the_client_with_most_gives_up_its_largest_body() {
        let memory = BodyMemory::default();
        let share = |client: &str| memory.share(client.parse().unwrap(), 100);
        let mut shares = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"].map(share);
        shares.iter_mut().zip([20, 25, 40, 5, 10]).for_each(|(share, bytes)| share.set(bytes));
        assert_eq!(given_up(&shares), [0; 0]);
        shares[0].set(21);
        assert_eq!(given_up(&shares), [1], "two of one client take more than the one of another");
        shares[1].set(1000);
        shares[4].set(36);
        assert_eq!((given_up(&shares), memory.used.get()), (vec![1, 4], 66), "both are of one network");
        drop(shares);
        assert_eq!((memory.used.get(), memory.bodies.borrow().len()), (0, 0));
    }

    #[test]
    fn a_body_that_takes_nothing_is_not_given_up() {
        let memory = BodyMemory::default();
        let (idle, mut busy) =
            (memory.share(IpAddr::from([192, 0, 2, 1]), 10), memory.share(IpAddr::from([192, 0, 2, 1]), 10));
        busy.set(10);
        assert_eq!(given_up(&[idle, busy]), [0; 0]);
    }
}
