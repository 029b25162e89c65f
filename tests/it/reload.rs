//! SIGHUP applies a valid file without losing a connection or a count. An invalid file changes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::harness::{Client, Gateway, Upstream, reply};

fn fixed(path: &str, body: &str, limits: &str) -> String {
    format!("[[routes]]\npath = \"{path}\"\nlimits = [{limits}]\nrespond = {{ status = 200, body = \"{body}\" }}\n")
}

fn limit(rates: &str) -> String {
    format!("[limits.l]\nkey = \"global\"\nrates = [{rates}]\n")
}

fn statuses(client: &mut Client, path: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| client.get(path).status).collect()
}

#[test]
fn new_limits_hold_at_once_and_counts_stay() {
    let config = |rate: &str| limit(&format!("{rate:?}")) + &fixed("/", "", "\"l\"");
    let gateway = Gateway::start(&config("3/d"));
    let mut client = gateway.client();
    assert_eq!(statuses(&mut client, "/", 4), [200, 200, 200, 429]);
    gateway.reload("", &config("5/d"));
    gateway.wait_message("reloaded");
    // The same connection, and three of the five requests are charged.
    assert_eq!(statuses(&mut client, "/", 4), [200, 200, 429, 429]);
}

#[test]
fn a_lower_limit_holds_at_once_too() {
    let config = |rate: &str| limit(&format!("{rate:?}")) + &fixed("/", "", "\"l\"");
    let gateway = Gateway::start(&config("100/d"));
    let mut client = gateway.client();
    assert_eq!(statuses(&mut client, "/", 3), [200; 3]);
    gateway.reload("", &config("2/d"));
    gateway.wait_message("reloaded");
    assert_eq!(statuses(&mut client, "/", 2), [429; 2]);
}

#[test]
fn new_routes_and_upstreams_take_over() {
    let old = Upstream::start(|_| reply(200, "old"));
    let new = Upstream::start(|_| reply(200, "new"));
    let gateway = Gateway::start(&old.everything());
    let mut client = gateway.client();
    assert_eq!(client.get("/").text(), "old");
    gateway.reload("", &(new.everything() + &fixed("/fixed", "fixed", "")));
    gateway.wait_message("reloaded");
    assert_eq!(client.get("/").text(), "new");
    assert_eq!(client.get("/fixed").text(), "fixed");
    assert_eq!(gateway.client().get("/").text(), "new");
}

#[test]
fn no_request_fails_while_it_reloads() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&up.everything());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = || {
            let (mut client, mut count) = (gateway.client(), 0);
            while !done.load(Ordering::SeqCst) {
                assert_eq!(client.get("/").status, 200);
                count += 1;
            }
            count
        };
        let threads = [(); 4].map(|()| scope.spawn(ask));
        for round in 0..5 {
            gateway.reload("", &(up.everything() + &fixed(&format!("/{round}"), "", "")));
            crate::harness::until("it reloads", std::time::Duration::from_secs(10), || gateway.reloads() > round);
        }
        done.store(true, Ordering::SeqCst);
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() > 0));
    });
}

#[test]
fn an_invalid_file_leaves_the_old_configuration_in_force() {
    let config = limit("\"3/d\"") + &fixed("/", "old", "\"l\"");
    let broken = [
        "this is no toml",
        "[limits.l]\nkey = \"global\"\nrates = [\"3 per day\"]\n",
        "[[routes]]\npath = \"/\"\nupstream = \"nobody\"\n",
        "[[routes]]\npath = \"/\"\nrespond = { status = 200, bdy = \"x\" }\n",
    ];
    for file in broken {
        let gateway = Gateway::start(&config);
        let mut client = gateway.client();
        assert_eq!(client.get("/").text(), "old");
        gateway.reload("", file);
        let line = gateway.wait_message("reload refused");
        assert_eq!(line["level"], "ERROR");
        assert!(line["problems"].to_string().contains("gateway.toml"), "it does not say where: {line}");
        assert_eq!(statuses(&mut client, "/", 3), [200, 200, 429], "{file}");
        // The next valid one is applied.
        gateway.reload("", &(limit("\"4/d\"") + &fixed("/", "new", "\"l\"")));
        gateway.wait_message("reloaded");
        let response = client.get("/");
        assert_eq!((response.status, response.text()), (200, "new"));
        assert_eq!(client.get("/").status, 429);
    }
}

#[test]
fn a_setting_that_needs_a_restart_is_refused_by_its_name() {
    let gateway = Gateway::with_server("", &fixed("/", "old", ""));
    gateway.reload("workers = 3\nmax_header_size = \"16KiB\"", &fixed("/", "new", ""));
    let line = gateway.wait_message("reload refused");
    let told = line["problems"].as_str().unwrap();
    for setting in ["server.workers", "server.max_header_size"] {
        assert!(told.contains(&format!("{setting} cannot change while the gateway runs")), "{told}");
    }
    assert!(told.contains("workers = 3") && told.contains("gateway.toml:"), "it says where: {told}");
    assert_eq!(gateway.client().get("/").text(), "old");
}

#[test]
fn the_log_level_of_the_file_is_put_in_force_by_a_reload() {
    let gateway = Gateway::start(&fixed("/", "old", ""));
    let text = std::fs::read_to_string(gateway.config_path()).unwrap();
    std::fs::write(gateway.config_path(), text.replace("level = \"info\"", "level = \"debug\"")).unwrap();
    gateway.signal(Signal::HUP);
    gateway.wait_message("a reload has changed the log level");
    gateway.wait_message("reloaded");
}

#[test]
fn a_missing_file_is_refused_too() {
    let gateway = Gateway::start(&fixed("/", "old", ""));
    gateway.remove_config();
    gateway.signal(Signal::HUP);
    gateway.wait_message("reload refused");
    assert_eq!(gateway.client().get("/").text(), "old");
}
