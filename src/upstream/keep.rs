//! How long connections to servers are kept, and how often that is checked.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

/// The interval between two checks, and the shortest one if the limits of connections are short.
pub(super) const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
/// How many checks there are during the shortest limit.
const CHECKS_PER_LIMIT: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Without a request.
    pub idle: Duration,
    /// Since the connection was made.
    pub age: Duration,
}

#[derive(Debug, Default)]
pub struct Keeps {
    /// By the id of the server.
    servers: HashMap<usize, Keep, RandomState>,
    /// Between two checks of connections.
    pub(super) interval: Duration,
}

impl Keeps {
    pub fn new(used: impl IntoIterator<Item = (usize, Keep)>) -> Self {
        let (mut servers, mut shortest): (HashMap<_, Keep, _>, _) = (HashMap::default(), Duration::MAX);
        for (server, keep) in used {
            servers.insert(server, keep);
            shortest = shortest.min(keep.idle).min(keep.age);
        }
        Self { servers, interval: (shortest / CHECKS_PER_LIMIT).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL) }
    }

    /// `None` if no upstream has the server with this id.
    pub(super) fn of(&self, server: usize) -> Option<Keep> {
        self.servers.get(&server).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_as_frequent_as_the_shortest_limit_needs() {
        let keep = |idle, age| Keep { idle: Duration::from_millis(idle), age: Duration::from_millis(age) };
        let keeps = Keeps::new([(2, keep(60_000, 600_000)), (0, keep(800, 2_000)), (3, keep(90_000, 1_000))]);
        assert_eq!(
            [0, 1, 2].map(|server| keeps.of(server)),
            [Some(keep(800, 2_000)), None, Some(keep(60_000, 600_000))]
        );
        assert_eq!(keeps.interval, Duration::from_millis(100));
        assert_eq!(Keeps::new([(0, keep(1, 1))]).interval, SHORTEST_INTERVAL);
        assert_eq!(Keeps::new([]).interval, LONGEST_INTERVAL);
    }
}
