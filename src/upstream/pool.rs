//! The upstream connections of one worker that rest between requests.
//!
//! They are looked at now and then, and what their age is then holds until the next look: a request reads no clock for
//! them. So a connection may be closed one look early, but is never used longer than it may be.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::connection::UpstreamConnection;

/// Connections are looked at this often, unless their limits are too short for that.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
/// How many looks the shortest limit has.
const LOOKS_PER_LIMIT: u32 = 8;
/// How many may rest for one server although they were not needed lately. After a burst the others are closed, half of
/// them with every look.
const MOST_SPARE: usize = 512;

/// How long connections are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Without being used.
    pub idle: Duration,
    /// At all.
    pub age: Duration,
}

/// How long the connections of each server are kept.
#[derive(Debug, Default)]
pub struct Keeps {
    /// By the id of the server.
    servers: HashMap<usize, Keep, RandomState>,
    look: Duration,
}

impl Keeps {
    /// From the ids of servers and how long each upstream that has them keeps their connections. What one upstream would
    /// not use, another one may.
    pub fn new(used: impl IntoIterator<Item = (usize, Keep)>) -> Self {
        let (mut servers, mut shortest): (HashMap<_, Keep, _>, _) = (HashMap::default(), Duration::MAX);
        for (server, keep) in used {
            let known = servers.entry(server).or_insert(keep);
            *known = Keep { idle: known.idle.max(keep.idle), age: known.age.max(keep.age) };
            shortest = shortest.min(keep.idle).min(keep.age);
        }
        Self { servers, look: (shortest / LOOKS_PER_LIMIT).clamp(SHORTEST_LOOK, LONGEST_LOOK) }
    }

    /// Whether an upstream has the server with this id.
    pub fn has(&self, server: usize) -> bool {
        self.servers.contains_key(&server)
    }
}

/// Resting connections by the id of their server.
#[derive(Debug)]
pub struct ConnectionPools {
    resting: RefCell<HashMap<usize, Resting, RandomState>>,
    looked_at: Cell<Instant>,
    next_look: Cell<Instant>,
}

/// The resting connections of one server.
#[derive(Debug, Default)]
struct Resting {
    /// The one used last on top.
    #[expect(clippy::vec_box, reason = "a connection moves with every request: better its address than its buffers")]
    connections: Vec<Box<UpstreamConnection>>,
    /// The fewest that rested at once since the last look: so many were not needed.
    fewest: usize,
}

impl Resting {
    /// Closes half of those that were not needed since the last look, as far as there are more than may be spare.
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
        Self { resting: RefCell::default(), looked_at: Cell::new(now), next_look: Cell::new(now + LONGEST_LOOK) }
    }
}

impl ConnectionPools {
    /// A connection to this server that is still open and may be used.
    pub(super) fn take(&self, server: usize, keep: Keep) -> Option<Box<UpstreamConnection>> {
        let mut resting = self.resting.borrow_mut();
        let Resting { connections, fewest } = resting.get_mut(&server)?;
        let found = std::iter::from_fn(|| connections.pop())
            .find(|connection| self.is_kept(connection, keep) && connection.is_quiet());
        *fewest = connections.len().min(*fewest);
        found
    }

    /// Gives a connection back after a whole response.
    pub(super) fn put(&self, server: usize, mut connection: Box<UpstreamConnection>) {
        connection.rested_at = self.now();
        let mut resting = self.resting.borrow_mut();
        resting.entry(server).or_default().connections.push(connection);
    }

    /// The moment of the last look: now, or shortly before.
    pub(super) fn now(&self) -> Instant {
        self.looked_at.get()
    }

    /// Whether a connection may be used until the next look.
    fn is_kept(&self, connection: &UpstreamConnection, keep: Keep) -> bool {
        let next = self.next_look.get();
        next <= connection.rested_at + keep.idle && next <= connection.connected_at + keep.age
    }

    /// Closes connections that are kept no longer or that the server has closed, for ever. Asks before each look what is
    /// `in_force`.
    pub async fn watch(&self, in_force: impl Fn() -> Arc<Keeps>) {
        loop {
            let keeps = in_force();
            let now = Instant::now();
            self.looked_at.set(now);
            self.next_look.set(now + keeps.look);
            self.resting.borrow_mut().retain(|server, resting| {
                let keep = keeps.servers.get(server).copied();
                resting.connections.retain(|connection| {
                    keep.is_some_and(|keep| self.is_kept(connection, keep)) && connection.is_quiet()
                });
                resting.close_spare();
                // Also of what they were kept in nothing stays, after a burst or with their server.
                !resting.connections.is_empty()
            });
            tokio::time::sleep(keeps.look).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);
    const KEEP: Keep = Keep { idle: LONG, age: LONG };

    /// A server and the pools with connections to it.
    struct Setup {
        listener: TcpListener,
        pools: ConnectionPools,
    }

    impl Setup {
        async fn new() -> Self {
            Self { listener: TcpListener::bind(("127.0.0.1", 0)).await.unwrap(), pools: ConnectionPools::default() }
        }

        /// A new connection, and the server's side of it.
        async fn connect(&self) -> (Box<UpstreamConnection>, TcpStream) {
            let address = [self.listener.local_addr().unwrap()];
            let (connection, accepted) =
                tokio::join!(UpstreamConnection::connect(&address, self.pools.now()), self.listener.accept());
            (connection.unwrap(), accepted.unwrap().0)
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
        // Time for the system to tell.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(setup.pools.take(0, KEEP).is_none());
    }

    #[tokio::test]
    async fn connections_are_kept_as_long_as_each_upstream_says() {
        let setup = Setup::new().await;
        let pools = &setup.pools;
        let (mut connection, _open) = setup.connect().await;
        for keep in [KEEP, Keep { idle: Duration::from_secs(1), age: LONG }] {
            pools.put(0, connection);
            connection = pools.take(0, keep).expect("it was used just now");
        }
        pools.put(0, connection);
        // A look that is due in two seconds: until then it would have rested for longer than it may.
        pools.next_look.set(pools.now() + Duration::from_secs(2));
        assert!(pools.take(0, Keep { idle: Duration::from_secs(1), age: LONG }).is_none());
        let (connection, _open) = setup.connect().await;
        pools.put(0, connection);
        assert!(pools.take(0, Keep { idle: LONG, age: Duration::from_secs(1) }).is_none());
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
        let keeps = Arc::new(Keeps::new([(7, KEEP)]));
        let watch = pools.watch(|| keeps.clone());
        // It looks at once, and then waits.
        assert!(tokio::time::timeout(Duration::from_millis(1), watch).await.is_err());
        assert_eq!(pools.resting.borrow().keys().collect::<Vec<_>>(), [&7]);
        assert!(pools.take(7, KEEP).is_some());
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
        let look = || {
            let mut resting = pools.resting.borrow_mut();
            let resting = resting.get_mut(&0).unwrap();
            resting.close_spare();
            resting.connections.len()
        };
        // They came since the last look.
        assert_eq!(look(), 600);
        let used: Vec<_> = (0..580).map_while(|_| pools.take(0, KEEP)).collect();
        used.into_iter().for_each(|connection| pools.put(0, connection));
        assert_eq!((look(), look()), (590, 512), "twenty were not needed, then none");
        assert_eq!(look(), 512);
    }

    #[test]
    fn looks_are_as_frequent_as_the_shortest_limit_needs() {
        let keep = |idle, age| Keep { idle: Duration::from_millis(idle), age: Duration::from_millis(age) };
        let keeps = Keeps::new([(2, keep(60_000, 600_000)), (0, keep(800, 2_000)), (2, keep(90_000, 1_000))]);
        let of = |server| keeps.servers.get(&server).copied();
        assert_eq!([0, 1, 2].map(of), [Some(keep(800, 2_000)), None, Some(keep(90_000, 600_000))]);
        assert_eq!([0, 1, 2].map(|server| keeps.has(server)), [true, false, true]);
        assert_eq!(keeps.look, Duration::from_millis(100));
        assert_eq!(Keeps::new([(0, keep(1, 1))]).look, SHORTEST_LOOK);
        assert_eq!(Keeps::new([]).look, LONGEST_LOOK);
    }
}
