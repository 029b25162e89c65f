//! Bans keys that a limit has refused too often: all their requests are refused for a while.
//!
//! This process counts its refusals, also those that are known without asking the store, so counting costs no exchange. The
//! refusal that crosses the threshold begins a ban in the store, where all gateways see it. From then on each decision of the
//! limit looks whether its key is banned. A refusal by a ban does not count towards another ban.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::heavy_hitters::kept_text;
use super::{BanLimits, Decision, DecisionInput, DecisionState, RateSet, RouteLimit};
use crate::base::clock::{self, Time};
use crate::base::fingerprint::Fingerprint;
use crate::base::metrics::{Counter, PerWorker};
use crate::config::{self, BanResponse};
use crate::limit::{Limit, Verdict};
use crate::request::identify::KeyCache;
use crate::request::identify::key_text::written_text;
use crate::store::memory::Memory;
use crate::store::{Answer, Ask, Store, Verdicts};

/// The most keys whose refusals are counted, over all limits, and their most bytes. Least recently refused keys go first.
const MOST_KEYS: usize = 1 << 16;
const MOST_BYTES: usize = 32 << 20;
/// The place of the bans of the first limit. Those of other limits follow. No request has so many limits. If the headers of
/// the request name two clients, the bans of their keys have places after those of the counted key, in the same order.
const FIRST_BAN: usize = 1 << 16;
/// The most keys that a worker remembers for a limit. The one whose ban ends first is forgotten first.
const MOST_KNOWN: usize = 1000;

#[derive(Clone, Debug)]
pub struct BanRule {
    limits: BanLimits,
    strikes: Arc<Strikes>,
    pub respond: BanResponse,
}

#[derive(Debug)]
pub struct Strikes(Memory);

pub(super) struct Refused {
    place: usize,
    key: Fingerprint,
    /// Whether this refusal crosses the threshold. If not, it is unknown whether the key is banned already.
    is_too_often: bool,
}

/// Asks about a ban of `key`: a cost of 0 looks for one, and a cost of 1 begins one.
fn ask(bans: &Arc<Limit>, key: Fingerprint, cost: u64, place: usize) -> Ask<'_> {
    Ask { need: bans.capacity(), place, ..Ask::new(bans, key, cost) }
}

impl BanRule {
    /// `None` if the limit bans no keys. `strikes` are those of the process.
    pub fn new(limit: &config::Limit, limits: Option<&BanLimits>, strikes: &Arc<Strikes>) -> Option<Self> {
        let (ban, limits) = (limit.ban.as_ref()?, limits?.clone());
        Some(Self { limits, strikes: strikes.clone(), respond: ban.respond })
    }

    /// Counts a refusal of a key. Returns whether it crosses the threshold.
    fn is_one_too_many(&self, key: Fingerprint, now: Time) -> bool {
        self.strikes.add(&self.limits.strikes, key, now)
    }
}

impl Default for Strikes {
    fn default() -> Self {
        Self(Memory::new(MOST_KEYS, MOST_BYTES))
    }
}

impl Strikes {
    fn add(&self, strikes: &Arc<Limit>, key: Fingerprint, now: Time) -> bool {
        self.0.decide(&[Ask::new(strikes, key, 1)], now).verdicts.iter().any(|(_, verdict)| !verdict.admitted)
    }

    pub fn forget(&self, strikes: &Arc<Limit>, key: Fingerprint) {
        self.0.reset(strikes, key);
    }
}

impl<'a> DecisionState<'a> {
    /// Also asks whether the key of this limit is banned. If the headers of the request name two clients, also whether one of
    /// these is: otherwise a client could escape a ban by a header that contradicts its proxy.
    pub(super) fn prepare_bans(
        &mut self,
        input: &DecisionInput<'a, '_>,
        place: usize,
        profile: RateSet<'a>,
        key: Fingerprint,
        key_cache: &mut KeyCache,
    ) {
        let route_limit = &input.limits[place];
        let Some(rule) = &route_limit.ban else { return };
        let mut keys = SmallVec::<[_; 3]>::from_iter([key]);
        for client in input.attributes.contradictory {
            let key = route_limit.key.extract_rare(&input.attributes.from_client(*client), key_cache);
            keys.extend(key.filter(|key| !keys.contains(key)));
        }
        for (index, key) in keys.into_iter().enumerate() {
            self.asks.push(ask(&rule.limits.bans, key, 0, (1 + index) * FIRST_BAN + place));
            self.profiles.push(profile);
        }
    }

    /// Counts a refusal by the limit at this place. Its key is not banned.
    pub(super) fn strike(&mut self, input: &DecisionInput<'a, '_>, place: usize, key: Fingerprint) {
        if input.limits[place].ban.as_ref().is_some_and(|rule| rule.is_one_too_many(key, self.now(input.now))) {
            self.refused.push(Refused { place, key, is_too_often: true });
        }
    }

    /// Notes a refusal by the limit at this place about which the store was not asked, so the key may be banned.
    pub(super) fn refused_unasked(&mut self, input: &DecisionInput<'a, '_>, place: usize, key: Fingerprint) {
        if input.limits[place].ban.is_some() {
            self.refused.push(Refused { place, key, is_too_often: false });
        }
    }

    /// Returns the decision, or that of a ban: an existing ban of a key that was refused before its bans were looked up, or a
    /// ban that begins because this refusal crosses the threshold.
    pub(super) async fn with_bans(&mut self, input: &DecisionInput<'a, '_>, decision: Decision) -> Decision {
        if self.refused.is_empty() {
            return decision;
        }
        let ban = Box::pin(self.ban(input)).await;
        ban.into_iter().for_each(|ban| self.tell_ban(ban));
        ban.unwrap_or(decision)
    }

    async fn ban(&mut self, input: &DecisionInput<'a, '_>) -> Option<Decision> {
        let mut ban = None;
        for Refused { place, key, is_too_often } in std::mem::take(&mut self.refused) {
            let route_limit = &input.limits[place];
            let Some(rule) = &route_limit.ban else { continue };
            if !is_too_often {
                if let Some(Verdict { admitted: false, wait, .. }) = self.ask_about_ban(input, place, key, 0).await {
                    let until = self.now(input.now).after_micros(wait.unwrap_or(0));
                    ban = Some(Decision::Banned { place, until, begins: false });
                    continue;
                }
                if !rule.is_one_too_many(key, self.now(input.now)) {
                    continue;
                }
            }
            // If the store does not answer, there is no ban, and the next refusal crosses the threshold again.
            let Some(Verdict { admitted, wait, .. }) = self.ask_about_ban(input, place, key, 1).await else {
                continue;
            };
            rule.strikes.forget(&rule.limits.strikes, key);
            // If the ban is not admitted, another gateway has begun it at the same time.
            if admitted {
                route_limit.metrics.bans.of(input.worker).begun.one();
            }
            let until = self.now(input.now).after_micros(wait.unwrap_or(0));
            ban = Some(Decision::Banned { place, until, begins: true });
        }
        ban
    }

    /// Asks the store whether a key is banned, or with a cost of 1 to ban it. `None` without an answer.
    async fn ask_about_ban(
        &mut self,
        input: &DecisionInput<'a, '_>,
        place: usize,
        key: Fingerprint,
        cost: u64,
    ) -> Option<Verdict> {
        let (route_limit, now) = (&input.limits[place], self.now(input.now));
        let bans = &route_limit.ban.as_ref()?.limits.bans;
        let reply = match input.store.decide(&[ask(bans, key, cost, place)], now, input.worker) {
            Answer::Now(reply) => reply,
            Answer::Later(reply) => self.receive(input, reply).await?,
            Answer::Away => return None,
        };
        let (_, verdict) = *reply.verdicts.first()?;
        let is_banned = !verdict.admitted || cost > 0;
        route_limit.note_ban(input, key, bans, Verdict { admitted: !is_banned, ..verdict }, now);
        Some(verdict)
    }

    /// Shows clients the ban instead of the last outcome of its limit.
    pub(super) fn tell_ban(&mut self, decision: Decision) {
        let Decision::Banned { place: banned, until, .. } = decision else { return };
        if let Some(outcome) = self.outcomes.iter_mut().rfind(|outcome| outcome.place == banned) {
            outcome.ban(until);
        }
    }
}

/// The decision if a ban refuses the request. Of several bans, the one that ends last counts.
pub(super) fn banned(verdicts: &Verdicts, as_of: Time) -> Option<Decision> {
    let bans = verdicts.iter().filter_map(|(place, verdict)| Some((limit_of(*place)?, verdict)));
    let longest = bans.filter(|(_, verdict)| !verdict.admitted).max_by_key(|(_, verdict)| verdict.wait);
    longest.map(|(place, verdict)| {
        let until = as_of.after_micros(verdict.wait.unwrap_or(0));
        Decision::Banned { place, until, begins: false }
    })
}

/// The place of the limit whose bans are at this place. `None` if this is not a place of bans.
pub(super) fn limit_of(place: usize) -> Option<usize> {
    (place >= FIRST_BAN).then_some(place % FIRST_BAN)
}

/// Whether the bans at this place are those of the key that the limit counts.
pub(super) fn is_of_counted_key(place: usize) -> bool {
    place / FIRST_BAN == 1
}

impl RouteLimit {
    /// Counts a refusal of a key whose request was admitted before. If it is one too many, a ban begins, which the next request
    /// of the key meets.
    pub async fn strike_later(&self, key: Fingerprint, store: &Store, worker: usize) {
        let now = clock::now();
        let Some(rule) = self.ban.as_ref().filter(|rule| self.is_of_route && rule.is_one_too_many(key, now)) else {
            return;
        };
        let reply = match store.decide(&[ask(&rule.limits.bans, key, 1, 0)], now, worker) {
            Answer::Now(reply) => Some(reply),
            Answer::Later(reply) => reply.await.ok(),
            Answer::Away => None,
        };
        if let Some((_, verdict)) = reply.and_then(|reply| reply.verdicts.first().copied()) {
            rule.strikes.forget(&rule.limits.strikes, key);
            self.metrics.bans.of(worker).begun.add(u64::from(verdict.admitted));
        }
    }

    /// Notes for the admin API what the verdict says about a ban of this key.
    pub(super) fn note_ban(
        &self,
        input: &DecisionInput<'_, '_>,
        key: Fingerprint,
        bans: &Limit,
        verdict: Verdict,
        now: Time,
    ) {
        if !self.counts_keys {
            return;
        }
        let known = self.metrics.bans.of(input.worker);
        match verdict.wait.filter(|_| !verdict.admitted) {
            Some(wait) => {
                let until = now.after_micros(wait);
                let text = || written_text(&self.key.parts(input.attributes));
                known.note(key, until, bans.times(&verdict), text);
            }
            None => known.forget(key),
        }
    }
}

/// The banned keys of a limit as far as one worker knows them, for the admin API only. The store decides.
#[derive(Debug, Default)]
pub struct KnownBans {
    /// How many bans the worker has begun.
    pub begun: Counter,
    keys: Mutex<HashMap<Fingerprint, KnownBan, RandomState>>,
    /// The length of `keys`, readable without the lock.
    count: AtomicUsize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownBan {
    /// The text of the key, or its beginning and its end if it is long.
    pub text: String,
    pub until: Time,
    /// How many bans of the key have followed each other.
    pub times: u64,
}

impl KnownBans {
    /// Notes that a key is banned. `text` is called only if the key is new.
    fn note(&self, key: Fingerprint, until: Time, times: u64, text: impl FnOnce() -> String) {
        let Some(mut keys) = self.keys.try_lock() else { return };
        if let Some(known) = keys.get_mut(&key) {
            (known.until, known.times) = (until, times);
            return;
        }
        if keys.len() >= MOST_KNOWN
            && let Some(first) = keys.iter().min_by_key(|(_, known)| known.until).map(|(key, _)| *key)
        {
            keys.remove(&first);
        }
        keys.insert(key, KnownBan { text: kept_text(&text()), until, times });
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    /// Notes that a key is not banned.
    pub fn forget(&self, key: Fingerprint) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut keys = self.keys.lock();
            keys.remove(&key);
            self.count.store(keys.len(), Ordering::Relaxed);
        }
    }

    /// The bans known to any worker that last at `now`, sorted by their end.
    pub fn all(workers: &PerWorker<Self>, now: Time) -> Vec<(Fingerprint, KnownBan)> {
        let mut all: HashMap<_, KnownBan, RandomState> = HashMap::default();
        for worker in workers.iter() {
            for (key, known) in worker.keys.lock().iter().filter(|(_, known)| known.until > now) {
                let newest = all.entry(*key).or_insert_with(|| known.clone());
                if newest.until < known.until {
                    newest.clone_from(known);
                }
            }
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(key, known)| (known.until, *key));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Fingerprint {
        Fingerprint::of(&number.to_be_bytes())
    }

    fn note(bans: &KnownBans, number: usize, until: u64) {
        bans.note(key(number), Time::from_micros(until), 1, || format!("client-{number}"));
    }

    fn texts(workers: &PerWorker<KnownBans>, now: u64) -> Vec<String> {
        KnownBans::all(workers, Time::from_micros(now)).into_iter().map(|(_, known)| known.text).collect()
    }

    #[test]
    fn the_bans_of_all_workers_are_shown_while_they_last() {
        let workers = PerWorker::<KnownBans>::new(2);
        note(workers.of(0), 1, 30);
        note(workers.of(0), 2, 20);
        note(workers.of(1), 1, 40);
        assert_eq!(texts(&workers, 10), ["client-2", "client-1"]);
        assert_eq!(texts(&workers, 20), ["client-1"]);
        assert_eq!(KnownBans::all(&workers, Time::from_micros(30))[0].1.until, Time::from_micros(40));
        workers.iter().for_each(|worker| worker.forget(key(1)));
        assert_eq!(texts(&workers, 10), ["client-2"]);
    }

    #[test]
    fn invented_keys_do_not_make_it_grow() {
        let workers = PerWorker::<KnownBans>::new(1);
        for number in 0..MOST_KNOWN + 500 {
            workers.of(0).note(key(number), Time::from_micros(number as u64 + 1), 1, || "k".repeat(10_000));
        }
        let all = KnownBans::all(&workers, Time::from_micros(0));
        assert_eq!(
            (all.len(), all[0].1.until),
            (MOST_KNOWN, Time::from_micros(501)),
            "those that end first are forgotten"
        );
        assert!(all.iter().all(|(_, known)| known.text.len() < 100));
    }
}
