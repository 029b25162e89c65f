//! `/api/limits`: each limit with its rates and decisions.

use serde_json::{Map, Value, json};

use super::View;
use crate::config::Limit;
use crate::decide::{DECISIONS, LimitMetrics};

/// All limits of the configuration, in its order.
pub(super) fn describe_all(view: &View) -> Value {
    let (config, metrics) = (view.config.load_full(), view.shared.limits());
    let describe = |limit: &Limit| {
        let counted = metrics.iter().find(|counted| counted.name == limit.name);
        json!({
            "name": limit.name,
            "rates": limit.rates.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "max_in_flight": limit.max_in_flight,
            "overrides": limit.overrides.len(),
            "decisions": decisions(counted.map(|counted| &**counted)),
        })
    };
    json!({ "limits": config.limits.iter().map(describe).collect::<Vec<_>>() })
}

/// The decisions of a limit by their name. A limit that no route uses has decided nothing.
pub(super) fn decisions(counted: Option<&LimitMetrics>) -> Map<String, Value> {
    let count =
        |(name, count): &(&str, _)| ((*name).to_owned(), json!(counted.map_or(0, |counted| counted.decisions(*count))));
    DECISIONS.iter().map(count).collect()
}
