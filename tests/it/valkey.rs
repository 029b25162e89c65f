//! What is special about Valkey and Redis: who may enter, what must be allowed, and what the server may forget.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{self, Authority, Client, Control, Gateway, Issued, Valkey, reserved_port, run, until};

const PATIENCE: Duration = Duration::from_secs(30);

fn limited(rate: &str) -> String {
    harness::limited("header:x-api-key", rate, "")
}

fn gateway(valkey: &Valkey, more: &str) -> Gateway {
    Gateway::start(&(valkey.store_with(more) + &limited("1000000000/d")))
}

/// The status of one more request.
fn ask(client: &mut Client) -> u16 {
    client.get_with("/", "X-Api-Key: k\r\n").status
}

/// Asks until the server has one more count than before.
#[track_caller]
fn counted_again(client: &mut Client, valkey: &Valkey) {
    let before = valkey.counted();
    until("the server counts", PATIENCE, || {
        ask(client);
        valkey.counted() > before
    });
}

/// The server refuses the gateway, which says why before any request, and counts alone.
#[track_caller]
fn refused(gateway: &Gateway, command: &str, answer: &str) {
    refused_because(gateway, &format!("it refuses {command}: it answered \"{answer}"));
}

#[track_caller]
pub(crate) fn refused_because(gateway: &Gateway, begin: &str) {
    let said = gateway.wait_message("valkey does not answer");
    let failure = said["failure"].as_str().unwrap();
    assert!(failure.starts_with(begin), "{failure}");
    assert_eq!(gateway.metric("gateway_store_decisions_total"), Some(0.0));
    assert_eq!([gateway.metric("gateway_store_up"), gateway.metric("gateway_ready")], [Some(0.0); 2]);
    let ready = gateway.admin("/readyz");
    assert_eq!((ready.status, ready.text().contains(failure)), (503, true), "{ready:?}");
    assert_eq!(ask(&mut gateway.client()), 200);
}

#[test]
fn the_counters_of_a_key_are_in_one_slot_and_end_by_the_clock_of_the_server() {
    let valkey = Valkey::start();
    let gateway = gateway(&valkey, "");
    counted_again(&mut gateway.client(), &valkey);
    let (name, count) = valkey.counters().pop_first().unwrap();
    assert!(name.starts_with("gw:l:{") && name.contains("}#d."), "{name}");
    assert!(count > 0);
    let left: u64 = valkey.ask(&["TTL", &name])[0].parse().unwrap();
    assert!((86_400..=2 * 86_400 + 5).contains(&left), "{left}");
}

#[test]
fn a_server_that_was_away_at_first_still_says_that_it_refuses() {
    let mut valkey = Valkey::start();
    valkey.kill();
    let gateway = gateway(&valkey, "username = \"nobody\"\npassword = \"wrong\"");
    gateway.wait_message("valkey does not answer");
    assert_eq!(gateway.admin("/readyz").status, 200, "it may only be away");
    valkey.restart();
    until("it says so", PATIENCE, || gateway.admin("/readyz").status == 503);
}

#[test]
fn a_password_a_user_and_a_database() {
    let valkey = Valkey::start();
    let allowed = ["+@scripting", "+@string", "+@connection", "+expire", "+info"];
    let user = [&["ACL", "SETUSER", "limiter", "on", ">secret", "~gw:*"], &allowed[..]].concat();
    assert_eq!(valkey.ask(&user), ["OK"]);
    let gateway = gateway(&valkey, "username = \"limiter\"\npassword = \"secret\"\ndatabase = 3");
    let mut client = gateway.client();
    until("it counts", PATIENCE, || {
        assert_eq!(ask(&mut client), 200);
        valkey.ask(&["INFO", "keyspace"])[0].contains("db3:")
    });
    assert_eq!(gateway.metric("gateway_store_up"), Some(1.0));
    assert!(valkey.counters().is_empty(), "database 0 has none");
}

#[test]
fn a_wrong_password_is_told_at_the_start_and_shown_nowhere() {
    let valkey = Valkey::start_with(&["--requirepass", "right"]);
    let (wrong, none) = (gateway(&valkey, "password = \"wrong-one\""), gateway(&valkey, ""));
    refused(&wrong, "HELLO", "WRONGPASS");
    refused(&none, "HELLO", "NOAUTH");
    let pages = ["/api/config", "/metrics"].map(|path| wrong.admin(path).text().to_owned());
    let shown = wrong.log().concat() + &pages.concat();
    assert!(!shown.contains("wrong-one"), "{shown}");
}

#[test]
fn what_the_user_may_not_do_is_told_at_the_start() {
    let valkey = Valkey::start();
    for (user, rules, command) in [
        ("no-scripts", &["~gw:*", "+@all", "-@scripting"][..], "SCRIPT"),
        ("no-keys", &["~other:*", "+@all"], "SET"),
        ("no-reads", &["~gw:*", "+@all", "-mget"], "MGET"),
        ("no-part-of-a-script", &["~gw:*", "+@all", "-append"], "EVALSHA"),
    ] {
        let user_rules = [&["ACL", "SETUSER", user, "on", ">p"], rules].concat();
        assert_eq!(valkey.ask(&user_rules), ["OK"]);
        let gateway = gateway(&valkey, &format!("username = \"{user}\"\npassword = \"p\""));
        refused(&gateway, command, "");
        assert_eq!(valkey.ask(&["ACL", "SETUSER", user, "allkeys", "+@all"]), ["OK"]);
        until("it is ready once it may", PATIENCE, || gateway.metric("gateway_ready") == Some(1.0));
    }
}

#[test]
fn a_node_of_a_cluster_is_refused() {
    let (_held, bus) = reserved_port();
    let valkey = Valkey::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus.port().to_string()]);
    assert_eq!(valkey.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), ["OK"]);
    until("it serves its slots", PATIENCE, || valkey.ask(&["CLUSTER", "INFO"])[0].contains("cluster_state:ok"));
    refused_because(&gateway(&valkey, ""), "it is a node of a cluster, and [store] has no `cluster = true`");
}

#[test]
fn a_replica_is_refused() {
    let valkey = Valkey::start();
    let (host, port) = (valkey.address.ip().to_string(), valkey.address.port().to_string());
    let replica = Valkey::start_with(&["--replicaof", &format!("{host} {port}")]);
    until("it has copied", PATIENCE, || replica.ask(&["INFO", "replication"])[0].contains("master_link_status:up"));
    refused(&gateway(&replica, ""), "SET", "READONLY");
}

#[test]
fn a_server_that_has_forgotten_the_scripts_learns_them_again() {
    for strategy in ["sliding-window", "fixed-window"] {
        let valkey = Valkey::start();
        let limit = harness::limited("header:x-api-key", "20/d", &format!("strategy = {strategy:?}"));
        let store = valkey.store_with("strict = true\non_error = \"reject\"\ntimeout = \"5s\"");
        let gateway = Gateway::start(&(store + &limit));
        let mut client = gateway.client();
        for request in 0..25 {
            assert_eq!(valkey.ask(&["SCRIPT", "FLUSH"]), ["OK"]);
            assert_eq!(ask(&mut client), if request < 20 { 200 } else { 429 }, "{strategy} {request}");
        }
        assert_eq!(gateway.metric("gateway_store_errors_total"), Some(0.0));
    }
}

#[test]
fn a_primary_that_becomes_a_replica_and_returns_is_used_again() {
    let valkey = Valkey::start();
    let gateway = gateway(&valkey, "");
    let mut client = gateway.client();
    counted_again(&mut client, &valkey);
    assert_eq!(valkey.ask(&["REPLICAOF", "127.0.0.1", "9"]), ["OK"]);
    until("it is away", PATIENCE, || {
        assert_eq!(ask(&mut client), 200);
        gateway.metric("gateway_store_up") == Some(0.0)
    });
    assert_eq!(valkey.ask(&["REPLICAOF", "NO", "ONE"]), ["OK"]);
    counted_again(&mut client, &valkey);
}

#[test]
fn a_server_that_returns_empty_is_told_what_is_known() {
    let mut valkey = Valkey::start();
    let gateway = gateway(&valkey, "");
    let mut client = gateway.client();
    (0..20).for_each(|_| assert_eq!(ask(&mut client), 200));
    until("all is counted", PATIENCE, || valkey.counted() == 20);
    valkey.kill();
    until("it is away", PATIENCE, || gateway.metric("gateway_store_up") == Some(0.0));
    (0..5).for_each(|_| assert_eq!(ask(&mut client), 200));
    valkey.restart();
    let mut more = 0;
    until("it knows all again", PATIENCE, || {
        more += 1;
        assert_eq!(ask(&mut client), 200);
        valkey.counted() >= 25
    });
    until("and each request once", PATIENCE, || valkey.counted() == 25 + more);
}

#[test]
fn a_server_that_is_silent_is_away_until_it_answers() {
    let valkey = Valkey::start();
    let gateway = gateway(&valkey, "timeout = \"100ms\"");
    let mut client = gateway.client();
    counted_again(&mut client, &valkey);
    valkey.signal(Signal::STOP);
    until("it is away", PATIENCE, || {
        assert_eq!(ask(&mut client), 200);
        gateway.metric("gateway_store_up") == Some(0.0)
    });
    valkey.signal(Signal::CONT);
    counted_again(&mut client, &valkey);
}

#[test]
fn a_connection_that_is_killed_is_made_again() {
    let valkey = Valkey::start();
    let gateway = gateway(&valkey, "");
    let mut client = gateway.client();
    for _ in 0..5 {
        counted_again(&mut client, &valkey);
        valkey.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    counted_again(&mut client, &valkey);
}

/// Two strict gateways in a flood, while something happens to the server again and again, which `fails` exchanges or does not.
/// Returns how many requests they admit.
fn admitted_while(valkey: &Valkey, strategy: &str, fails: bool, happens: impl Fn()) -> usize {
    const QUOTA: usize = 2_000;
    let limit = harness::limited("global", &format!("{QUOTA}/d"), &format!("strategy = {strategy:?}"));
    // On a busy machine, 200 ms are too short if nothing fails.
    let timeout = if fails { "200ms" } else { "10s" };
    let config = valkey.store_with(&format!("strict = true\non_error = \"reject\"\ntimeout = \"{timeout}\"")) + &limit;
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    let (admitted, refused, is_over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let flood = |mut client: Client| {
        while !is_over.load(Relaxed) {
            match client.get("/").status {
                200 => _ = admitted.fetch_add(1, Relaxed),
                429 => _ = refused.fetch_add(1, Relaxed),
                503 => thread::sleep(Duration::from_millis(1)),
                other => panic!("{other}"),
            }
        }
    };
    let errors = || gateways.iter().map(|gateway| gateway.metric("gateway_store_errors_total").unwrap()).sum::<f64>();
    thread::scope(|scope| {
        for gateway in gateways.iter().cycle().take(8) {
            scope.spawn(|| flood(gateway.client()));
        }
        let mut times = 0;
        until("the quota is used up", 4 * PATIENCE, || {
            happens();
            times += 1;
            thread::sleep(Duration::from_millis(20));
            times > 10 && refused.load(Relaxed) > 50 && (!fails || errors() > 5.0)
        });
        is_over.store(true, Relaxed);
    });
    let admitted = admitted.into_inner();
    println!("{strategy}: {admitted} of {QUOTA} admitted, {} failures", errors());
    assert!((QUOTA / 10..=QUOTA).contains(&admitted), "{admitted} admitted");
    admitted
}

#[test]
fn scripts_that_are_forgotten_in_a_flood_cost_nobody_anything() {
    for strategy in ["sliding-window", "fixed-window"] {
        let valkey = Valkey::start();
        let admitted = admitted_while(&valkey, strategy, false, || drop(valkey.ask(&["SCRIPT", "FLUSH"])));
        if strategy == "sliding-window" {
            until("each is counted once", PATIENCE, || valkey.counted() == admitted as u64);
        }
    }
}

#[test]
fn connections_that_are_killed_in_a_flood_let_no_more_through() {
    for strategy in ["sliding-window", "fixed-window"] {
        let valkey = Valkey::start();
        admitted_while(&valkey, strategy, true, || {
            drop(valkey.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
        });
    }
}

#[test]
fn a_server_that_sleeps_in_a_flood_lets_no_more_through() {
    let valkey = Valkey::start();
    admitted_while(&valkey, "sliding-window", true, || drop(valkey.ask(&["DEBUG", "SLEEP", "0.5"])));
}

#[test]
fn a_server_without_memory_is_away_until_it_has_some() {
    let valkey = Valkey::start();
    let gateway = gateway(&valkey, "");
    let mut client = gateway.client();
    counted_again(&mut client, &valkey);
    assert_eq!(valkey.ask(&["CONFIG", "SET", "maxmemory", "1"]), ["OK"]);
    until("it refuses writes", PATIENCE, || {
        assert_eq!(ask(&mut client), 200);
        gateway.metric("gateway_store_up") == Some(0.0)
    });
    let said = gateway.wait_log("the greeting", |line| line["failure"].to_string().contains("it refuses SET"));
    assert!(said["failure"].as_str().unwrap().contains("OOM"), "{said}");
    assert_eq!(gateway.admin("/readyz").status, 200, "it was ready before");
    assert_eq!(valkey.ask(&["CONFIG", "SET", "maxmemory", "0"]), ["OK"]);
    counted_again(&mut client, &valkey);
}

/// A neighbour has used the names of a key for something else.
#[test]
fn what_is_of_another_type_concerns_only_its_key() {
    let valkey = Valkey::start();
    let gateway = gateway(&valkey, "");
    let mut client = gateway.client();
    counted_again(&mut client, &valkey);
    let name = valkey.counters().pop_first().unwrap().0;
    // A charge that is on its way may come between the two.
    until("the name is that of a list", PATIENCE, || {
        valkey.ask(&["DEL", &name]);
        valkey.ask(&["RPUSH", &name, "x"]) == ["1"]
    });
    let mut numbers = 0..;
    until("the key fails and others do not", PATIENCE, || {
        assert_eq!(ask(&mut client), 200);
        let other = format!("X-Api-Key: other-{}\r\n", numbers.next().unwrap());
        assert_eq!(client.get_with("/", other).status, 200);
        gateway.metric("gateway_store_errors_total") > Some(3.0) && valkey.counted() > 20
    });
    assert_eq!(gateway.metric("gateway_store_up"), Some(1.0));
    valkey.ask(&["DEL", &name]);
    until("it is told what is known", PATIENCE, || {
        ask(&mut client);
        valkey.counters().contains_key(&name)
    });
}

#[test]
fn tls_with_the_right_and_with_a_wrong_name() {
    let authority = Authority::new();
    let Issued { cert, key } = authority.issue("store", "store", &["store.internal"]);
    let files = [authority.ca(), cert, key].map(|path| path.to_str().unwrap().to_owned());
    let [ca, cert, key] = files.each_ref().map(String::as_str);
    let own = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca, "--tls-auth-clients", "no"];
    let valkey = Valkey::start_with(&[&["--port", "0", "--tls-port", "PORT"], &own[..]].concat());
    let section = |name: &str| format!("[store.tls]\nca = \"{ca}\"\n{name}");
    let right = gateway(&valkey, &section("server_name = \"store.internal\""));
    let mut client = right.client();
    until("it is asked", PATIENCE, || {
        assert_eq!(ask(&mut client), 200);
        right.metric("gateway_store_round_trips_total") > Some(0.0)
    });
    until("its clock is known", PATIENCE, || right.metric("gateway_store_up") == Some(1.0));
    let wrong = gateway(&valkey, &section(""));
    let said = wrong.wait_message("valkey does not answer");
    assert!(said["failure"].as_str().unwrap().contains("certificate"), "{said}");
    let ready = wrong.admin("/readyz");
    assert_eq!((ready.status, ready.text().contains("certificate")), (503, true), "{ready:?}");
    let plain = gateway(&valkey, "");
    plain.wait_message("valkey does not answer");
}

#[test]
fn statistics_are_those_of_the_server() {
    let valkey = Valkey::start_with(&["--maxmemory", "2mb", "--maxmemory-policy", "allkeys-lru"]);
    let text = "x".repeat(1000);
    (0..3000).for_each(|key| drop(valkey.ask(&["SET", &format!("other:{key}"), &text])));
    let gateway = gateway(&valkey, "");
    until("it tells its evictions", PATIENCE, || gateway.metric("gateway_store_valkey_evictions_total") > Some(0.0));
}

#[test]
fn check_shows_the_store_without_its_password() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let store = "[store]\ntype = \"redis\"\nservers = [\"10.0.0.1\"]\nusername = \"u\"\npassword = \"hidden\"\n";
    std::fs::write(&file, store.to_owned() + &limited("5/m")).unwrap();
    let shown = run(&["check", file.to_str().unwrap()]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("valkey at 10.0.0.1:6379") && !shown.contains("hidden"), "{shown}");
}
