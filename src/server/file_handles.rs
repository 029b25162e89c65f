//! How many connections the system's limit of file handles allows. `max_connections = "auto"` is half of them, because each
//! client may need a connection to an upstream, too.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For the log, configuration files, connections to the store, and up to 32 connections to the admin listener.
const OTHERS: u64 = 64;
/// For each worker: the handles of its runtime, and an accepted connection that waits for a place.
const EACH_WORKER: u64 = 8;

/// Raises the limit of file handles of this process as far as the system allows, and returns it. Many systems have a low
/// default for programs that use `select`.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of file handles");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many connections, with clients and to upstreams together, `handles` allow if each worker has so many listening
/// sockets: at least two.
pub fn connections(handles: u64, workers: usize, listeners: usize) -> usize {
    let (workers, listeners) = (workers as u64, listeners as u64);
    let others = OTHERS + workers * (EACH_WORKER + 2 * listeners);
    usize::try_from(handles.saturating_sub(others)).unwrap_or(usize::MAX).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_handles_are_for_other_things_and_one_client_is_always_allowed() {
        assert_eq!(connections(1024, 2, 1), 1024 - 64 - 20);
        assert_eq!(connections(1_048_576, 16, 2), 1_048_576 - 64 - 16 * 12);
        assert_eq!(connections(10, 2, 1), 2);
        assert!(connections(u64::MAX, 2, 1) > 1 << 61);
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        let handles = raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(Some(handles), limit.maximum.or(Some(u64::MAX)));
    }
}
