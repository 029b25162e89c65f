//! Decisions about limits that ban. Hardly any key is banned, and a ban alone decides about its key.

use super::{Memory, entry};
use crate::base::clock::Time;
use crate::limit::Verdict;
use crate::store::{Ask, Asks, Reply, Verdicts, outlasts};

impl Memory {
    /// The reply if bans alone decide: no key of the request has a ban, or a ban outlasts anything else that could refuse it.
    pub(super) fn decide_by_bans(&self, asks: &[Ask<'_>], now: Time) -> Option<Reply> {
        let (mut verdicts, mut was_banned) = (Verdicts::new(), false);
        for ask in asks.iter().filter(|ask| ask.looks_at_bans()) {
            let (shard, key) = self.place(ask.limit, ask.key);
            let shard = &mut *self.shards[shard].lock();
            let Some(entry) = entry(shard, key, ask, now) else {
                let remaining = ask.limit.capacity();
                verdicts.push((ask.place, Verdict { admitted: true, rate: 0, remaining, wait: None, level: 0 }));
                continue;
            };
            was_banned = true;
            if let Some(refusal) = ask.limit.refuses(&entry.cell, now, ask.need).filter(|one| outlasts(one, asks)) {
                let verdicts = [(ask.place, refusal)].into_iter().collect();
                return Some(Reply { verdicts, ..Reply::default() });
            }
        }
        if was_banned || verdicts.is_empty() {
            return None;
        }
        let others: Asks<'_> = asks.iter().filter(|ask| !ask.looks_at_bans()).copied().collect();
        let mut reply = if others.is_empty() { Reply::default() } else { self.decide(&others, now) };
        reply.verdicts.extend(verdicts);
        Some(reply)
    }
}
