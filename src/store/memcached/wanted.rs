//! The cells of a batch: what has to be read for them, and the decisions made on them, one after the other.

use std::collections::HashMap;

use memcache::exp::{Get, GetResult, Meta, Op, OpResult};

use super::link::{Link, Outcome};
use super::owed::{Lost, Owed, State};
use super::{Job, Wish, keys};
use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::Cell;
use crate::store::Verdicts;

/// The cells of a batch: each once, however many ask for it.
pub(super) struct Wanted {
    now: Time,
    cells: HashMap<Fingerprint, Known>,
    /// The reads, each with its server.
    ops: Vec<(usize, Op)>,
}

/// One cell as it is known.
struct Known {
    ask: Wish,
    server: usize,
    base: String,
    /// Where its reads begin in the list.
    first: usize,
    /// `None` if it could not be read.
    cell: Option<Cell>,
    /// What stands for the state that was read.
    read: Option<u64>,
    /// What was charged to the state since.
    charged: u64,
}

impl Wanted {
    pub(super) fn new(now: Time) -> Self {
        Self { now, cells: HashMap::new(), ops: Vec::new() }
    }

    /// Wants the cells of all these asks, as far as their servers are to be had.
    pub(super) fn add<'a>(&mut self, link: &Link, asks: impl IntoIterator<Item = &'a Wish>) {
        let Self { now, cells, ops } = self;
        for ask in asks {
            cells.entry(ask.cell()).or_insert_with(|| {
                let (rates, first) = (ask.limit.rates(), ops.len());
                let base = keys::base(&link.config.prefix, &ask.limit, ask.key);
                let server = link.place(&base);
                let cell = (!link.is_away(server, *now)).then(|| {
                    let mut cell = Cell::new(rates, *now);
                    let sums = cell.counts_mut(rates);
                    let names = sums.map(|(place, bucket, _)| keys::counter(&base, &rates[place], bucket));
                    ops.extend(names.map(|name| (server, Get::new(name).into())));
                    if ask.limit.is_whole() {
                        let state = Get::new(keys::state(&base, &ask.limit)).meta(Meta::default().cas());
                        ops.push((server, state.into()));
                    }
                    cell
                });
                Known { ask: ask.clone(), server, base, first, cell, read: None, charged: 0 }
            });
        }
    }

    /// The reads.
    pub(super) fn ops(&mut self) -> Vec<(usize, Op)> {
        std::mem::take(&mut self.ops)
    }

    /// Takes over what Memcached answered to the reads, and charges again what was lost.
    pub(super) fn fill(&mut self, outcomes: &[Outcome], lost: &Lost) {
        for (cell, known) in &mut self.cells {
            known.fill(outcomes, self.now);
            if let (Some(cell), Some((ask, cost))) = (&mut known.cell, lost.get(cell)) {
                ask.limit.charge_whole(cell, self.now, *cost);
                known.charged = *cost;
            }
        }
    }

    /// Decides one job against the cells as they are after those before it; one without a reply is charged anyhow.
    pub(super) fn decide(&mut self, job: &Job, owed: &mut Owed) -> Option<Verdicts> {
        let (now, free) = (self.now, job.reply.is_none());
        let mut all = true;
        for ask in &job.asks {
            let cell = self.cells.get(&ask.cell())?.cell.as_ref()?;
            all &= free || ask.advisory || ask.limit.admits(cell, now, ask.need);
        }
        let judge = |ask: &Wish| {
            let known = self.cells.get_mut(&ask.cell())?;
            let cell = known.cell.as_mut()?;
            let admitted = free || ask.limit.admits(cell, now, ask.need);
            if all && admitted && ask.cost > 0 {
                ask.limit.charge(cell, now, ask.cost);
                owed.add((known.server, &known.base), ask, cell, now);
                known.charged += ask.cost;
            }
            Some((ask.place, ask.limit.judge(cell, now, ask.need, admitted)))
        };
        job.asks.iter().map(judge).collect()
    }

    /// Owes the states that have changed since they were read.
    pub(super) fn owe_states(self, owed: &mut Owed) {
        for known in self.cells.into_values() {
            let Known { ask, server, base, cell: Some(mut cell), read, charged: cost @ 1.., .. } = known else {
                continue;
            };
            if ask.limit.is_whole() {
                let rates = ask.limit.rates();
                let name = keys::state(&base, &ask.limit);
                let lifetime = keys::lifetime(rates.iter().filter(|rate| !rate.is_counted()), self.now);
                owed.write(State { cost, name, value: cell.save(rates), lifetime, read, ask, server });
            }
        }
    }
}

impl Known {
    fn fill(&mut self, outcomes: &[Outcome], now: Time) {
        let rates = self.ask.limit.rates();
        let Some(sums) = self.cell.as_mut().map(|cell| cell.counts_mut(rates).count()) else { return };
        let (sums, state) = (self.first..self.first + sums, self.first + sums);
        let reads = sums.start..state + usize::from(self.ask.limit.is_whole());
        if outcomes.get(reads).is_none_or(|outcomes| outcomes.iter().any(Result::is_err)) {
            self.cell = None;
            return;
        }
        if self.ask.limit.is_whole()
            && let Some(found) = outcomes.get(state).and_then(get)
        {
            self.read = found.item.cas;
            // A value that is not ours is overwritten.
            let saved = found.value.as_deref().and_then(|value| Cell::restore(rates, now, value));
            self.cell = saved.or(self.cell.take());
        }
        let mut sums = outcomes[sums].iter().map(sum);
        if let Some(cell) = &mut self.cell {
            cell.fill(rates, |_, _| sums.next().unwrap_or(0));
        }
    }
}

fn get(outcome: &Outcome) -> Option<&GetResult> {
    outcome.as_ref().ok().and_then(OpResult::as_get)
}

/// What is no number is no count.
fn sum(outcome: &Outcome) -> u64 {
    let value = get(outcome).and_then(|get| get.value.as_deref());
    value.and_then(|value| std::str::from_utf8(value).ok()).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
