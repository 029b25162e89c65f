//! The most frequent and the most refused keys of a limit.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Client, Gateway, every_store, limited, until};

fn limit(gateway: &Gateway, index: usize) -> Value {
    gateway.admin("/api/limits").json()["limits"][index].clone()
}

/// The keys and counts of a list without errors.
#[track_caller]
fn exact(list: &Value) -> Vec<(String, u64)> {
    let one = |found: &Value| {
        assert_eq!(found["error"], 0, "{found}");
        (found["key"].as_str().unwrap().to_owned(), found["count"].as_u64().unwrap())
    };
    list.as_array().unwrap().iter().map(one).collect()
}

fn ask(gateway: &Gateway, key: &str, times: usize) {
    // On separate connections, so that more than one worker counts.
    (0..times).for_each(|_| drop(gateway.client().get_with("/", format!("x-api-key: {key}\r\n"))));
}

fn expected(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect()
}

#[test]
fn keys_are_counted_and_shown_in_full_if_the_file_says_so() {
    every_store(|store| {
        let text = store.to_owned() + &limited("header:x-api-key", "3/d", "");
        let gateway = Gateway::with_admin("show_keys = true", &text);
        assert_eq!((&limit(&gateway, 0)["most_busy"], &limit(&gateway, 0)["most_refused"]), (&json!([]), &json!([])));
        for (key, times) in [("one", 9), ("two", 4), ("three", 2)] {
            ask(&gateway, key, times);
        }
        gateway.client().get("/");
        let shown = limit(&gateway, 0);
        assert_eq!(exact(&shown["most_busy"]), expected(&[("one", 9), ("two", 4), ("three", 2), ("", 1)]));
        assert_eq!(exact(&shown["most_refused"]), expected(&[("one", 6), ("two", 1)]));
        let since =
            gateway.admin("/api/limits").json()["keys_since"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        let age = jiff::Timestamp::now().as_second() - since.as_second();
        assert!((1_790..=3_610).contains(&age), "{age}");

        // A reload keeps the keys, and shows them in the new way.
        gateway.reload_admin("show_keys = false", &text);
        until("it is reloaded", Duration::from_secs(10), || limit(&gateway, 0)["most_busy"][0]["key"] != "one");
        let counts: Vec<u64> = exact(&limit(&gateway, 0)["most_busy"]).into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [9, 4, 2, 1]);
        assert!(!gateway.admin("/metrics").text().contains("\"one\""), "no key is a label");
    });
}

#[test]
fn keys_are_masked_so_that_they_can_be_recognized() {
    let text = limited("header:x-api-key", "1/d", "")
        + "[limits.all]\nkey = \"global\"\nrates = [\"99/d\"]\n\
           [[routes]]\npath = \"/all\"\nlimits = [\"all\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&text);
    ask(&gateway, "secret-key-of-somebody", 2);
    ask(&gateway, "tiny", 1);
    gateway.client().get("/all");
    let shown = limit(&gateway, 0);
    let (busy, refused) = (exact(&shown["most_busy"]), exact(&shown["most_refused"]));
    assert!(busy[0].0.starts_with("se\u{2026}dy#") && busy[1].0.starts_with("\u{2026}#"), "{busy:?}");
    assert_eq!(refused, [(busy[0].0.clone(), 1)]);
    assert!(!gateway.admin("/api/limits").text().contains("secret"));
    assert_eq!(exact(&limit(&gateway, 1)["most_busy"]), expected(&[("*", 1)]), "there is nothing to hide");
}

#[test]
fn each_kind_of_refusal_counts_once() {
    let limits = "[limits.shadow]\nkey = \"path:name\"\nrates = [\"1/d\"]\non_limit = \"shadow\"\n\
                  [[limits.shadow.overrides]]\nkeys = [\"free\"]\nexempt = true\n\
                  [[limits.shadow.overrides]]\nkeys = [\"bad\"]\nblock = true\n\
                  [limits.cost]\nkey = \"path:name\"\nrates = [\"5/d\"]\ncost = { request_header = \"x-cost\" }\n\
                  [limits.block]\nkey = [\"path:name\", \"client-ip\"]\nmax_in_flight = 9\n\
                  [[limits.block.overrides]]\nkeys = [\"stop\"]\nblock = true\n\
                  [[routes]]\npath = \"/{name}\"\nlimits = [\"shadow\", \"cost\", \"block\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::with_admin("show_keys = true", limits);
    let get = |path: &str, fields: &str| gateway.client().get_with(path, fields).status;
    assert_eq!([get("/a", ""), get("/a", ""), get("/free", ""), get("/bad", "")], [200; 4]);
    assert_eq!([get("/a", "x-cost: 6\r\n"), get("/stop", "")], [413, 403]);
    let sorted = |list: &Value| {
        let mut list = exact(list);
        list.sort();
        list
    };
    // Earlier limits do not count what a later limit refused at once, neither here nor in their decisions.
    let all: Vec<_> = (0..3).map(|index| limit(&gateway, index)).collect();
    let [shadow, cost, block] =
        ["shadow", "cost", "block"].map(|name| all.iter().find(|limit| limit["name"] == name).unwrap());
    assert_eq!(sorted(&shadow["most_busy"]), expected(&[("a", 2), ("bad", 1), ("free", 1)]));
    assert_eq!(sorted(&shadow["most_refused"]), expected(&[("a", 1), ("bad", 1)]));
    assert_eq!(sorted(&cost["most_busy"]), expected(&[("a", 3), ("bad", 1), ("free", 1)]));
    assert_eq!(sorted(&cost["most_refused"]), expected(&[("a", 1)]));
    let at = |name: &str, count: u64| (format!("{name}|127.0.0.1"), count);
    assert_eq!(sorted(&block["most_busy"]), [at("a", 2), at("bad", 1), at("free", 1), at("stop", 1)]);
    assert_eq!(sorted(&block["most_refused"]), [at("stop", 1)]);
    // A key can be used as it is shown.
    let shown = gateway.admin("/api/limits/block/keys/a%7C127.0.0.1");
    assert_eq!(shown.status, 200, "{}", shown.text());
}

#[test]
fn a_flood_of_invented_keys_hides_nobody() {
    let gateway = Gateway::with_admin("show_keys = true", &limited("header:x-api-key", "5/d", ""));
    let mut clients: Vec<Client> = (0..4).map(|_| gateway.client()).collect();
    for round in 0..1_500 {
        let client = &mut clients[round % 4];
        client.get_with("/", format!("x-api-key: invented-{round}-{}\r\n", "k".repeat(round)));
        if round % 15 < 3 {
            client.get_with("/", format!("x-api-key: often-{}\r\n", round % 15));
        }
    }
    let shown = limit(&gateway, 0);
    let first = |list: &Value| {
        let mut keys: Vec<_> = (0..3).map(|at| list[at]["key"].as_str().unwrap().to_owned()).collect();
        keys.sort();
        keys
    };
    let often = ["often-0", "often-1", "often-2"];
    assert_eq!(
        (first(&shown["most_busy"]), first(&shown["most_refused"])),
        (often.map(str::to_owned).to_vec(), often.map(str::to_owned).to_vec())
    );
    for found in &shown["most_busy"].as_array().unwrap()[..3] {
        let (least, error) = (found["count"].as_u64().unwrap(), found["error"].as_u64().unwrap());
        assert!((least..=least + error).contains(&100) && error <= 1_800 / 128, "{found}");
    }
    assert!(shown["most_busy"].as_array().unwrap().len() <= 10);
    assert_eq!(exact(&shown["most_refused"]).iter().map(|(_, count)| *count).collect::<Vec<_>>(), [95; 3]);
}
