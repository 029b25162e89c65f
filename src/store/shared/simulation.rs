//! A gateway's side of shared counters in virtual time, for simulations of whole fleets.
//!
//! [`SimulatedGateway`] decides with the same code as the store: engine, remembered refusals and mailboxes, without sockets,
//! threads and clocks. The simulation carries [`Output`]s to servers and their replies back, provides the time, and calls
//! [`SimulatedGateway::wake`] when [`SimulatedGateway::next_wake`] says so. The worker ends its turn after each request, and
//! the code takes no time. A model of the gateway would only show what its author believes. The promises about a fleet's
//! limits are assertions (`benches/fleet/bounds.rs`), which tests check with six gateways and the bench with up to 32.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use super::Common;
use super::engine::Engine;
use super::failure::LinkFailure;
use super::health::Health;
use super::names::AllNames;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::base::metrics::{Counter, PerWorker};
use crate::config;
use crate::limit::Limit;
use crate::store::{Answer, Ask, Reply};

pub use super::engine::Output;
pub use super::valkey::DIGESTS;

pub fn server_of(prefix: &str, limit: &Arc<Limit>, key: Fingerprint, servers: &[String]) -> usize {
    AllNames::new(prefix, false).of(limit).server(key, servers)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The `place` of its ask.
    pub place: usize,
    /// `None` if the server is away and `on_error` decides.
    pub admitted: Option<bool>,
}

/// Moments are given as the time since the simulation began.
pub struct SimulatedGateway {
    engine: Engine,
    common: Common,
    /// When the simulation began, and what the gateway's clock showed then.
    begun: (Instant, Time),
    waiting: BTreeMap<usize, Receiver<Reply>>,
    decided: Vec<Decided>,
}

impl SimulatedGateway {
    pub fn new(config: &config::SharedStore, clock: Time) -> Self {
        let protocol = super::protocol_of(config);
        let (common, now) = (Common::new(config, 1), Instant::now());
        Self {
            engine: Engine::new(config, &*protocol, common.clone(), now),
            common,
            begun: (now, clock),
            waiting: BTreeMap::new(),
            decided: Vec::new(),
        }
    }

    /// The `place` of a request identifies it in [`Decided`]: no other waiting request has the same one.
    pub fn ask(&mut self, ask: &Ask<'_>, at: Duration) {
        let (now, time) = self.moment(at);
        match self.common.decide(std::slice::from_ref(ask), time, 0, || now) {
            Answer::Now(reply) => self.decided.push(Decided::new(ask.place, Some(&reply))),
            Answer::Away => self.decided.push(Decided::new(ask.place, None)),
            Answer::Later(receiver) => {
                self.waiting.insert(ask.place, receiver);
                if self.common.mailboxes.announces(0) {
                    self.wake(at);
                }
            }
        }
    }

    pub fn connected(&mut self, server: usize, at: Duration) {
        self.engine.connected(server, self.moment(at).0);
        self.collect();
    }

    pub fn failed(&mut self, server: usize, at: Duration) {
        self.engine.failed(server, &LinkFailure::Closed, self.moment(at).0);
        self.collect();
    }

    /// `replies` are all replies to some exchanges.
    pub fn answered(&mut self, server: usize, replies: &[u8], at: Duration) {
        let (now, time) = self.moment(at);
        self.engine.received(server, replies, now, time);
        self.collect();
    }

    pub fn wake(&mut self, at: Duration) {
        let (now, time) = self.moment(at);
        self.engine.wake(now, time);
        self.collect();
    }

    /// When [`Self::wake`] must be called next.
    pub fn next_wake(&mut self) -> Option<Duration> {
        self.engine.next_wake().map(|next| next.saturating_duration_since(self.begun.0))
    }

    pub fn take_outputs(&mut self, server: usize) -> VecDeque<Output> {
        self.engine.take_outputs(server)
    }

    pub fn take_decided(&mut self) -> impl Iterator<Item = Decided> {
        self.decided.drain(..)
    }

    /// How many decisions there were, how many from remembered refusals, and how many without the servers.
    pub fn counts(&self) -> [u64; 3] {
        let Health { decisions, remembered, local, .. } = &*self.common.health;
        let sum = |counters: &PerWorker<Counter>| counters.iter().map(Counter::get).sum();
        [sum(decisions), sum(remembered), local.get()]
    }

    fn moment(&self, at: Duration) -> (Instant, Time) {
        (self.begun.0 + at, self.begun.1.after(at))
    }

    /// Takes the decisions, and finds out which requests `on_error` decides.
    fn collect(&mut self) {
        let Self { engine, waiting, decided, .. } = self;
        for decision in engine.take_replies().flat_map(|(_, replies)| replies) {
            let (place, now, asked) = (decision.asks[0].place, decision.now, decision.asked);
            // Nothing is reserved, so there is nothing to settle.
            decision.answer(now, asked).for_each(drop);
            let reply = waiting.remove(&place).and_then(|mut receiver| receiver.try_recv().ok());
            decided.push(Decided::new(place, reply.as_ref()));
        }
        if !self.common.is_local {
            waiting.retain(|place, receiver| {
                let is_dropped = matches!(receiver.try_recv(), Err(TryRecvError::Closed));
                if is_dropped {
                    decided.push(Decided::new(*place, None));
                }
                !is_dropped
            });
        }
    }
}

impl Decided {
    fn new(place: usize, reply: Option<&Reply>) -> Self {
        let admitted = reply.map(|reply| reply.verdicts.iter().all(|(_, verdict)| verdict.admitted));
        Self { place, admitted }
    }
}
