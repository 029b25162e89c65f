//! The cost of a decision in the Memcached store alone, compared with the plain way: a multi-get and two increments for
//! each.
//!
//!     scripts/bench --scenario store                        pinned: this process to core 0, its memcached to core 1
//!     taskset -c 0 cargo bench --bench store -- --rounds 5  the same by hand
//!
//! Every round measures both ways in turn, so other work of the machine affects both alike.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss)]

mod cpu;
mod memcached;
mod question;
mod plain;
mod way;
mod totals;
mod load;
mod latency;
mod report;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::{Builder, LocalOptions};

use gateway::config;
use gateway::limit::{Limit, Rate};

use latency::Latency;
use load::Load;
use memcached::Memcached;
use question::{PREFIX, Question};
use report::Rounds;
use way::Kind;

const MEMCACHED_CORE: &str = "1";
const KEYS: [usize; 2] = [1, 100_000];
const WAITING: [usize; 2] = [64, 512];

/// Measures decisions of the Memcached store.
#[derive(Parser)]
struct Arguments {
    /// Rounds of everything.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of one measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// A rate of the limit; may be given several times. No decision may be refused.
    #[arg(long, default_values = ["4000000000/s", "4000000000/10m"])]
    rate: Vec<Rate>,
    /// One more line of `[store]`; may be given several times.
    #[arg(long, value_name = "LINE")]
    with: Vec<String>,
    /// Connections that the plain way shares; one for every request that waits if not given.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    connections: Option<u16>,
    /// What cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Bench {
    memcached: Memcached,
    store: config::Store,
    /// Connections of the plain way; `None` for one for every request.
    connections: Option<usize>,
    length: Duration,
}

fn store(memcached: &Memcached, with: &[String]) -> config::Store {
    let (server, with) = (memcached.address, with.join("\n"));
    let text = format!(
        "[store]\ntype = \"memcached\"\nservers = [\"{server}\"]\nprefix = \"{PREFIX}\"\ntimeout = \"1s\"\n{with}\n\
         [upstreams.up]\nservers = [\"http://127.0.0.1:9\"]\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
    );
    config::parse(text.as_bytes(), "[store]", Path::new("")).unwrap().store
}

/// Each measurement has its own runtime, so nothing is left of the previous one.
fn alone<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap().block_on(work)
}

fn plural(keys: usize) -> String {
    if keys == 1 { "one key".to_owned() } else { format!("{keys} keys") }
}

fn main() {
    let arguments = Arguments::parse();
    let memcached = Memcached::start(MEMCACHED_CORE);
    let store = store(&memcached, &arguments.with);
    let (length, connections) = (Duration::from_secs(arguments.seconds.into()), arguments.connections.map(usize::from));
    let bench = Bench { memcached, store, connections, length };
    println!("the bench on core {}, memcached on core {MEMCACHED_CORE}", cpu::cores());

    let limit = Arc::new(Limit::new("limit", &arguments.rate));
    let questions = KEYS.map(|keys| Arc::new(Question::new(&limit, keys)));
    let loads: Vec<Load> = questions
        .iter()
        .flat_map(|question| WAITING.map(|waiting| Load { question: question.clone(), waiting }))
        .collect();
    let mut results: Vec<Rounds> = loads.iter().map(|_| Rounds::default()).collect();
    let mut bare: Vec<Latency> = Vec::new();
    let mut single: [Vec<Latency>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        for (load, rounds) in loads.iter().zip(&mut results) {
            rounds.plain.push(alone(load::measure(Kind::Plain, &bench, load)));
            rounds.store.push(alone(load::measure(Kind::Store, &bench, load)));
        }
        bare.push(alone(latency::measure(Kind::Bare, &bench, &questions[0])));
        for (question, rounds) in questions.iter().zip(&mut single) {
            rounds.push(alone(latency::measure(Kind::Store, &bench, question)));
        }
    }

    for (load, rounds) in loads.iter().zip(&results) {
        rounds.print(&format!("{}, {} waiting", plural(load.question.keys.len()), load.waiting));
    }
    let mut parts = vec![("a bare round trip".to_owned(), bare)];
    parts.extend(KEYS.iter().map(|keys| format!("the store with {}", plural(*keys))).zip(single));
    report::latency(&parts);
    let shares: Vec<f64> = results.iter().map(Rounds::share).collect();
    let (one, many) = shares.split_at(WAITING.len());
    println!(
        "CPU per decision, of the plain way's: {}; {}",
        report::bar(&plural(KEYS[1]), 8, many),
        report::bar(&plural(KEYS[0]), 40, one)
    );
}
