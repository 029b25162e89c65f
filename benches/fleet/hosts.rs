//! Machines with Memcached: threads that execute one exchange after the other, and what that costs.

use std::collections::VecDeque;
use std::time::Duration;

use super::server::{Server, Work};

/// What Memcached takes for its work, on one of its threads. `measure` prints what it is on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) exchange: f64,
    /// For each command that writes, and for each name that is read.
    pub(crate) command: f64,
}

/// In seconds, of a busy Memcached 1.6.18 with 64 connections. One with little to do takes three times as much for an
/// exchange, to wait and to be woken.
pub(crate) const COSTS: Costs = Costs { exchange: 12.5e-6, command: 0.6e-6 };

/// A connection of a gateway, by the gateway and how many it has made to this server.
pub(crate) type Connection = (usize, u64);

/// An exchange that is being executed.
pub(crate) struct Execution {
    pub(crate) connection: Connection,
    pub(crate) replies: Vec<u8>,
    pub(crate) work: Work,
    /// How long it takes.
    pub(crate) time: Duration,
}

/// One machine.
pub(crate) struct Host {
    server: Server,
    threads: Vec<Thread>,
}

/// A thread of a server.
#[derive(Default)]
struct Thread {
    is_busy: bool,
    /// The commands that wait.
    waiting: VecDeque<(Connection, Vec<u8>)>,
}

impl Host {
    pub(crate) fn new(threads: usize) -> Self {
        Self { server: Server::default(), threads: (0..threads).map(|_| Thread::default()).collect() }
    }

    /// Which thread serves the connections of a gateway.
    pub(crate) fn thread_of(&self, gateway: usize) -> usize {
        gateway % self.threads.len()
    }

    /// Memcached is started anew, with nothing in its memory.
    pub(crate) fn restart(&mut self) {
        self.server = Server::default();
    }

    /// Commands have arrived.
    pub(crate) fn arrive(&mut self, connection: Connection, commands: Vec<u8>) {
        let thread = self.thread_of(connection.0);
        self.threads[thread].waiting.push_back((connection, commands));
    }

    /// A thread has nothing more to do.
    pub(crate) fn free(&mut self, thread: usize) {
        self.threads[thread].is_busy = false;
    }

    /// A thread executes the next exchange that waits, if it has time, at this second since 1970.
    pub(crate) fn execute(&mut self, thread: usize, now: u64) -> Option<Execution> {
        let Thread { is_busy, waiting } = &mut self.threads[thread];
        if *is_busy {
            return None;
        }
        let (connection, commands) = waiting.pop_front()?;
        *is_busy = true;
        let (replies, work) = self.server.execute(&commands, now);
        let seconds = COSTS.exchange + COSTS.command * (work.writes + work.reads) as f64;
        Some(Execution { connection, replies, work, time: Duration::from_secs_f64(seconds) })
    }
}
