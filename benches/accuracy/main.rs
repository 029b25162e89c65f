//! How exact each strategy is: in the worst case, and on real traffic.
//!
//!     cargo bench --bench accuracy                                   the worst cases, and what a key costs
//!     cargo bench --bench accuracy -- --rate 10/s access.log ...     these logs, by client address
//!     cargo bench --bench accuracy -- --rate 150/m --one-key a.log   a log as the traffic of one key

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss)]

mod exact;
mod log;
mod worst;

use std::collections::HashMap;
use std::path::PathBuf;

use clap::Parser;
use gateway::base::clock::Time;
use gateway::limit::{Cell, Edge, Limit, Rate, Strategy};

use exact::Exact;

/// Compares each strategy with the exact log.
#[derive(Parser)]
struct Arguments {
    /// A rate to which the logs are compared; can be repeated.
    #[arg(long, default_values = ["10/s", "60/m"])]
    rate: Vec<Rate>,
    /// Count all requests of a log under one key, instead of one for each client address.
    #[arg(long)]
    one_key: bool,
    /// An argument that cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
    /// Access logs in the common or the combined format.
    logs: Vec<PathBuf>,
}

fn strategies() -> Vec<(&'static str, Strategy)> {
    let sliding = |precision, edge| Strategy::SlidingWindow { precision, edge };
    vec![
        ("fixed", Strategy::FixedWindow),
        ("bucket", Strategy::TokenBucket { burst: 1 }),
        ("k = 1", sliding(1, Edge::Weighted)),
        ("k = 4", sliding(4, Edge::Weighted)),
        ("k = 10", sliding(10, Edge::Weighted)),
        ("k = 60", sliding(60, Edge::Weighted)),
        ("k = 1, whole", sliding(1, Edge::Whole)),
        ("k = 10, whole", sliding(10, Edge::Whole)),
        ("moving", Strategy::SlidingLog),
    ]
}

/// `None` if they do not fit together.
fn counted(rate: &Rate, strategy: &Strategy) -> Option<Rate> {
    let strategy = match strategy {
        Strategy::TokenBucket { .. } => Strategy::TokenBucket { burst: rate.quota() },
        other => other.clone(),
    };
    rate.clone().with_strategy(strategy).ok()
}

/// A limit, used as a store uses it, and the exact log of its admissions.
struct Watched {
    limit: Limit,
    cell: Cell,
    exact: Exact,
}

#[derive(Default)]
struct Seen {
    requests: u64,
    admitted: u64,
    wrongly_admitted: u64,
    wrongly_refused: u64,
    /// The largest number of admissions in any exact window.
    most: u64,
}

impl Watched {
    fn new(rate: &Rate, now: u64) -> Self {
        let limit = Limit::new("l", std::slice::from_ref(rate));
        let cell = Cell::new(limit.rates(), Time::from_micros(now));
        Self { limit, cell, exact: Exact::new(u64::try_from(rate.window().as_micros()).unwrap()) }
    }

    fn ask(&mut self, micros: u64, seen: &mut Seen) -> bool {
        let admitted = self.limit.decide(&mut self.cell, Time::from_micros(micros), 1).admitted;
        let right = self.exact.count(micros) < self.limit.rates()[0].quota();
        seen.requests += 1;
        if admitted {
            seen.admitted += 1;
            seen.most = seen.most.max(self.exact.add(micros));
        }
        seen.wrongly_admitted += u64::from(admitted && !right);
        seen.wrongly_refused += u64::from(!admitted && right);
        admitted
    }
}

fn per_cent(part: u64, whole: u64) -> String {
    format!("{:.3}", part as f64 * 100.0 / whole.max(1) as f64)
}

/// Prints a table row for each strategy: the traffic of one log under one rate.
fn replay(requests: &[(String, u64)], rate: &Rate) {
    println!("\n{} requests, {rate}\n", requests.len());
    println!("| | refused % | over the quota, worst window % | wrongly admitted % | wrongly refused % |");
    println!("|---|---|---|---|---|");
    for (name, strategy) in strategies() {
        let Some(rate) = counted(rate, &strategy) else { continue };
        let mut clients: HashMap<&str, Watched> = HashMap::new();
        let mut seen = Seen::default();
        for (client, micros) in requests {
            clients.entry(client).or_insert_with(|| Watched::new(&rate, *micros)).ask(*micros, &mut seen);
        }
        let (all, over) = (seen.requests, seen.most.saturating_sub(rate.quota()));
        println!(
            "| {name} | {} | {} | {} | {} |",
            per_cent(all - seen.admitted, all),
            over * 100 / rate.quota(),
            per_cent(seen.wrongly_admitted, all),
            per_cent(seen.wrongly_refused, all),
        );
    }
}

fn main() {
    let arguments = Arguments::parse();
    if arguments.logs.is_empty() {
        worst::edges();
        worst::costs();
    }
    for path in &arguments.logs {
        let mut requests = log::read(path);
        if arguments.one_key {
            requests.iter_mut().for_each(|(client, _)| client.clear());
        }
        println!("\n## {}", path.display());
        arguments.rate.iter().for_each(|rate| replay(&requests, rate));
    }
}
