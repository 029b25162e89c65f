//! How the sums of one cell differ from those on the server, counter by counter.
//!
//! A counter is in one of these states:
//!
//! ```text
//!            charge, give back              an exchange is written         it is answered
//!   Clean ----------------------> Pending ----------------------> Sent ----------------------> Clean, or Pending
//!     |                            ^   ^                            |                          if it was charged meanwhile,
//!     |                            |   |                            |                          or there was nothing to add to
//!     | it is missing, and should  |   | a read shows that          | it is not answered, or something in it failed
//!     | be there                   |   | it has not arrived         v
//!     +----------------------------+   +-------------------- Unacknowledged --- a read shows that it has arrived --> Clean
//! ```
//!
//! Nothing is stored about a clean counter. An unacknowledged counter is only read: a charge added to it then could not be
//! distinguished from what may have arrived.

use smallvec::SmallVec;

use super::protocol::Written;

/// One counter of a cell: the index of its rate among those of the limit, and its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CounterId {
    pub(super) rate: usize,
    pub(super) bucket: u64,
}

/// A cost as a change of a counter; giving back is negative.
pub(super) fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

/// What the server has yet to confirm of one counter. Amounts that are given back are negative.
#[derive(Clone, Copy, Debug)]
struct UnconfirmedCounter {
    id: CounterId,
    pending: i64,
    sent: SentAmount,
    /// Whether to write the counter even if nothing is pending, because the server does not have it.
    restore: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentAmount {
    Nothing,
    InFlight(i64),
    /// Sent, but without an answer that tells whether it has arrived.
    Unacknowledged(i64),
}

#[derive(Debug, Default)]
pub(super) struct UnconfirmedCounters {
    unconfirmed: SmallVec<[UnconfirmedCounter; 2]>,
    /// What this gateway has counted itself and not given back; `None` while no gateway ever gives anything back. Where
    /// gateways do, counters shrink, so an earlier read says nothing about the present. But no counter is below what one
    /// gateway alone has counted in it, unless the counter was lost and another gateway has created it anew. Counts that
    /// continue from a replaced limit are included.
    counted_here: Option<Box<CountedHere>>,
    /// Whether gateways also give back what others have counted. Then any lower count is believed.
    shrinks_at_will: bool,
}

type CountedHere = SmallVec<[(CounterId, u64); 2]>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LearnedCount {
    /// The count on the server, and what the server has yet to be told.
    pub(super) count: u64,
    /// Whether the server has lost a count that it had.
    pub(super) is_lost: bool,
    pub(super) is_shared: bool,
}

impl UnconfirmedCounters {
    /// A negative `amount` is given back.
    pub(super) fn add(&mut self, id: CounterId, amount: i64) {
        let at = self.entry(id);
        let counter = &mut self.unconfirmed[at];
        counter.pending = counter.pending.saturating_add(amount);
        self.tidy(at);
        if let Some(counted) = &mut self.counted_here {
            match counted.iter_mut().find(|(of, _)| *of == id) {
                Some((_, count)) => *count = count.saturating_add_signed(amount),
                None => counted.push((id, 0u64.saturating_add_signed(amount))),
            }
        }
    }

    /// From now on something may be given back.
    pub(super) fn may_shrink(&mut self) {
        if !self.shrinks_at_will {
            self.counted_here.get_or_insert_default();
        }
    }

    /// From now on anybody may give back anything.
    pub(super) fn may_shrink_at_will(&mut self) {
        (self.counted_here, self.shrinks_at_will) = (None, true);
    }

    /// From now on other gateways may give back. They are seen for the first time, so all of `known` was counted here.
    pub(super) fn may_shrink_by_others(&mut self, id: CounterId, known: u64) {
        if !self.shrinks_at_will {
            self.counted_here.get_or_insert_with(|| Box::new(SmallVec::from_iter([(id, known)])));
        }
    }

    /// From now on at least `count`, which continues from a replaced limit. A counter that the server lacks is created.
    pub(super) fn hold(&mut self, id: CounterId, count: u64) {
        let counted = self.counted_here.get_or_insert_default();
        match counted.iter_mut().find(|(of, _)| *of == id) {
            Some((_, known)) => *known = count.max(*known),
            None => counted.push((id, count)),
        }
        self.create(id);
    }

    pub(super) fn shrinks(&self) -> bool {
        self.counted_here.is_some() || self.shrinks_at_will
    }

    /// Whether there is something to send, or to ask about.
    pub(super) fn is_open(&self) -> bool {
        self.unconfirmed.iter().any(|counter| counter.is_pending() || counter.unacknowledged() > 0)
    }

    /// Whether some counter has to be read before it can be added to.
    pub(super) fn is_unacknowledged(&self) -> bool {
        self.unconfirmed.iter().any(|counter| counter.unacknowledged() > 0)
    }

    pub(super) fn is_in_flight(&self, id: CounterId) -> bool {
        self.of(id).is_some_and(|counter| matches!(counter.sent, SentAmount::InFlight(_)))
    }

    pub(super) fn has(&self, id: CounterId) -> bool {
        self.of(id).is_some()
    }

    /// False if the charge may never have arrived: then `amount` would be taken from others.
    pub(super) fn can_give_back(&self, id: CounterId, amount: u64) -> bool {
        self.of(id).is_none_or(|counter| {
            counter.unacknowledged() == 0 || u64::try_from(counter.pending).is_ok_and(|later| later >= amount)
        })
    }

    /// Sends what is pending and can be sent: calls `write(counter, amount, is_new)` for each. A new counter, which the
    /// server has lost or never had, is created with its count.
    pub(super) fn send(&mut self, mut write: impl FnMut(CounterId, i64, bool)) {
        for counter in &mut self.unconfirmed {
            if counter.is_pending() && counter.sent == SentAmount::Nothing {
                let amount = std::mem::take(&mut counter.pending);
                counter.sent = SentAmount::InFlight(amount);
                write(counter.id, amount, std::mem::take(&mut counter.restore));
            }
        }
    }

    /// What counts here, but not on the server yet, in flight or not. Negative if it is to be given back.
    pub(super) fn pending(&self, id: CounterId) -> i64 {
        self.of(id).map_or(0, |counter| counter.pending.saturating_add(counter.in_flight()))
    }

    fn create(&mut self, id: CounterId) {
        let at = self.entry(id);
        self.unconfirmed[at].restore = true;
    }

    /// Learns the result of the write. What was read after it is learned later.
    pub(super) fn acknowledge(&mut self, id: CounterId, written: Written) {
        let Some(at) = self.position(id) else { return };
        let counter = &mut self.unconfirmed[at];
        let SentAmount::InFlight(amount) = counter.sent else { return };
        counter.sent = SentAmount::Nothing;
        match written {
            Written::Done | Written::Count(_) => {}
            // There was no counter to add to, or to take from.
            Written::Missing => {
                counter.pending = counter.pending.saturating_add(amount.max(0));
                counter.restore = amount > 0;
            }
            Written::Refused | Written::Failed => {
                counter.pending = counter.pending.saturating_add(amount);
                counter.restore |= amount == 0;
            }
            Written::Unknown => counter.unacknowledge(amount),
        }
        self.tidy(at);
    }

    pub(super) fn acknowledge_all(&mut self) {
        for counter in &mut self.unconfirmed {
            if let SentAmount::InFlight(_) = counter.sent {
                counter.sent = SentAmount::Nothing;
            }
        }
        self.unconfirmed.retain(|counter| !counter.is_clean());
    }

    /// What was sent may or may not have arrived.
    pub(super) fn lose_replies(&mut self) {
        for counter in &mut self.unconfirmed {
            if let SentAmount::InFlight(amount) = counter.sent {
                counter.unacknowledge(amount);
            }
        }
        self.unconfirmed.retain(|counter| !counter.is_clean());
    }

    /// Learns that the server has this `count`, or no such counter. `known` counts here, with all that was sent. With
    /// `shrink` a lower count is believed, because gateways give back what they cannot use, but none below what was counted
    /// here.
    pub(super) fn learn(&mut self, id: CounterId, known: u64, count: Option<u64>, shrink: bool) -> LearnedCount {
        let at = self.position(id);
        let (pending, unacknowledged) = at.map_or((0, 0), |at| {
            let counter = &self.unconfirmed[at];
            (counter.pending.saturating_add(counter.in_flight()), counter.unacknowledged())
        });
        // Others only add. So a count below the earlier one plus what is unacknowledged means that this has not arrived.
        let before = known.saturating_add_signed(-pending.saturating_add(unacknowledged));
        let has_arrived = count.is_some_and(|count| count >= before.saturating_add_signed(unacknowledged));
        let pending = if has_arrived { pending } else { pending.saturating_add(unacknowledged) };
        let confirmed = known.saturating_add_signed(-pending);
        let there = match count {
            // A count below what was counted here means that the counter was lost, and another gateway has created it anew.
            Some(count) if shrink => count.max(self.counted_here(id).saturating_add_signed(-pending)),
            // Counters only grow. One that has shrunk was lost, and another gateway has created it anew.
            Some(count) => count.max(confirmed),
            None => confirmed,
        };
        let is_lost = count.is_none() && confirmed > 0;
        if let Some(at) = at {
            let counter = &mut self.unconfirmed[at];
            if let SentAmount::Unacknowledged(unacknowledged) = counter.sent {
                counter.sent = SentAmount::Nothing;
                counter.pending = counter.pending.saturating_add(if has_arrived { 0 } else { unacknowledged });
            }
        }
        if is_lost {
            self.create(id);
        } else if let Some(at) = at {
            self.unconfirmed[at].restore = false;
            self.tidy(at);
        }
        let is_shared = count.is_some_and(|count| count > confirmed);
        LearnedCount { count: there.saturating_add_signed(pending), is_lost, is_shared }
    }

    /// The key was reset: forgets all but pending charges. What was to be given back was charged before the reset.
    pub(super) fn forget_confirmed(&mut self) {
        for counter in &mut self.unconfirmed {
            counter.pending = counter.pending.max(0);
            counter.restore = false;
        }
        self.unconfirmed.retain(|counter| !counter.is_clean());
        let counted = self.unconfirmed.iter().map(|counter| counter.id);
        let counted = counted.map(|id| (id, 0u64.saturating_add_signed(self.pending(id)))).collect();
        self.counted_here = self.counted_here.is_some().then(|| Box::new(counted));
    }

    pub(super) fn retain(&mut self, matters: impl Fn(CounterId) -> bool) {
        self.unconfirmed.retain(|counter| matters(counter.id));
        if let Some(counted) = &mut self.counted_here {
            counted.retain(|(id, _)| matters(*id));
        }
    }

    fn counted_here(&self, id: CounterId) -> u64 {
        let found = self.counted_here.iter().flat_map(|counted| counted.iter()).find(|(of, _)| *of == id);
        found.map_or(0, |(_, count)| *count)
    }

    fn of(&self, id: CounterId) -> Option<&UnconfirmedCounter> {
        self.unconfirmed.iter().find(|counter| counter.id == id)
    }

    fn position(&self, id: CounterId) -> Option<usize> {
        self.unconfirmed.iter().position(|counter| counter.id == id)
    }

    fn entry(&mut self, id: CounterId) -> usize {
        self.position(id).unwrap_or_else(|| {
            self.unconfirmed.push(UnconfirmedCounter { id, pending: 0, sent: SentAmount::Nothing, restore: false });
            self.unconfirmed.len() - 1
        })
    }

    fn tidy(&mut self, at: usize) {
        if self.unconfirmed[at].is_clean() {
            self.unconfirmed.remove(at);
        }
    }
}

impl UnconfirmedCounter {
    fn is_pending(&self) -> bool {
        self.pending != 0 || self.restore
    }

    fn in_flight(&self) -> i64 {
        if let SentAmount::InFlight(amount) = self.sent { amount } else { 0 }
    }

    fn unacknowledged(&self) -> i64 {
        if let SentAmount::Unacknowledged(amount) = self.sent { amount } else { 0 }
    }

    /// What was sent may or may not have arrived. It is not given back a second time, since that could let too much pass.
    fn unacknowledge(&mut self, amount: i64) {
        self.sent = if amount > 0 { SentAmount::Unacknowledged(amount) } else { SentAmount::Nothing };
        self.restore |= amount == 0;
    }

    fn is_clean(&self) -> bool {
        !self.is_pending() && self.sent == SentAmount::Nothing
    }
}

#[cfg(test)]
impl UnconfirmedCounters {
    pub(super) fn has_sent(&self) -> bool {
        self.unconfirmed.iter().any(|counter| matches!(counter.sent, SentAmount::InFlight(_)))
    }

    /// What the server has yet to confirm of each counter; 0 if that is negative.
    pub(super) fn open(&self) -> impl Iterator<Item = (CounterId, u64)> {
        let open = |counter: &UnconfirmedCounter| counter.pending + counter.in_flight() + counter.unacknowledged();
        self.unconfirmed.iter().map(move |counter| (counter.id, u64::try_from(open(counter)).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: CounterId = CounterId { rate: 0, bucket: 7 };

    fn learn(counters: &mut UnconfirmedCounters, known: u64, count: Option<u64>) -> LearnedCount {
        counters.learn(ID, known, count, false)
    }

    fn sent(counters: &mut UnconfirmedCounters) -> Vec<i64> {
        let mut sent = Vec::new();
        counters.send(|id, amount, _| {
            assert_eq!(id, ID);
            sent.push(amount);
        });
        sent
    }

    #[test]
    fn what_was_counted_here_may_be_given_back_elsewhere() {
        let learned = |at_will: bool| {
            let mut counters = UnconfirmedCounters::default();
            counters.may_shrink();
            counters.add(ID, 5);
            counters.send(|_, _, _| {});
            counters.acknowledge(ID, Written::Done);
            if at_will {
                counters.may_shrink_at_will();
                counters.may_shrink();
            }
            counters.learn(ID, 5, Some(2), true).count
        };
        assert_eq!([learned(false), learned(true)], [5, 2]);
    }

    #[test]
    fn what_is_charged_is_sent_as_one() {
        let mut counters = UnconfirmedCounters::default();
        counters.add(ID, 2);
        counters.add(ID, 3);
        assert_eq!(sent(&mut counters), [5]);
        assert!(!counters.is_open() && sent(&mut counters).is_empty());
    }

    #[test]
    fn what_was_answered_is_clean_and_what_came_meanwhile_is_pending() {
        let mut counters = UnconfirmedCounters::default();
        counters.add(ID, 2);
        sent(&mut counters);
        counters.add(ID, 4);
        counters.acknowledge(ID, Written::Done);
        assert!(counters.is_open());
        // Other gateways have counted 9, this one 2 and 4.
        let learned = learn(&mut counters, 6, Some(11));
        assert_eq!(learned, LearnedCount { count: 15, is_lost: false, is_shared: true });
        assert_eq!(sent(&mut counters), [4]);
        counters.acknowledge(ID, Written::Done);
        assert!(counters.unconfirmed.is_empty());
    }

    #[test]
    fn what_has_arrived_is_not_sent_again_and_what_has_not_is() {
        for (count, again) in [(Some(10), vec![4]), (Some(12), vec![6]), (None, vec![6]), (Some(13), vec![4])] {
            let mut counters = UnconfirmedCounters::default();
            // As far as was known, 10 were there.
            counters.add(ID, 2);
            sent(&mut counters);
            counters.lose_replies();
            counters.add(ID, 4);
            assert!(counters.is_unacknowledged() && sent(&mut counters).is_empty(), "it is read first");
            let base = if count == Some(10) { 8 } else { 11 };
            let learned = learn(&mut counters, base + 6, count);
            assert!(!counters.is_unacknowledged());
            assert_eq!(sent(&mut counters), again, "{count:?}");
            assert_eq!(
                learned.count,
                count.unwrap_or(0).max(base + u64::from(again == [4]) * 2) + again[0].unsigned_abs(),
                "{count:?}"
            );
            assert_eq!(learned.is_lost, count.is_none());
        }
    }

    #[test]
    fn what_is_lost_is_written_again_though_nothing_is_pending() {
        let mut counters = UnconfirmedCounters::default();
        let learned = learn(&mut counters, 5, None);
        assert_eq!(learned, LearnedCount { count: 5, is_lost: true, is_shared: false });
        counters.send(|_, amount, is_new| assert_eq!((amount, is_new), (0, true)));
        counters.acknowledge(ID, Written::Done);
        assert!(!counters.is_open());
        assert_eq!(learn(&mut counters, 0, None), LearnedCount { count: 0, is_lost: false, is_shared: false });
    }

    #[test]
    fn what_was_added_to_nothing_is_written_again() {
        let mut counters = UnconfirmedCounters::default();
        counters.add(ID, 2);
        counters.send(|_, amount, is_new| assert_eq!((amount, is_new), (2, false)));
        counters.acknowledge(ID, Written::Missing);
        let learned = learn(&mut counters, 7, None);
        assert_eq!(learned, LearnedCount { count: 7, is_lost: true, is_shared: false });
        counters.send(|_, amount, is_new| assert_eq!((amount, is_new), (2, true)));
        counters.acknowledge(ID, Written::Missing);
        // Another gateway has created it anew.
        assert_eq!(learn(&mut counters, 7, Some(1)), LearnedCount { count: 7, is_lost: false, is_shared: false });
        counters.send(|_, amount, is_new| assert_eq!((amount, is_new), (2, false)));
    }

    #[test]
    fn where_counters_shrink_a_count_is_believed_down_to_what_was_counted_here() {
        let mut counters = UnconfirmedCounters::default();
        assert_eq!(counters.learn(ID, 9, Some(6), true).count, 6);
        counters.may_shrink();
        counters.add(ID, 4);
        sent(&mut counters);
        counters.acknowledge(ID, Written::Done);
        assert_eq!(counters.learn(ID, 9, Some(6), true).count, 6);
        assert_eq!(counters.learn(ID, 9, Some(2), true).count, 4);
        assert_eq!(learn(&mut counters, 9, Some(2)).count, 9, "else it was begun anew");
    }

    #[test]
    fn what_may_not_have_arrived_is_not_given_back() {
        let mut counters = UnconfirmedCounters::default();
        assert!(counters.can_give_back(ID, 3));
        counters.add(ID, 2);
        sent(&mut counters);
        counters.lose_replies();
        assert!(!counters.can_give_back(ID, 1));
        counters.add(ID, 3);
        assert!(counters.can_give_back(ID, 3) && !counters.can_give_back(ID, 4));
    }

    #[test]
    fn what_failed_is_sent_again_and_what_may_have_failed_is_read_first() {
        for amount in [3, 0, -3] {
            let mut counters = UnconfirmedCounters::default();
            counters.add(ID, amount);
            if amount == 0 {
                learn(&mut counters, 5, None);
            }
            assert_eq!(sent(&mut counters), [amount]);
            counters.acknowledge(ID, Written::Failed);
            assert_eq!(sent(&mut counters), [amount]);
            counters.acknowledge(ID, Written::Unknown);
            assert_eq!(counters.is_unacknowledged(), amount > 0);
            let again: &[i64] = if amount == 0 { &[0] } else { &[] };
            assert_eq!(sent(&mut counters), again, "what is given back is not given back twice");
        }
    }

    #[test]
    fn what_was_given_back_to_nothing_is_not_given_back_again() {
        let mut counters = UnconfirmedCounters::default();
        counters.add(ID, -3);
        assert_eq!(sent(&mut counters), [-3]);
        counters.acknowledge(ID, Written::Missing);
        let learned = learn(&mut counters, 2, None);
        assert_eq!(learned, LearnedCount { count: 2, is_lost: true, is_shared: false });
        assert_eq!(sent(&mut counters), [0], "what is left is written");
    }

    #[test]
    fn what_was_given_back_in_doubt_stays_given_back() {
        let mut counters = UnconfirmedCounters::default();
        counters.add(ID, -2);
        assert_eq!(sent(&mut counters), [-2]);
        counters.lose_replies();
        assert!(!counters.is_open() && !counters.is_unacknowledged() && counters.unconfirmed.is_empty());
    }

    #[derive(Default)]
    struct Pair {
        counters: UnconfirmedCounters,
        /// What counts here, and what should.
        known: u64,
        total: u64,
        there: Option<u64>,
        /// What was to be given back, but may not have been.
        dropped: u64,
    }

    impl Pair {
        fn charge(&mut self, amount: i64) {
            if amount < 0
                && (self.total < amount.unsigned_abs() || !self.counters.can_give_back(ID, amount.unsigned_abs()))
            {
                return;
            }
            self.counters.add(ID, amount);
            self.known = self.known.saturating_add_signed(amount);
            self.total = self.total.saturating_add_signed(amount);
        }

        /// An exchange that the server executes or not, and answers or not.
        fn exchange(&mut self, (is_executed, is_answered): (bool, bool)) {
            let mut written = None;
            self.counters.send(|_, amount, is_new| written = Some((amount, is_new)));
            let mut outcome = Written::Done;
            if let Some((amount, is_lost)) = written.filter(|_| is_executed) {
                let is_new = is_lost || self.known.saturating_add_signed(-amount) == 0;
                self.there = match self.there {
                    Some(there) => Some(there.saturating_add_signed(amount)),
                    None if is_new && amount >= 0 => Some(self.known),
                    None => {
                        outcome = Written::Missing;
                        None
                    }
                };
            }
            if is_answered && is_executed {
                self.counters.acknowledge(ID, outcome);
                self.known = learn(&mut self.counters, self.known, self.there).count;
            } else {
                self.dropped += written.map_or(0, |(amount, _)| amount.min(0).unsigned_abs());
                self.counters.lose_replies();
            }
        }
    }

    proptest! {
        /// Whatever is lost and whatever breaks, in the end the server has what a gateway on its own has counted.
        #[test]
        fn a_gateway_on_its_own_is_counted_exactly(
            steps in prop::collection::vec(prop_oneof![
                6 => (1..4_i64).prop_map(|amount| (Some(amount), (true, true))),
                2 => (-3..0_i64).prop_map(|amount| (Some(amount), (true, true))),
                6 => any::<(bool, bool)>().prop_map(|how| (None, how)),
                6 => Just((None, (true, true))),
                1 => Just((None, (false, true))),
            ], 1..60),
        ) {
            let mut pair = Pair::default();
            for (charged, how) in steps {
                match (charged, how) {
                    (Some(amount), _) => pair.charge(amount),
                    (None, (false, true)) => pair.there = None,
                    (None, how) => pair.exchange(how),
                }
            }
            for _ in 0..3 {
                pair.exchange((true, true));
            }
            prop_assert!(pair.counters.unconfirmed.is_empty());
            prop_assert_eq!(pair.there.unwrap_or(0), pair.known);
            prop_assert!(pair.total <= pair.known && pair.known <= pair.total + pair.dropped);
        }
    }
}
