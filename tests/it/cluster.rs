//! A cluster as the store: keys on all its primaries, slots that move, and nodes that are not as expected.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

use gateway::config::{self, Login, OnError, SharedStore};
use gateway::store::shared::Notes;

use crate::harness::{self, Client, Cluster, Control, Gateway, Valkey, run, run_json, until};
use crate::valkey::refused_because;

/// A failover takes some seconds, and more on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Requests wait for the servers long enough on a busy machine.
pub(crate) const PATIENT: &str = "timeout = \"5s\"\n";
pub(crate) const STRICT: &str = "timeout = \"5s\"\nstrict = true\non_error = \"reject\"\n";

pub(crate) fn gateway(store: &str, rate: &str) -> Gateway {
    Gateway::start(&(store.to_owned() + &harness::limited("header:x-api-key", rate, "")))
}

pub(crate) fn ask(client: &mut Client, key: usize) -> u16 {
    client.get_with("/", format!("X-Api-Key: k{key}\r\n")).status
}

#[test]
fn gateways_share_the_keys_on_all_nodes() {
    const KEYS: usize = 40;
    const QUOTA: usize = 20;
    let cluster = Cluster::start(3);
    for (more, extra) in [(STRICT, 0), (PATIENT, 4)] {
        let more = format!("{more}prefix = \"p{extra}\"");
        // One of the nodes knows the others.
        let gateways = [0, 1].map(|node| gateway(&cluster.store(&[node], &more), &format!("{QUOTA}/d")));
        let admitted = [const { AtomicUsize::new(0) }; KEYS];
        thread::scope(|scope| {
            for gateway in gateways.iter().cycle().take(4) {
                let admitted = &admitted;
                scope.spawn(move || {
                    let mut client = gateway.client();
                    for key in (0..QUOTA).flat_map(|_| 0..KEYS) {
                        match ask(&mut client, key) {
                            200 => _ = admitted[key].fetch_add(1, Relaxed),
                            429 => {}
                            other => panic!("{other}"),
                        }
                    }
                });
            }
        });
        let admitted = admitted.map(AtomicUsize::into_inner);
        assert!(admitted.iter().all(|one| (QUOTA..=QUOTA + extra).contains(one)), "{more}: {admitted:?}");
        for gateway in &gateways {
            assert_eq!(gateway.metric("gateway_store_errors_total"), Some(0.0));
            let up = |node: &Valkey| gateway.metric(&format!("gateway_store_up{{server=\"{}\"}}", node.address));
            assert_eq!([0, 1, 2].map(|node| up(&cluster.nodes[node])), [Some(1.0); 3]);
        }
        assert!(cluster.nodes.iter().all(|node| node.counted() > 0), "each node has some");
    }
}

/// Ends the flood, also of a test that fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Gateways in a flood of one key, until `happens` has returned and more is refused. Returns how many requests they admit.
pub(crate) fn admitted_while(gateways: &[Gateway], happens: impl FnOnce(&dyn Fn() -> usize)) -> usize {
    let (admitted, refused, is_over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let flood = |mut client: Client| {
        while !is_over.load(Relaxed) {
            match ask(&mut client, 0) {
                200 => _ = admitted.fetch_add(1, Relaxed),
                429 => _ = refused.fetch_add(1, Relaxed),
                503 => {}
                other => panic!("{other}"),
            }
            thread::sleep(Duration::from_millis(2));
        }
    };
    thread::scope(|scope| {
        let _end = End(&is_over);
        for gateway in gateways.iter().cycle().take(4) {
            scope.spawn(|| flood(gateway.client()));
        }
        happens(&|| admitted.load(Relaxed));
        let before = refused.load(Relaxed);
        until("all is used up", PATIENCE, || refused.load(Relaxed) > before + 50);
    });
    admitted.into_inner()
}

/// The names of counters on a primary or a replica.
pub(crate) fn names(node: &Valkey) -> Vec<String> {
    node.ask(&["KEYS", "gw:l:*"])
}

/// A slot with counters, and the primary that has it.
pub(crate) fn slot_in_use(cluster: &Cluster) -> (usize, usize) {
    let first = |node: &Valkey| names(node).pop();
    let mut found = None;
    until("a node counts", PATIENCE, || {
        found = cluster.primaries().find_map(|node| Some((cluster.slot(&first(&cluster.nodes[node])?), node)));
        found.is_some()
    });
    found.unwrap()
}

/// Moves the slot of a key from node to node in a flood of that key.
#[track_caller]
fn moves_in_a_flood(strategy: &str, more: &str, extra: usize) {
    const QUOTA: usize = 4_000;
    let cluster = Cluster::start(3);
    let store = cluster.store(&[0, 1], more);
    let limit = harness::limited("header:x-api-key", &format!("{QUOTA}/d"), &format!("strategy = {strategy:?}"));
    let gateways = [(); 2].map(|()| Gateway::start(&(store.clone() + &limit)));
    let admitted = admitted_while(&gateways, |admitted| {
        until("both count", PATIENCE, || admitted() > 50);
        let (slot, mut from) = slot_in_use(&cluster);
        while admitted() < QUOTA * 3 / 4 {
            let to = (from + 1) % 3;
            cluster.move_slot(slot, from, to, || {
                let before = admitted();
                until("requests are admitted meanwhile", PATIENCE, || admitted() > before + 20 || admitted() >= QUOTA);
            });
            from = to;
        }
        until("all that may be is admitted", PATIENCE, || admitted() >= QUOTA);
    });
    println!("{strategy}, {more:?}: {admitted} of {QUOTA} admitted");
    assert!((QUOTA..=QUOTA + extra).contains(&admitted), "{admitted} admitted");
    if strategy == "sliding-window" {
        until("each is counted once", PATIENCE, || cluster.counted(None) == admitted as u64);
    }
    for gateway in &gateways {
        assert_eq!(gateway.metric("gateway_store_errors_total"), Some(0.0));
        assert_eq!(gateway.metric("gateway_store_local_total"), Some(0.0));
    }
}

#[test]
fn a_sum_in_a_slot_that_moves_is_counted_once() {
    moves_in_a_flood("sliding-window", STRICT, 0);
}

#[test]
fn a_state_in_a_slot_that_moves_is_counted_once() {
    moves_in_a_flood("fixed-window", STRICT, 0);
}

#[test]
fn a_slot_that_moves_lets_few_more_through_without_strict() {
    moves_in_a_flood("sliding-window", PATIENT, 40);
}

#[test]
fn operators_are_told_what_the_store_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let store = "[store]\ntype = \"valkey\"\nservers = [\"10.0.0.1\"]\ncluster = true\n";
    fs::write(&file, store.to_owned() + &harness::limited("global", "9/d", "")).unwrap();
    let said = run(&["check", file.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&said.stdout).contains("they are nodes of a cluster"), "{said:?}");
    let keys = run_json(&["check", "--json", file.to_str().unwrap()]);
    assert_eq!(keys["store"]["cluster"], true);
}

#[test]
fn connections_that_break_while_a_slot_moves_let_no_more_through() {
    const QUOTA: usize = 3_000;
    for strategy in ["sliding-window", "fixed-window"] {
        let cluster = Cluster::start(3);
        let limit = harness::limited("header:x-api-key", &format!("{QUOTA}/d"), &format!("strategy = {strategy:?}"));
        let gateways = [0, 1].map(|node| Gateway::start(&(cluster.store(&[node], STRICT) + &limit)));
        let admitted = admitted_while(&gateways, |admitted| {
            until("both count", PATIENCE, || admitted() > 50);
            let (slot, mut from) = slot_in_use(&cluster);
            for to in (0..3).cycle().skip(from + 1).take(9) {
                cluster.move_slot(slot, from, to, || {
                    for node in &cluster.nodes {
                        node.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                    }
                    thread::sleep(Duration::from_millis(20));
                });
                from = to;
            }
        });
        let errors = gateways.iter().map(|gateway| gateway.metric("gateway_store_errors_total").unwrap()).sum::<f64>();
        println!("{strategy}: {admitted} of {QUOTA} admitted, {errors} failures");
        assert!(errors > 5.0, "{errors} failures");
        assert!((QUOTA / 10..=QUOTA).contains(&admitted), "{admitted} admitted");
    }
}

#[test]
fn bans_and_pools_hold_at_all_gateways_wherever_their_counters_are() {
    let cluster = Cluster::start(3);
    let text = cluster.store(&[0], STRICT)
        + "[limits.own]\nkey = \"header:x-api-key | client-ip\"\nrates = [\"2/d\"]\noverflow = \"pool\"\n"
        + "[limits.pool]\nkey = \"global\"\nrates = [\"10/d\"]\nban = { after = 3, for = \"1h\" }\n"
        + "[[routes]]\npath = \"/*\"\nlimits = [\"own\"]\nrespond = { status = 200 }\n";
    let gateways = [(); 2].map(|()| Gateway::start(&text));
    let mut clients = gateways.each_ref().map(Gateway::client);
    let mut admitted = 0;
    for request in 0..5 * 6 {
        admitted += usize::from(ask(&mut clients[request % 2], request % 5) == 200);
    }
    assert_eq!(admitted, 5 * 2 + 10);
}

#[test]
fn a_node_that_was_not_known_gets_a_slot() {
    let mut cluster = Cluster::start(2);
    let gateway = gateway(&cluster.store(&[0, 1], STRICT), "1000000000/d");
    let mut client = gateway.client();
    assert_eq!(ask(&mut client, 0), 200);
    let (slot, from) = slot_in_use(&cluster);
    let to = cluster.add_node();
    cluster.wait();
    let mut count = 1;
    cluster.move_slot(slot, from, to, || {
        assert_eq!(ask(&mut client, 0), 200);
        count += 1;
    });
    let up = format!("gateway_store_up{{server=\"{}\"}}", cluster.nodes[to].address);
    until("the gateway knows it", PATIENCE, || {
        assert_eq!(ask(&mut client, 0), 200);
        count += 1;
        gateway.metric(&up) == Some(1.0)
    });
    assert_eq!(cluster.counted(None), count);
    assert_eq!(cluster.nodes[to].counted(), count);
}

#[test]
fn a_node_that_is_dead_at_the_start_does_not_matter_if_another_answers() {
    let mut cluster = Cluster::start(2);
    let spare = cluster.add_node();
    cluster.wait();
    cluster.nodes[spare].kill();
    let gateway = gateway(&cluster.store(&[spare, 1], STRICT), "1000000000/d");
    let mut client = gateway.client();
    (0..20).for_each(|key| assert_eq!(ask(&mut client, key), 200));
    assert_eq!(cluster.counted(Some(spare)), 20);
    assert_eq!(gateway.metric("gateway_ready"), Some(1.0));
}

#[test]
fn nodes_that_come_later_are_found() {
    let mut cluster = Cluster::start(2);
    cluster.nodes.iter_mut().for_each(Control::kill);
    let gateway = gateway(&cluster.store(&[0, 1], ""), "1000000000/d");
    gateway.wait_message("valkey does not answer");
    let mut client = gateway.client();
    let mut count = 0;
    let mut send = || {
        for key in 0..20 {
            assert_eq!(ask(&mut client, key), 200, "it counts alone");
            count += 1;
        }
        count
    };
    send();
    cluster.nodes.iter_mut().for_each(Control::restart);
    until("both are up", PATIENCE, || {
        send();
        let up = |node: &Valkey| gateway.metric(&format!("gateway_store_up{{server=\"{}\"}}", node.address));
        cluster.nodes.iter().all(|node| up(node) == Some(1.0))
    });
    let all = send();
    until("all is told", PATIENCE, || cluster.counted(None) == all);
}

#[test]
fn what_is_no_cluster_is_told_at_the_start() {
    let valkey = Valkey::start();
    let store = format!("{}cluster = true\n", valkey.store_with(PATIENT));
    refused_because(&gateway(&store, "9/d"), "it is no node of a cluster, but [store] has `cluster = true`");
}

#[test]
fn what_a_user_of_a_cluster_may_not_do_is_told_at_the_start() {
    let cluster = Cluster::start(1);
    let valkey = &cluster.nodes[0];
    for (user, rules, refused) in [
        ("no-cluster", &["~gw:*", "+@all", "-cluster"][..], "it refuses CLUSTER SLOTS: it answered \"NOPERM"),
        ("no-scripts", &["~gw:*", "+@all", "-@scripting"], "it refuses SCRIPT: it answered \"NOPERM"),
        ("no-reads", &["~gw:*", "+@all", "-mget"], "it refuses MGET: it answered \"NOPERM"),
    ] {
        assert_eq!(valkey.ask(&[&["ACL", "SETUSER", user, "on", ">p"], rules].concat()), ["OK"]);
        let store = cluster.store(&[0], &format!("{PATIENT}username = \"{user}\"\npassword = \"p\""));
        let gateway = gateway(&store, "9/d");
        refused_because(&gateway, refused);
        assert_eq!(valkey.ask(&["ACL", "SETUSER", user, "allkeys", "+@all"]), ["OK"]);
        until("it is ready once it may", PATIENCE, || gateway.metric("gateway_ready") == Some(1.0));
    }
}

#[test]
fn a_user_of_its_own_needs_no_more_than_is_documented() {
    let cluster = Cluster::start(2);
    let allowed = ["+@connection", "+@scripting", "+@string", "+expire", "+info", "+cluster|slots"];
    for node in &cluster.nodes {
        assert_eq!(node.ask(&[&["ACL", "SETUSER", "limiter", "on", ">p", "~gw:*"], &allowed[..]].concat()), ["OK"]);
    }
    let login = "username = \"limiter\"\npassword = \"p\"\n";
    let gateway = gateway(&cluster.store(&[0], &(STRICT.to_owned() + login)), "1000000000/d");
    let mut client = gateway.client();
    let send = |client: &mut Client| (0..20).for_each(|key| assert_eq!(ask(client, key), 200));
    send(&mut client);
    let (slot, from) = slot_in_use(&cluster);
    cluster.move_slot(slot, from, 1 - from, || send(&mut client));
    assert_eq!(gateway.metric("gateway_store_errors_total"), Some(0.0));
}

#[test]
fn operators_see_and_reset_a_key_wherever_it_is() {
    let cluster = Cluster::start(3);
    let gateway = gateway(&cluster.store(&[0], STRICT), "5/d");
    let mut client = gateway.client();
    for key in 0..10 {
        (0..5).for_each(|_| assert_eq!(ask(&mut client, key), 200));
        assert_eq!(ask(&mut client, key), 429);
    }
    for key in 0..10 {
        assert_eq!(gateway.used("l", &format!("k{key}")), 5);
        let reset = format!("DELETE /api/limits/l/keys/k{key} HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin);
        assert_eq!(Client::connect(gateway.admin).call(reset).status, 200);
        assert_eq!(gateway.used("l", &format!("k{key}")), 0);
        until("it starts anew", PATIENCE, || ask(&mut client, key) == 200);
    }
}

#[test]
fn notes_are_kept_wherever_their_slot_is() {
    let mut cluster = Cluster::start(3);
    let dead = cluster.add_node();
    cluster.wait();
    let servers = [dead, 0].map(|node| cluster.nodes[node].address.to_string()).to_vec();
    cluster.nodes[dead].kill();
    let notes = Notes::new(&SharedStore {
        software: config::Software::Valkey,
        servers,
        prefix: "gw".to_owned(),
        timeout: PATIENCE,
        on_error: OnError::Reject,
        strict: false,
        login: Login { cluster: true, ..Login::default() },
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for name in (0..20).map(|number| format!("{number}.test")) {
            assert!(notes.claim(&name, "one", PATIENCE).await.unwrap());
            assert!(!notes.claim(&name, "two", PATIENCE).await.unwrap());
            assert_eq!(notes.read(&name).await.unwrap().as_deref(), Some("one"));
            notes.write(&name, "three", PATIENCE).await.unwrap();
            assert_eq!(notes.read(&name).await.unwrap().as_deref(), Some("three"));
            notes.remove(&name).await.unwrap();
            assert_eq!(notes.read(&name).await.unwrap(), None);
        }
    });
}
