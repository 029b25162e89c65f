//! The one task that talks to Memcached: gather what waits, exchange, decide in order, go round again.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use super::link::Link;
use super::owed::Owed;
use super::refused::Refused;
use super::wanted::Wanted;
use super::{Health, Job};
use crate::clock::Time;
use crate::config;

/// Decisions that share a round trip at most: more would wait for each other rather than for Memcached.
const BATCH: usize = 128;

/// Works until the last sender of jobs is gone.
pub(super) async fn run(
    config: config::Memcached,
    mut jobs: UnboundedReceiver<Job>,
    health: Arc<Health>,
    refused: Arc<Refused>,
) {
    let mut link = Link::new(config, health);
    let mut owed = Owed::default();
    let mut last = Time::from_micros(0);
    loop {
        let mut batch = Vec::new();
        if owed.is_empty() {
            match jobs.recv().await {
                Some(job) => batch.push(job),
                None => return,
            }
        }
        while batch.len() < BATCH
            && let Ok(job) = jobs.try_recv()
        {
            batch.push(job);
        }
        // Who no longer waits is not asked for.
        batch.retain(|job| job.reply.as_ref().is_none_or(|reply| !reply.is_closed()));
        last = batch.iter().map(|job| job.now).max().unwrap_or(last);
        owed = exchange(&mut link, owed, batch, last, &refused).await;
    }
}

/// One round trip and the decisions that it allows; returns what is owed after it.
///
/// On failure the replies are dropped, which tells those who wait.
async fn exchange(link: &mut Link, mut owed: Owed, batch: Vec<Job>, now: Time, refused: &Refused) -> Owed {
    let mut wanted = Wanted::new(now);
    wanted.add(link, batch.iter().flat_map(|job| &job.asks));
    // A state that another gateway changes first is needed at once, to charge it again.
    wanted.add(link, owed.writers());
    owed.forgive(link, now);
    let mut ops = owed.ops();
    let writes = ops.len();
    ops.append(&mut wanted.ops());
    if ops.is_empty() {
        return Owed::default();
    }
    let Some(outcomes) = link.run(ops, now).await else { return Owed::default() };
    let (written, read) = outcomes.split_at(writes.min(outcomes.len()));
    wanted.fill(read, &owed.settle(written));

    let mut owed = Owed::default();
    for job in batch {
        let verdicts = wanted.decide(&job, &mut owed);
        if let (Some(reply), Some(verdicts)) = (job.reply, verdicts) {
            refused.note(&job.asks, &verdicts, now);
            // A receiver that is gone has given up waiting and let its request through: counting it is right.
            let _ = reply.send(verdicts);
        }
    }
    wanted.owe_states(&mut owed);
    owed
}
