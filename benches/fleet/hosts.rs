//! Machines with a server: threads that execute exchanges in order, and the cost of these.

use std::collections::VecDeque;
use std::time::Duration;

use gateway::config::Software;
use gateway::store::shared::simulation::DIGESTS;

use super::server::{Server as Memcached, Work};
use super::valkey::Valkey;

/// The work of Memcached on one of its threads. `measure` prints the costs on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) exchange: f64,
    /// For each command that writes, and for each name that is read.
    pub(crate) command: f64,
}

/// In seconds, for a busy Memcached 1.6.18 with 64 connections. An idle one takes three times as long for an exchange,
/// because it waits and must be woken.
pub(crate) const COSTS: Costs = Costs { exchange: 12.5e-6, command: 0.6e-6 };

/// The gateway, and the number of its connections to this server so far.
pub(crate) type Connection = (usize, u64);

pub(crate) struct Execution {
    pub(crate) connection: Connection,
    pub(crate) replies: Vec<u8>,
    pub(crate) work: Work,
    pub(crate) time: Duration,
}

pub(crate) struct Host {
    software: Software,
    server: Server,
    threads: Vec<Thread>,
}

enum Server {
    Memcached(Memcached),
    Valkey(Valkey),
}

#[derive(Default)]
struct Thread {
    is_busy: bool,
    waiting: VecDeque<(Connection, Vec<u8>)>,
}

impl Host {
    pub(crate) fn new(software: Software, threads: usize) -> Self {
        let server = Server::new(software);
        Self { software, server, threads: (0..threads).map(|_| Thread::default()).collect() }
    }

    /// The thread that serves the connections of a gateway.
    pub(crate) fn thread_of(&self, gateway: usize) -> usize {
        gateway % self.threads.len()
    }

    pub(crate) fn restart(&mut self) {
        self.server = Server::new(self.software);
    }

    pub(crate) fn arrive(&mut self, connection: Connection, commands: Vec<u8>) {
        let thread = self.thread_of(connection.0);
        self.threads[thread].waiting.push_back((connection, commands));
    }

    pub(crate) fn free(&mut self, thread: usize) {
        self.threads[thread].is_busy = false;
    }

    /// A thread executes the next waiting exchange, if it is free, at `now` in seconds since 1970.
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

impl Server {
    fn new(software: Software) -> Self {
        match software {
            Software::Memcached => Self::Memcached(Memcached::default()),
            Software::Valkey => Self::Valkey(Valkey::new(DIGESTS)),
        }
    }

    fn execute(&mut self, commands: &[u8], now: u64) -> (Vec<u8>, Work) {
        match self {
            Self::Memcached(memcached) => memcached.execute(commands, now),
            Self::Valkey(valkey) => {
                let mut replies = Vec::new();
                let [writes, reads] = valkey.execute(commands, now * 1_000_000, &mut replies);
                let [bytes_in, bytes_out] = [commands, &replies].map(|bytes| bytes.len() as u64);
                (replies, Work { exchanges: 1, writes, reads, bytes_in, bytes_out })
            }
        }
    }
}
