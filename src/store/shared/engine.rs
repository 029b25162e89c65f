//! The engine: everything that a gateway does with shared counters, but for sockets, threads and clocks. So the driver and
//! simulated gateways behave alike.
//!
//! Inputs: the mailboxes, events of connections ([`Engine::connected`], [`Engine::failed`]), bytes of servers
//! ([`Engine::received`]), and time ([`Engine::wake`]). Outputs: what to do with connections ([`Engine::take_outputs`]), and
//! decisions ([`Engine::take_replies`]).

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Common;
use super::coordinator::Coordinator;
use super::failure::LinkFailure;
use super::health::{self, Health};
use super::link::{Link, LinkEvent};
use super::mailbox::{Mailboxes, PendingDecisions};
use super::protocol::{Commands, Protocol, Replies};
use super::slots::{Part, SLOTS};
use crate::base::clock::{Time, micros};
use crate::config;

#[derive(Debug)]
pub enum Output {
    Connect,
    Write(Vec<u8>),
    /// Also stops an attempt to connect.
    Close,
}

pub(super) struct Engine {
    coordinator: Coordinator,
    mailboxes: Arc<Mailboxes>,
    health: Arc<Health>,
    /// The longest time that a request waits.
    timeout: Duration,
    servers: Vec<Server>,
    commands: Box<dyn Commands>,
    is_cluster: bool,
    /// The server of each slot, once that is known.
    owners: Vec<usize>,
}

struct Server {
    link: Link,
    outputs: VecDeque<Output>,
    health: Arc<health::Server>,
}

impl Engine {
    /// The engine begins to connect at the first [`Self::wake`].
    pub(super) fn new(config: &config::SharedStore, protocol: &dyn Protocol, common: Common, now: Instant) -> Self {
        let coordinator = Coordinator::new(config, &common);
        let Common { mailboxes, health, .. } = common;
        let known = health.servers();
        let servers = known.iter().map(|server| Server::new(server.clone(), config.timeout, now));
        Self {
            coordinator,
            mailboxes,
            health,
            timeout: config.timeout,
            servers: servers.collect(),
            commands: protocol.commands(),
            is_cluster: protocol.slot_map().is_some(),
            owners: Vec::new(),
        }
    }

    /// Takes the messages, and does what is due by now.
    pub(super) fn wake(&mut self, now: Instant, time: Time) {
        for server in 0..self.servers.len() {
            if self.coordinator.is_left(server) {
                continue;
            }
            match self.servers[server].link.on_timer(now) {
                Some(LinkEvent::Connect) => self.servers[server].outputs.push_back(Output::Connect),
                Some(LinkEvent::Late) => self.down(server, &LinkFailure::Silent),
                Some(LinkEvent::Silent) => self.give_up(server, &LinkFailure::Silent, now),
                None => {}
            }
        }
        self.coordinator.on_timer(now, time);
        self.go_on(now);
    }

    /// When [`Self::wake`] must be called next, if no message comes.
    pub(super) fn next_wake(&mut self) -> Option<Instant> {
        let linked = (0..self.servers.len()).filter(|server| !self.coordinator.is_left(*server));
        let links = linked.filter_map(|server| self.servers[server].link.next_timer()).min();
        links.into_iter().chain(self.coordinator.next_timer()).min()
    }

    pub(super) fn connected(&mut self, server: usize, now: Instant) {
        let Server { link, health, .. } = &mut self.servers[server];
        if link.is_connecting() {
            link.connected(now);
            self.health.up(health);
            self.coordinator.up(server);
            self.go_on(now);
        }
    }

    pub(super) fn failed(&mut self, server: usize, failure: &LinkFailure, now: Instant) {
        if self.servers[server].link.is_begun() {
            self.give_up(server, failure, now);
            self.go_on(now);
        }
    }

    /// `input` is what the server has sent and the engine has not taken yet. Returns how many bytes it takes now, and how many
    /// exchanges they answer.
    pub(super) fn received(&mut self, server: usize, input: &[u8], now: Instant, time: Time) -> (usize, usize) {
        let (mut taken, mut answered) = (0, 0);
        while self.servers[server].link.is_up() {
            match self.servers[server].link.receive(&input[taken..]) {
                Ok(None) => break,
                Ok(Some((outcome, begun))) => {
                    // A request that has asked meanwhile for a cell that was just read needs no other read.
                    self.pass_messages();
                    self.health.latency.observe(micros(now.saturating_duration_since(begun)));
                    let replies = Replies { outcome: &outcome, input: &input[taken..] };
                    let is_good = self.coordinator.answered(server, replies, begun, now, time);
                    match outcome.failure {
                        Some(what) if !is_good => self.give_up(server, &LinkFailure::Failed(what), now),
                        Some(what) => self.health.failed(&self.servers[server].health, what),
                        None => {}
                    }
                    self.servers[server].link.succeeded();
                    taken += outcome.length;
                    answered += 1;
                }
                Err(garbage) => self.give_up(server, &garbage.into(), now),
            }
        }
        self.go_on(now);
        (taken, answered)
    }

    pub(super) fn take_outputs(&mut self, server: usize) -> VecDeque<Output> {
        mem::take(&mut self.servers[server].outputs)
    }

    pub(super) fn has_outputs(&self, server: usize) -> bool {
        !self.servers[server].outputs.is_empty()
    }

    pub(super) fn take_replies(&mut self) -> impl Iterator<Item = (usize, PendingDecisions)> {
        self.coordinator.take_replies()
    }

    pub(super) fn is_written(&self) -> bool {
        self.coordinator.is_written()
    }

    /// Closes the connection, if there is one, to be made again after a pause.
    fn give_up(&mut self, server: usize, failure: &LinkFailure, now: Instant) {
        self.servers[server].link.failed(now);
        self.servers[server].outputs.push_back(Output::Close);
        self.down(server, failure);
    }

    /// The server is away. Requests learn that from here, and do not have to wait to find out.
    fn down(&mut self, server: usize, failure: &LinkFailure) {
        self.health.down(&self.servers[server].health, failure);
        if !self.is_cluster || !self.owners.is_empty() {
            self.coordinator.down(server);
        } else if self.health.is_away() {
            // Nobody says who has which slots.
            (0..self.servers.len()).for_each(|server| self.coordinator.down(server));
        }
    }

    /// All servers that are known, in the order of their numbers.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.health.address.clone()).collect()
    }

    /// Slots are on these servers now. Others stay where they were, if there are any.
    pub(super) fn follow_slots(&mut self, parts: &[Part], now: Instant) {
        let (mut owners, known) = (self.owners.clone(), self.servers.len());
        owners.resize(SLOTS, 0);
        for Part { slots, server: address } in parts {
            let place = self.servers.iter().position(|server| server.health.address == *address);
            let server = place.unwrap_or_else(|| {
                let health = health::Server::new(address.clone());
                self.servers.push(Server::new(health, self.timeout, now));
                self.servers.len() - 1
            });
            owners[slots.clone()].fill(server);
        }
        // A server of which another part takes all slots is new, too.
        if owners == self.owners && self.servers.len() == known || parts.is_empty() {
            return;
        }
        self.owners.clone_from(&owners);
        self.coordinator.follow_slots(owners, self.servers.len());
        let shown = self.servers.iter().enumerate().filter(|(server, _)| self.owners.contains(server));
        self.health.replace(shown.map(|(_, server)| server.health.clone()).collect());
        self.go_on(now);
    }

    fn go_on(&mut self, now: Instant) {
        self.pass_messages();
        self.health.know(self.coordinator.keys());
        for server in 0..self.servers.len() {
            if self.coordinator.is_left(server) && self.servers[server].link.is_begun() {
                self.servers[server].link.failed(now);
                self.servers[server].outputs.push_back(Output::Close);
            }
        }
        let Self { coordinator, servers, commands, .. } = self;
        for (server, Server { link, outputs, .. }) in servers.iter_mut().enumerate() {
            // Ask the coordinator each time: a begun exchange changes what is due.
            while link.begins(coordinator.due(server), now) {
                if coordinator.write(server, &mut **commands) {
                    let mut bytes = Vec::new();
                    link.begun(commands.finish(&mut bytes), now);
                    outputs.push_back(Output::Write(bytes));
                    self.health.round_trips.one();
                }
                if coordinator.is_busy() {
                    self.mailboxes.set_busy();
                }
            }
        }
    }

    fn pass_messages(&mut self) {
        for message in self.mailboxes.take(self.coordinator.is_busy()) {
            let deadline = message.asked() + self.timeout;
            self.coordinator.submit(message, deadline);
        }
    }
}

impl Server {
    fn new(health: Arc<health::Server>, timeout: Duration, now: Instant) -> Self {
        Self { link: Link::new(timeout, now), outputs: VecDeque::new(), health }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    #[test]
    fn parts_of_a_cluster_may_overlap() {
        let config = config::SharedStore {
            login: config::Login { cluster: true, ..config::Login::default() },
            ..config::SharedStore::with_servers(config::Software::Valkey, vec!["a:1".to_owned()])
        };
        let protocol = super::super::protocol_of(&config);
        let now = Instant::now();
        let mut engine = Engine::new(&config, &*protocol, Common::new(&config, 1), now);
        let all = |server: &str| Part { slots: 0..=SLOTS - 1, server: server.to_owned() };
        engine.follow_slots(&[all("a:1")], now);
        engine.follow_slots(&[all("b:1"), all("a:1")], now);
        engine.wake(now, clock::now());
        assert!(engine.next_wake().is_some());
        assert_eq!([0, 1].map(|server| engine.coordinator.is_left(server)), [false, true]);
    }
}
