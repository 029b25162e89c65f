//! Tables of how exact the limits of a fleet are, and of the load of Memcached. Each table varies one thing.

use std::time::Duration;

use gateway::limit::{Rate, Strategy};

use super::exact::exactly;
use super::network::{BAD, FAR, LOOPBACK, NEAR, Network, REGION, ZONE};
use super::outcome::Outcome;
use super::plan::{Cut, Plan};
use super::traffic::Traffic;
use super::world::Fleet;

/// Shares of the traffic fall as 1/rank.
const KEYS: usize = 1_000;
/// How often the hottest key is asked for, as a multiple of its limit.
const LOAD: f64 = 2.0;
const GATEWAYS: usize = 16;
const SECOND: Duration = Duration::from_secs(1);

fn plan(gateways: usize, seed: u64) -> Plan {
    Plan { seed, ..Plan::new(gateways, exactly("1000/s"), LOAD, KEYS) }
}

fn on(network: Network, plan: Plan) -> Plan {
    Plan { network, timeout: network.timeout(), ..plan }
}

pub(crate) fn print(seed: u64) {
    let plan = |gateways| plan(gateways, seed);
    println!(
        "`1000/s`, precision 10, edge \"whole\", {KEYS} keys, the hottest asked for {LOAD} times as often as allowed, \
         {GATEWAYS} gateways in one zone, for 5 s, unless a table says otherwise."
    );
    table("gateways", [1, 2, 8, 32, 128, 1_000].map(|count| (count.to_string(), plan(count))));
    let networks = [LOOPBACK, ZONE, REGION, BAD, NEAR, FAR];
    table(
        "round trip",
        networks.map(|network| {
            let name = format!("{}, {} ms", network.name, network.median());
            (name, on(network, plan(GATEWAYS)))
        }),
    );
    table(
        "72 ms away, `timeout`",
        [100, 200, 400, 800, 1_600].map(|timeout| {
            let timeout = Duration::from_millis(timeout);
            (format!("{} ms", timeout.as_millis()), Plan { network: FAR, timeout, ..plan(GATEWAYS) })
        }),
    );
    table(
        "in another region, 72 ms from Memcached",
        [0, 4, 8, 12].map(|far| {
            let plan = Plan { far: (far, FAR), timeout: FAR.timeout(), ..plan(GATEWAYS) };
            (format!("{far} of {GATEWAYS}"), plan)
        }),
    );
    let outage = || SECOND..SECOND * 3;
    table(
        "cut off for 2 s",
        [0, 2, 8, 16]
            .map(|cut| (format!("{cut} of {GATEWAYS}"), Plan { cut: Cut::off(cut, outage()), ..plan(GATEWAYS) })),
    );
    table(
        "cut off from one of 3 servers, for 2 s",
        [2, 8, 16].map(|cut| {
            let cut = Cut { servers: 0..1, ..Cut::off(cut, outage()) };
            (format!("{} of {GATEWAYS}", cut.gateways.end), Plan { servers: 3, cut, ..plan(GATEWAYS) })
        }),
    );
    table(
        "clocks differ by",
        [0, 10, 100, 500, 1_000]
            .map(|skew| (format!("{skew} ms"), Plan { skew: Duration::from_millis(skew), ..plan(GATEWAYS) })),
    );
    table(
        "Memcached restarts",
        [vec![], vec![SECOND * 2]]
            .map(|restarts: Vec<_>| (restarts.len().to_string(), Plan { restarts, ..plan(GATEWAYS) })),
    );
    // All keys together are asked for as often as above.
    let keys = |keys, exponent| Plan { traffic: Traffic::new(937.0, keys, exponent), ..plan(GATEWAYS) };
    table(
        "keys",
        [
            ("one".to_owned(), keys(1, 1.0)),
            ("10, all alike".to_owned(), keys(10, 0.0)),
            (format!("{KEYS}, by 1/rank"), keys(KEYS, 1.0)),
            (format!("{KEYS}, all alike"), keys(KEYS, 0.0)),
        ],
    );
    table("servers", [1, 3, 10].map(|servers| (servers.to_string(), Plan { servers, ..plan(GATEWAYS) })));
    for gateways in [1, GATEWAYS] {
        table(
            &format!("strategy, gateways: {gateways}"),
            strategies().map(|(name, rate)| (name.to_owned(), Plan { rates: vec![rate], ..plan(gateways) })),
        );
    }
}

fn strategies() -> [(&'static str, Rate); 5] {
    let rate = |strategy| "1000/s".parse::<Rate>().unwrap().with_strategy(strategy).unwrap();
    [
        ("sliding window, the default", "1000/s".parse().unwrap()),
        ("sliding window, precision 10, edge whole", exactly("1000/s")),
        ("fixed window", rate(Strategy::FixedWindow)),
        ("token bucket, burst 1000", rate(Strategy::TokenBucket { burst: 1_000 })),
        ("moving window", rate(Strategy::SlidingLog)),
    ]
}

fn table(what: &str, plans: impl IntoIterator<Item = (String, Plan)>) {
    print_table(what, plans, KEYS);
}

/// A table with two rows for each plan, of up to `keys` keys.
pub(crate) fn print_table(what: &str, plans: impl IntoIterator<Item = (String, Plan)>, keys: usize) {
    println!(
        "\n| {what} | strict | over the limit at most % | mean % | hottest key, of what is allowed % \
         | exchanges/s | commands/s | kB/s | cores | wait, mean, 99 % (ms) | without Memcached % |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, plan) in plans {
        for strict in [false, true] {
            let plan = Plan { strict, ..plan.clone() };
            let (rate, seconds) = (plan.rates[0].clone(), plan.length.as_secs_f64());
            let mut outcome = Fleet::run(plan, keys);
            row(&format!("{name} | {}", if strict { "yes" } else { "no" }), &rate, seconds, &mut outcome);
        }
    }
}

/// The load of Memcached is that of the server with the most exchanges.
fn row(what: &str, rate: &Rate, seconds: f64, outcome: &mut Outcome) {
    let excess = outcome.excess(rate.quota(), rate.window());
    let quota = rate.quota() as f64;
    let allowed = quota * seconds / rate.window().as_secs_f64();
    let busiest = (0..outcome.work.len()).max_by_key(|server| outcome.work[*server].exchanges).unwrap();
    let (work, cpu) = (outcome.work[busiest], outcome.cpu[busiest]);
    println!(
        "| {what} | {:.1} | {:.2} | {:.1} | {:.0} | {:.0} | {:.0} | {:.3} | {:.2}, {:.2} | {:.2} |",
        excess.most as f64 * 100.0 / quota,
        excess.mean * 100.0 / quota,
        outcome.admissions[0].len() as f64 * 100.0 / allowed,
        work.exchanges as f64 / seconds,
        (work.writes + work.reads) as f64 / seconds,
        (work.bytes_in + work.bytes_out) as f64 / seconds / 1e3,
        cpu / seconds,
        outcome.wait.0 * 1e3,
        outcome.wait.1 * 1e3,
        (outcome.local + outcome.unknown) as f64 * 100.0 / outcome.requests as f64,
    );
}
