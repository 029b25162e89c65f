//! The idle connections of one worker to upstreams.
//!
//! They are checked at intervals, and their ages are known only as of the last check, so that no request reads the clock for
//! them. So a connection may be closed two intervals too early, but is never used for longer than is allowed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tokio::task::yield_now;

use super::connection::{SpareBuffers, UpstreamConnection};
use super::connection_limits::{Keep, Keeps, LONGEST_INTERVAL};
use super::http2::Http2Pool;

/// How many connections to one server may be idle although they were not needed since the last check. After a burst, each
/// check closes half of the others.
const MOST_SPARE: usize = 512;

/// The longest time that a request needs to reach its server.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// For how much of its server's `kept` time a connection is used: a later request may meet the close.
fn usable(kept: Duration) -> Duration {
    kept.saturating_sub(ON_THE_WAY).max(kept / 2)
}

/// The connections of one worker that wait for a request.
pub struct ConnectionPools {
    idle: RefCell<HashMap<usize, Idle, RandomState>>,
    pub(super) spare_buffers: Rc<SpareBuffers>,
    /// Shared connections are not idle, but are checked at the same time.
    pub(super) http2: Rc<Http2Pool>,
    checked_at: Cell<Instant>,
    next_check: Cell<Instant>,
}

#[derive(Debug, Default)]
struct Idle {
    /// The last used one is at the end.
    #[expect(clippy::vec_box, reason = "a connection moves with every request: better its address than its buffers")]
    connections: Vec<Box<UpstreamConnection>>,
    /// The smallest number that was idle at any time since the last check: so many were not needed.
    fewest: usize,
}

impl Idle {
    /// Closes half of the connections that were not needed since the last check, but keeps [`MOST_SPARE`].
    fn close_spare(&mut self) {
        let count = self.connections.len();
        let spare = self.fewest.div_ceil(2).min(count.saturating_sub(MOST_SPARE));
        self.connections.drain(..spare);
        self.fewest = count - spare;
    }
}

impl Default for ConnectionPools {
    fn default() -> Self {
        let now = Instant::now();
        let next_check = Cell::new(now + LONGEST_INTERVAL);
        let (idle, spare_buffers, http2) = Default::default();
        Self { idle, spare_buffers, http2, checked_at: Cell::new(now), next_check }
    }
}

impl ConnectionPools {
    /// An open connection to this server. If a client is `announced`, the connection was announced for the same client.
    pub(super) fn take(
        &self,
        server: usize,
        announced: Option<SocketAddr>,
        keep: Keep,
    ) -> Option<Box<UpstreamConnection>> {
        let mut idle = self.idle.borrow_mut();
        let Idle { connections, fewest } = idle.get_mut(&server)?;
        let next = || match announced {
            None => connections.pop(),
            Some(_) => {
                let index = connections.iter().rposition(|connection| connection.announced == announced)?;
                Some(connections.remove(index))
            }
        };
        let found = std::iter::from_fn(next).find_map(|mut connection| {
            (self.is_kept(&connection, keep) && connection.is_quiet()).then_some(connection)
        });
        *fewest = connections.len().min(*fewest);
        found
    }

    pub(super) fn put(&self, server: usize, mut connection: Box<UpstreamConnection>) {
        connection.end_receiving();
        connection.is_new = false;
        connection.idle_since = self.now();
        // The clock is read only for servers that say when they close.
        connection.closes_at = connection.kept_for.and_then(|kept| Instant::now().checked_add(usable(kept)));
        let mut idle = self.idle.borrow_mut();
        let connections = &mut idle.entry(server).or_default().connections;
        if connection.announced.is_some() && connections.len() >= MOST_SPARE {
            // Each client has connections of its own, and may never come back.
            connections.remove(0);
        }
        connections.push(connection);
    }

    /// Closes all idle connections that requests to this server with this announcement cannot use: others need their places.
    #[cold]
    pub(super) async fn make_room(&self, server: usize, announced: Option<SocketAddr>) {
        for (other, idle) in self.idle.borrow_mut().iter_mut() {
            idle.connections.retain(|connection| *other == server && connection.announced == announced);
            idle.fewest = idle.fewest.min(idle.connections.len());
        }
        self.http2.make_room(server);
        // Lets the tasks of closed HTTP/2 connections end, also of those that another request has closed.
        yield_now().await;
    }

    /// The moment of the last check: now, or shortly before.
    pub(super) fn now(&self) -> Instant {
        self.checked_at.get()
    }

    /// Whether a connection may be used until the next check.
    fn is_kept(&self, connection: &UpstreamConnection, keep: Keep) -> bool {
        let next = self.next_check.get();
        next <= connection.idle_since + keep.idle
            && next <= connection.connected_at + keep.age
            && connection.closes_at.is_none_or(|closes_at| Instant::now() < closes_at)
    }

    /// Closes connections whose time is over or that the server has closed, and pings silent servers of HTTP/2. Never
    /// returns, and calls `in_force` before each check.
    pub async fn watch(&self, in_force: impl Fn() -> Keeps) {
        loop {
            let keeps = in_force();
            let now = Instant::now();
            self.checked_at.set(now);
            self.next_check.set(now + keeps.interval);
            self.http2.check(now, |server| keeps.of(server));
            self.idle.borrow_mut().retain(|server, idle| {
                let keep = keeps.of(*server);
                idle.connections.retain_mut(|connection| {
                    let is_kept = keep.is_some_and(|keep| self.is_kept(connection, keep));
                    is_kept && connection.is_quiet() && !connection.stream.is_place_wanted()
                });
                idle.close_spare();
                // An empty pool is removed, which frees its memory.
                !idle.connections.is_empty()
            });
            tokio::time::sleep(keeps.interval).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::upstream::connection_limits::Places;
    use crate::upstream::stream::{self, Offered, UpstreamStream};

    const LONG: Duration = Duration::from_secs(3600);
    const KEEP: Keep = Keep { idle: LONG, age: LONG };

    struct Setup {
        listener: TcpListener,
        pools: ConnectionPools,
        places: Places,
    }

    impl Setup {
        async fn new() -> Self {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            Self { listener, pools: ConnectionPools::default(), places: Places::new(10_000) }
        }

        /// The second one is the server's side.
        async fn connect(&self) -> (Box<UpstreamConnection>, TcpStream) {
            let address = [self.listener.local_addr().unwrap()];
            let (socket, accepted) = tokio::join!(stream::connect(&address), self.listener.accept());
            let place = self.places.take().unwrap();
            let stream = UpstreamStream::begin(socket.unwrap(), place, None, Offered::Http1).await.unwrap();
            (UpstreamConnection::new(stream, &self.pools.spare_buffers, self.pools.now()).unwrap(), accepted.unwrap().0)
        }
    }

    #[tokio::test]
    async fn closed_connections_are_not_handed_out_however_many() {
        let setup = Setup::new().await;
        for _ in 0..300 {
            let (connection, closed) = setup.connect().await;
            drop(closed);
            setup.pools.put(0, connection);
        }
        // The system needs some time to notice the close.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(setup.pools.take(0, None, KEEP).is_none());
    }

    #[tokio::test]
    async fn what_comes_after_a_response_reaches_no_other_request() {
        let setup = Setup::new().await;
        let (mut connection, _open) = setup.connect().await;
        connection.received.extend_from_slice(b"HTTP/1.1 200 OK");
        setup.pools.put(0, connection);
        assert!(setup.pools.take(0, None, KEEP).is_none());
        assert!(setup.pools.spare_buffers.received().is_empty());
    }

    #[tokio::test]
    async fn connections_are_kept_as_long_as_each_upstream_says() {
        let setup = Setup::new().await;
        let pools = &setup.pools;
        let (mut connection, _open) = setup.connect().await;
        for keep in [KEEP, Keep { idle: Duration::from_secs(1), age: LONG }] {
            pools.put(0, connection);
            connection = pools.take(0, None, keep).expect("it was used just now");
        }
        pools.put(0, connection);
        // The next check is in two seconds. Until then the connection would be idle for too long.
        pools.next_check.set(pools.now() + Duration::from_secs(2));
        assert!(pools.take(0, None, Keep { idle: Duration::from_secs(1), age: LONG }).is_none());
        let (connection, _open) = setup.connect().await;
        pools.put(0, connection);
        assert!(pools.take(0, None, Keep { idle: LONG, age: Duration::from_secs(1) }).is_none());
    }

    #[tokio::test]
    async fn connections_that_their_server_is_about_to_close_are_not_used() {
        let setup = Setup::new().await;
        for (kept, is_used) in [(None, true), (Some(60), true), (Some(0), false)] {
            let (mut connection, _open) = setup.connect().await;
            connection.kept_for = kept.map(Duration::from_secs);
            setup.pools.put(0, connection);
            assert_eq!(setup.pools.take(0, None, KEEP).is_some(), is_used, "{kept:?}");
        }
        let seconds = [1, 2, 5, 75].map(|kept| usable(Duration::from_secs(kept)).as_millis());
        assert_eq!(seconds, [500, 1000, 4000, 74_000]);
    }

    #[tokio::test]
    async fn nothing_stays_of_servers_that_no_upstream_has() {
        let setup = Setup::new().await;
        let pools = &setup.pools;
        let mut open = Vec::new();
        for server in 0..50 {
            let (connection, accepted) = setup.connect().await;
            pools.put(server, connection);
            open.push(accepted);
        }
        let watch = pools.watch(|| Keeps::new([(7, KEEP)]));
        // It checks at once, and then waits.
        assert!(tokio::time::timeout(Duration::from_millis(1), watch).await.is_err());
        assert_eq!(pools.idle.borrow().keys().collect::<Vec<_>>(), [&7]);
        assert!(pools.take(7, None, KEEP).is_some());
    }

    #[tokio::test]
    async fn as_many_are_kept_as_were_needed_lately() {
        let setup = Setup::new().await;
        let pools = &setup.pools;
        let mut open = Vec::new();
        for _ in 0..600 {
            let (connection, accepted) = setup.connect().await;
            pools.put(0, connection);
            open.push(accepted);
        }
        let check = || {
            let mut idle = pools.idle.borrow_mut();
            let idle = idle.get_mut(&0).unwrap();
            idle.close_spare();
            idle.connections.len()
        };
        // They came since the last check.
        assert_eq!(check(), 600);
        let used: Vec<_> = (0..580).map_while(|_| pools.take(0, None, KEEP)).collect();
        used.into_iter().for_each(|connection| pools.put(0, connection));
        assert_eq!((check(), check()), (590, 512), "twenty were not needed, then none");
        assert_eq!(check(), 512);
    }
}
