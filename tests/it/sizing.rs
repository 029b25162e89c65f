//! The figures in docs/operating.md for choosing a machine, as far as a gateway itself reports them.

use std::path::Path;

use crate::harness::{Gateway, limited};

/// The rows of the table of this page whose first column has this title, as the texts in their columns.
#[track_caller]
fn table(title: &str) -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operating.md")).unwrap();
    let columns = |line: &str| line.trim_matches('|').split('|').map(|text| text.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = page.lines().skip_while(|line| !line.starts_with(&format!("| {title} |")));
    let rows = lines.by_ref().skip(2).take_while(|line| line.starts_with('|')).map(columns);
    let rows: Vec<_> = rows.collect();
    assert!(!rows.is_empty(), "no table {title:?}");
    rows
}

#[test]
fn keys_take_as_many_bytes_as_stated() {
    // A store of one shard, filled to about the same share as larger stores.
    const KEYS: u32 = 700;
    let store = "[store]\nmax_keys = 1024\n";
    for row in table("strategy") {
        let (rate, settings, requests) = match row[0].as_str() {
            "`sliding-window`, `precision = 1`" => ("9/h", "precision = 1", 1),
            "`sliding-window`, `precision = 60`" => ("9/h", "precision = 60", 1),
            "`fixed-window`" => ("9/h", "strategy = \"fixed-window\"", 1),
            "`token-bucket`" => ("9/h burst 9", "strategy = \"token-bucket\"", 1),
            "`moving-window`, 100 requests in its window" => ("100/h", "strategy = \"moving-window\"", 100),
            other => panic!("what is {other}?"),
        };
        let stated: f64 = row[1].parse().unwrap();
        let gateway = Gateway::with_log("access = false", &format!("{store}{}", limited("header:a", rate, settings)));
        let empty = gateway.metric("gateway_store_bytes").unwrap();
        let mut client = gateway.client();
        // Moving windows use most of their bytes for stored requests.
        let keys = if requests > 1 { KEYS / 20 } else { KEYS };
        for key in 0..keys {
            (0..requests).for_each(|_| assert_eq!(client.get_with("/", format!("A: {key}\r\n")).status, 200));
        }
        let each = (gateway.metric("gateway_store_bytes").unwrap() - empty) / f64::from(keys);
        assert!((stated * 0.9..stated * 1.1).contains(&each), "{}: {each} bytes, stated {stated}", row[0]);
    }
}

#[test]
fn there_are_as_many_connections_for_file_handles_as_stated() {
    for row in table("file handles") {
        let number = |column: usize| row[column].parse::<u32>().unwrap();
        assert_eq!(number(2), 1, "the gateways of the tests have one listener");
        let workers = format!("workers = {}", number(1));
        let gateway = Gateway::with_handles(number(0), &workers, &limited("client-ip", "1/d", ""));
        assert_eq!(gateway.metric("gateway_connections_max"), Some(f64::from(number(3))), "{row:?}");
        let line = gateway.wait_message("connection limits");
        assert_eq!((&line["file_handles"], &line["max_connections"]), (&number(0).into(), &number(3).into()));
    }
}
