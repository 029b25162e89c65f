//! A client whose requests go to several gateways in turns, as behind a load balancer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::harness::{Client, Fault, Gateway, Mode, Software, align, until, with_each_server};
use crate::shared::{PATIENT, SECOND, gateways};

const QUOTA: usize = 200;
/// A limit for each way to count, by its path.
const LIMITS: [(&str, &str); 6] = [
    ("sliding", "rates = [\"200/h\"]"),
    ("precise", "rates = [\"200/h\"]\nprecision = 10"),
    ("calendar", "rates = [\"200/day\"]"),
    ("fixed", "rates = [\"200/h\"]\nstrategy = \"fixed-window\""),
    ("moving", "rates = [\"200/h\"]\nstrategy = \"moving-window\""),
    // One token in 18 s.
    ("bucket", "rates = [\"200/h\"]\nstrategy = \"token-bucket\""),
];

fn limits() -> String {
    let limit = |(name, more): &(&str, &str)| {
        let limit = format!("[limits.{name}]\nkey = \"global\"\n{more}\n");
        format!("{limit}[[routes]]\npath = \"/{name}\"\nlimits = [{name:?}]\nrespond = {{ status = 200 }}\n")
    };
    LIMITS.iter().map(limit).collect()
}

/// Asks them in turns, at least until each has refused; returns how many were admitted.
fn in_turns(clients: &mut [Client], path: &str, pause: Duration) -> usize {
    let mut admitted = 0;
    for turn in 0..QUOTA + 4 * clients.len() {
        let at = turn % clients.len();
        match clients[at].get(path).status {
            200 => admitted += 1,
            429 => {}
            other => panic!("{other}"),
        }
        if !pause.is_zero() {
            sleep(pause);
        }
    }
    admitted
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    fn in_turns_gateways_admit_hardly_more_than_the_limit(software: Software) {
        for count in [2, 4, 8] {
            for pause in [Duration::ZERO, Duration::from_micros(200)] {
                let server = software.start();
                let gateways = gateways(count, &format!("{}{}", server.store_with(PATIENT), limits()));
                // A connection without a request would not last until the next hour.
                align(Duration::from_hours(1), Duration::from_mins(1));
                let mut clients: Vec<_> = gateways.iter().map(Gateway::client).collect();
                for (name, _) in LIMITS {
                    let admitted = in_turns(&mut clients, &format!("/{name}"), pause);
                    println!("{count} gateways, {name}, pause {pause:?}: {admitted}");
                    // The last admissions of each other gateway may be on their way. A bucket gains a few tokens.
                    assert!(
                        (QUOTA..QUOTA + count + 2).contains(&admitted),
                        "{admitted} admitted by {count} gateways, {name}, pause {pause:?}"
                    );
                }
            }
        }
    }

    fn in_turns_gateways_admit_hardly_more_than_small_limits(software: Software) {
        const QUOTAS: [usize; 6] = [1, 3, 6, 12, 30, 64];
        let limit = |quota: &usize| {
            let limit = format!("[limits.l{quota}]\nkey = \"header:x-api-key\"\nrates = [\"{quota}/h\"]\n");
            let route = format!("path = \"/{quota}\"\nlimits = [\"l{quota}\"]\nrespond = {{ status = 200 }}\n");
            format!("{limit}[[routes]]\n{route}")
        };
        let limits: String = QUOTAS.iter().map(limit).collect();
        for count in [2, 4] {
            let server = software.start();
            let gateways = gateways(count, &format!("{}{limits}", server.store_with(PATIENT)));
            align(Duration::from_hours(1), Duration::from_mins(1));
            let mut clients: Vec<_> = gateways.iter().map(Gateway::client).collect();
            for (quota, key) in QUOTAS.into_iter().flat_map(|quota| (0..20).map(move |key| (quota, key))) {
                let mut ask = |turn: usize| {
                    let client = &mut clients[turn % count];
                    client.get_with(&format!("/{quota}"), format!("x-api-key: {key}\r\n")).status
                };
                let admitted = (0..2 * quota + 2 * count).filter(|turn| ask(*turn) == 200).count();
                assert!((quota..quota + count).contains(&admitted), "{admitted} of {quota} by {count} gateways");
            }
        }
    }

    /// What was on its way when a connection broke is in doubt, and may be counted though it was not admitted.
    fn in_turns_connections_that_break_let_no_more_through(software: Software) {
        let server = software.start();
        let proxy = Fault::start(server.address, Mode::Pass);
        let config = |server| software.store(&[server], PATIENT) + &limits();
        let gateways = [Gateway::start(&config(server.address)), Gateway::start(&config(proxy.address))];
        align(Duration::from_hours(1), Duration::from_mins(1));
        let mut clients = gateways.each_ref().map(Gateway::client);
        for (name, _) in LIMITS {
            let (mut admitted, mut undecided) = (0, 0);
            for turn in 0..QUOTA + 100 {
                if turn % 20 == 10 {
                    proxy.set(Mode::Reset);
                }
                match clients[turn % 2].get(&format!("/{name}")).status {
                    200 => admitted += 1,
                    429 => {}
                    503 => undecided += 1,
                    other => panic!("{other}"),
                }
                if turn % 20 == 12 {
                    proxy.set(Mode::Pass);
                    until("it answers again", 10 * SECOND, || gateways[1].metric("gateway_store_up") == Some(1.0));
                }
            }
            println!("{name}: {admitted} admitted, {undecided} not decided");
            assert!(admitted <= QUOTA + 2, "{admitted} admitted, {name}");
            assert!(admitted + 2 * undecided >= QUOTA, "{admitted} admitted, {undecided} not decided, {name}");
        }
    }

    /// The near gateway replaces the value many times during one exchange of the far gateway.
    fn a_gateway_that_is_far_from_the_store_does_not_come_second_for_ever(software: Software) {
        const FAR: Duration = Duration::from_millis(10);
        const LIMIT: &str = "rates = [\"1000000/h\"]\nstrategy = \"fixed-window\"";
        let server = software.start();
        let proxy = Fault::start(server.address, Mode::Slow(FAR));
        let config = |server| {
            let store = software.store(&[server], "timeout = \"10s\"");
            let limit = format!("[limits.l]\nkey = \"global\"\n{LIMIT}\n");
            format!("{store}{limit}[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n")
        };
        let (near, far) = (Gateway::start(&config(server.address)), Gateway::start(&config(proxy.address)));
        let end = AtomicBool::new(false);
        let trips = thread::scope(|scope| {
            for _ in 0..4 {
                let (mut client, end) = (near.client(), &end);
                scope.spawn(move || {
                    while !end.load(Ordering::Relaxed) {
                        assert_eq!(client.get("/").status, 200);
                    }
                });
            }
            let mut client = far.client();
            let statuses: Vec<_> = (0..20).map(|_| client.get("/").status).collect();
            end.store(true, Ordering::Relaxed);
            assert_eq!(statuses, [200; 20]);
            far.metric("gateway_store_round_trips_total").unwrap()
        });
        println!("{trips} exchanges for 20 requests");
        assert!(trips <= 100.0, "it needed {trips} exchanges for 20 requests");
        assert_eq!(far.metric("gateway_store_local_total"), Some(0.0), "it has decided on its own");
    }

    fn in_turns_it_does_not_matter_how_far_gateways_are_from_the_store(software: Software) {
        let server = software.start();
        let far = Fault::start(server.address, Mode::Slow(Duration::from_millis(3)));
        let config = |server| software.store(&[server], PATIENT) + &limits();
        let gateways = [Gateway::start(&config(server.address)), Gateway::start(&config(far.address))];
        align(Duration::from_hours(1), Duration::from_mins(1));
        let mut clients = gateways.each_ref().map(Gateway::client);
        for (name, _) in LIMITS {
            let admitted = in_turns(&mut clients, &format!("/{name}"), Duration::ZERO);
            assert!((QUOTA..=QUOTA + 2).contains(&admitted), "{admitted} admitted, {name}");
        }
    }

    with_each_server! {
        in_turns_gateways_admit_hardly_more_than_the_limit
        in_turns_gateways_admit_hardly_more_than_small_limits
        in_turns_connections_that_break_let_no_more_through
        a_gateway_that_is_far_from_the_store_does_not_come_second_for_ever
        in_turns_it_does_not_matter_how_far_gateways_are_from_the_store
    }
}
