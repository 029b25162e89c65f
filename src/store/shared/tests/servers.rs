//! Servers in memory, whichever software they run: they execute the coordinator's commands, and lose what they are told to lose.

#[path = "../../../../benches/fleet/valkey.rs"]
mod valkey;

use std::cell::Cell;

use super::model::{self, Memcached};
use crate::base::clock::Time;
use crate::config::Software;
use crate::store::shared::protocol::{Replies, Written};
use crate::store::shared::simulation::DIGESTS;
use valkey::Valkey;

thread_local! {
    /// What the servers of this test run.
    static SOFTWARE: Cell<Software> = const { Cell::new(Software::Memcached) };
}

pub(super) fn software() -> Software {
    SOFTWARE.get()
}

pub(super) fn with_memcached(test: fn()) {
    SOFTWARE.set(Software::Memcached);
    test();
}

pub(super) fn with_valkey(test: fn()) {
    SOFTWARE.set(Software::Valkey);
    test();
}

/// Makes two tests of each of these functions, one with each software.
macro_rules! with_each_server {
    ($($name:ident)+) => {
        mod memcached {
            $(#[test]
            fn $name() {
                crate::store::shared::tests::servers::with_memcached(super::$name);
            })+
        }

        mod valkey {
            $(#[test]
            fn $name() {
                crate::store::shared::tests::servers::with_valkey(super::$name);
            })+
        }
    };
}
pub(super) use with_each_server;

#[derive(Debug)]
pub(super) enum Model {
    Memcached(Memcached),
    Valkey(Valkey),
}

impl Model {
    pub(super) fn new() -> Self {
        match software() {
            Software::Memcached => Self::Memcached(Memcached::default()),
            Software::Valkey => Self::Valkey(Valkey::new(DIGESTS)),
        }
    }

    pub(super) fn evict(&mut self, number: usize) {
        let names = self.names();
        let Some(name) = names.get(number % names.len().max(1)) else { return };
        match self {
            Self::Memcached(memcached) => memcached.remove(name),
            Self::Valkey(valkey) => valkey.remove(name.as_bytes()),
        }
    }

    pub(super) fn largest(&self) -> usize {
        match self {
            Self::Memcached(memcached) => memcached.largest(),
            Self::Valkey(valkey) => valkey.largest(),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Self::Memcached(memcached) => memcached.names(),
            Self::Valkey(valkey) => valkey.names().map(|name| String::from_utf8(name.to_vec()).unwrap()).collect(),
        }
    }

    /// Lets some of the next commands fail. The lowest bit is the next one.
    pub(super) fn fail(&mut self, failing: u64) {
        match self {
            Self::Memcached(memcached) => memcached.fail(failing),
            Self::Valkey(valkey) => valkey.fail(failing),
        }
    }

    pub(super) fn execute(&mut self, commands: &[u8], now: Time) -> Vec<u8> {
        match self {
            Self::Memcached(memcached) => memcached.execute(commands, now),
            Self::Valkey(valkey) => {
                let mut replies = Vec::new();
                valkey.expire(now.micros());
                valkey.execute(commands, now.micros(), &mut replies);
                replies
            }
        }
    }

    /// By how much these commands would have changed sums.
    pub(super) fn changes(&self, commands: &[u8]) -> u64 {
        match self {
            Self::Memcached(_) => model::changes(commands),
            Self::Valkey(valkey) => valkey.changes(commands),
        }
    }

    /// Whether the result of some write is unknown.
    pub(super) fn is_in_doubt(&self, commands: &[u8], replies: Replies<'_>) -> bool {
        match self {
            Self::Memcached(_) => model::is_in_doubt(commands, replies),
            Self::Valkey(_) => replies.outcome.written.contains(&Written::Unknown),
        }
    }
}
