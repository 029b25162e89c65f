//! The servers of a shared store, whichever software they run, and tests that run with each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use gateway::config;
use rustix::process::Signal;

use super::memcached::Memcached;
use super::valkey::Valkey;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Software {
    Memcached,
    Valkey,
}

/// What tests do with a server besides counting in it.
pub(crate) trait Control: Send + Sync {
    fn kill(&mut self);
    /// Starts it again, empty, at the same address.
    fn restart(&mut self);
    fn signal(&self, signal: Signal);
    /// The number of commands that read or write. One that reads several items may count once.
    fn commands(&self) -> u64;
    /// How often single items were read, as notes are.
    fn lookups(&self) -> u64;
    fn items(&self) -> u64;
    /// Open connections, without the one that asks for this.
    fn connections(&self) -> u64;
    /// The counts in it, without those of values.
    fn counters(&self) -> BTreeMap<String, u64>;
    /// Fills it with other items until all known counters are gone.
    fn evict(&self);
    fn flush(&self);
    fn set(&self, name: &str, text: &str);
    fn get(&self, name: &str) -> Option<String>;

    fn counted(&self) -> u64 {
        self.counters().values().sum()
    }
}

/// Dropping it kills it.
pub(crate) struct Server {
    pub(crate) software: Software,
    pub(crate) address: SocketAddr,
    control: Box<dyn Control>,
}

impl Software {
    pub(crate) const ALL: [Self; 2] = [Self::Memcached, Self::Valkey];

    pub(crate) fn start(self) -> Server {
        match self {
            Self::Memcached => Server::new(self, Memcached::start(), |server| server.address),
            Self::Valkey => Valkey::start().into(),
        }
    }

    /// At this address, which nobody else may listen on.
    pub(crate) fn start_at(self, address: SocketAddr) -> Server {
        match self {
            Self::Memcached => Server::new(self, Memcached::start_at(address), |server| server.address),
            Self::Valkey => Valkey::start_at(address).into(),
        }
    }

    /// With little memory, so that it is soon full.
    pub(crate) fn start_small(self) -> Server {
        match self {
            Self::Memcached => Server::new(self, Memcached::start_with(&["-m", "2"]), |server| server.address),
            Self::Valkey => self.start(),
        }
    }

    /// What `type` of `[store]` is.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Valkey => "valkey",
        }
    }

    pub(crate) fn config(self) -> config::Software {
        match self {
            Self::Memcached => config::Software::Memcached,
            Self::Valkey => config::Software::Valkey,
        }
    }

    /// `[store]` with servers at these addresses and more keys. Unless one of them is `timeout`, requests wait long enough on a
    /// busy machine.
    pub(crate) fn store(self, addresses: &[SocketAddr], more: &str) -> String {
        let servers: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let timeout = if more.contains("timeout") { "" } else { "timeout = \"5s\"" };
        format!("[store]\ntype = {:?}\nservers = {servers:?}\n{timeout}\n{more}\n", self.name())
    }
}

impl Server {
    fn new<T: Control + 'static>(software: Software, server: T, address: impl Fn(&T) -> SocketAddr) -> Self {
        Self { software, address: address(&server), control: Box::new(server) }
    }

    pub(crate) fn store(&self) -> String {
        self.store_with("")
    }

    /// `[store]` with this server and more keys. Unless one of them is `timeout`, requests wait long enough on a busy
    /// machine.
    pub(crate) fn store_with(&self, more: &str) -> String {
        self.software.store(&[self.address], more)
    }
}

impl From<Valkey> for Server {
    fn from(valkey: Valkey) -> Self {
        Self::new(Software::Valkey, valkey, |server| server.address)
    }
}

impl Deref for Server {
    type Target = dyn Control;

    fn deref(&self) -> &Self::Target {
        &*self.control
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.control
    }
}

/// Runs the test with each store, given the `[store]` section.
pub(crate) fn every_store(test: impl Fn(&str)) {
    test("[store]\ntype = \"memory\"\n");
    for software in Software::ALL {
        let server = software.start();
        // With "reject" a request that the server did not count shows.
        test(&server.store_with("on_error = \"reject\"\ntimeout = \"5s\""));
        assert!(server.commands() > 0, "{software:?} was never asked");
    }
}

/// Makes two tests of each of these functions, one with each software.
macro_rules! with_each_server {
    ($($name:ident)+) => {
        mod memcached {
            $(#[test]
            fn $name() {
                super::$name(crate::harness::Software::Memcached);
            })+
        }

        crate::harness::with_valkey! { $($name)+ }
    };
}
pub(crate) use with_each_server;

/// Makes a test of each of these functions.
macro_rules! with_valkey {
    ($($name:ident)+) => {
        mod valkey {
            $(#[test]
            fn $name() {
                super::$name(crate::harness::Software::Valkey);
            })+
        }
    };
}
pub(crate) use with_valkey;
