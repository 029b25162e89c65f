//! Keys of several parts, and requests that have only some of them.

use std::fs;

use crate::harness::{Client, Gateway, every_store, run};

fn limited(key: &str, more: &str) -> String {
    format!(
        "[limits.l]\nkey = {key}\nrates = [\"2/d\"]\n{more}\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n"
    )
}

fn from(gateway: &Gateway, address: &str) -> Client {
    Client::connect_from(address.parse().unwrap(), gateway.http)
}

fn three(client: &mut Client, fields: &str) -> [u16; 3] {
    [(); 3].map(|()| client.get_with("/", fields).status)
}

#[test]
fn clients_without_one_part_are_distinguished_by_the_others() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &limited("[\"header:a\", \"client-ip\"]", "")));
        let (mut one, mut two) = (from(&gateway, "127.0.0.2"), from(&gateway, "127.0.0.3"));
        assert_eq!(three(&mut one, ""), [200, 200, 429], "{store}");
        assert_eq!(three(&mut two, ""), [200, 200, 429], "{store}");
        assert_eq!(three(&mut one, "A: x\r\n"), [200, 200, 429], "{store}");
    });
}

#[test]
fn which_part_is_missing_matters() {
    let gateway = Gateway::start(&limited("[\"header:a\", \"header:b\"]", ""));
    let mut client = gateway.client();
    for fields in ["A: v\r\n", "B: v\r\n", "A: v\r\nB: v\r\n", "A: v\r\nB: absent\r\n", ""] {
        assert_eq!(three(&mut client, fields), [200, 200, 429], "{fields:?}");
    }
}

#[test]
fn a_key_is_missing_if_every_part_is_missing() {
    for (missing, expected) in [("shared", [200, 200, 429]), ("skip", [200; 3]), ("reject", [400; 3])] {
        let gateway = Gateway::start(&limited("[\"header:a\", \"header:b\"]", &format!("missing = {missing:?}")));
        let mut client = gateway.client();
        assert_eq!(three(&mut client, ""), expected, "{missing}");
        assert_eq!(three(&mut client, "B: v\r\n"), [200, 200, 429], "{missing}");
    }
}

#[test]
fn overrides_are_for_the_first_part_alone() {
    let overrides = "[[limits.l.overrides]]\nkeys = [\"thief\"]\nblock = true\n";
    let gateway = Gateway::start(&limited("[\"header:a\", \"header:b\"]", overrides));
    let mut client = gateway.client();
    assert_eq!(three(&mut client, "A: thief\r\n"), [403; 3]);
    assert_eq!(three(&mut client, "B: thief\r\n"), [200, 200, 429], "the first part is not there");
}

#[test]
fn explain_names_the_missing_part() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    fs::write(&file, limited("[\"header:a | cookie:b\", \"method\"]", "")).unwrap();
    let output = run(&["explain", "--config", file.to_str().unwrap(), "/"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("key      no header:a or cookie:b, \"GET\" from method"), "{text}");
}
