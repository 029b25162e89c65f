//! SIGHUP applies a valid file without losing a connection or a count. An invalid file changes nothing.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Authority, Client, Gateway, TlsClient, Upstream, reply, run, until};

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
            let mut client = gateway.client();
            loop {
                assert_eq!(client.get("/").status, 200);
                if done.load(Ordering::SeqCst) {
                    break;
                }
            }
        };
        let threads = [(); 4].map(|()| scope.spawn(ask));
        for round in 0..5 {
            gateway.reload("", &(up.everything() + &fixed(&format!("/{round}"), "", "")));
            until("it reloads", Duration::from_secs(10), || gateway.reloads() > round);
        }
        done.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
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

/// A file that is valid when it is checked may name a certificate that is gone or broken when the reload reads it.
#[test]
fn a_certificate_that_breaks_after_the_check_leaves_the_old_configuration_in_force() {
    let authority = Authority::new();
    let [old, new] = ["old", "new"].map(|name| authority.issue(name, name, &[&format!("{name}.test")]));
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    let server = format!("{listen}\n[server.tls]\ncertificates = [{}]\n", old.toml());
    let gateway = Gateway::with_server(&server, &(limit("\"3/d\"") + &fixed("/", "old", "\"l\"")));
    let text = fs::read_to_string(gateway.config_path()).unwrap();
    let text = text.replace("/old.", "/new.").replace("\"old\"", "\"new\"").replace("3/d", "4/d");
    fs::write(gateway.config_path(), text).unwrap();
    let checked = run(&["check", "--config", gateway.config_path().to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let mut client = gateway.client();
    let shakes = |name: &str| TlsClient::connect(gateway.https(), &authority.client(None), name).is_ok();
    let refused = || gateway.metric("gateway_config_reloads_total{result=\"refused\"}");
    let good = [&new.cert, &new.key].map(|file| fs::read(file).unwrap());
    let broken: [&dyn Fn(); 3] =
        [&|| fs::remove_file(&new.cert).unwrap(), &|| fs::write(&new.cert, "this is no certificate").unwrap(), &|| {
            fs::copy(&old.key, &new.key).unwrap();
        }];
    for (number, break_it) in (1_u8..).zip(broken) {
        break_it();
        gateway.signal(Signal::HUP);
        until("it is refused", Duration::from_secs(20), || refused() == Some(f64::from(number)));
        let source = gateway.admin("/api/source").json();
        assert!(source["problems"][0]["message"].as_str().unwrap().contains("new."), "{source}");
        assert_eq!(source["current"], false);
        assert_eq!(gateway.metric("gateway_config_last_reload_successful"), Some(0.0));
        assert_eq!((shakes("old.test"), shakes("new.test")), (true, false));
        let response = client.get("/");
        assert_eq!((response.status, response.text()), (200, "old"));
        fs::write(&new.cert, &good[0]).unwrap();
        fs::write(&new.key, &good[1]).unwrap();
    }
    assert_eq!(client.get("/").status, 429, "the limit is that of the old file");
    let logged = || gateway.log().iter().filter(|line| line.contains("\"reload refused\"")).count();
    until("each is logged", Duration::from_secs(20), || logged() == broken.len());
    gateway.signal(Signal::HUP);
    gateway.wait_message("reloaded");
    assert_eq!(client.get("/").text(), "new");
    assert_eq!((shakes("old.test"), shakes("new.test")), (false, true));
    assert_eq!(gateway.metric("gateway_config_last_reload_successful"), Some(1.0));
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
    let text = fs::read_to_string(gateway.config_path()).unwrap();
    fs::write(gateway.config_path(), text.replace("level = \"info\"", "level = \"debug\"")).unwrap();
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
