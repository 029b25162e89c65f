//! Warnings about a valid file: `check` prints them, and they are logged at the start and at each reload.

use crate::harness::{Gateway, run};

const UNUSED: &str = "[limits.l]\nkey = \"global\"\nrates = [\"1/s\"]\n";
const ROUTE: &str = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";

fn is_warning(line: &serde_json::Value) -> bool {
    line["message"].as_str().is_some_and(|text| text.contains("no route uses the limit `l`"))
}

#[test]
fn check_prints_them_and_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, [UNUSED, ROUTE].concat()).unwrap();
    let output = run(&["check", "--config", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("warning: no route uses the limit `l`"), "{said}");
    assert!(said.contains(&format!("{}:1:9", file.display())), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("routes, in the order they match"));
}

#[test]
fn they_are_logged_once_at_the_start_and_at_each_reload() {
    let gateway = Gateway::start(&[UNUSED, ROUTE].concat());
    let line = gateway.wait_log("a warning", is_warning);
    assert_eq!(line["level"], "WARN");
    assert!(line["place"].as_str().unwrap().contains("gateway.toml:"), "{line}");
    assert!(line["help"].as_str().unwrap().contains("limits = [\"l\"]"), "{line}");
    gateway.reload("", &[UNUSED, ROUTE].concat());
    gateway.wait_message("reloaded");
    let count =
        || gateway.log().iter().filter(|line| serde_json::from_str(line).is_ok_and(|line| is_warning(&line))).count();
    assert_eq!(count(), 2, "once at the start, once at the reload");
}
