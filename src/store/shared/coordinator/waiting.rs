//! The decisions that wait for servers, and what becomes of those without an answer, because a server is away or too slow:
//! they are made from the last known counts, or dropped.
//!
//! Requests do not have to discover that a server is away: the task of its connection knows, and reconnects in the
//! background. Then pending charges are written. No key moves to another server for that: each gateway would move it at another
//! time, and they would count separately. A cluster moves its slots itself, and cells follow.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::Coordinator;
use crate::config::OnError;
use crate::store::shared::batch::{ServerQueue, ServerState};
use crate::store::shared::cached_cell::ExchangeStage;
use crate::store::shared::cells::CellPlace;
use crate::store::shared::mailbox::PendingDecision;

impl Coordinator {
    pub(in super::super) fn up(&mut self, server: usize) {
        self.servers[server].state = ServerState::Up;
    }

    /// What was in flight may have arrived or not.
    pub(in super::super) fn down(&mut self, server: usize) {
        for exchange in self.servers[server].fail() {
            for (cell, _) in exchange.cells {
                let cached = self.cells.at(cell);
                cached.lose_replies();
                cached.stage = ExchangeStage::Idle;
                self.abandon(cell);
                self.queue(cell, true);
            }
        }
        for cell in self.servers[server].give_up() {
            // The cell for which requests waited may be gone, and another one has its place now.
            let cached = self.cells.peek(cell);
            if cached.stage == ExchangeStage::Queued && cached.server == server {
                self.abandon(cell);
                self.cells.at(cell).stage = ExchangeStage::Idle;
                self.queue(cell, true);
            }
        }
    }

    /// Each slot is on the server of this number. A cell in flight follows once that exchange is answered or lost.
    pub(in super::super) fn follow_slots(&mut self, owners: Vec<usize>, servers: usize) {
        self.servers.resize_with(servers, ServerQueue::default);
        self.servers.iter_mut().enumerate().for_each(|(server, queue)| queue.has_slots(owners.contains(&server)));
        for cell in self.cells.follow_slots(owners) {
            let cached = self.cells.peek(cell);
            if cached.stage != ExchangeStage::Queued {
                continue;
            }
            if self.servers[cached.server].state == ServerState::Away {
                self.abandon(cell);
            }
            self.cells.at(cell).stage = ExchangeStage::Idle;
            self.queue(cell, true);
        }
    }

    fn abandon(&mut self, cell: CellPlace) {
        self.drop_provisional(cell, true);
        self.drop_inspections(cell);
        for number in std::mem::take(&mut self.cells.at(cell).waiting) {
            self.give_up(number);
        }
    }

    pub(super) fn give_up(&mut self, number: u64) {
        if self.on_error != OnError::Local {
            self.waiting.take(number).into_iter().for_each(|decision| self.dismiss(decision));
        } else if let Some(decision) = self.waiting.count_down(number) {
            self.decide_from_memory(decision);
        }
    }

    pub(in super::super) fn expire(&mut self, now: Instant) {
        while self.waiting.deadline().is_some_and(|deadline| deadline <= now)
            && let Some(decision) = self.waiting.take(self.waiting.first)
        {
            match self.on_error {
                OnError::Local => self.decide_from_memory(decision),
                OnError::Allow | OnError::Reject => self.dismiss(decision),
            }
        }
    }

    fn decide_from_memory(&mut self, decision: Box<PendingDecision>) {
        self.health.local.one();
        if decision.standings.is_empty() {
            self.judge(decision, false);
        } else {
            // It is charged, and stays so without a confirmation.
            self.conclude(decision);
        }
    }
}

/// The decisions that wait, in the order in which they came. Their numbers are never reused.
#[derive(Debug, Default)]
pub(super) struct DecisionQueue {
    first: u64,
    queue: VecDeque<Slot>,
}

#[derive(Debug)]
struct Slot {
    /// All wait equally long, so the first in the queue is the first to end.
    deadline: Instant,
    /// `None` if it no longer waits; otherwise with the number of missing answers.
    waiting: Option<(Box<PendingDecision>, usize)>,
}

impl DecisionQueue {
    /// Returns the number of the decision.
    pub(super) fn push(&mut self, mut decision: Box<PendingDecision>, answers: usize, deadline: Instant) -> u64 {
        let number = self.first + self.queue.len() as u64;
        decision.number = number;
        self.queue.push_back(Slot { deadline, waiting: Some((decision, answers)) });
        number
    }

    /// Makes a decision that was just taken wait for more answers, until its deadline. Returns its number.
    pub(super) fn put_back(&mut self, decision: Box<PendingDecision>, answers: usize) -> u64 {
        let number = decision.number;
        if let Some(slot) = self.slot(number) {
            slot.waiting = Some((decision, answers));
        }
        number
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut PendingDecision> {
        self.slot(number)?.waiting.as_mut().map(|(decision, _)| &mut **decision)
    }

    /// One answer has come: returns the decision if it was the last.
    pub(super) fn count_down(&mut self, number: u64) -> Option<Box<PendingDecision>> {
        let (_, answers) = self.slot(number)?.waiting.as_mut()?;
        *answers = answers.saturating_sub(1);
        if *answers == 0 { self.take(number) } else { None }
    }

    pub(super) fn take(&mut self, number: u64) -> Option<Box<PendingDecision>> {
        self.slot(number)?.waiting.take().map(|(decision, _)| decision)
    }

    pub(super) fn deadline(&mut self) -> Option<Instant> {
        while self.queue.front()?.waiting.is_none() {
            self.queue.pop_front();
            self.first += 1;
        }
        self.queue.front().map(|slot| slot.deadline)
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        self.queue.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::base::clock::Time;
    use crate::config::{SharedStore, Software};
    use crate::limit::Limit;
    use crate::store::shared::Common;
    use crate::store::shared::batch::Due;
    use crate::store::shared::mailbox::Message;
    use crate::store::shared::memcached::Memcached;
    use crate::store::shared::protocol::Protocol;
    use crate::store::shared::refusals::RefusalCache;
    use crate::store::shared::slots::{SLOTS, slot_of};
    use crate::store::shared::tests::{ask, key_on};

    /// Two servers that answer, and a decision about this key of which the second server is asked.
    fn asked(limit: &Arc<Limit>, time: Time) -> Coordinator {
        let servers: Vec<_> = (0..2).map(|number| format!("server-{number}:11211")).collect();
        let now = Instant::now();
        let store =
            SharedStore { on_error: OnError::Reject, ..SharedStore::with_servers(Software::Memcached, servers) };
        let common = Common { refusals: Arc::new(RefusalCache::new(0)), ..Common::new(&store, 1) };
        let mut coordinator = Coordinator::new(&store, &common);
        (0..2).for_each(|server| coordinator.up(server));
        let asks = ask(limit, key_on(1, 2, limit));
        let decision = PendingDecision::new([asks].into_iter().collect(), time, now, None, 0);
        coordinator.submit(Message::Decide(decision), now + Duration::from_secs(1));
        coordinator
    }

    fn limit() -> Arc<Limit> {
        Arc::new(Limit::new("l", &["9/d".parse().unwrap()]))
    }

    const TIME: Time = Time::from_micros(1_800_000_000_000_000);

    #[test]
    fn who_waits_for_one_server_is_not_given_up_with_another_whose_cell_had_that_place() {
        let limit = limit();
        let mut coordinator = asked(&limit, TIME);
        // The previous cell at that place was queued at the other server, and nobody waited for it.
        let (other, _) = coordinator.cells.of(&limit, key_on(0, 2, &limit), TIME);
        let place = (0..2).find(|place| *place != other).unwrap();
        let Coordinator { cells, servers, .. } = &mut coordinator;
        cells.at(other).charge(&limit, TIME, 9);
        servers[0].queue(place, cells.at(other), true);
        assert_eq!(coordinator.due(0), Due::Now);
        coordinator.down(0);
        assert_eq!(coordinator.cells.peek(place).waiting.len(), 1, "its own server answers");
        assert!(coordinator.waiting.deadline().is_some());
    }

    #[test]
    fn who_waits_for_a_server_waits_for_the_one_that_has_the_slot_now() {
        let mut coordinator = asked(&limit(), TIME);
        assert_eq!([0, 1].map(|server| coordinator.due(server)), [Due::Never, Due::Now]);
        // To the first one, to a new one, and back. Connections are made only to servers with slots.
        for (owner, is_due) in [(0, true), (2, false), (1, false)] {
            coordinator.follow_slots(vec![owner; SLOTS], 3);
            let due = |coordinator: &Coordinator| {
                let due = (0..3).filter(|server| coordinator.due(*server) == Due::Now);
                due.collect::<Vec<_>>()
            };
            assert_eq!(due(&coordinator), if is_due { vec![owner] } else { vec![] });
            assert!(coordinator.waiting.deadline().is_some());
            coordinator.up(owner);
            assert_eq!(due(&coordinator), [owner]);
            coordinator.check();
        }
        let own = slot_of(&key_on(1, 2, &limit()).digits());
        coordinator.follow_slots((0..SLOTS).map(|slot| usize::from(slot == own)).collect(), 3);
        coordinator.down(0);
        assert!(coordinator.waiting.deadline().is_some(), "it does not wait for that one");
        coordinator.follow_slots(vec![0; SLOTS], 3);
        assert!(coordinator.waiting.deadline().is_none(), "that one is away");
        coordinator.check();
    }

    #[test]
    fn a_cell_in_flight_follows_its_slot_when_the_exchange_is_lost() {
        let mut coordinator = asked(&limit(), TIME);
        assert!(coordinator.write(1, &mut *Memcached.commands()));
        coordinator.follow_slots(vec![0; SLOTS], 2);
        assert_eq!(coordinator.due(0), Due::Never, "the last exchange may still be answered");
        assert!(!coordinator.is_left(1));
        coordinator.check();
        coordinator.down(1);
        assert!(coordinator.is_left(1), "it is not connected to again");
        assert!(coordinator.waiting.deadline().is_none());
        let decision = PendingDecision::new(
            [ask(&limit(), key_on(1, 2, &limit()))].into_iter().collect(),
            TIME,
            Instant::now(),
            None,
            0,
        );
        coordinator.submit(Message::Decide(decision), Instant::now() + Duration::from_secs(1));
        assert_eq!(coordinator.due(0), Due::Now);
        coordinator.check();
    }
}
