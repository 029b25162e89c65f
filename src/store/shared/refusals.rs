//! Refusals that hold for a while: until a key could be admitted again, the server need not be asked about it. A flood
//! of refused requests costs it nothing.
//!
//! Whatever others do meanwhile, a count only falls with time, or when somebody gives something back: where that is
//! done, a refusal is remembered briefly. A limit that was changed is another limit, so a raised quota holds at once.
//! But a key may be reset by another gateway, so the server is asked about it now and then all the same. And it may be banned
//! by another one: a refusal by a limit with bans holds only as long as a look at these would.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashlink::LruCache;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::cached_cell::BAN_READ;
use super::{BRIEFLY, OwnedAsk};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::base::sharding::Sharding;
use crate::config::Role;
use crate::limit::{Limit, Verdict};
use crate::store::{Ask, Verdicts, outlasts};

/// Enough that workers seldom meet.
const SHARDS: usize = 64;
/// The most keys remembered: who is forgotten is asked for.
const KEYS: usize = 1 << 16;

/// Microseconds after which a refusal is not relied on any more while the server can be asked, because another gateway
/// may have reset the key. So a flood of refused requests costs one read for each key and such a span.
pub(super) const RECHECK: u64 = 5_000_000;

/// A clock that went back by less was read by another thread a moment earlier.
const JITTER: u64 = 1_000_000;

/// What is remembered, by cell.
pub(super) struct RefusalCache {
    /// Microseconds for which a refusal is remembered at most.
    longest: u64,
    shards: Box<[Mutex<Shard>]>,
    sharding: Sharding,
}

type Shard = LruCache<Fingerprint, Refusal, RandomState>;

/// A refusal.
struct Refusal {
    limit: Arc<Limit>,
    need: u64,
    /// A clock that was set back to before it makes it void.
    since: Time,
    /// From when on it is not to be relied on.
    stale: u64,
    /// When it was the first moment that might be admitted.
    until: u64,
    verdict: Verdict,
}

impl RefusalCache {
    /// Remembers nothing yet, and nothing for more than `longest` microseconds.
    pub(super) fn new(longest: u64) -> Self {
        let shard = |_| Mutex::new(LruCache::with_hasher(KEYS / 64, RandomState::default()));
        Self { longest, shards: (0..SHARDS).map(shard).collect(), sharding: Sharding::default() }
    }

    /// Remembers what was decided at `now`, as far as it refuses: briefly where others may give back what it rests on.
    pub(super) fn note(&self, asks: &[OwnedAsk], verdicts: &Verdicts, now: Time, is_brief: impl Fn(usize) -> bool) {
        for (index, (ask, (_, verdict))) in asks.iter().zip(verdicts).enumerate() {
            // A ban that this has begun refuses what comes next.
            let begins_ban = verdict.admitted && ask.cost > 0 && ask.limit.counts_bans();
            let Some(wait) = verdict.wait.filter(|_| !verdict.admitted || begins_ban) else { continue };
            let verdict = Verdict { admitted: false, ..*verdict };
            let cell = ask.cell();
            let until = now.micros().saturating_add(wait);
            // What was reserved may be given back at any time, by other gateways too.
            let longest = if ask.settles || is_brief(index) { self.longest.min(BRIEFLY) } else { self.longest };
            let stale = until.min(now.micros().saturating_add(longest));
            let refusal = Refusal { limit: ask.limit.clone(), need: ask.need, since: now, stale, until, verdict };
            self.shard(cell).lock().insert(cell, refusal);
        }
    }

    /// Remembers nothing about this cell any more.
    pub(super) fn forget(&self, cell: Fingerprint) {
        self.shard(cell).lock().remove(&cell);
    }

    /// The verdicts on a request that is refused by what is remembered, without those of limits of which nothing is known.
    /// If the server `is_lost`, it cannot be asked.
    pub(super) fn find(&self, asks: &[Ask<'_>], now: Time, is_lost: bool) -> Option<Verdicts> {
        let banned = asks.iter().filter(|ask| ask.looks_at_bans()).find_map(|ask| {
            let (verdict, _) = self.of(ask, now, is_lost)?;
            Some((ask.place, verdict)).filter(|(_, verdict)| outlasts(verdict, asks))
        });
        if let Some(banned) = banned {
            return Some([banned].into_iter().collect());
        }
        // Once each: what is there at a first look may be gone at a second.
        let mut known: SmallVec<[Option<(Verdict, Time)>; 2]> =
            asks.iter().map(|ask| self.of(ask, now, is_lost)).collect();
        let is_banned = || asks.iter().zip(&known).any(|(ask, known)| known.is_some() && ask.looks_at_bans());
        if !is_lost && asks.iter().any(Ask::looks_at_bans) && !is_banned() {
            let is_recent = |since: &Time| now < since.after(BAN_READ);
            known.iter_mut().for_each(|known| _ = known.take_if(|(_, since)| !is_recent(since)));
        }
        asks.iter().zip(&known).find(|(ask, known)| ask.role == Role::Refuses && known.is_some())?;
        Some(asks.iter().zip(known).filter_map(|(ask, known)| Some((ask.place, known?.0))).collect())
    }

    /// The verdict on this ask, and since when it is known.
    fn of(&self, ask: &Ask<'_>, now: Time, is_lost: bool) -> Option<(Verdict, Time)> {
        let cell = ask.key.with(ask.limit.shape());
        let mut shard = self.shard(cell).lock();
        let refusal = shard.get(&cell)?;
        let is_due = !is_lost && now.micros() >= refusal.since.micros().saturating_add(RECHECK);
        let is_set_back = now.micros() + JITTER < refusal.since.micros();
        if is_set_back || is_due || now.micros() >= refusal.stale || !Arc::ptr_eq(&refusal.limit, ask.limit) {
            shard.remove(&cell);
            return None;
        }
        // Who needs more is refused as well, but for longer.
        let wait = Some(refusal.until - now.micros());
        (ask.need == refusal.need).then_some((Verdict { wait, ..refusal.verdict }, refusal.since))
    }

    fn shard(&self, cell: Fingerprint) -> &Mutex<Shard> {
        &self.shards[self.sharding.shard(cell, SHARDS)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_800_000_000_000_000);

    fn ask(limit: &Arc<Limit>, need: u64) -> Ask<'_> {
        let (key, settles, held_above) = (Fingerprint::of(b"k"), false, None);
        Ask { limit, key, need, cost: need, settles, held_above, role: Role::Refuses, place: 3 }
    }

    fn at(micros: u64) -> Time {
        Time::from_micros(NOW.micros() + micros)
    }

    #[test]
    fn a_no_holds_until_it_might_be_a_yes() {
        let limit = Arc::new(Limit::new("l", &["10/s".parse().unwrap()]));
        let refusals = RefusalCache::new(u64::MAX);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 2, wait: Some(500), level: 0 };
        refusals.note(&[OwnedAsk::from(&ask(&limit, 3))], &Verdicts::from_iter([(3, verdict)]), NOW, |_| false);
        let found = |need, now| refusals.find(&[ask(&limit, need)], now, false).map(|verdicts| verdicts[0].1);
        assert_eq!(found(3, at(200)), Some(Verdict { wait: Some(300), ..verdict }));
        assert_eq!(found(3, at(499)).unwrap().wait, Some(1));
        assert_eq!(found(4, at(499)), None, "for how long, is not known");
        assert_eq!(found(2, at(499)), None, "two fit");
        assert_eq!(found(3, at(500)), None);
        assert_eq!(found(3, at(200)), None, "and it is forgotten then");
    }

    #[test]
    fn a_no_is_looked_at_again_unless_nobody_can_be_asked() {
        let limit = Arc::new(Limit::new("l", &["10/d".parse().unwrap()]));
        let refusals = RefusalCache::new(u64::MAX);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(3 * RECHECK), level: 0 };
        refusals.note(&[OwnedAsk::from(&ask(&limit, 1))], &Verdicts::from_iter([(3, verdict)]), NOW, |_| false);
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
        let note =
            || refusals.note(&[OwnedAsk::from(&reserving)], &Verdicts::from_iter([(3, verdict)]), NOW, |_| false);
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
        let note =
            || refusals.note(&[OwnedAsk::from(&ask(&low, 1))], &Verdicts::from_iter([(3, verdict)]), NOW, |_| false);
        note();
        assert!(refusals.find(&[ask(&limit(raised), 1)], at(1), false).is_none());
        note();
        assert!(refusals.find(&[ask(&low, 1)], Time::from_micros(NOW.micros() - 2 * JITTER), false).is_none());
        note();
        let other = Ask { key: Fingerprint::of(b"other"), place: 4, ..ask(&low, 1) };
        assert!(refusals.find(&[other], at(1), false).is_none());
        let reports = Ask { role: Role::Reports, ..ask(&low, 1) };
        assert!(refusals.find(&[other, reports], at(1), false).is_none(), "what only reports refuses nothing");
        let both = refusals.find(&[other, ask(&low, 1)], at(1), false).unwrap();
        assert_eq!(both[..], [(3, Verdict { wait: Some(499), ..verdict })], "nothing is known of the other");
    }
}
