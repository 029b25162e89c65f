//! Fleets in virtual time (benches/fleet): the promises about their limits hold, and simulated servers reply like real ones.

// The bench uses what the tests do not.
#![allow(dead_code, clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[path = "../../benches/fleet/bounds.rs"]
mod bounds;
#[path = "../../benches/fleet/exact.rs"]
mod exact;
#[path = "../../benches/fleet/hosts.rs"]
pub(crate) mod hosts;
#[path = "../../benches/fleet/network.rs"]
pub(crate) mod network;
#[path = "../../benches/fleet/outcome.rs"]
mod outcome;
#[path = "../../benches/fleet/plan.rs"]
pub(crate) mod plan;
#[path = "../../benches/fleet/server.rs"]
pub(crate) mod server;
#[path = "../../benches/fleet/share.rs"]
pub(crate) mod share;
#[path = "../../benches/fleet/traffic.rs"]
pub(crate) mod traffic;
#[path = "../../benches/fleet/valkey.rs"]
mod valkey;
#[path = "../../benches/fleet/world.rs"]
pub(crate) mod world;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fastrand::Rng;
use gateway::config::Login;
use gateway::store::shared::protocol::{Commands, Condition, Echo, Initial, Lifetime, Protocol, Replies};
use gateway::store::shared::simulation::DIGESTS;
use gateway::store::shared::valkey::Valkey;

use crate::harness::{Software, with_each_server};
use exact::exactly;
use plan::Plan;
use server::Server;
use traffic::Traffic;
use world::Fleet;

/// The last command of each exchange, and its reply.
const LAST: (&[u8], &[u8]) = (b"mn\r\n", b"MN\r\n");
/// A moment, for items that live for at most a month.
const NOW: u64 = 1_800_000_000;

mod promises {
    use super::*;

    fn what_is_promised_of_limits_holds(software: Software) {
        for bound in bounds::all(software.config(), 6, 7) {
            bound.check();
        }
    }

    with_each_server! {
        what_is_promised_of_limits_holds
    }
}

#[test]
fn a_seed_decides_everything() {
    let outcome = |seed| {
        let plan = Plan { length: Duration::from_secs(1), seed, ..Plan::new(4, exactly("100/s"), 2.0, 20) };
        let outcome = Fleet::run(plan, 20);
        (outcome.admissions, outcome.work)
    };
    assert!(outcome(3) == outcome(3));
    assert!(outcome(3) != outcome(4));
}

#[test]
fn a_log_is_replayed_as_it_is() {
    // Bursts of one client after the other; the first client comes most often.
    let burst = |number: u64| (0..30).map(move |request| (number, request));
    let log = (0..20).flat_map(burst).map(|(number, request)| {
        let key = if number % 2 == 0 { 0 } else { usize::try_from(number).unwrap() };
        (Duration::from_millis(100 + number * 100 + request), key)
    });
    let log: Vec<_> = log.collect();
    let plan = |strict| Plan { strict, log: log.clone().into(), ..Plan::new(4, exactly("50/s"), 1.0, 1) };
    let mut outcome = Fleet::run(plan(true), 20);
    assert_eq!((outcome.requests, outcome.excess(50, Duration::from_secs(1)).most), (600, 0));
    // Each of the odd clients asks for less than its quota.
    let admitted = |key: usize| outcome.admissions[key].len();
    assert!((1..20).step_by(2).all(|key| admitted(key) == 30) && (50..300).contains(&admitted(0)), "{outcome:?}");
    assert!(Fleet::run(plan(false), 20).admitted >= outcome.admitted);
}

#[test]
fn requests_one_after_the_other_do_not_exceed_a_limit() {
    // Each request comes when Memcached knows all earlier admissions, in buckets that gateways have read before.
    let log: Vec<_> = (0..300).map(|request| (Duration::from_millis(100 + request * 90), 0)).collect();
    for rate in ["10/5s", "30/4s"] {
        for gateways in [2, 8, 16] {
            let plan = Plan::new(gateways, exactly(rate), 1.0, 1);
            let window = plan.rates[0].window();
            let plan = Plan { log: log.clone().into(), length: Duration::from_secs(30), ..plan };
            let excess = Fleet::run(plan.clone(), 1).excess(plan.rates[0].quota(), window);
            assert_eq!(excess.most, 0, "{rate} at {gateways} gateways");
        }
    }
}

#[test]
fn round_trips_are_distributed_as_measured() {
    let mut random = Rng::with_seed(5);
    let times: Vec<f64> = (0..20_000).map(|_| network::BAD.one_way(&mut random).as_secs_f64() * 2e3).collect();
    for (share, milliseconds) in [(0.25, 3.0), (0.5, 3.8), (0.75, 4.7), (0.95, 69.7)] {
        let found = times.iter().filter(|time| **time <= milliseconds).count() as f64 / 20_000.0;
        assert!((found - share).abs() < 0.02, "{milliseconds} ms: {found}");
    }
}

/// The last read versions, by name.
type Versions = BTreeMap<String, u64>;

/// Random commands as gateways write them, about a few names.
fn commands(random: &mut Rng, versions: &Versions) -> Vec<u8> {
    let mut out = Vec::new();
    for tag in 0..random.usize(1..8) {
        let (counter, value) = (format!("c{}", random.u32(0..6)), format!("v{}", random.u32(0..4)));
        // From 2^63 on, Memcached looks for a minus sign even after the value, where anything may be.
        let amount = [1, 9, 10, 95, 1_000, 1_000_000_000_000_000_i64][random.usize(0..6)];
        let echo = ["q", "v"][random.usize(0..2)];
        let bytes: String = (0..random.usize(0..40)).map(|_| random.alphanumeric()).collect();
        let flags = ["", " F77"][random.usize(0..2)];
        let length = bytes.len();
        let version = versions.get(&value).copied().unwrap_or(1);
        let old = versions.get(&counter).copied().unwrap_or(1);
        let line = match random.usize(0..8) {
            0 => format!("ma {counter} N60 J{} D{amount} {echo} O{tag}\r\n", amount % 1_000),
            1 => format!("ma {counter} D{amount} {echo} O{tag}\r\n"),
            2 => format!("ma {counter} MD D{amount} {echo} O{tag}\r\n"),
            3 => format!("ms {value} {length} T60 C{version}{flags} q O{tag}\r\n{bytes}\r\n"),
            4 => format!("ms {value} {length} T60 ME{flags} q O{tag}\r\n{bytes}\r\n"),
            5 => format!("ms {counter} 1 T60{flags} q O{tag}\r\n0\r\n"),
            6 => format!("ms {counter} 1 T60 C{old}{flags} q O{tag}\r\n7\r\n"),
            _ => format!("ms {value} {length} MA q O{tag}\r\n{bytes}\r\ntouch {value} 60 noreply\r\n"),
        };
        out.extend_from_slice(line.as_bytes());
    }
    out.extend_from_slice(b"version\r\ngets c0 c1 c2 c3 c4 c5 v0 v1 v2 v3 nothing\r\n");
    out.extend_from_slice(LAST.0);
    out
}

fn exchange(stream: &mut TcpStream, commands: &[u8]) -> Vec<u8> {
    stream.write_all(commands).unwrap();
    let (mut replies, mut buffer) = (Vec::new(), [0; 1 << 14]);
    while !replies.ends_with(LAST.1) {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "memcached closed the connection: {}", String::from_utf8_lossy(&replies));
        replies.extend_from_slice(&buffer[..length]);
    }
    replies
}

/// The replies without what differs from run to run: the version of the installed Memcached, and the spaces that fill
/// up a shorter count. Memcached omits them if one of its own threads looks at the item just then.
fn comparable(replies: &[u8]) -> String {
    let (mut out, text) = (String::new(), String::from_utf8_lossy(replies));
    let mut lines = text.split("\r\n").peekable();
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split(' ').collect();
        match (&words[..], lines.peek()) {
            (["VERSION", _], _) => out += "VERSION",
            (["VALUE", name, flags, _, version], Some(value)) if name.starts_with('c') => {
                let (length, value) = (value.trim_end().len().to_string(), value.trim_end());
                out += &["VALUE ", name, " ", flags, " ", &length, " ", version, "\r\n", value].concat();
                lines.next();
            }
            _ => out += line,
        }
        out += "\r\n";
    }
    out
}

#[test]
fn the_simulated_memcached_replies_like_a_real_one() {
    let real = Software::Memcached.start();
    let mut stream = TcpStream::connect(real.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let (mut simulated, mut random, mut versions) = (Server::default(), Rng::with_seed(11), Versions::new());
    for round in 0..3_000 {
        let commands = commands(&mut random, &versions);
        let (replies, _) = simulated.execute(&commands, NOW);
        let (expected, found) = (comparable(&exchange(&mut stream, &commands)), comparable(&replies));
        assert_eq!(found, expected, "round {round}: {}", String::from_utf8_lossy(&commands));
        versions.clear();
        for line in expected.lines().filter_map(|line| line.strip_prefix("VALUE ")) {
            let words: Vec<&str> = line.split(' ').collect();
            // Some versions are of another item, or of none.
            let version = words[3].parse::<u64>().unwrap() + u64::from(random.u32(0..5) == 0);
            versions.insert(words[0].to_owned(), version);
        }
    }
}

/// Collects random writes about a few names, and reads of all.
fn collect(commands: &mut dyn Commands, random: &mut Rng, versions: &BTreeMap<String, u64>) {
    const MINUTE: Lifetime = Lifetime { seconds: 60, from: NOW };
    let named = |name: String| move |out: &mut Vec<u8>| out.extend_from_slice(name.as_bytes());
    for _ in 0..random.usize(1..8) {
        let (counter, value) = (format!("c{}", random.u32(0..6)), format!("v{}", random.u32(0..4)));
        // Up to more than floating point counts exactly.
        let amount = [1, 9, 10, 95, 1_000, 1_000_000_000_000_000_i64][random.usize(0..6)];
        let echo = [Echo::Quiet, Echo::Count][random.usize(0..2)];
        let bytes: String = (0..random.usize(0..40)).map(|_| random.alphanumeric()).collect();
        let initial = random.bool().then_some(Initial { count: amount.unsigned_abs() % 1_000, lifetime: MINUTE });
        // What is no value of ours, too.
        let name = if random.u8(0..5) == 0 { counter.clone() } else { value.clone() };
        let known = versions.get(&value).copied().unwrap_or(1);
        let condition = [Condition::Missing, Condition::Always, Condition::Version(known)][random.usize(0..3)];
        match random.usize(0..5) {
            0 => commands.add(&named(counter), amount, initial, echo),
            1 => commands.add(&named(counter), -amount, None, echo),
            2 => commands.store_count(&named(counter), amount.unsigned_abs(), MINUTE, 77),
            3 => commands.store(&named(value), bytes.as_bytes(), condition, MINUTE, 77),
            _ => commands.append(&named(name), bytes.as_bytes(), MINUTE),
        }
    }
    READ.iter().for_each(|name| commands.read(&named((*name).to_owned())));
}

const READ: [&str; 11] = ["c0", "c1", "c2", "c3", "c4", "c5", "v0", "v1", "v2", "v3", "nothing"];

#[test]
fn the_simulated_valkey_replies_like_a_real_one() {
    let (real, protocol) = (Software::Valkey.start(), Valkey::new(Login::default(), "gw"));
    // The server learns the scripts, which hold for all connections.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    drop(runtime.block_on(protocol.open(&real.address.to_string())).unwrap());
    let mut stream = TcpStream::connect(real.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*1\r\n$4\r\nPING\r\n").unwrap();
    let (mut buffer, mut told) = ([0; 1 << 14], Vec::new());
    while !told.ends_with(b"+PONG\r\n") {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "the server closed the connection: {}", told.escape_ascii());
        told.extend_from_slice(&buffer[..length]);
    }
    let (mut simulated, mut random) = (valkey::Valkey::new(DIGESTS), Rng::with_seed(11));
    let (mut commands, mut versions) = (protocol.commands(), BTreeMap::new());
    for round in 0..3_000 {
        collect(&mut *commands, &mut random, &versions);
        let (mut asked, mut expected, mut found) = (Vec::new(), Vec::new(), Vec::new());
        let mut reader = commands.finish(&mut asked);
        stream.write_all(&asked).unwrap();
        let outcome = loop {
            if let Some(outcome) = reader.read(&expected).unwrap() {
                break outcome;
            }
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0, "the server closed the connection: {}", asked.escape_ascii());
            expected.extend_from_slice(&buffer[..length]);
        };
        simulated.execute(&asked, NOW * 1_000_000, &mut found);
        let replies = Replies { outcome: &outcome, input: &expected };
        assert_eq!(outcome.failure, None, "round {round}: {}", asked.escape_ascii());
        assert_eq!(
            found.escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
            "round {round}: {}",
            asked.escape_ascii()
        );
        // Some versions are of another item, or of none.
        let mut version = |at: usize| Some(replies.item(at)?.version + u64::from(random.u32(0..5) == 0));
        versions = READ.iter().enumerate().filter_map(|(at, name)| Some(((*name).to_owned(), version(at)?))).collect();
    }
}

#[test]
fn leases_refuse_hardly_anything_as_long_as_there_is_room() {
    for strict in [false, true] {
        let plan = Plan {
            strict,
            traffic: Traffic::new(1000.0, 1, 1.0),
            length: Duration::from_secs(3),
            ..Plan::new(20, exactly("22000/s"), 1.0, 1)
        };
        let outcome = Fleet::run(plan, 1);
        assert!(outcome.work[0].exchanges < outcome.requests / 2, "their key is leased");
        // The load equals the quota, because the oldest bucket counts in full. Leases count as admitted until they are
        // given back.
        let refused = outcome.requests - outcome.admitted;
        assert!(refused * 100 < outcome.requests, "strict: {strict}: {refused} of {}", outcome.requests);
    }
}
