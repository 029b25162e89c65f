//! What the log says about overrides that a reload has changed: their number, but not which.

use std::fs;
use std::time::Duration;

use crate::harness::{Gateway, until};

fn config(file: &str, overrides: &str) -> String {
    let limit = format!("[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1/h\"]\noverrides_file = {file:?}\n");
    let other = "[limits.other]\nkey = \"client-ip\"\nrates = [\"9/h\"]\n";
    format!(
        "{limit}{overrides}{other}[[routes]]\npath = \"/*\"\nlimits = [\"l\", \"other\"]\nrespond = {{ status = 200 }}\n"
    )
}

#[test]
fn a_line_says_how_many_overrides_have_changed() {
    let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    let path = file.path().to_str().unwrap();
    fs::write(path, "key,rates\nsecret-1,2/h\nsecret-2,2/h\nsecret-3,2/h\n").unwrap();
    let exempt = "[[limits.l.overrides]]\nkeys = [\"partner-*\"]\nexempt = true\n";
    let gateway = Gateway::start(&config(path, exempt));
    fs::write(path, "key,rates\nsecret-1,2/h\nsecret-2,3/h\nsecret-4,2/h\nsecret-5,2/h\n").unwrap();
    gateway.reload("", &config(path, &exempt.replace("exempt", "block")));
    let line = gateway.wait_message("the overrides of a limit changed");
    assert_eq!((&line["limit"], &line["level"]), (&"l".into(), &"INFO".into()), "{line}");
    assert_eq!([&line["added"], &line["removed"], &line["changed"]], [2, 1, 2], "{line}");
    gateway.wait_message("reloaded");

    // Limits without a change are not logged, and keys never are.
    gateway.reload("", &config(path, &exempt.replace("exempt", "block")));
    until("it has reloaded", Duration::from_secs(10), || gateway.metric("gateway_config_reloads_total") == Some(2.0));
    let lines = gateway.log();
    assert_eq!(lines.iter().filter(|line| line.contains("the overrides of a limit changed")).count(), 1);
    assert!(!lines.iter().any(|line| line.contains("secret") || line.contains("partner")), "{lines:?}");
}
