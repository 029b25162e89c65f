//! What watched limits have counted. It is looked up after the decision or the settlement, so that these stay as they are for
//! limits that nobody watches. Requests that came meanwhile count as well.

use std::sync::Arc;

use super::Memory;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::{Ask, Reply, Watch};

impl Memory {
    /// Notes what the watched limits among those of a decided request count by now, perhaps with later requests.
    #[cold]
    pub(super) fn note_reached(&self, asks: &[Ask<'_>], now: Time, reply: &mut Reply) {
        for ask in asks.iter().filter(|ask| ask.limit.watched.is_some()) {
            if ask.settles && !reply.refuses(ask.place) {
                continue;
            }
            let (shard, key) = self.place(ask.limit, ask.key);
            if let Some(entry) = self.shards[shard].lock().peek_mut(&key) {
                entry.cell.advance(ask.limit.rates(), now);
                reply.reached.note(ask.place, ask.limit, &entry.cell, now, 0);
            }
        }
    }

    /// Tells the watcher of a settled charge what the key has used by now.
    #[cold]
    pub(super) fn tell(&self, watch: &Watch, limit: &Arc<Limit>, key: Fingerprint, now: Time) {
        watch.settled(|| {
            let mut settled = Reply::default();
            self.note_reached(&[Ask::new(limit, key, 0)], now, &mut settled);
            settled.reached
        });
    }
}
