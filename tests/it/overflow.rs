//! Limits that charge a pool if they have no room.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Client, Gateway, Software, Upstream, every_store, reply, run, run_json, with_each_server};
use crate::shared::{PATIENT, gateways};

const ROUTE: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

/// A limit of a key in a header. What strangers share does not overflow, so a limit with a pool falls back on the address.
fn limit(name: &str, rates: &str, more: &str) -> String {
    let or_address = if name.starts_with("pool") { "" } else { " | client-ip" };
    format!("[limits.{name}]\nkey = \"header:x-{name}{or_address}\"\nrates = [{rates:?}]\n{more}\n")
}

fn own_and_pool(own: (&str, &str), pool: (&str, &str)) -> String {
    let own = limit("own", own.0, &format!("overflow = \"pool\"\n{}", own.1));
    format!("{own}{}{ROUTE}limits = [\"own\"]\n", limit("pool", pool.0, pool.1))
}

fn decisions(gateway: &Gateway, limit: &str, decision: &str) -> u64 {
    let wanted = format!("gateway_limit_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}} ");
    let metrics = gateway.admin("/metrics");
    metrics.text().lines().find_map(|line| line.strip_prefix(&wanted)).map_or(0, |count| count.parse().unwrap())
}

/// All decisions of a limit that occurred, with their numbers.
fn all_decisions(gateway: &Gateway, limit: &str) -> Vec<(&'static str, u64)> {
    let kinds = ["admitted", "rejected", "silenced", "delayed", "overflowed", "exempt", "not_charged", "unknown"];
    kinds.map(|kind| (kind, decisions(gateway, limit, kind))).into_iter().filter(|(_, count)| *count > 0).collect()
}

/// How many requests of several clients at the same time pass, in turns to these gateways.
fn burst(gateways: &[Gateway], clients: usize, each: usize) -> usize {
    let passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..clients {
            let (mut client, passed) = (gateways[number % gateways.len()].client(), &passed);
            scope.spawn(move || {
                for _ in 0..each {
                    match client.get("/").status {
                        200 => _ = passed.fetch_add(1, Ordering::Relaxed),
                        status => assert_eq!(status, 429),
                    }
                }
            });
        }
    });
    passed.into_inner()
}

#[test]
fn a_burst_gets_exactly_the_limit_and_its_pool() {
    for strategy in ["sliding-window", "fixed-window", "moving-window", "token-bucket"] {
        every_store(|store| {
            let how = format!("strategy = {strategy:?}");
            let config = own_and_pool(("30/d", &how), ("50/d", &how));
            let gateway = Gateway::start(&format!("{store}{config}"));
            assert_eq!(burst(std::slice::from_ref(&gateway), 8, 25), 80, "{strategy}, {store}");
            let own = [("admitted", 30), ("rejected", 120), ("overflowed", 50)];
            assert_eq!(all_decisions(&gateway, "own"), own, "{strategy}, {store}");
            assert_eq!(all_decisions(&gateway, "pool"), [("admitted", 50), ("rejected", 120)], "{strategy}, {store}");
        });
    }
}

fn strict_gateways_get_exactly_the_limit_and_its_pool_together(software: Software) {
    for strategy in ["sliding-window", "fixed-window", "moving-window", "token-bucket"] {
        let server = software.start();
        let store = server.store_with(&format!("{PATIENT}strict = true\n"));
        let how = format!("strategy = {strategy:?}");
        let config = own_and_pool(("30/d", &how), ("50/d", &how));
        let gateways = gateways(2, &format!("{store}{config}"));
        assert_eq!(burst(&gateways, 8, 25), 80, "{strategy}");
        let sum = |limit, kind| gateways.iter().map(|gateway| decisions(gateway, limit, kind)).sum::<u64>();
        assert_eq!([sum("own", "admitted"), sum("own", "overflowed"), sum("pool", "admitted")], [30, 50, 50]);
    }
}

#[test]
fn who_is_charged_and_who_has_room_first_is_told() {
    every_store(|store| {
        // From the first request on.
        let fixed = "strategy = \"fixed-window\"";
        let config = own_and_pool(("2/d", fixed), ("3/h", fixed));
        let gateway = Gateway::start(&format!("{store}{config}"));
        let mut client = gateway.client();
        let policies: Vec<_> = (0..6)
            .map(|_| {
                let answer = client.get("/");
                (
                    answer.status,
                    answer.headers.must("ratelimit-policy").to_owned(),
                    answer.headers.must("ratelimit").to_owned(),
                )
            })
            .collect();
        let name = |policy: &str| policy.split(';').next().unwrap().trim_matches('"').to_owned();
        let told: Vec<_> =
            policies.iter().map(|(status, policy, state)| (*status, name(policy), name(state))).collect();
        let told_by = |status: u16, limit: &str| (status, limit.to_owned(), limit.to_owned());
        let own = [told_by(200, "own"), told_by(200, "own")];
        let pool = [told_by(200, "pool"), told_by(200, "pool"), told_by(200, "pool"), told_by(429, "pool")];
        assert_eq!(told, [own.as_slice(), &pool].concat(), "an hour is over first, {store}");
        assert!(policies[2].2.contains("r=2"), "{policies:?}");
        let refused = client.get("/");
        let wait: u64 = refused.headers.must("retry-after").parse().unwrap();
        assert!(wait <= 3600, "{wait}");
        assert!(refused.text().contains("pool"), "{}", refused.text());
        // In the reverse case the limit itself has room first.
        let gateway = Gateway::start(&format!("{store}{}", own_and_pool(("2/h", fixed), ("3/d", fixed))));
        let mut client = gateway.client();
        let refused = (0..6).map(|_| client.get("/")).last().unwrap();
        assert_eq!((refused.status, name(refused.headers.must("ratelimit"))), (429, "own".to_owned()), "{store}");
        assert!(refused.headers.must("retry-after").parse::<u64>().unwrap() <= 3600);
    });
}

#[test]
fn the_log_and_the_admin_api_say_what_overflows() {
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{}", own_and_pool(("1/d", ""), ("1/d", ""))));
        let mut client = gateway.client();
        assert_eq!(
            [client.get("/a").status, client.get("/b").status, client.get("/c").status],
            [200, 200, 429],
            "{store}"
        );
        let line = |path: &str| gateway.wait_log("the request", |line| line["path"] == path);
        assert_eq!((&line("/a")["overflowed"], &line("/a")["remaining"]["own"]), (&Value::Null, &0.into()));
        let over = line("/b");
        assert_eq!((&over["overflowed"], &over["remaining"]), (&vec!["own"].into(), &serde_json::json!({ "pool": 0 })));
        assert_eq!((&line("/c")["limit"], &line("/c")["overflowed"]), (&"own".into(), &Value::Null), "{store}");
        let limits = gateway.admin("/api/limits").json();
        let overflowed = |at: usize| limits["limits"][at]["decisions"]["overflowed"].clone();
        assert_eq!((overflowed(0), overflowed(1)), (1.into(), 0.into()));
        assert_eq!(gateway.admin("/api/config").json()["limits"]["own"]["overflow"], "pool");
    });
}

fn a_flood_that_both_refuse_asks_nothing(software: Software) {
    let server = software.start();
    let store = server.store_with(PATIENT);
    let gateway = Gateway::start(&format!("{store}{}", own_and_pool(("2/d", ""), ("2/d", ""))));
    let mut client = gateway.client();
    let statuses: Vec<_> = (0..6).map(|_| client.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    let before = server.commands();
    (0..500).for_each(|_| assert_eq!(client.get("/").status, 429));
    assert!(server.commands() - before <= 8, "{} commands", server.commands() - before);
}

fn each_overflow_is_one_exchange_at_most(software: Software) {
    let server = software.start();
    let store = server.store_with(PATIENT);
    let gateway = Gateway::start(&format!("{store}{}", own_and_pool(("1/d", ""), ("100000/d", ""))));
    let mut client = gateway.client();
    (0..3).for_each(|_| assert_eq!(client.get("/").status, 200));
    let before = gateway.metric("gateway_store_round_trips_total").unwrap();
    let begun = Instant::now();
    (0..200).for_each(|_| assert_eq!(client.get("/").status, 200));
    let exchanges = gateway.metric("gateway_store_round_trips_total").unwrap() - before;
    // What no request has written is written after some milliseconds, which may be another exchange.
    let late_writes = 10.0 + begun.elapsed().as_secs_f64() / 0.005;
    assert!(exchanges <= 200.0 + late_writes, "{exchanges} exchanges for 200 requests");
}

#[test]
fn what_the_response_gives_back_is_given_back_to_the_pool() {
    every_store(|store| {
        let upstream = Upstream::start(|request| reply(if request.target.contains("/bad") { 401 } else { 200 }, ""));
        let counted = "count = { status = [\"401\"] }";
        let own = limit("own", "2/d", &format!("overflow = \"pool\"\n{counted}"));
        let routes = format!("{}{}limits = [\"own\"]\n", limit("pool", "3/d", ""), upstream.everything());
        let gateway = Gateway::start(&format!("{store}{own}{routes}"));
        let mut client = gateway.client();
        let bad = |client: &mut Client| client.get("/bad").status;
        assert_eq!([bad(&mut client), bad(&mut client)], [401, 401], "{store}");
        // Requests that are free in the end leave the pool as it was.
        (0..9).for_each(|_| assert_eq!(client.get("/good").status, 200, "{store}"));
        assert_eq!([(); 4].map(|()| bad(&mut client)), [401, 401, 401, 429], "{store}");
    });
}

#[test]
fn a_cost_above_the_limit_goes_to_the_pool_and_above_both_is_too_much() {
    every_store(|store| {
        let costs = "cost = { request_header = \"x-cost\" }";
        let gateway = Gateway::start(&format!("{store}{}", own_and_pool(("5/d", costs), ("20/d", ""))));
        let mut client = gateway.client();
        let mut ask = |cost: u64| client.get_with("/", format!("x-cost: {cost}\r\n")).status;
        assert_eq!([ask(8), ask(5), ask(21), ask(12), ask(1)], [200, 200, 413, 200, 429], "{store}");
        assert_eq!(all_decisions(&gateway, "pool"), [("admitted", 2), ("rejected", 1)], "{store}");
    });
}

#[test]
fn two_limits_with_one_pool_charge_it_once_and_so_does_one_of_the_route() {
    every_store(|store| {
        let two =
            limit("a", "1/d", "overflow = \"pool\"\ncost = 1") + &limit("b", "3/d", "overflow = \"pool\"\ncost = 3");
        let pool = limit("pool", "10/d", "");
        let config = format!("{store}{two}{pool}{ROUTE}limits = [\"a\", \"b\"]\n");
        let gateway = Gateway::start(&config);
        let mut client = gateway.client();
        let statuses: Vec<_> = (0..5).map(|_| client.get("/").status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 429], "three times 3 of 10, {store}");
        assert_eq!(all_decisions(&gateway, "a"), [("admitted", 1), ("rejected", 1), ("overflowed", 3)]);
    });
    every_store(|store| {
        let named = format!("{ROUTE}limits = [\"pool\", \"own\"]\n");
        let own = limit("own", "2/d", "overflow = \"pool\"");
        let gateway = Gateway::start(&format!("{store}{own}{}{named}", limit("pool", "5/d", "")));
        let mut client = gateway.client();
        let statuses: Vec<_> = (0..7).map(|_| client.get("/").status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429], "{store}");
        assert_eq!(all_decisions(&gateway, "pool"), [("admitted", 5), ("rejected", 2)]);
    });
}

#[test]
fn the_keys_of_the_pool_have_their_own_exceptions() {
    let overrides = "missing = \"skip\"\n[[limits.pool.overrides]]\nkeys = [\"free\"]\nexempt = true\n\
                     [[limits.pool.overrides]]\nkeys = [\"bad\"]\nblock = true\n\
                     [[limits.pool.overrides]]\nkeys = [\"rich\"]\nrates = [\"4/d\"]";
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{}", own_and_pool(("1/d", ""), ("2/d", overrides))));
        let passed = |own: &str, pool: &str| {
            let fields = format!("x-own: {own}\r\n{pool}");
            let mut client = gateway.client();
            (0..8).filter(|_| client.get_with("/", &fields).status == 200).count()
        };
        assert_eq!(passed("a", "x-pool: poor\r\n"), 3, "{store}");
        assert_eq!(passed("b", "x-pool: rich\r\n"), 5, "{store}");
        assert_eq!(passed("c", "x-pool: free\r\n"), 8, "{store}");
        assert_eq!(passed("d", "x-pool: bad\r\n"), 1, "{store}");
        assert_eq!(passed("e", ""), 1, "a pool without a key has no room, {store}");
        assert_eq!(passed("f", "x-pool: poor\r\n"), 1, "others have used up the pool, {store}");
        let mut client = gateway.client();
        let twice = client.get_with("/", "x-own: g\r\nx-pool: a\r\nx-pool: b\r\n");
        assert_eq!(twice.status, 400, "which pool it is, is not for the client to choose, {store}");
    });
}

#[test]
fn a_limit_holds_or_is_silent_only_if_its_pool_is_full() {
    every_store(|store| {
        let (upstream, count) = counting();
        let silent = limit("own", "1/d", "overflow = \"pool\"\non_limit = \"silent\"");
        let routes = upstream.everything() + "limits = [\"own\"]\n";
        let gateway = Gateway::start(&format!("{store}{silent}{}{routes}", limit("pool", "2/d", "")));
        let mut client = gateway.client();
        let texts: Vec<_> = (0..5).map(|_| client.get("/").text().to_owned()).collect();
        assert_eq!(texts, ["from upstream", "from upstream", "from upstream", "", ""], "{store}");
        assert_eq!(count.load(Ordering::SeqCst), 3);
    });
    every_store(|store| {
        let held = "on_limit = \"delay\"\nmax_delay = \"60s\"\nstrategy = \"token-bucket\"";
        let config = own_and_pool(("6/m burst 1", held), ("2/d", "strategy = \"fixed-window\""));
        let gateway = Gateway::start(&format!("{store}{config}"));
        let mut client = gateway.client();
        let begun = Instant::now();
        assert_eq!([(); 3].map(|()| client.get("/").status), [200; 3], "{store}");
        assert_eq!(decisions(&gateway, "own", "delayed"), 0, "the pool comes first, {store}");
        assert_eq!(client.get("/").status, 200, "{store}");
        assert!(begun.elapsed() >= Duration::from_secs(8), "{:?}, {store}", begun.elapsed());
        assert_eq!(decisions(&gateway, "own", "delayed"), 1, "{store}");
        assert_eq!(decisions(&gateway, "pool", "admitted"), 2, "{store}");
    });
}

fn counting() -> (Upstream, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let upstream = Upstream::start(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        reply(200, "from upstream")
    });
    (upstream, count)
}

#[test]
fn a_reload_that_adds_or_removes_a_pool_loses_no_counts() {
    every_store(|store| {
        let pool = |name: &str| limit("pool", "2/d", "").replace("limits.pool", &format!("limits.{name}"));
        let with = |name: &str| {
            format!(
                "{store}{}{}{ROUTE}limits = [\"own\"]\n",
                limit("own", "2/d", &format!("overflow = {name:?}")),
                pool(name)
            )
        };
        let without = format!("{store}{}{ROUTE}limits = [\"own\"]\n", limit("own", "2/d", ""));
        let gateway = Gateway::start(&without);
        let mut client = gateway.client();
        let mut statuses = |count: usize| (0..count).map(|_| client.get("/").status).collect::<Vec<_>>();
        assert_eq!(statuses(3), [200, 200, 429], "{store}");
        gateway.reload_and_wait("", &with("pool"));
        assert_eq!(statuses(2), [200, 200], "{store}");
        gateway.reload_and_wait("", &format!("# Another text.\n{}", with("pool")));
        assert_eq!(statuses(1), [429], "the pool is counted on, {store}");
        gateway.reload_and_wait("", &with("other"));
        assert_eq!(statuses(3), [200, 200, 429], "another pool has its own counts, {store}");
        gateway.reload_and_wait("", &without);
        assert_eq!(statuses(1), [429], "the limit is counted on, {store}");
    });
}

#[test]
fn explain_and_simulate_know_the_pool() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    fs::write(&file, own_and_pool(("2/d", ""), ("3/d", "missing = \"reject\""))).unwrap();
    let output = run(&["explain", "--config", file.to_str().unwrap(), "-H", "x-own: a", "http://h.test/"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for wanted in [
        "    no room  pool is charged instead, if that has room\n",
        "  pool  (a pool, charged only instead of others)\n    key      none: the pool has no room\n",
        "\nwith empty counters: answered 200\n",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    let line = |second: u32, pool: &str| {
        format!(
            "{{\"timestamp\":\"2026-11-25T12:00:{second:02}Z\",\"client\":\"192.0.2.1\",\"method\":\"GET\",\"host\":\"h\",\"path\":\"/\",\"status\":200,\"pool\":{pool:?}}}\n"
        )
    };
    let log = folder.path().join("access.log");
    fs::write(&log, (0..8).map(|second| line(second, "p")).collect::<String>()).unwrap();
    let fields = ["--field", "header:x-own=client", "--field", "header:x-pool=pool"];
    let arguments =
        [&["simulate", "--config", file.to_str().unwrap(), "--json"], &fields[..], &[log.to_str().unwrap()]];
    let report = run_json(&arguments.concat());
    let of = |limit: &str, what: &str| report["limits"][limit][what].clone();
    assert_eq!(
        [of("own", "requests"), of("own", "overflowed"), of("own", "rejected")],
        [8, 3, 3].map(Value::from),
        "{report}"
    );
    assert_eq!([of("pool", "requests"), of("pool", "overflowed"), of("pool", "rejected")], [6, 0, 3].map(Value::from));
    assert_eq!(of("pool", "exact")["wrongly_admitted"], 0);
}

#[test]
fn tenants_share_a_pool_as_the_documentation_says() {
    const PAGE: &str = include_str!("../../docs/limits.md");
    let (_, recipe) = PAGE.split_once("**Tenants with a common pool.**").unwrap();
    let limits: Vec<_> = recipe
        .lines()
        .skip_while(|line| !line.starts_with("    "))
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .map(str::trim_start)
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let tenants = folder.path().join("keys.txt");
    fs::write(&tenants, "a\nb\nc\n").unwrap();
    // No request leaves a window of a day while this runs.
    let limits = limits.join("\n").replace("/m\"", "/d\"").replace("keys.txt", tenants.to_str().unwrap()) + "\n";
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{limits}{ROUTE}limits = [\"tenant\"]\n"));
        let passed = |tenant: &str, count: usize| {
            let (mut client, fields) = (gateway.client(), format!("x-tenant: {tenant}\r\n"));
            (0..count).filter(|_| client.get_with("/", &fields).status == 200).count()
        };
        assert_eq!((passed("a", 50), passed("b", 60), passed("c", 30)), (50, 50, 20), "60 for all, {store}");
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 400, "{store}");
        assert_eq!(client.get_with("/", "x-tenant: invented\r\n").status, 400, "{store}");
        assert_eq!(decisions(&gateway, "tenant", "overflowed"), 60, "{store}");
    });
}

/// A gateway with a limit of 3 by this key, of which `acme` alone is known, and its pool of 4.
fn with_pool(name: &str, key: &str, store: &str) -> (Gateway, tempfile::NamedTempFile) {
    let known = tempfile::NamedTempFile::new().unwrap();
    fs::write(known.path(), "acme\n").unwrap();
    let gateway = Gateway::start(&format!(
        "{store}[limits.{name}]\nkey = {key}\nknown_keys = {:?}\nrates = [\"3/d\"]\noverflow = \"{name}-pool\"\n\
         [limits.{name}-pool]\nkey = \"global\"\nrates = [\"4/d\"]\n{ROUTE}limits = [{name:?}]\n",
        known.path().display().to_string()
    ));
    (gateway, known)
}

#[test]
fn strangers_share_a_counter_without_a_pool() {
    every_store(|store| {
        for (number, key) in [
            "\"header:x-tenant\"",
            "[\"header:x-tenant\", \"method\"]",
            "\"header:x-tenant | route\"",
            "\"header:x-tenant | method\"",
            "\"header:x-tenant | path\"",
            "\"header:x-tenant | host\"",
            "\"header:x-tenant | global\"",
            "[\"header:x-tenant | method\", \"path\"]",
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("own-{number}");
            let (gateway, _known) = with_pool(&name, key, store);
            let mut client = gateway.client();
            let mut passed =
                |fields: &str, count: usize| (0..count).filter(|_| client.get_with("/", fields).status == 200).count();
            assert_eq!(passed("", 20), 3, "{key}, {store}");
            assert_eq!(passed("X-Tenant: invented\r\n", 20), 0, "{key}, {store}: they share it, too");
            assert_eq!(passed("X-Tenant: acme\r\n", 20), 7, "{key}, {store}: all of the pool is left");
        }
    });
}

#[test]
fn strangers_get_nothing_of_a_pool_by_what_they_invent_or_vary() {
    every_store(|store| {
        for (number, key) in [
            "[\"header:x-tenant\", \"query:user\"]",
            "[\"header:x-tenant\", \"header:x-user | path\"]",
            "[\"header:x-tenant | host\", \"query:user\", \"header:x-user\"]",
            "\"header:x-tenant | path\"",
            "[\"header:x-tenant | method\", \"query:user\"]",
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("own-{number}");
            let (gateway, _known) = with_pool(&name, key, store);
            let mut client = gateway.client();
            for number in 0..40 {
                let fields = format!("X-User: {number}\r\n");
                client.get_with(&format!("/{}?user={number}", number % 10), &fields);
            }
            let passed = (0..20).filter(|_| client.get_with("/", "X-Tenant: acme\r\n").status == 200).count();
            assert_eq!(passed, 7, "{key}, {store}: all of the pool is left");
            assert_eq!(decisions(&gateway, &name, "overflowed"), 4, "{key}, {store}");
        }
    });
}

with_each_server! {
    strict_gateways_get_exactly_the_limit_and_its_pool_together
    a_flood_that_both_refuse_asks_nothing
    each_overflow_is_one_exchange_at_most
}
