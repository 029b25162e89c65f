//! `/api/limits`: each limit with its rates, decisions and most frequent keys.

use std::cmp::Reverse;

use super::View;
use super::history::History;
use super::listed_keys;
use super::overrides::moment;
use crate::admin::dashboard::{Decisions, LimitDescription, Limits, ModelNumbers, TokenNumbers};
use crate::base::clock;
use crate::config::{Cost, Limit};
use crate::request::decide::{DecisionCounter, LimitMetrics, TokenCounts, shown_since};
use crate::tokens::Usage;

const MOST_OVERRIDES: usize = 10;
const MOST_BANS: usize = 10;
const MODELS_SHOWN: usize = 10;

/// The order of limits everywhere: by refusals in the last hour, then by refusals since the start.
pub(super) fn sort<T>(limits: &mut [T], history: &History, of: impl Fn(&T) -> (&str, Decisions)) {
    limits.sort_by_cached_key(|limit| {
        let (name, decisions) = of(limit);
        (Reverse(history.refused_in_hour(name)), Reverse(decisions.refused()), name.to_owned())
    });
}

pub(super) fn describe_all(view: &View, history: &History) -> Limits {
    let (config, snapshot, metrics) = (view.config.load_full(), view.snapshot.load_full(), view.shared.limits());
    let shows_keys = config.admin.as_ref().is_some_and(|admin| admin.show_keys);
    let (mask, now) = ((!shows_keys).then_some(&view.key_mask), clock::now());
    let describe = |limit: &Limit| {
        let table = snapshot.limits.iter().find(|table| table.name() == limit.name);
        let counted = metrics.iter().find(|counted| counted.name == limit.name).map(|counted| &**counted);
        let top = listed_keys::most_frequent(counted, now);
        LimitDescription {
            name: limit.name.clone(),
            rates: limit.part(&limit.rates).iter().map(ToString::to_string).collect(),
            gateways: limit.gateways.unwrap_or(1),
            on_limit: limit.on_limit.word().to_owned(),
            max_in_flight: limit.max_in_flight,
            ban: limit.ban.as_ref().map(ToString::to_string),
            bans: listed_keys::bans(view, limit, now).into_iter().map(|(_, ban)| ban).take(MOST_BANS).collect(),
            overrides: limit.overrides.len(),
            temporary: listed_keys::overrides(view, limit, MOST_OVERRIDES),
            temporary_overrides: table.map_or(0, |table| table.temporary_count()),
            decisions: decisions(counted),
            tokens: matches!(limit.cost, Cost::Tokens(_)).then(|| counted.map(tokens).unwrap_or_default()),
            most_refused: listed_keys::describe(limit, &top.most_refused, mask),
            most_busy: listed_keys::describe(limit, &top.most_busy, mask),
        }
    };
    let mut limits: Vec<_> = config.limits.iter().map(describe).collect();
    sort(&mut limits, history, |limit| (&limit.name, limit.decisions));
    Limits { keys_since: moment(shown_since(now)), limits }
}

/// A limit that no route uses has decided nothing.
pub(super) fn decisions(counted: Option<&LimitMetrics>) -> Decisions {
    let of = |count: DecisionCounter| counted.map_or(0, |counted| counted.decisions(count));
    Decisions {
        admitted: of(|counters| &counters.admitted),
        rejected: of(|counters| &counters.rejected),
        shadowed: of(|counters| &counters.shadowed),
        silenced: of(|counters| &counters.silenced),
        delayed: of(|counters| &counters.delayed),
        overflowed: of(|counters| &counters.overflowed),
        exempt: of(|counters| &counters.exempt),
        blocked: of(|counters| &counters.blocked),
        banned: of(|counters| &counters.banned),
        not_charged: of(|counters| &counters.not_charged),
        skipped: of(|counters| &counters.skipped),
        keyless: of(|counters| &counters.keyless),
        unknown: of(|counters| &counters.unknown),
    }
}

fn tokens(counted: &LimitMetrics) -> TokenNumbers {
    let TokenCounts { reserved, settled, estimated, cut, .. } = counted.tokens.total();
    let model = |(model, TokenCounts { used, settled, .. })| {
        let Usage { input, cached, output } = used;
        ModelNumbers { model, input, cached, output, settled }
    };
    let mut models: Vec<_> = counted.tokens.by_model().into_iter().map(model).collect();
    models.sort_by_key(|model| Reverse(model.settled));
    models.truncate(MODELS_SHOWN);
    TokenNumbers { reserved, settled, estimated, cut, models }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::base::clock::Time;
    use crate::request::decide::DECISIONS;

    #[test]
    fn the_dearest_models_are_shown_first() {
        let limit = LimitMetrics::new("l", 1);
        for number in 0..12_u64 {
            let used = Usage { input: number, cached: 1, output: 2 };
            let counts = TokenCounts { used, reserved: 100, settled: number, estimated: 1, ..TokenCounts::default() };
            limit.tokens.record(Some(format!("m-{number}").as_bytes()), counts);
        }
        let shown = tokens(&limit);
        assert_eq!((shown.reserved, shown.settled, shown.estimated, shown.cut), (1_200, 66, 12, 0));
        assert_eq!(shown.models.len(), MODELS_SHOWN);
        let first = ModelNumbers { model: "m-11".to_owned(), input: 11, cached: 1, output: 2, settled: 11 };
        assert_eq!(shown.models[0], first);
        assert_eq!(shown.models[9].model, "m-2");
    }

    #[test]
    fn what_refuses_most_comes_first() {
        let mut history = History::default();
        let at = |minutes: u64| Time::from_micros(minutes * 60_000_000);
        let mut record = |minutes, counts: [u64; 5]| {
            let limits = ["a", "b", "old", "older", "z"].into_iter().zip(counts);
            history.record(at(minutes), std::iter::empty(), limits);
        };
        // Refusals of more than an hour ago count less than any later ones.
        record(1, [0, 0, 0, 0, 0]);
        record(2, [0, 0, 50, 90, 0]);
        record(100, [0, 1, 50, 90, 7]);
        let refused = [("z", 7), ("old", 50), ("b", 1), ("older", 90), ("a", 0), ("0", 0)];
        let mut limits = refused.map(|(name, rejected)| (name, Decisions { rejected, ..Decisions::default() }));
        sort(&mut limits, &history, |(name, decisions)| (name, *decisions));
        assert_eq!(limits.map(|(name, _)| name), ["z", "b", "older", "old", "0", "a"]);
    }

    #[test]
    fn each_decision_is_shown_by_its_name() {
        let limit = LimitMetrics::new("l", 1);
        for ((_, count), times) in DECISIONS.iter().zip(1..) {
            count(limit.workers.of(0)).add(times);
        }
        let expected: Value =
            DECISIONS.iter().zip(1..).map(|((name, _), times)| ((*name).to_owned(), json!(times))).collect();
        assert_eq!(json!(decisions(Some(&limit))), expected);
        assert_eq!(decisions(None), Decisions::default());
    }
}
