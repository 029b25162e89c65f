//! `/api/limits`: each limit with its rates, decisions and most frequent keys.

use serde_json::{Map, Value, json};

use super::View;
use super::overrides::moment;
use super::top_keys;
use crate::clock;
use crate::config::Limit;
use crate::decide::{DECISIONS, LimitMetrics, shown_since};

/// All limits of the configuration, in its order.
pub(super) fn describe_all(view: &View) -> Value {
    let (config, snapshot, metrics) = (view.config.load_full(), view.snapshot.load_full(), view.shared.limits());
    let shows_keys = config.admin.as_ref().is_some_and(|admin| admin.show_keys);
    let (mask, now) = ((!shows_keys).then_some(&view.key_mask), clock::now());
    let describe = |limit: &Limit| {
        let table = snapshot.limits.iter().find(|table| table.name() == limit.name);
        let counted = metrics.iter().find(|counted| counted.name == limit.name).map(|counted| &**counted);
        let mut shown = json!({
            "name": limit.name,
            "rates": limit.rates.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "max_in_flight": limit.max_in_flight,
            "overrides": limit.overrides.len(),
            "temporary_overrides": table.map_or(0, |table| table.temporary_count()),
            "decisions": decisions(counted),
        });
        for (name, keys) in top_keys::describe(limit, counted, mask, now) {
            shown[name] = keys;
        }
        shown
    };
    let since = moment(shown_since(now));
    json!({ "keys_since": since, "limits": config.limits.iter().map(describe).collect::<Vec<_>>() })
}

/// The decisions of a limit by their name. A limit that no route uses has decided nothing.
pub(super) fn decisions(counted: Option<&LimitMetrics>) -> Map<String, Value> {
    let count =
        |(name, count): &(&str, _)| ((*name).to_owned(), json!(counted.map_or(0, |counted| counted.decisions(*count))));
    DECISIONS.iter().map(count).collect()
}
