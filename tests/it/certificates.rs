//! When certificates expire: `gateway check`, the admin API and the numbers of the dashboard agree.

use std::fs;

use rcgen::date_time_ymd;
use serde_json::{Value, json};

use crate::events::Stream;
use crate::harness::{Authority, Gateway, Issued, limited, run, run_json};

/// A certificate that expires on the first day of this year.
fn until(authority: &Authority, year: u16, names: &[&str]) -> Issued {
    authority.issue_with(&format!("until-{year}"), "site", names, |params| {
        params.not_after = date_time_ymd(year.into(), 1, 1);
    })
}

fn described(issued: &Issued, year: u16, names: &[&str]) -> Value {
    json!({ "certificate": issued.cert, "names": names, "valid_until": format!("{year}-01-01T00:00:00Z") })
}

#[test]
fn it_is_said_until_when_each_is_valid() {
    const NAMES: [&str; 2] = ["site.test", "*.site.test"];
    let authority = Authority::new();
    let of_server: Vec<_> = (2041..=2050).rev().map(|year| (until(&authority, year, &NAMES), year)).collect();
    let (old, last) = (until(&authority, 2020, &[]), until(&authority, 2080, &["decide.test"]));
    let toml = |all: &[&Issued]| all.iter().map(|issued| issued.toml()).collect::<Vec<_>>().join(", ");
    let all: Vec<_> = of_server.iter().map(|(issued, _)| issued).collect();
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    let server = format!("{listen}\n[server.tls]\ncertificates = [{}]\n", toml(&all));
    // One certificate belongs to both listeners.
    let decisions = format!("tls = {{ certificates = [{}] }}", toml(&[&last, &old, all[0]]));
    let rest = format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{decisions}\n{}", limited("client-ip", "9/d", ""));
    let gateway = Gateway::with_server(&server, &rest);

    let mut expected = vec![described(&old, 2020, &[])];
    expected.extend(of_server.iter().rev().map(|(issued, year)| described(issued, *year, &NAMES)));
    expected.push(described(&last, 2080, &["decide.test"]));
    let file = gateway.config_path().to_str().unwrap();
    assert_eq!(run_json(&["check", "--json", file])["certificates"], json!(expected));
    assert_eq!(gateway.admin("/api/config").json()["certificates"], json!(expected));
    let text = String::from_utf8(run(&["check", file]).stdout).unwrap();
    let (_, section) = text.split_once("\n\ncertificates\n").unwrap();
    let section: Vec<_> = section.split_once("\n\n").unwrap().0.lines().collect();
    let said = |issued: &Issued, day: &str| [format!("  {}", issued.cert.display()), format!("    valid until {day}")];
    assert_eq!(section[..2], said(&old, "2020-01-01T00:00:00Z"));
    assert_eq!(section[section.len() - 3..][..2], said(&last, "2080-01-01T00:00:00Z"));
    assert_eq!(section[section.len() - 1], "    for decide.test");
    assert_eq!(section[4], "    for site.test, *.site.test");
    assert_eq!(section.len(), 2 + 3 * 11, "{section:#?}");

    let mut stream = Stream::open(&gateway);
    let numbers = stream.wait("numbers", |_| true);
    assert_eq!(numbers["expiries"], json!(expected[..10]), "those that expire first");
    let renewed = until(&authority, 2060, &["new.test"]);
    fs::rename(&renewed.key, &old.key).unwrap();
    fs::rename(&renewed.cert, &old.cert).unwrap();
    let expected = json!(expected[1..11]);
    stream.wait("numbers", |numbers| numbers["expiries"] == expected);
    let shown = gateway.admin("/api/config").json()["certificates"].clone();
    assert_eq!(shown[10], described(&old, 2060, &["new.test"]));
    assert_eq!(
        gateway.admin("/metrics").text().matches("gateway_tls_certificate_expiry_timestamp_seconds{").count(),
        12
    );
}

#[test]
fn nothing_is_said_of_certificates_where_there_is_none() {
    let gateway = Gateway::start(&limited("client-ip", "9/d", ""));
    let file = gateway.config_path().to_str().unwrap();
    assert_eq!(run_json(&["check", "--json", file])["certificates"], json!([]));
    assert!(!String::from_utf8(run(&["check", file]).stdout).unwrap().contains("certificates"));
    assert_eq!(Stream::open(&gateway).wait("numbers", |_| true)["expiries"], json!([]));
}
