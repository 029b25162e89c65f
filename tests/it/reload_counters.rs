//! What a reload does to counters and metrics: they live on where they can, the log says where they cannot, and nothing
//! stays of what is gone.

use std::fs;

use crate::harness::{Gateway, run};

/// A limit `l` with this key and these further settings, used by a route.
fn limit(key: &str, more: &str) -> String {
    format!(
        "[limits.l]\nkey = {key:?}\n{more}\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n"
    )
}

/// Files before and after, and what of the limit has changed if its counters start anew.
fn changes() -> [(String, String, Option<&'static str>); 7] {
    let change = |old: &str, new: &str, changed| (limit("client-ip", old), limit("client-ip", new), changed);
    let moving = "strategy = \"moving-window\"\n";
    [
        change("rates = [\"2/d\"]", "rates = [\"3/d\"]", None),
        change("rates = [\"2/d\"]\nstatus = 429", "rates = [\"3/d\"]\nstatus = 503", None),
        change("rates = [\"2/d\"]", "rates = [\"2/h\"]", Some("periods")),
        change("rates = [\"2/d\"]", "rates = [\"2/d\", \"9/h\"]", Some("periods")),
        change("rates = [\"2/d\"]", "rates = [\"2/d\"]\nprecision = 4", Some("strategy, precision or time zone")),
        change("rates = [\"2/d\"]", &format!("{moving}rates = [\"2/d\"]"), Some("strategy, precision or time zone")),
        (limit("client-ip", "rates = [\"2/d\"]"), limit("global", "rates = [\"2/d\"]"), Some("key")),
    ]
}

#[test]
fn the_log_says_which_counters_start_anew_and_they_do() {
    for (old, new, changed) in changes() {
        let gateway = Gateway::start(&old);
        let mut client = gateway.client();
        assert_eq!([(); 3].map(|()| client.get("/").status == 200), [true, true, false]);
        gateway.reload("", &new);
        gateway.wait_message("reloaded");
        let lines = gateway.log();
        let told = lines.iter().find(|line| line.contains("the counters of a limit start anew"));
        match changed {
            Some(part) => {
                assert!(told.is_some_and(|line| line.contains(&format!("\"changed\":\"{part}\""))), "{new}: {told:?}");
                assert_eq!(client.get("/").status, 200, "{new}");
            }
            None => {
                assert_eq!(told, None, "{new}");
                // Two of the three are spent.
                assert_eq!([(); 2].map(|()| client.get("/").status == 200), [true, false], "{new}");
            }
        }
    }
}

#[test]
fn check_says_it_before_the_reload() {
    let folder = tempfile::tempdir().unwrap();
    let [old_file, new_file] = ["old.toml", "new.toml"].map(|name| folder.path().join(name));
    let check = |old: &str, new: &str| {
        fs::write(&old_file, old).unwrap();
        fs::write(&new_file, new).unwrap();
        let output = run(&["check", new_file.to_str().unwrap(), "--against", old_file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    };
    for (old, new, changed) in changes() {
        let wanted = match changed {
            Some(part) => format!("starts the counters of l anew (changed: {part})"),
            None => "keeps all counters".to_owned(),
        };
        let (code, said) = check(&old, &new);
        assert!(code == Some(0) && said.contains(&wanted), "{said}");
    }
    let route = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";
    let (code, said) = check(route, &format!("[server]\nworkers = 3\n{route}"));
    assert!(code == Some(0) && said.contains("is refused: server.workers changes, which needs a restart"), "{said}");
    let (code, said) = check("broken", route);
    assert!(code == Some(2) && said.contains("old.toml"), "{said}");
}

#[test]
fn metrics_of_what_a_reload_removed_go_away() {
    let config = |name: &str| {
        let limit = format!("[limits.{name}]\nkey = \"client-ip\"\nrates = [\"9/d\"]\n");
        let upstream = format!("[upstreams.{name}]\nservers = [\"http://127.0.0.1:1\"]\n");
        let stays = "[[routes]]\npath = \"/stays\"\nrespond = { status = 200 }\n";
        let goes = format!("[[routes]]\npath = \"/{name}\"\nlimits = [{name:?}]\nupstream = {name:?}\n");
        [limit, upstream, stays.to_owned(), goes].concat()
    };
    let gateway = Gateway::start(&config("first"));
    let mut client = gateway.client();
    assert_eq!(["/first", "/stays", "/nowhere"].map(|path| client.get(path).status), [502, 200, 404]);
    let text = || gateway.admin("/metrics").text().to_owned();
    for series in ["limit=\"first\"", "route=\"/first\"", "upstream=\"first\""] {
        assert!(text().contains(series), "{}", text());
    }
    gateway.reload("", &config("second"));
    gateway.wait_message("reloaded");
    assert!(!text().contains("first\""), "{}", text());
    assert!(text().contains("limit=\"second\""), "{}", text());
    for outcome in ["responded", "unrouted"] {
        let count =
            text().lines().filter(|line| line.starts_with("gateway_requests_total") && line.contains(outcome)).count();
        assert_eq!(count, 1, "what stays goes on counting: {}", text());
    }
}
