//! Remembered refusals: until a key could be admitted again, the server need not be asked, so a flood of refused requests
//! costs the server nothing.
//!
//! Whatever other gateways do, a count falls only with time, or when something is given back: where that happens, a refusal
//! is remembered briefly. A changed limit is another limit, so a raised quota applies at once. But another gateway may reset
//! a key, so the server is asked again now and then. And another gateway may ban a key, so a refusal by a limit with bans
//! holds only as long as a read of these.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashlink::LruCache;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::cached_cell::BAN_READ;
use super::{BRIEFLY, OwnedAsk};
use crate::base::clock::Time;
use crate::base::fingerprint::{Fingerprint, Sharding};
use crate::limit::{Cell, Limit, Verdict};
use crate::store::plan::Plan;
use crate::store::{Ask, Demand, Pooled, Reply, outlasts};

/// Enough that workers seldom meet.
const SHARDS: usize = 64;
/// The most keys remembered. The server is asked about forgotten ones.
const KEYS: usize = 1 << 16;

/// Microseconds after which a refusal is not relied on any more while the server can be asked, because another gateway may
/// have reset the key. So a flood of refused requests costs one read per key in that time.
pub(super) const RECHECK: u64 = 5_000_000;

pub(super) struct RefusalCache {
    /// Microseconds for which a refusal is remembered at most.
    longest: u64,
    shards: Box<[Mutex<RefusalShard>]>,
    sharding: Sharding,
}

type RefusalShard = LruCache<Fingerprint, Refusal, RandomState>;

struct Refusal {
    limit: Arc<Limit>,
    need: u64,
    /// Void if the clock is set back to before this moment.
    since: Time,
    /// When it is no longer relied on.
    stale: u64,
    /// The moment, as of the refusal, when the request might be admitted.
    until: u64,
    verdict: Verdict,
    /// The counts then, by which requests of other costs are refused; `None` if they were too large to be remembered.
    counts: Option<Cell>,
}

#[derive(Default)]
pub(super) struct Seen {
    /// Whether other gateways may soon give back the charges behind the refusal.
    pub(super) is_brief: bool,
    /// `None` if the counts are too large to be remembered.
    pub(super) counts: Option<Cell>,
}

impl RefusalCache {
    /// `longest` is in microseconds.
    pub(super) fn new(longest: u64) -> Self {
        let shard = |_| Mutex::new(LruCache::with_hasher(KEYS / 64, RandomState::default()));
        Self { longest, shards: (0..SHARDS).map(shard).collect(), sharding: Sharding::default() }
    }

    /// Remembers the refusals of a decision: briefly if other gateways may give back the charges behind them.
    pub(super) fn note(&self, asks: &[OwnedAsk], reply: &Reply, now: Time, seen: impl Fn(&OwnedAsk, usize) -> Seen) {
        // A full ask was not looked at, or was given back, so it is no news.
        for (index, ask) in asks.iter().enumerate().filter(|(_, ask)| !ask.is_full) {
            // A refusal of the request itself also refuses what overflows into the limit.
            let own = reply.verdict(ask.place).map(|verdict| (ask.borrowed().need, verdict));
            // A ban that this request has begun refuses the next ones.
            let begins_ban = ask.cost > 0 && ask.limit.counts_bans();
            let refuses = |(_, verdict): &(u64, Verdict)| !verdict.admitted || begins_ban;
            let pooled = || reply.pooled(ask.place).map(|pooled| (pooled.demand.need, pooled.verdict));
            let Some((need, verdict)) = own.filter(refuses).or_else(|| pooled().filter(refuses)) else { continue };
            let Some(wait) = verdict.wait else { continue };
            let verdict = Verdict { admitted: false, ..verdict };
            let cell = ask.cell();
            let until = now.micros().saturating_add(wait);
            // A reservation may be given back at any time, by other gateways, too.
            let Seen { is_brief, counts } = seen(ask, index);
            let longest = if ask.settles || is_brief { self.longest.min(BRIEFLY) } else { self.longest };
            let stale = until.min(now.micros().saturating_add(longest));
            let refusal = Refusal { limit: ask.limit.clone(), need, since: now, stale, until, verdict, counts };
            self.shard(cell).lock().insert(cell, refusal);
        }
    }

    pub(super) fn forget(&self, cell: Fingerprint) {
        self.shard(cell).lock().remove(&cell);
    }

    /// The reply if a remembered refusal refuses the request, with the known verdicts only. A lost server cannot be asked.
    pub(super) fn find(&self, asks: &[Ask<'_>], now: Time, is_lost: bool) -> Option<Reply> {
        let looks = || asks.iter().filter(|ask| ask.looks_at_bans());
        let banned = looks().find_map(|ask| Some((ask.place, self.of(ask, ask.need, now, is_lost)?.0)));
        if let Some(banned) = banned.filter(|(_, verdict)| outlasts(verdict, asks)) {
            return Some(Reply { verdicts: [banned].into_iter().collect(), ..Reply::default() });
        }
        let must_be_recent = !is_lost && banned.is_none() && looks().next().is_some();
        // A refusal that the first lookup finds may be gone at the second.
        let mut known: SmallVec<[(usize, Demand, Verdict); 2]> = SmallVec::new();
        let plan = Plan::new(&asks.iter().copied(), |index, demand| {
            let found = self.of(&asks[index], demand.need, now, is_lost);
            let verdict = found.filter(|(_, since)| !must_be_recent || now < since.after(BAN_READ));
            known.extend(verdict.map(|(verdict, _)| (index, demand, verdict)));
            verdict.is_none()
        });
        if plan.admits {
            return None;
        }
        let mut reply = Reply::default();
        let of = |index, demand| known.iter().find(|(of, on, _)| (*of, *on) == (index, demand)).map(|known| known.2);
        for (index, (ask, part)) in asks.iter().zip(&plan.parts).enumerate() {
            let place = ask.place;
            reply.verdicts.extend(of(index, ask.demand()).map(|verdict| (place, verdict)));
            let pooled = part.pooled.and_then(|(demand, _)| Some((demand, of(index, demand)?)));
            reply.pooled.extend(pooled.map(|(demand, verdict)| Pooled { place, demand, verdict }));
        }
        Some(reply)
    }

    /// Whether a remembered refusal says that the limit has no room for the request.
    pub(super) fn knows(&self, ask: &OwnedAsk, now: Time) -> bool {
        let ask = ask.borrowed();
        self.of(&ask, ask.need, now, false).is_some()
    }

    /// The verdict on this ask with this need, and since when it is known.
    fn of(&self, ask: &Ask<'_>, need: u64, now: Time, is_lost: bool) -> Option<(Verdict, Time)> {
        if ask.overflow.is_some() && need > ask.limit.capacity() {
            // Without a pool such a request is answered earlier.
            return Some((Verdict { admitted: false, rate: 0, remaining: 0, wait: None, level: 0 }, now));
        }
        let cell = ask.key.with(ask.limit.shape());
        let mut shard = self.shard(cell).lock();
        let refusal = shard.get(&cell)?;
        let is_due = !is_lost && now.micros() >= refusal.since.micros().saturating_add(RECHECK);
        if now.is_set_back_from(refusal.since)
            || is_due
            || now.micros() >= refusal.stale
            || !Arc::ptr_eq(&refusal.limit, ask.limit)
        {
            shard.remove(&cell);
            return None;
        }
        let is_less = need < refusal.need;
        match &refusal.counts {
            Some(counts) if need != refusal.need => {
                let mut counts = counts.clone();
                counts.advance(ask.limit.rates(), now);
                Some((ask.limit.refuses(&counts, now, need)?, refusal.since))
            }
            None if is_less => None,
            // A larger need is refused for at least as long.
            _ => Some((Verdict { wait: Some(refusal.until - now.micros()), ..refusal.verdict }, refusal.since)),
        }
    }

    fn shard(&self, cell: Fingerprint) -> &Mutex<RefusalShard> {
        &self.shards[self.sharding.shard(cell, SHARDS)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;

    const NOW: Time = Time::from_micros(1_800_000_000_000_000);

    fn ask(limit: &Arc<Limit>, need: u64) -> Ask<'_> {
        Ask { place: 3, ..Ask::new(limit, Fingerprint::of(b"k"), need) }
    }

    fn reply(verdict: Verdict) -> Reply {
        Reply { verdicts: [(3, verdict)].into_iter().collect(), ..Reply::default() }
    }

    fn at(micros: u64) -> Time {
        Time::from_micros(NOW.micros() + micros)
    }

    #[test]
    fn a_no_holds_until_it_might_be_a_yes() {
        let limit = Arc::new(Limit::new("l", &["10/s".parse().unwrap()]));
        let refusals = RefusalCache::new(u64::MAX);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 2, wait: Some(500), level: 0 };
        refusals.note(&[OwnedAsk::from(&ask(&limit, 3))], &reply(verdict), NOW, |_, _| Seen::default());
        let found = |need, now| refusals.find(&[ask(&limit, need)], now, false).map(|reply| reply.verdicts[0].1);
        assert_eq!(found(3, at(200)), Some(Verdict { wait: Some(300), ..verdict }));
        assert_eq!(found(3, at(499)).unwrap().wait, Some(1));
        assert_eq!(found(4, at(499)), found(3, at(499)), "for how much longer, is not known");
        assert_eq!(found(2, at(499)), None, "two fit");
        assert_eq!(found(3, at(500)), None);
        assert_eq!(found(3, at(200)), None, "and it is forgotten then");
    }

    #[test]
    fn other_costs_are_refused_by_what_was_counted() {
        for rate in ["10/s", "10/s burst 10", "10/d", "10/day"] {
            let limit = Arc::new(Limit::new("l", &[rate.parse().unwrap()]));
            let mut cell = Cell::new(limit.rates(), NOW);
            limit.charge(&mut cell, NOW, 8);
            let refusals = RefusalCache::new(u64::MAX);
            let verdict = limit.refuses(&cell, NOW, 5).unwrap();
            let seen = |_: &OwnedAsk, _| Seen { is_brief: false, counts: limit.small_copy(&cell) };
            refusals.note(&[OwnedAsk::from(&ask(&limit, 5))], &reply(verdict), NOW, seen);
            for need in [1, 2, 3, 4, 5, 6, 10] {
                let mut cell = cell.clone();
                cell.advance(limit.rates(), at(1_000));
                let found = refusals.find(&[ask(&limit, need)], at(1_000), false);
                let found = found.map(|reply| reply.verdicts[0].1);
                assert_eq!(found, limit.refuses(&cell, at(1_000), need), "{need} of {rate}");
            }
        }
    }

    #[test]
    fn a_no_is_looked_at_again_unless_nobody_can_be_asked() {
        let limit = Arc::new(Limit::new("l", &["10/d".parse().unwrap()]));
        let refusals = RefusalCache::new(u64::MAX);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(3 * RECHECK), level: 0 };
        refusals.note(&[OwnedAsk::from(&ask(&limit, 1))], &reply(verdict), NOW, |_, _| Seen::default());
        let is_known = |now, is_lost| refusals.find(&[ask(&limit, 1)], now, is_lost).is_some();
        assert!(is_known(at(RECHECK - 1), false));
        assert!(is_known(at(2 * RECHECK), true));
        assert!(!is_known(at(RECHECK), false), "the key may have been reset");
    }

    #[test]
    fn what_may_be_given_back_is_no_refusal_for_long() {
        let limit = Arc::new(Limit::new("l", &["10/s".parse().unwrap()]));
        let refusals = RefusalCache::new(u64::MAX);
        let reserving = Ask { settles: true, ..ask(&limit, 1) };
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(500_000), level: 0 };
        let note = || refusals.note(&[OwnedAsk::from(&reserving)], &reply(verdict), NOW, |_, _| Seen::default());
        let is_known = |now| refusals.find(&[reserving], now, false).is_some();
        note();
        assert!(is_known(at(BRIEFLY - 1)) && !is_known(at(BRIEFLY)));
        note();
        refusals.forget(OwnedAsk::from(&reserving).cell());
        assert!(!is_known(at(1)));
    }

    #[test]
    fn another_limit_or_clock_is_asked_for_anew() {
        let (limit, raised) = (|quota: &str| Arc::new(Limit::new("l", &[quota.parse().unwrap()])), "20/s");
        let low = limit("10/s");
        let refusals = RefusalCache::new(u64::MAX);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(500), level: 0 };
        let note = || refusals.note(&[OwnedAsk::from(&ask(&low, 1))], &reply(verdict), NOW, |_, _| Seen::default());
        note();
        assert!(refusals.find(&[ask(&limit(raised), 1)], at(1), false).is_none());
        note();
        assert!(refusals.find(&[ask(&low, 1)], Time::from_micros(NOW.micros() - 2_000_000), false).is_none());
        note();
        let other = Ask { key: Fingerprint::of(b"other"), place: 4, ..ask(&low, 1) };
        assert!(refusals.find(&[other], at(1), false).is_none());
        let reports = Ask { role: Role::Reports, ..ask(&low, 1) };
        assert!(refusals.find(&[other, reports], at(1), false).is_none(), "what only reports refuses nothing");
        let both = refusals.find(&[other, ask(&low, 1)], at(1), false).unwrap();
        assert_eq!(both.verdicts[..], [(3, Verdict { wait: Some(499), ..verdict })], "nothing is known of the other");
    }
}
