//! The sliding log: the exact log of admissions. A request counts from its admission until exactly one window later.

use smallvec::SmallVec;

use super::counting::{Charge, Context, Counting, GivenBack, MAX_COUNT, StateView};
use super::log::AdmissionLog;
use super::rate::Rate;
use crate::base::clock::Time;

/// All such rates of a cell share one log, which the first of them changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlidingLog;

impl SlidingLog {
    pub(super) fn raise(context: &mut Context<'_>, least: Option<&AdmissionLog>, now: Time) {
        let Some(least) = least.filter(|_| is_first(context)) else { return };
        let log = &mut context.extension.get_or_insert_default().log;
        match log.newest() {
            None => log.clone_from(least),
            Some(_) => fill(log, context.rates, |rate| Some(least.count(rate.span(), now.micros())), now),
        }
    }
}

impl Counting for SlidingLog {
    fn advance(&mut self, context: &mut Context<'_>, now: Time) -> bool {
        let longest = longest(context.rates);
        if let Some(log) = changed(context) {
            if let Some(newest) = log.newest().filter(|newest| now.is_set_back_from(Time::from_micros(*newest))) {
                log.set_back(newest - now.micros());
            }
            log.forget(now.micros().saturating_sub(longest));
        }
        false
    }

    fn is_spent(&self, StateView { rate, log, now }: StateView<'_>) -> bool {
        log.and_then(AdmissionLog::newest).is_none_or(|newest| now.micros().saturating_sub(newest) >= rate.span())
    }

    fn charge(&mut self, context: &mut Context<'_>, Charge { now, cost, .. }: Charge) {
        if is_first(context) {
            context.extension.get_or_insert_default().log.add(now.micros(), cost);
        }
    }

    fn used(&self, StateView { rate, log, now }: StateView<'_>) -> u64 {
        log.map_or(0, |log| log.count(rate.span(), now.micros()))
    }

    fn wait(&self, StateView { rate, log, now }: StateView<'_>, need: u64) -> u64 {
        let last = log.and_then(|log| log.last_before(rate.quota() - need));
        last.map_or(0, |last| last.saturating_add(rate.span()).saturating_sub(now.micros()))
    }

    /// The log may have counted the request at the moment of a later entry, but never at an earlier moment.
    fn give_back(&mut self, context: &mut Context<'_>, GivenBack { now, mark, cost, .. }: GivenBack) {
        if now.micros().saturating_sub(mark) < longest(context.rates)
            && let Some(log) = changed(context)
        {
            log.give_back(mark, cost);
        }
    }

    fn certain_at(&self, rate: &Rate, cost: u64, mark: u64, at: Time) -> u64 {
        if mark.saturating_add(rate.span()) > at.micros() { cost } else { 0 }
    }

    /// All rates begin together: see [`fill`].
    fn begin(&mut self, _rate: &Rate, _sum: u64, _at: Time) {}
}

/// The longest window among the rates that use the log. Older entries matter to none of them.
fn longest(rates: &[Rate]) -> u64 {
    by_window(rates).last().map_or(0, |(rate, _)| rate.span())
}

fn is_first(context: &Context<'_>) -> bool {
    context.rates.iter().position(Rate::is_logged) == Some(context.place)
}

/// The log, if there is one and this rate changes it.
fn changed<'a>(context: &'a mut Context<'_>) -> Option<&'a mut AdmissionLog> {
    let is_first = is_first(context);
    context.extension.as_deref_mut().filter(|_| is_first).map(|extension| &mut extension.log)
}

/// Adds to the log what each rate has `used` beyond it. What a window counts beyond the next shorter one is entered at the
/// moment when it has just left the shorter one.
pub(super) fn fill(log: &mut AdmissionLog, rates: &[Rate], used: impl Fn(&Rate) -> Option<u64>, at: Time) {
    for (rate, shorter) in by_window(rates) {
        let used = used(rate).unwrap_or(0).min(MAX_COUNT);
        let lacking = used.saturating_sub(log.count(rate.span(), at.micros()));
        if lacking > 0 {
            log.insert(at.micros().saturating_sub(shorter), lacking);
        }
    }
}

/// The rates that use the log, the shortest window first, each with the next shorter window (0 for the first).
pub(super) fn by_window(rates: &[Rate]) -> impl Iterator<Item = (&Rate, u64)> {
    let mut logged: SmallVec<[&Rate; 4]> = rates.iter().filter(|rate| rate.is_logged()).collect();
    logged.sort_unstable_by_key(|rate| rate.span());
    let mut shorter = 0;
    logged.into_iter().map(move |rate| (rate, std::mem::replace(&mut shorter, rate.span())))
}
