//! Keys of any length: the memory that connections keep for them, and patterns that match them.

use std::time::Duration;

use crate::harness::{Client, Gateway, limited, until};

/// The memory of each of many waiting connections after a request of 60 KB. The gateway gives back unused memory after a
/// second, so this may take a while to fall below `most`.
fn kept(key: &str, most: Option<u64>) -> u64 {
    const CONNECTIONS: u64 = 200;
    let gateway = Gateway::with_server("workers = 1", &limited(key, "1000000/d", ""));
    let request = format!("X-Key: {}\r\n", "k".repeat(60_000));
    let connected = || -> Client {
        let mut client = gateway.client();
        assert_eq!(client.get_with("/", &request).status, 200);
        assert_eq!(client.get("/").status, 200);
        client
    };
    // The first connections allocate what all share.
    let first: Vec<_> = (0..20).map(|_| connected()).collect();
    let before = gateway.memory("VmRSS");
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| connected()).collect();
    until("all wait", Duration::from_secs(5), || gateway.admin("/healthz").status == 200);
    let taken = || gateway.memory("VmRSS").saturating_sub(before) / CONNECTIONS;
    if let Some(most) = most {
        until(&format!("each keeps less than {most} bytes"), Duration::from_secs(20), || taken() < most);
    }
    let taken = taken();
    drop((first, clients));
    taken
}

#[test]
fn a_connection_keeps_nothing_of_a_long_key() {
    let where_no_limit_reads_it = kept("client-ip", None);
    kept("header:x-key", Some(where_no_limit_reads_it + 20_000));
}

#[test]
fn no_length_of_a_key_evades_a_pattern() {
    let overrides =
        "[[limits.l.overrides]]\nkeys = [\"evil*\", \"*bot*\", \"*/*(+http*)*\", \"*.exe\"]\nblock = true\n";
    let gateway = Gateway::start(&limited("header:x-key", "1000/d", overrides));
    let mut client = gateway.client();
    for padding in [0, 100, 1024, 15_000] {
        let padding = "a".repeat(padding);
        for key in ["evil#", "#bot#", "#/#(+http#)#", "#.exe"] {
            let fields = format!("X-Key: {}\r\n", key.replace('#', &padding));
            assert_eq!(client.get_with("/", &fields).status, 403, "{key}");
        }
        for key in ["#evil#x", "#b#", "(+http#)#/#x", "#.exe#x"] {
            let fields = format!("X-Key: {}x\r\n", key.replace('#', &format!("{padding}x")));
            assert_eq!(client.get_with("/", &fields).status, 200, "{key}");
        }
    }
}
