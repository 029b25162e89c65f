//! The limiter that is measured: where it is, what it is said to do, and what else is known about it.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::behaviour::{Outcome, Verdict};
use super::exchange::{Exchange, Request};
use super::http1::Connection;
use super::http2;
use super::policy::{Algorithm, Rate};

/// One of the instances that share a limit.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) address: SocketAddr,
    /// For the field Host.
    pub(crate) host: String,
    pub(crate) path: String,
}

/// Bytes that the limiter's processes hold now.
pub(crate) type Memory = Arc<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// How far the number of admitted requests may be from that of the exact log, as a share of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub(crate) mean: f64,
    pub(crate) worst: f64,
}

pub(crate) struct Target {
    pub(crate) instances: Vec<Instance>,
    pub(crate) rate: Rate,
    pub(crate) algorithm: Algorithm,
    pub(crate) key_header: String,
    pub(crate) failing_path: Option<String>,
    pub(crate) free_path: Option<String>,
    pub(crate) log: Option<PathBuf>,
    pub(crate) memory: Option<Memory>,
    /// How many keys the behaviours of memory use.
    pub(crate) keys: usize,
    /// After which time without requests a key may be forgotten.
    pub(crate) idle: Duration,
    pub(crate) most_bytes: u64,
    pub(crate) most_cost: Duration,
    pub(crate) tolerance: Tolerance,
    /// Differs in each run, so that counters of an earlier run do not matter.
    pub(crate) run: u64,
    pub(crate) used_keys: AtomicUsize,
}

impl Target {
    /// A key that nobody has used before.
    pub(crate) fn key(&self) -> String {
        format!("limitspec-{:08x}-{}", self.run, self.used_keys.fetch_add(1, Ordering::Relaxed))
    }

    /// A GET without any key.
    pub(crate) fn without_key(&self) -> Request {
        Request { method: "GET", path: self.instances[0].path.clone(), headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn request(&self, key: impl Into<Vec<u8>>) -> Request {
        self.without_key().with(&self.key_header, key)
    }

    /// A client of the first instance.
    pub(crate) async fn client(&self) -> io::Result<Client> {
        self.client_of(0).await
    }

    pub(crate) async fn client_of(&self, instance: usize) -> io::Result<Client> {
        let instance = self.instances[instance].clone();
        Ok(Client { connection: Connection::open(instance.address).await?, instance })
    }

    /// One after the other, on one connection.
    pub(crate) async fn in_turn(&self, requests: &[Request]) -> io::Result<Vec<Exchange>> {
        let mut client = self.client().await?;
        let mut exchanges = Vec::new();
        for request in requests {
            exchanges.push(client.ask(request).await?);
        }
        Ok(exchanges)
    }

    /// At once, each on a connection of its own that was opened before, on the instances in turn.
    pub(crate) async fn side_by_side(&self, requests: &[Request], instances: usize) -> io::Result<Vec<Exchange>> {
        let mut clients = Vec::new();
        for number in 0..requests.len() {
            clients.push(self.client_of(number % instances).await?);
        }
        let mut tasks = JoinSet::new();
        for (mut client, request) in clients.into_iter().zip(requests.iter().cloned()) {
            tasks.spawn(async move { client.ask(&request).await });
        }
        let mut exchanges = Vec::new();
        while let Some(exchange) = tasks.join_next().await {
            exchanges.push(exchange.map_err(io::Error::other)??);
        }
        Ok(exchanges)
    }

    pub(crate) async fn http2(&self, requests: &[Request]) -> io::Result<Vec<Exchange>> {
        http2::at_once(self.instances[0].address, &self.instances[0].host, requests).await
    }

    /// A key without room, and the requests that were sent for it. The last one was refused.
    pub(crate) async fn exhaust(&self, client: &mut Client, request: &Request) -> io::Result<Vec<Exchange>> {
        let (begun, mut exchanges) = (Instant::now(), Vec::new());
        for _ in 0..self.rate.quota * 4 {
            exchanges.push(client.ask(request).await?);
            if exchanges.last().is_some_and(Exchange::is_refused) {
                return Ok(exchanges);
            }
        }
        // Within a window, no limiter admits so many.
        let kind = if begun.elapsed() < self.rate.window { ErrorKind::Other } else { ErrorKind::TimedOut };
        Err(io::Error::new(kind, format!("{} requests of a client were not refused", exchanges.len())))
    }

    /// The time in which a bucket gets room for one request more.
    pub(crate) fn step(&self) -> Duration {
        self.rate.window / u32::try_from(self.rate.quota).unwrap_or(u32::MAX)
    }

    /// How long a key without room surely stays so after its first request, unless a window begins.
    pub(crate) fn hold(&self) -> Duration {
        match self.algorithm {
            Algorithm::Log | Algorithm::FixedWindow => self.windows(0.99),
            Algorithm::SlidingWindow | Algorithm::TokenBucket => self.step(),
        }
    }

    /// The verdict about a request that passed although there cannot have been room yet. `is_sure` says whether it came soon
    /// enough, if no window began in between.
    pub(crate) fn too_early(&self, is_sure: bool, figure: impl Into<String>) -> Outcome {
        let verdict = match self.algorithm {
            _ if !is_sure => Verdict::Undecided,
            Algorithm::Log | Algorithm::TokenBucket => Verdict::Failed,
            Algorithm::SlidingWindow | Algorithm::FixedWindow => Verdict::Suspect,
        };
        Outcome::new(verdict, figure)
    }

    pub(crate) fn windows(&self, count: f64) -> Duration {
        self.rate.window.mul_f64(count)
    }
}

/// One connection that is opened again if the limiter has closed it.
pub(crate) struct Client {
    connection: Connection,
    instance: Instance,
}

impl Client {
    pub(crate) async fn ask(&mut self, request: &Request) -> io::Result<Exchange> {
        if self.connection.is_over {
            self.connection = Connection::open(self.instance.address).await?;
        }
        let first = self.connection.ask(&self.instance.host, request).await;
        let was_closed = |error: &io::Error| {
            let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            kinds.contains(&error.kind())
        };
        match first {
            // A server may close a connection that rests, without a word.
            Err(error) if was_closed(&error) => {
                self.connection = Connection::open(self.instance.address).await?;
                self.connection.ask(&self.instance.host, request).await
            }
            other => other,
        }
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub(crate) fn host(&self) -> &str {
        &self.instance.host
    }
}
