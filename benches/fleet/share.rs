//! Fleets without Memcached (`share`): each gateway counts in memory and enforces its part of every rate, with the code of
//! real gateways. Only name lookups and load balancing are simulated.

use std::collections::BTreeMap;
use std::ops::Range;

use fastrand::Rng;
use gateway::base::clock::Time;
use gateway::limit::{Cell, Limit, Rate};

use super::exact::{Excess, exactly};

const SECOND: u64 = 1_000_000;
const WINDOW: u64 = 60 * SECOND;
/// In microseconds, like all times here.
const LOOK_UP_EVERY: u64 = 4_500_000;
const BEGIN: u64 = 1_800_000_000 * SECOND;
/// Clients of the simulation, each with its own limit.
const CLIENTS: usize = 10;
/// The quota, unless a table compares quotas.
const QUOTA: u64 = 1000;

#[derive(Clone, Copy)]
enum Balance {
    Random,
    InTurn,
    /// Each client sends each request over one of its connections by chance. Each connection leads to one gateway.
    Connections(usize),
}

#[derive(Clone)]
struct Gateway {
    lives: Range<u64>,
    /// When lookups fail.
    deaf: Range<u64>,
    /// The time of the first lookup; the next ones follow every 4.5 s.
    phase: u64,
}

/// One client sends `load` times its quota, by chance.
struct Traffic {
    quota: u64,
    load: f64,
    balance: Balance,
    length: u64,
}

/// When requests were admitted.
type Admitted = Vec<u64>;

fn gateways(lives: &[Range<u64>], rng: &mut Rng) -> Vec<Gateway> {
    let new = |lives: &Range<u64>| Gateway { lives: lives.clone(), deaf: 0..0, phase: rng.u64(0..LOOK_UP_EVERY) };
    lives.iter().map(new).collect()
}

/// How many gateways this one knows after its last lookup.
fn known(gateways: &[Gateway], own: &Gateway, now: u64) -> u64 {
    let last = now.saturating_sub((now + LOOK_UP_EVERY - own.phase) % LOOK_UP_EVERY).max(own.lives.start);
    let last = match own.deaf.contains(&last) {
        // It never had an answer.
        true if own.deaf.contains(&own.lives.start) => return 1,
        true => own.deaf.start,
        false => last,
    };
    gateways.iter().filter(|one| one.lives.contains(&last)).count().max(1) as u64
}

fn run(gateways: &[Gateway], traffic: &Traffic, rng: &mut Rng) -> Vec<Admitted> {
    let rate: Rate = exactly(&format!("{}/m", traffic.quota));
    let mut parts = BTreeMap::new();
    let one = |_| {
        let (mut cells, mut admitted, mut turn, mut now) = (BTreeMap::new(), Vec::new(), 0, 0.0);
        let connections: Vec<usize> = (0..match traffic.balance {
            Balance::Connections(count) => count,
            Balance::Random | Balance::InTurn => 0,
        })
            .map(|_| rng.usize(..gateways.len()))
            .collect();
        loop {
            now -= rng.f64().max(f64::MIN_POSITIVE).ln() * WINDOW as f64 / (traffic.load * traffic.quota as f64);
            let time = now as u64;
            if time >= traffic.length {
                return admitted;
            }
            let alive = |place: &usize| gateways[*place].lives.contains(&time);
            let alive: Vec<usize> = (0..gateways.len()).filter(alive).collect();
            turn += 1;
            let place = match traffic.balance {
                Balance::Random => alive[rng.usize(..alive.len())],
                Balance::InTurn => alive[turn % alive.len()],
                Balance::Connections(count) => connections[rng.usize(..count)],
            };
            let number = known(gateways, &gateways[place], time);
            let limit = parts.entry(number).or_insert_with(|| Limit::new("l", &[rate.part(number)]));
            let at = Time::from_micros(BEGIN + time);
            let cell = cells.entry(place).or_insert_with(|| Cell::new(limit.rates(), at));
            if limit.decide(cell, at, 1).admitted {
                admitted.push(time * 1000);
            }
        }
    };
    (0..CLIENTS).map(one).collect()
}

/// What clients get of their quota while nothing changes: a row for each balance, fleet and quota.
pub(crate) fn steady(seed: u64) -> Vec<String> {
    let mut rng = Rng::with_seed(seed);
    let balances = [
        ("each request to any gateway by chance", Balance::Random),
        ("each request to the next gateway", Balance::InTurn),
        ("8 connections, each to any gateway", Balance::Connections(8)),
        ("one connection", Balance::Connections(1)),
    ];
    let mut cases: Vec<_> = [4, 16].into_iter().flat_map(|count| balances.map(|one| (one, count, QUOTA))).collect();
    cases.extend([(4, 100), (16, 100), (16, 10_000)].map(|(count, quota)| (balances[0], count, quota)));
    cases.insert(0, (("there is one gateway", Balance::InTurn), 1, QUOTA));
    let row = |((name, balance), count, quota): ((&str, Balance), usize, u64)| {
        let forever = 0..u64::MAX;
        let gateways = gateways(&vec![forever; count], &mut rng);
        let mut got = [1.0, 2.0].map(|load| {
            let traffic = Traffic { quota, load, balance, length: 2 * WINDOW };
            let admitted = run(&gateways, &traffic, &mut rng).into_iter().map(|times| {
                // The first window begins with empty counters.
                let counted = times.iter().filter(|time| **time >= WINDOW * 1000).count();
                counted as f64 * 100.0 / quota as f64
            });
            let admitted: Vec<f64> = admitted.collect();
            let least = admitted.iter().copied().fold(f64::MAX, f64::min);
            format!("{:.0}, {least:.0}", admitted.iter().sum::<f64>() / CLIENTS as f64)
        });
        let [once, twice] = &mut got;
        format!("| {name} | {count} | {quota}/m | {once} | {twice} |")
    };
    cases.into_iter().map(row).collect()
}

/// The most that a window can admit, in percent of the quota: for each gateway the largest part that it had within the window.
fn bound(gateways: &[Gateway], end: u64) -> f64 {
    const STEP: u64 = SECOND / 2;
    let part = |gateway: &Gateway, now| match gateway.lives.contains(&now) {
        true => 100.0 / known(gateways, gateway, now) as f64,
        false => 0.0,
    };
    let parts = |gateway| (0..end / STEP).map(move |step| part(gateway, step * STEP)).collect();
    let parts: Vec<Vec<f64>> = gateways.iter().map(parts).collect();
    let length = (WINDOW / STEP) as usize;
    let largest =
        |from: usize| parts.iter().map(|part| part[from..from + length].iter().copied().fold(0.0, f64::max)).sum();
    (0..(end / STEP) as usize - length).map(largest).fold(0.0, f64::max)
}

/// The most that a window admits while gateways come and go: a row for each change.
pub(crate) fn changing(seed: u64) -> Vec<String> {
    let mut rng = Rng::with_seed(seed);
    let (change, end) = (2 * WINDOW, 5 * WINDOW);
    let all = |count: usize| vec![0..u64::MAX; count];
    let with = |mut lives: Vec<Range<u64>>, more: Vec<Range<u64>>| {
        lives.extend(more);
        lives
    };
    let step = 30 * SECOND;
    let replaced = (0..4).map(|place| 0..change + (place + 1) * step).collect();
    let replacing = (0..4).map(|place| change + place * step..u64::MAX).collect();
    let quiet = 0..0;
    let late = change..change + WINDOW;
    let cases = [
        ("nothing changes", all(4), 0..0, quiet.clone()),
        ("one more than 4", with(all(4), vec![change..u64::MAX; 1]), 0..0, quiet.clone()),
        ("4 more than 4", with(all(4), vec![change..u64::MAX; 4]), 0..0, quiet.clone()),
        ("one of 4 ends", with(all(3), vec![0..change; 1]), 0..0, quiet.clone()),
        ("4 of 8 end", with(all(4), vec![0..change; 4]), 0..0, quiet.clone()),
        ("4 are replaced, one in 30 s, each after its successor has begun", with(replaced, replacing), 0..0, quiet),
        (
            "4 more than 4, which two of the old ones learn a minute late",
            with(all(4), vec![change..u64::MAX; 4]),
            0..2,
            late.clone(),
        ),
        (
            "one more than 4, whose lookups fail for the first minute",
            with(all(4), vec![change..u64::MAX; 1]),
            4..5,
            late,
        ),
    ];
    let row = |(name, lives, deaf, when): (&str, Vec<Range<u64>>, Range<usize>, Range<u64>)| {
        let mut gateways = gateways(&lives, &mut rng);
        gateways[deaf].iter_mut().for_each(|one| one.deaf = when.clone());
        let traffic = Traffic { quota: QUOTA, load: 5.0, balance: Balance::Random, length: end };
        let bound = bound(&gateways, end);
        let most = run(&gateways, &traffic, &mut rng)
            .into_iter()
            .map(|mut times| Excess::of(&mut times, QUOTA, WINDOW * 1000).highest as f64 * 100.0 / QUOTA as f64);
        let most: Vec<f64> = most.collect();
        let (mean, highest) = (most.iter().sum::<f64>() / CLIENTS as f64, most.iter().copied().fold(0.0, f64::max));
        assert!(highest <= bound, "{name}: {highest} of at most {bound}");
        format!("| {name} | {mean:.0} | {highest:.0} | {bound:.0} |")
    };
    cases.into_iter().map(row).collect()
}

pub(crate) fn print(seed: u64) {
    println!("\n## Gateways that share limits without Memcached\n");
    println!(
        "| a client's requests | gateways | quota | it sends its quota: gets % of it, the unluckiest | it sends twice as much |"
    );
    println!("|---|---|---|---|---|");
    steady(seed).iter().for_each(|row| println!("{row}"));
    println!(
        "\n| what happens | the most in a window, % of the quota | for the client that gets most |\n|---|---|---|"
    );
    changing(seed).iter().for_each(|row| println!("{row}"));
}
