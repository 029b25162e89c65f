//! Messages to the coordinator: decisions, settlements, reloads, and what operators do with keys.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::OwnedAsk;
use super::cells::CellPlace;
use super::provisional::{Standing, Standings};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::{KeyUsage, LimitChanges, Reply, Reserved, Ticket};

#[derive(Debug)]
pub(super) enum Message {
    Decide(Box<PendingDecision>),
    /// A reservation ends. Nobody waits for that.
    Settle(Box<Settlement>),
    Reload(Box<Reload>),
    Inspect(Box<Inspection>),
}

/// One request, from its asks to its verdicts. It is allocated once: worker and coordinator pass it to each other.
#[derive(Debug)]
pub(super) struct PendingDecision {
    pub(super) asks: SmallVec<[OwnedAsk; 2]>,
    pub(super) now: Time,
    pub(super) asked: Instant,
    pub(super) reply: Option<oneshot::Sender<Reply>>,
    pub(super) worker: usize,
    pub(super) places: SmallVec<[CellPlace; 2]>,
    pub(super) result: Reply,
    /// The state of its charges while it waits for confirmations.
    pub(super) standings: Standings,
    pub(super) number: u64,
}

pub(super) type PendingDecisions = Vec<Box<PendingDecision>>;

#[derive(Debug)]
pub(super) struct Settlement {
    pub(super) ticket: Ticket,
    pub(super) now: Time,
    /// When the cost became known.
    pub(super) asked: Instant,
    /// The real cost. If it is less than what was reserved, the rest is given back; if it is more, the difference is charged.
    pub(super) cost: u64,
}

#[derive(Debug)]
pub(super) struct Reload {
    pub(super) changes: LimitChanges,
    pub(super) now: Time,
    pub(super) asked: Instant,
}

#[derive(Debug)]
pub(super) struct Inspection {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Fingerprint,
    pub(super) now: Time,
    pub(super) asked: Instant,
    pub(super) task: Task,
}

/// What to do for an operator. A dropped sender means that the server is away.
#[derive(Debug)]
pub(super) enum Task {
    Peek(oneshot::Sender<KeyUsage>),
    Reset(oneshot::Sender<()>),
}

impl Message {
    pub(super) fn asked(&self) -> Instant {
        match self {
            Self::Decide(decision) => decision.asked,
            Self::Settle(settlement) => settlement.asked,
            Self::Reload(reload) => reload.asked,
            Self::Inspect(inspection) => inspection.asked,
        }
    }
}

impl PendingDecision {
    pub(super) fn new(
        asks: SmallVec<[OwnedAsk; 2]>,
        now: Time,
        asked: Instant,
        reply: Option<oneshot::Sender<Reply>>,
        worker: usize,
    ) -> Box<Self> {
        let (places, result, standings) = (SmallVec::new(), Reply::default(), Standings::new());
        Box::new(Self { asks, now, asked, reply, worker, places, result, standings, number: 0 })
    }

    /// Sends the reply. If the receiver is gone, the request has stopped waiting and was let through, so its charges rightly
    /// stay, unless they lapse. Nobody else will settle its reservations then: returns the messages that settle them.
    pub(super) fn answer(self, now: Time, asked: Instant) -> impl Iterator<Item = Message> {
        let Self { asks, mut result, reply, .. } = self;
        for OwnedAsk { place, limit, requested, .. } in &asks {
            requested.iter().for_each(|requested| result.translate(*place, requested, limit));
        }
        let unsent = reply.and_then(|receiver| receiver.send(result).err());
        let reserved = unsent.map(|reply| reply.reserved).unwrap_or_default();
        reserved.into_iter().map(move |Reserved { place, ticket, .. }| {
            let lapses = asks.iter().any(|ask| ask.place == place && ask.lapses);
            let cost = if lapses { 0 } else { ticket.cost() };
            Message::Settle(Box::new(Settlement { ticket, now, asked, cost }))
        })
    }

    pub(super) fn standing(&mut self, index: usize) -> Option<&mut Standing> {
        self.standings.get_mut(index)
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}
