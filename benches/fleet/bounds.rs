//! The promises about the limits of a fleet, as assertions. docs/memcached.md has the same in words.

use std::time::Duration;

use gateway::config::{OnError, Software};
use gateway::limit::Rate;

use super::exact::exactly;
use super::network;
use super::plan::{Change, Cut, Plan};
use super::world::Fleet;

/// The hottest key gets three times its limit.
const KEYS: usize = 50;
const LOAD: f64 = 3.0;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct Bound {
    pub(crate) name: &'static str,
    plan: Plan,
    /// How many quotas may pass in any window.
    times: u64,
    /// By how much that window is shorter than the limit's.
    shorter: Duration,
}

/// The most in any window, and the promise.
pub(crate) struct Held {
    pub(crate) most: u64,
    pub(crate) bound: u64,
}

fn plan(gateways: usize, rate: Rate) -> Plan {
    Plan { length: SECOND * 3, ..Plan::new(gateways, rate, LOAD, KEYS) }
}

/// All promises, for `gateways` gateways that share servers of this kind.
pub(crate) fn all(software: Software, gateways: usize, seed: u64) -> Vec<Bound> {
    let rate = || exactly("200/s");
    let fixed = || "200/s".parse::<Rate>().unwrap().with_strategy(gateway::limit::Strategy::FixedWindow).unwrap();
    let strict = |gateways| Plan { strict: true, ..plan(gateways, rate()) };
    let count = gateways as u64;
    let cut = gateways / 2;
    let outage = || SECOND..SECOND * 2;
    let bound =
        |name, plan: Plan, times| Bound { name, plan: Plan { software, seed, ..plan }, times, shorter: Duration::ZERO };
    let delayed = |name, plan: Plan, times| Bound { shorter: plan.timeout, ..bound(name, plan, times) };
    let far = |plan: Plan| Plan { network: network::FAR, timeout: network::FAR.timeout(), ..plan };
    let half_far = |plan: Plan| Plan { far: (gateways / 2, network::FAR), timeout: network::FAR.timeout(), ..plan };
    let added = |over| Plan { servers: 3, change: Some(Change { servers: 4, from: SECOND, over }), ..strict(gateways) };
    let skewed = |plan: Plan| Plan { skew: SECOND / 2, ..plan };
    vec![
        bound("one gateway alone admits what the limit allows", plan(1, rate()), 1),
        bound("so it does far away", far(plan(1, rate())), 1),
        bound("so it does while it is cut off", Plan { cut: Cut::off(1, outage()), ..plan(1, rate()) }, 1),
        bound("and when the server is restarted", Plan { restarts: vec![SECOND], ..plan(1, rate()) }, 1),
        bound("with strict, all together admit no more", strict(gateways), 1),
        // A request is charged at some moment between its question and the answer.
        delayed("so they do far away, but for what requests wait", far(strict(gateways)), 1),
        delayed("and from two regions", half_far(strict(gateways)), 1),
        bound(
            "with strict, each that is cut off may admit as much again",
            Plan { cut: Cut::off(cut, outage()), ..strict(gateways) },
            1 + cut as u64,
        ),
        bound(
            "with strict and reject, those that are cut off admit nothing",
            Plan { cut: Cut::off(cut, outage()), on_error: OnError::Reject, ..strict(gateways) },
            1,
        ),
        bound(
            "with strict, each admits as much again if a server is lost",
            Plan { servers: 3, cut: Cut::lost(0, outage()), ..strict(gateways) },
            count,
        ),
        bound("with strict, twice the limit if a server is added at once", added(Duration::ZERO), 2),
        bound("and if it is added at one gateway after the other", added(SECOND), 2),
        bound("without strict, no more than the limit for each", far(plan(gateways, rate())), count),
        bound(
            "so it is when the server is restarted",
            Plan { restarts: vec![SECOND], ..plan(gateways, rate()) },
            count,
        ),
        bound("with clocks that differ, no more than the limit for each", skewed(strict(gateways)), count),
        // A fixed window may admit twice its quota around its edge.
        bound("fixed windows go by one clock", skewed(Plan { strict: true, ..plan(gateways, fixed()) }), 2),
    ]
}

impl Bound {
    /// # Panics
    /// If the promise does not hold.
    pub(crate) fn check(self) -> Held {
        let Self { name, plan, times, shorter } = self;
        let rate = plan.rates[0].clone();
        let quota = rate.quota();
        let mut outcome = Fleet::run(plan, KEYS);
        let most = outcome.excess(rate.quota(), rate.window().saturating_sub(shorter)).highest;
        let bound = quota * times;
        assert!(outcome.admitted > quota, "{name}: only {} were admitted", outcome.admitted);
        assert!(most <= bound, "{name}: {most} were admitted in a window, and {bound} are promised");
        Held { most, bound }
    }
}
