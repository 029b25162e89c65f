//! When the address behind the name of a Memcached changes, the gateway connects to the new address.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::{Gateway, Memcached, limited, until};

#[test]
fn a_name_that_gets_another_address() {
    let hosts = tempfile::NamedTempFile::new().unwrap();
    let point_to = |address: &str| fs::write(hosts.path(), format!("{address} counters.test\n")).unwrap();
    point_to("127.0.0.1");
    let mut old = Memcached::start();
    let port = old.address.port();
    let store = format!("[store]\ntype = \"memcached\"\nservers = [\"counters.test:{port}\"]\n");
    let limited = limited("header:x-api-key", "1000/d", "");
    let Some(gateway) = Gateway::with_hosts(hosts.path(), &format!("{store}{limited}")) else {
        return eprintln!("skipped: no namespaces for users here");
    };
    let mut client = gateway.client();
    let mut counts_in = |memcached: &Memcached| {
        assert_eq!(client.get_with("/", "X-Api-Key: k\r\n").status, 200);
        memcached.increments() > 0
    };
    until("it counts", Duration::from_secs(15), || counts_in(&old));
    let new = Memcached::start_at(SocketAddr::from(([127, 0, 0, 2], port)));
    point_to("127.0.0.2");
    old.kill();
    until("it counts at the new address", Duration::from_secs(15), || counts_in(&new));
}
