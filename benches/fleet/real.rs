//! Real processes: each has a gateway's store, its driver and its sockets, and a real Memcached answers. They have no
//! HTTP, so a machine of a few cores can make enough requests.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use gateway::base::clock;
use gateway::base::fingerprint::Fingerprint;
use gateway::config::{self, OnError, Software};
use gateway::limit::Limit;
use gateway::store::shared::Shared;
use gateway::store::{Answer, Ask};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::spawn_local;
use tokio::time::{interval, sleep};

use super::arguments::Task;
use super::exact::{Excess, exactly};
use super::memcached::Memcached as Running;
use super::network::LOOPBACK;
use super::plan::Plan;
use super::traffic::Traffic;
use super::world::Fleet;

/// How often due requests are made, here and in the simulation beside it. A timer of the runtime is not more precise.
const TICK: Duration = Duration::from_millis(1);
/// Requests wait this long for Memcached, because the machine is overloaded.
const TIMEOUT: Duration = Duration::from_millis(500);
const SECONDS: f64 = 3.0;

#[derive(Default)]
struct Done {
    requests: u64,
    exchanges: u64,
    local: u64,
    /// When admitted requests asked, in nanoseconds.
    admitted: Vec<u64>,
}

/// Runs one process, which writes its results as numbers of 8 bytes.
pub(crate) fn run(task: &Task) {
    let config = config::SharedStore {
        software: Software::Memcached,
        servers: vec![task.server.clone()],
        prefix: "gw".to_owned(),
        timeout: TIMEOUT,
        on_error: OnError::Local,
        strict: task.strict,
        login: config::Login::default(),
    };
    let store = Rc::new(Shared::start(&config, 1).unwrap());
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    let done = runtime.block_on(async {
        spawn_local(store.carry(0));
        drive(task, &store).await
    });
    let mut out = std::io::stdout().lock();
    for number in [done.requests, done.exchanges, done.local].iter().chain(&done.admitted) {
        out.write_all(&number.to_le_bytes()).unwrap();
    }
}

async fn drive(task: &Task, store: &Rc<Shared>) -> Done {
    let limit = Arc::new(Limit::new("limit", &[exactly(&format!("{}/s", task.limit))]));
    let (traffic, mut random) = (Traffic::new(task.requests, 1, 1.0), Rng::with_seed(task.number));
    let done = Rc::new(RefCell::new(Done::default()));
    let (mut due, end) = (traffic.pause(&mut random), Duration::from_secs_f64(SECONDS));
    let mut ticks = interval(TICK);
    while due < end {
        ticks.tick().await;
        let passed = Duration::from_micros(clock::now().micros().saturating_sub(task.begin));
        while due <= passed.min(end) {
            due += traffic.pause(&mut random);
            let (store, limit, done) = (store.clone(), limit.clone(), done.clone());
            done.borrow_mut().requests += 1;
            let now = clock::now();
            let ask = Ask::new(&limit, Fingerprint::of(b"hot"), 1);
            let is_admitted = |reply: gateway::store::Reply| reply.verdicts.iter().all(|(_, verdict)| verdict.admitted);
            let note = move |done: &RefCell<Done>, is_admitted: bool| {
                if is_admitted {
                    done.borrow_mut().admitted.push(now.micros() * 1_000);
                }
            };
            match store.decide(&[ask], now, 0) {
                Answer::Now(reply) => note(&done, is_admitted(reply)),
                Answer::Later(reply) => {
                    spawn_local(async move { note(&done, reply.await.is_ok_and(is_admitted)) });
                }
                Answer::Away => {}
            }
        }
    }
    sleep(TIMEOUT).await;
    let (exchanges, local) = (store.health().round_trips.get(), store.health().local.get());
    Done { exchanges, local, ..done.take() }
}

impl Task {
    fn start(&self) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["process", "--server", &self.server, "--limit", &self.limit.to_string()]);
        command.args(["--requests", &self.requests.to_string(), "--begin", &self.begin.to_string()]);
        command.args(["--number", &self.number.to_string()]);
        command.args(self.strict.then_some("--strict"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    }
}

fn real(gateways: u64, limit: u64, requests: u64, strict: bool) -> (Done, f64) {
    let memcached = Running::start("1");
    let begin = clock::now().micros() + 500_000;
    let server = memcached.address.to_string();
    let task = Task { server, limit, strict, requests: requests as f64 / gateways as f64, begin, number: 0 };
    let children: Vec<Child> = (0..gateways).map(|number| Task { number, ..task.clone() }.start()).collect();
    let cpu = memcached.cpu();
    // Reads all at the same time, so that none waits for another.
    let readers = children.into_iter().map(|mut child| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            child.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
            assert!(child.wait().unwrap().success());
            bytes
        })
    });
    let mut all = Done::default();
    for bytes in readers.collect::<Vec<_>>().into_iter().map(|reader| reader.join().unwrap()) {
        let mut numbers = bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        let mut next = || numbers.next().unwrap();
        all.requests += next();
        all.exchanges += next();
        all.local += next();
        all.admitted.extend(numbers);
    }
    (all, (memcached.cpu() - cpu) / SECONDS)
}

pub(crate) fn print(requests: u64, seed: u64) {
    println!(
        "\n## One key, {requests} requests/s, real processes and one Memcached with one thread, beside the simulation\n"
    );
    println!(
        "| gateways | limit/s | strict | | requests/s | exchanges/s | cores of Memcached | admitted/s \
         | over the limit at most % | without Memcached |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let row =
        |what: &str, [requests, exchanges, admitted]: [u64; 3], cpu: f64, (most, limit, local): (u64, u64, u64)| {
            let per_second = |count: u64| count as f64 / SECONDS;
            println!(
                "| {what} | {:.0} | {:.0} | {cpu:.3} | {:.0} | {:.2} | {local} |",
                per_second(requests),
                per_second(exchanges),
                per_second(admitted),
                most as f64 * 100.0 / limit as f64
            );
        };
    for gateways in [2, 4, 8] {
        for limit in [requests * 10, requests / 2] {
            for strict in [false, true] {
                let what = format!("{gateways} | {limit} | {}", if strict { "yes" } else { "no" });
                let (mut done, cpu) = real(gateways, limit, requests, strict);
                let most = Excess::of(&mut done.admitted, limit, 1_000_000_000).most;
                let counts = [done.requests, done.exchanges, done.admitted.len() as u64];
                row(&format!("{what} | real"), counts, cpu, (most, limit, done.local));
                let rate = exactly(&format!("{limit}/s"));
                let plan = Plan {
                    strict,
                    threads: 1,
                    network: LOOPBACK,
                    timeout: TIMEOUT,
                    tick: TICK,
                    traffic: Traffic::new(requests as f64 / gateways as f64, 1, 1.0),
                    length: Duration::from_secs_f64(SECONDS),
                    seed,
                    ..Plan::new(gateways as usize, rate.clone(), 1.0, 1)
                };
                let mut outcome = Fleet::run(plan, 1);
                let most = outcome.excess(limit, rate.window()).most;
                let counts = [outcome.requests, outcome.work[0].exchanges, outcome.admitted];
                row(&format!("{what} | simulated"), counts, outcome.cpu[0] / SECONDS, (most, limit, outcome.local));
            }
        }
    }
}
