//! The outcomes of requests, as they are shown: those of a group together.

use std::collections::BTreeMap;

/// Outcomes that mean about the same to whoever looks at the gateway.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: &'static str,
    outcomes: &'static [&'static str],
}

/// All groups; the page of the dashboard has the same.
pub(super) const GROUPS: [Group; 5] = [
    Group { name: "served", outcomes: &["forwarded", "responded", "tunneled"] },
    Group { name: "over a limit", outcomes: &["limited", "silenced"] },
    Group { name: "refused", outcomes: &["blocked", "refused", "unrouted"] },
    Group { name: "failed", outcomes: &["failed", "unavailable", "shed"] },
    Group { name: "abandoned", outcomes: &["abandoned"] },
];

/// The place of the group of requests over a limit.
pub(super) const LIMITED: usize = 1;
/// The place of the group of requests that have failed.
pub(super) const FAILED: usize = 3;

/// A number for each group.
pub(super) type ByGroup<T> = [T; GROUPS.len()];

/// The requests of each group.
pub(super) fn by_group(requests: &BTreeMap<String, u64>) -> ByGroup<u64> {
    GROUPS.map(|group| {
        let counts = group.outcomes.iter().filter_map(|outcome| requests.get(*outcome));
        counts.fold(0, |sum: u64, count| sum.saturating_add(*count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::telemetry::Outcome;

    #[test]
    fn each_outcome_is_in_one_group() {
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|group| group.outcomes).copied().collect();
        let mut all: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
        assert_eq!((GROUPS[LIMITED].name, GROUPS[FAILED].name), ("over a limit", "failed"));
    }
}
