//! Several servers of a shared store: the gateway asks them at the same time, a frozen one delays only its own keys, and a new
//! one takes over only its share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Client, Fault, Gateway, Mode, Server, Software, until, with_each_server};
use crate::shared::burst;

const PATIENCE: Duration = Duration::from_secs(10);

/// Limits `a` and `b` with these rates, each for every client, and both on all routes.
fn limited(rates: &[&str]) -> String {
    let names: Vec<_> = ["a", "b"].into_iter().take(rates.len()).collect();
    let limit =
        |(name, rate): (&&str, &&str)| format!("[limits.{name}]\nkey = \"header:x-api-key\"\nrates = [{rate:?}]\n");
    let limits: String = names.iter().zip(rates).map(limit).collect();
    format!("{limits}[[routes]]\npath = \"/*\"\nlimits = {names:?}\nrespond = {{ status = 200 }}\n")
}

fn ask(client: &mut Client, key: &str) -> u16 {
    client.get_with("/", format!("X-Api-Key: {key}\r\n")).status
}

fn counted(servers: &[Server]) -> Vec<u64> {
    servers.iter().map(|server| server.counted()).collect()
}

/// Asks once for this key. Returns the new counts in each server.
#[track_caller]
fn traced(client: &mut Client, servers: &[Server], key: &str, limits: u64) -> Vec<u64> {
    let before = counted(servers);
    assert_eq!(ask(client, key), 200, "{key}");
    let more = || counted(servers).iter().zip(&before).map(|(now, before)| now - before).collect::<Vec<_>>();
    until("it is counted", PATIENCE, || more().iter().sum::<u64>() == limits);
    more()
}

/// A key whose two counters are on two servers, after one request.
#[track_caller]
fn spread(client: &mut Client, servers: &[Server]) -> String {
    let mut keys = (0..40).map(|at| format!("k{at}"));
    keys.find(|key| traced(client, servers, key, 2) == [1, 1]).expect("all keys have both counters on one server")
}

fn two_servers_are_asked_at_the_same_time(software: Software) {
    for strict in [false, true] {
        let servers = [software.start(), software.start()];
        let proxies = servers.each_ref().map(|server| Fault::start(server.address, Mode::Pass));
        let addresses = proxies.each_ref().map(|proxy| proxy.address);
        let store = software.store(&addresses, &format!("timeout = \"10s\"\non_error = \"reject\"\nstrict = {strict}"));
        let gateway = Gateway::start(&format!("{store}{}", limited(&["1000/d", "1000/d"])));
        let mut client = gateway.client();
        let key = spread(&mut client, &servers);
        let asked = || servers.each_ref().map(|server| server.commands());
        for _ in 0..5 {
            let (sums, before) = (counted(&servers), asked());
            proxies.iter().for_each(|proxy| proxy.set(Mode::Hold));
            client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nX-Api-Key: {key}\r\n\r\n"));
            until(&format!("both are asked before one has answered, strict: {strict}"), PATIENCE, || {
                asked().iter().zip(before).all(|(now, before)| *now > before)
            });
            proxies.iter().for_each(|proxy| proxy.set(Mode::Pass));
            assert_eq!(client.response(false).status, 200, "strict: {strict}");
            // Its charge is on its way, and the next request waits until the charge has arrived.
            until("it is counted", PATIENCE, || counted(&servers).iter().zip(&sums).all(|(now, sum)| *now == sum + 1));
        }
    }
}

fn one_that_is_frozen_holds_up_nobody_else(software: Software) {
    const QUOTA: usize = 100;
    /// A request that waits for the frozen server waits for the five seconds of `timeout`. A request that takes less
    /// than this has not waited, even on a busy machine.
    const AT_ONCE: Duration = Duration::from_secs(4);
    let servers = [software.start(), software.start()];
    let addresses = servers.each_ref().map(|server| server.address);
    let gateway = Gateway::start(&format!("{}{}", software.store(&addresses, "timeout = \"5s\""), limited(&["100/d"])));
    let mut client = gateway.client();
    let mut keys = [Vec::new(), Vec::new()];
    for at in 0..60 {
        let key = format!("k{at}");
        let first = traced(&mut client, &servers, &key, 1) == [1, 0];
        keys[usize::from(!first)].push(key);
    }
    let [kept, lost] = &keys;
    assert!(kept.len() >= 10 && lost.len() >= 10, "{} and {}", kept.len(), lost.len());

    let answered = AtomicUsize::new(0);
    let mut use_up = |keys: &[String]| {
        for key in keys {
            let mut admitted = 0;
            for _ in 0..QUOTA + 5 {
                let asked = Instant::now();
                admitted += usize::from(ask(&mut client, key) == 200);
                assert!(asked.elapsed() < AT_ONCE, "{key} took {:?}", asked.elapsed());
                answered.fetch_add(1, Ordering::SeqCst);
            }
            assert_eq!(admitted, QUOTA - 1, "{key}");
        }
    };
    let (end, waited) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let bound = Instant::now() + 6 * PATIENCE;
    servers[1].signal(Signal::STOP);
    thread::scope(|scope| {
        // Other clients use the other server: how many got answers during each of these waits.
        for others in lost.chunks(lost.len().div_ceil(4)) {
            let mut client = gateway.client();
            let (answered, end, waited) = (&answered, &end, &waited);
            scope.spawn(move || {
                for at in (0..).take_while(|_| !end.load(Ordering::Relaxed) && Instant::now() < bound) {
                    let (asked, before) = (Instant::now(), answered.load(Ordering::SeqCst));
                    assert!([200, 429].contains(&ask(&mut client, &others[at % others.len()])));
                    if asked.elapsed() >= AT_ONCE {
                        waited.lock().unwrap().push(answered.load(Ordering::SeqCst) - before);
                    }
                    sleep(Duration::from_millis(1));
                }
            });
        }
        let (first, second) = kept.split_at(kept.len() / 2);
        use_up(first);
        // Requests go on meanwhile, although the key has no more.
        let mut asking = gateway.client();
        until("the other one is known to be away", 2 * PATIENCE, || {
            assert_eq!(ask(&mut asking, &first[0]), 429);
            answered.fetch_add(1, Ordering::SeqCst);
            !waited.lock().unwrap().is_empty()
        });
        use_up(second);
        end.store(true, Ordering::Relaxed);
    });
    let waited = waited.into_inner().unwrap();
    // If the other requests were held up, too, one or two would have been answered meanwhile.
    assert!(waited.iter().all(|answered| *answered >= 50), "{waited:?} were answered meanwhile");
    // The last charge may be on its way.
    until("all keys of the server are used up", PATIENCE, || {
        let counters = servers[0].counters();
        counters.values().all(|count| *count == QUOTA as u64) && counters.len() == kept.len()
    });
}

fn a_third_server_takes_over_a_third_of_the_keys(software: Software) {
    let servers = [software.start(), software.start(), software.start()];
    let addresses = servers.each_ref().map(|server| server.address);
    let start = |servers: usize| {
        let store = software.store(&addresses[..servers], "on_error = \"reject\"\ntimeout = \"5s\"");
        let config = format!("{store}{}", limited(&["1/d"]));
        [Gateway::start(&config), Gateway::start(&config)]
    };
    let statuses = |gateways: &[Gateway; 2]| {
        let mut clients = gateways.each_ref().map(Gateway::client);
        (0..300).map(|at| ask(&mut clients[at % 2], &format!("k{at}"))).collect::<Vec<_>>()
    };
    let gateways = start(2);
    assert_eq!(statuses(&gateways), [200; 300]);
    until("all are counted", PATIENCE, || counted(&servers[..2]).iter().sum::<u64>() == 300);
    let counters = || servers.each_ref().map(|server| server.counters());
    let before = counters();
    drop(gateways);

    let gateways = start(3);
    let again = statuses(&gateways);
    let refused = again.iter().filter(|status| **status == 429).count();
    println!("{refused} of 300 are still refused");
    assert!((165..=234).contains(&refused), "{refused} of 300 are still refused");
    let moved = again.iter().filter(|status| **status == 200).count();
    assert_eq!(refused + moved, 300);
    until("those that have moved are counted", PATIENCE, || servers[2].counted() == moved as u64);
    let after = counters();
    // Clients that were admitted again were counted on the new server, and none on the old ones.
    assert_eq!(after[..2], before[..2]);
    assert!(after[2].keys().all(|name| before[0].contains_key(name) || before[1].contains_key(name)));
    assert!(statuses(&gateways).iter().all(|status| *status == 429));
}

with_each_server! {
    two_servers_are_asked_at_the_same_time
    one_that_is_frozen_holds_up_nobody_else
    a_third_server_takes_over_a_third_of_the_keys
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    fn a_burst_gets_exactly_the_least_of_its_limits(software: Software) {
        for (strict, rates) in [(false, ["30/d", "20/d"]), (false, ["20/d", "30/d"]), (true, ["30/d", "20/d"])] {
            let servers = [software.start(), software.start()];
            let addresses = servers.each_ref().map(|server| server.address);
            let store =
                software.store(&addresses, &format!("on_error = \"reject\"\ntimeout = \"5s\"\nstrict = {strict}"));
            let gateway = Gateway::start(&format!("{store}{}", limited(&rates)));
            let key = spread(&mut gateway.client(), &servers);
            let before = counted(&servers);
            let clients = (0..50).map(|_| gateway.client()).collect();
            assert_eq!(burst(clients, &key, 10), 19, "strict: {strict}, {rates:?}");
            let more = || counted(&servers).iter().zip(&before).map(|(now, before)| now - before).collect::<Vec<_>>();
            until("both counters say so", PATIENCE, || more() == [19, 19]);
            // Nor does more arrive later.
            sleep(Duration::from_millis(50));
            assert_eq!(more(), [19, 19], "strict: {strict}, {rates:?}");
        }
    }

    with_each_server! {
        a_burst_gets_exactly_the_least_of_its_limits
    }
}
