//! Which endpoints get requests, as their states change.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderValue;

use super::*;
use crate::base::clock::Monotonic;
use crate::config::{Ejection, HealthCheck, Key, Source};
use crate::upstream::endpoint::{Destination, DestinationAddress, Endpoints};

const EJECTION: Ejection =
    Ejection { failures: 1, statuses: Vec::new(), first: Duration::from_secs(10), longest: Duration::from_secs(10) };
const CHECK: HealthCheck = HealthCheck {
    path: String::new(),
    interval: Duration::from_secs(5),
    timeout: Duration::from_secs(1),
    statuses: Vec::new(),
    healthy_after: 1,
    unhealthy_after: 1,
};

const UNLIMITED: Overload =
    Overload { max_in_flight: None, adaptive: None, max_waiting: 0, max_wait: Duration::from_secs(1) };

fn hash() -> Balance {
    Balance::Hash(Key { parts: vec![vec![Source::Global]] })
}

fn all_strategies() -> [Balance; 3] {
    [Balance::RoundRobin, Balance::LeastRequests, hash()]
}

fn endpoints(weights: &[u32], is_checked: bool) -> Vec<Weighted> {
    let endpoints = Endpoints::new(1, 100);
    let weighted = |(index, weight): (usize, &u32)| {
        let address = DestinationAddress::Socket(([10, 0, 0, u8::try_from(index).unwrap()], 80).into());
        let target = Destination { address, authority: HeaderValue::from_static("a"), tls: None, http2: false };
        Weighted { endpoint: endpoints.get("a", target, is_checked), weight: *weight }
    };
    weights.iter().enumerate().map(weighted).collect()
}

/// The request ends at once.
fn sent(balancer: &Balancer, key: u64) -> Option<usize> {
    let endpoint = balancer.choose(Criteria { key: Some(key), tried: &[] }).ok()?;
    endpoint.state.load.end();
    Some(endpoint.id)
}

/// How many of `requests` with different keys each endpoint gets.
fn shares(balancer: &Balancer, requests: u64) -> BTreeMap<usize, u64> {
    let mut shares = BTreeMap::new();
    (0..requests).filter_map(|key| sent(balancer, key)).for_each(|id| *shares.entry(id).or_default() += 1);
    shares
}

#[test]
fn each_strategy_shares_by_weight() {
    for balance in all_strategies() {
        let balancer = Balancer::new(balance.clone(), UNLIMITED, endpoints(&[1, 2, 5], false));
        let shares = shares(&balancer, 8000);
        for (id, expected) in [(1, 1000), (2, 2000), (3, 5000)] {
            assert!(shares[&id].abs_diff(expected) < 250, "{balance:?}: {shares:?}");
        }
    }
}

#[test]
fn busy_endpoints_get_fewer_requests() {
    let balancer = Balancer::new(Balance::LeastRequests, UNLIMITED, endpoints(&[1, 1, 2], false));
    let mut counts = [0usize; 4];
    for _ in 0..400 {
        let endpoint = balancer.choose(Criteria::default()).unwrap();
        counts[endpoint.id] = endpoint.state.load.in_flight();
    }
    assert!(counts[1].abs_diff(100) < 15 && counts[2].abs_diff(100) < 15 && counts[3].abs_diff(200) < 20, "{counts:?}");
}

#[test]
fn endpoints_that_are_ejected_or_unhealthy_get_none_while_others_are_well() {
    for balance in all_strategies() {
        let all = endpoints(&[1, 1, 1], true);
        let now = Monotonic::from_micros(0);
        let balancer = Balancer::new(balance.clone(), UNLIMITED, all.clone());
        let ids = |balancer: &Balancer| shares(balancer, 300).into_keys().collect::<Vec<_>>();
        assert_eq!(ids(&balancer), [1, 2, 3], "none is checked yet");
        all[1].endpoint.state.checked(true, &CHECK, now);
        assert!(balancer.refresh() && !balancer.refresh());
        assert_eq!(ids(&balancer), [2]);
        assert!(!balancer.has_other(&all[1].endpoint) && balancer.has_other(&all[0].endpoint));
        all[0].endpoint.state.checked(true, &CHECK, now);
        balancer.refresh();
        assert_eq!(ids(&balancer), [1, 2]);
        all[0].endpoint.state.eject(&EJECTION, now).unwrap();
        balancer.refresh();
        assert_eq!(ids(&balancer), [2]);
        all[1].endpoint.state.checked(false, &CHECK, now);
        balancer.refresh();
        assert_eq!(ids(&balancer), [3], "one that was never checked is better than one that is known to fail");
        all[2].endpoint.state.checked(false, &CHECK, now);
        balancer.refresh();
        assert_eq!(ids(&balancer), [1, 2, 3], "none is well");
    }
}

#[test]
fn a_further_attempt_goes_to_another_endpoint() {
    for balance in all_strategies() {
        let all = endpoints(&[1, 1, 1], false);
        let balancer = Balancer::new(balance.clone(), UNLIMITED, all.clone());
        let mut tried = Vec::new();
        while let Ok(endpoint) = balancer.choose(Criteria { key: Some(7), tried: &tried }) {
            tried.push(endpoint.id);
        }
        tried.sort_unstable();
        assert_eq!(tried, [1, 2, 3], "{balance:?}");
        all[0].endpoint.state.eject(&EJECTION, Monotonic::from_micros(0)).unwrap();
        balancer.refresh();
        let last = balancer.choose(Criteria { key: Some(7), tried: &[2, 3] }).unwrap();
        assert_eq!(last.id, 1, "an ejected one is better than none");
    }
}

#[test]
fn no_endpoint_gets_more_than_its_room() {
    for balance in all_strategies() {
        let all = endpoints(&[1, 1], false);
        let balancer = Balancer::new(balance.clone(), Overload { max_in_flight: Some(3), ..UNLIMITED }, all.clone());
        let begun: Vec<_> = (0..10).map(|key| balancer.choose(Criteria { key: Some(key), tried: &[] })).collect();
        let count = begun.iter().filter(|chosen| chosen.is_ok()).count();
        assert_eq!((count, all[0].endpoint.state.load.in_flight(), all[1].endpoint.state.load.in_flight()), (6, 3, 3));
        assert_eq!(begun[9].as_ref().unwrap_err(), &NotFound::Full);
        // An endpoint that gets no requests does not replace a full one.
        all[0].endpoint.state.eject(&EJECTION, Monotonic::from_micros(0)).unwrap();
        all[0].endpoint.state.load.end();
        balancer.refresh();
        assert_eq!(balancer.choose(Criteria::default()).unwrap_err(), NotFound::Full, "{balance:?}");
    }
    let none = Balancer::new(Balance::LeastRequests, UNLIMITED, Vec::new());
    assert_eq!(none.choose(Criteria::default()).unwrap_err(), NotFound::NoneLeft);
}

#[test]
fn few_keys_move_when_an_endpoint_goes() {
    let all = endpoints(&[1, 1, 1, 1, 1], false);
    let balancer = Balancer::new(hash(), UNLIMITED, all.clone());
    let chosen = || (0..5000).map(|key| sent(&balancer, key).unwrap()).collect::<Vec<_>>();
    let before = chosen();
    assert_eq!(chosen(), before, "the same key, the same endpoint");
    all[2].endpoint.state.eject(&EJECTION, Monotonic::from_micros(0)).unwrap();
    balancer.refresh();
    for (was, is) in before.iter().zip(chosen()) {
        assert!(if *was == 3 { is != 3 } else { is == *was }, "only its keys move");
    }
    let other = Balancer::new(hash(), UNLIMITED, all.iter().rev().cloned().collect());
    all[2].endpoint.state.advance(false, 0, Monotonic::from_micros(1 << 40));
    other.refresh();
    assert_eq!(
        (0..5000).map(|key| sent(&other, key).unwrap()).collect::<Vec<_>>(),
        before,
        "the order makes no difference"
    );
}

#[test]
fn a_busy_key_overruns_no_endpoint() {
    let all = endpoints(&[1, 1, 1, 1], false);
    let balancer = Balancer::new(hash(), UNLIMITED, all.clone());
    for _ in 0..100 {
        balancer.choose(Criteria { key: Some(1), tried: &[] }).unwrap();
    }
    let counts: Vec<_> = all.iter().map(|weighted| weighted.endpoint.state.load.in_flight()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 100);
    assert!(counts.iter().all(|count| *count <= 32), "a quarter more than its share, rounded up: {counts:?}");
}

#[test]
fn turns_are_spread_by_weight() {
    assert_eq!(schedule(&[1]), [0]);
    assert_eq!(schedule(&[1, 1]), [0, 1]);
    assert_eq!(schedule(&[3, 1]), [0, 0, 1, 0]);
    assert_eq!(schedule(&[]), Vec::<usize>::new());
    assert_eq!(schedule(&[100, 50, 1]).len(), 151);
}
