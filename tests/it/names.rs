//! When the address behind the name of a server changes, the gateway connects to the new address.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::{Gateway, Server, Software, limited, until, with_each_server};

fn a_name_that_gets_another_address(software: Software) {
    let hosts = tempfile::NamedTempFile::new().unwrap();
    let point_to = |address: &str| fs::write(hosts.path(), format!("{address} counters.test\n")).unwrap();
    point_to("127.0.0.1");
    let mut old = software.start();
    let port = old.address.port();
    let store = format!("[store]\ntype = {:?}\nservers = [\"counters.test:{port}\"]\n", software.name());
    let limited = limited("header:x-api-key", "1000/d", "");
    let Some(gateway) = Gateway::with_hosts(hosts.path(), &format!("{store}{limited}")) else {
        return println!("skipped: no namespaces for users here");
    };
    let mut client = gateway.client();
    let mut counts_in = |server: &Server| {
        assert_eq!(client.get_with("/", "X-Api-Key: k\r\n").status, 200);
        server.counted() > 0
    };
    until("it counts", Duration::from_secs(60), || counts_in(&old));
    let new = software.start_at(SocketAddr::from(([127, 0, 0, 2], port)));
    point_to("127.0.0.2");
    old.kill();
    until("it counts at the new address", Duration::from_secs(60), || counts_in(&new));
}

with_each_server! {
    a_name_that_gets_another_address
}
