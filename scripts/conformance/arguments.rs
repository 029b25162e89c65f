//! The command line: which limiter, what it is said to do, and what it does not claim.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use clap::Parser;

use super::memory;
use super::policy::{Algorithm, Rate};
use super::suite::{Selection, names};
use super::target::{Instance, Target, Tolerance};

/// Measures whether a rate limiter does what it says, from outside: by requests alone.
///
/// The limiter must answer requests for all paths below the URL, and limit them by the key in a header.
/// Exit codes: 0 if all behaviours passed or do not apply, 1 if any failed, 2 for a wrong command line or a limiter that does not
/// answer, 3 if nothing can be said about some.
#[derive(Parser)]
#[command(name = "limitspec", max_term_width = 100)]
pub(crate) struct Arguments {
    /// Where the limiter is; again for each instance that shares its counters
    #[arg(long = "url", required_unless_present = "page")]
    urls: Vec<String>,
    /// N requests in each window, such as 20/10s
    #[arg(long, required_unless_present = "page")]
    rate: Option<Rate>,
    /// The header that names the client
    #[arg(long, default_value = "x-api-key")]
    key_header: String,
    /// How the limiter says that it counts
    #[arg(long, value_enum, default_value = "log")]
    algorithm: Algorithm,
    /// What the limiter does not claim: behaviours, groups, or retry-after, ratelimit, http2
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    without: Vec<String>,
    /// Only these behaviours and groups
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// A limited path whose upstream fails with a status from 500 on
    #[arg(long, value_name = "PATH")]
    failing_path: Option<String>,
    /// A path without a limit, to the same upstream
    #[arg(long, value_name = "PATH")]
    free_path: Option<String>,
    /// An access log to replay: on each line a client and seconds from the beginning
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// A process of the limiter on this machine, whose memory is measured; again for each one
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
    /// How many keys the behaviours of memory use
    #[arg(long, default_value_t = 1_000_000)]
    keys: usize,
    /// After how many seconds the limiter forgets keys that do not come back; by default after 2.5 windows
    #[arg(long, value_name = "SECONDS")]
    idle: Option<u32>,
    /// The most memory for each key, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    most_bytes: u64,
    /// The most time for a decision, in microseconds
    #[arg(long, value_name = "MICROS", default_value_t = 1000)]
    most_cost: u64,
    /// By how much the number of admitted requests may differ from the exact log, in per cent; by default what correct limiters
    /// with this algorithm need. A `log` may not differ in any decision
    #[arg(long, value_name = "PERCENT")]
    mean_error: Option<f64>,
    /// The same for the worst key
    #[arg(long, value_name = "PERCENT")]
    worst_error: Option<f64>,
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print what each behaviour means, for docs/limitspec.md, and measure nothing
    #[arg(long)]
    pub(crate) page: bool,
}

/// By which shares a limiter may differ from an exact log, mean and worst key: what correct ones of its kind need for the traffic
/// of `accuracy`.
fn tolerance(algorithm: Algorithm) -> Tolerance {
    match algorithm {
        Algorithm::Log => Tolerance { mean: 0.0, worst: 0.0 },
        Algorithm::SlidingWindow | Algorithm::FixedWindow => Tolerance { mean: 0.2, worst: 0.5 },
        Algorithm::TokenBucket => Tolerance { mean: 0.4, worst: 0.75 },
    }
}

impl Arguments {
    pub(crate) fn selection(&self) -> Result<Selection, String> {
        let known = names();
        for name in self.without.iter().chain(&self.only) {
            if !known.contains(&name.as_str()) {
                return Err(format!("there is no `{name}`: choose of {}", known.join(", ")));
            }
        }
        Ok(Selection { without: self.without.clone(), only: self.only.clone() })
    }

    pub(crate) fn target(&self) -> Result<Target, String> {
        let instances = self.urls.iter().map(|url| instance(url)).collect::<Result<Vec<_>, _>>()?;
        let rate = self.rate.ok_or("--rate is missing")?;
        let stated = tolerance(self.algorithm);
        let share = |percent: Option<f64>, stated: f64| percent.map_or(stated, |percent| percent / 100.0);
        let pids = self.pids.clone();
        Ok(Target {
            instances,
            rate,
            algorithm: self.algorithm,
            key_header: self.key_header.clone(),
            failing_path: self.failing_path.clone(),
            free_path: self.free_path.clone(),
            log: self.log.clone(),
            memory: (!pids.is_empty()).then(|| Arc::new(move || memory::resident(&pids)) as _),
            keys: self.keys,
            idle: self.idle.map_or(rate.window.mul_f64(2.5), |seconds| Duration::from_secs(seconds.into())),
            most_bytes: self.most_bytes,
            most_cost: Duration::from_micros(self.most_cost),
            tolerance: Tolerance {
                mean: share(self.mean_error, stated.mean),
                worst: share(self.worst_error, stated.worst),
            },
            run: fastrand::u64(..) >> 32,
            used_keys: AtomicUsize::new(0),
        })
    }
}

fn instance(url: &str) -> Result<Instance, String> {
    let rest = url.strip_prefix("http://").ok_or_else(|| format!("`{url}` does not begin with http://"))?;
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let address: Option<SocketAddr> = address.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    let address = address.ok_or_else(|| format!("`{host}` has no address"))?;
    Ok(Instance { address, host: host.to_owned(), path: path.to_owned() })
}
