//! Groups of outcomes, as the dashboard and `gateway top` show them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::proxy::telemetry::Outcome;

/// Outcomes that mean about the same to an operator.
#[derive(Debug)]
pub struct Group {
    pub name: &'static str,
    /// Each outcome is in one group.
    pub outcomes: &'static [Outcome],
}

/// The page of the dashboard has the same groups.
pub const GROUPS: [Group; 5] = [
    Group { name: "served", outcomes: &[Outcome::Forwarded, Outcome::Responded, Outcome::Tunneled] },
    Group { name: "over a limit", outcomes: &[Outcome::Limited, Outcome::Silenced] },
    Group { name: "refused", outcomes: &[Outcome::Blocked, Outcome::Refused, Outcome::Unrouted] },
    Group { name: "failed", outcomes: &[Outcome::Failed, Outcome::Unavailable, Outcome::Shed] },
    Group { name: "abandoned", outcomes: &[Outcome::Abandoned] },
];

/// The index of the group of requests over a limit.
pub const LIMITED: usize = 1;
/// The index of the group of requests that are refused for another reason.
pub const REFUSED: usize = 2;
/// The index of the group of failed requests.
pub const FAILED: usize = 3;

/// The requests of a route since the start, as the dashboard shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteNumbers {
    pub name: String,
    /// Those that have ended.
    pub requests: u64,
    /// Refused by a limit, as not valid, or because no route takes them.
    pub refused: u64,
    /// Nobody could answer them, or the gateway shed them.
    pub failed: u64,
}

pub type ByGroup<T> = [T; GROUPS.len()];

/// `requests` says how many requests had an outcome.
pub fn by_group(requests: impl Fn(Outcome) -> u64) -> ByGroup<u64> {
    GROUPS.map(|group| group.outcomes.iter().fold(0, |sum, outcome| requests(*outcome).saturating_add(sum)))
}

pub fn by_group_of_names(requests: &BTreeMap<String, u64>) -> ByGroup<u64> {
    by_group(|outcome| requests.get(outcome.name()).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_in_one_group() {
        let mut grouped: Vec<_> =
            GROUPS.iter().flat_map(|group| group.outcomes).map(|outcome| outcome.name()).collect();
        let mut all: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
        let names = [LIMITED, REFUSED, FAILED].map(|place| GROUPS[place].name);
        assert_eq!(names, ["over a limit", "refused", "failed"]);
    }
}
