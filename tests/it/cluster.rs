//! A cluster as the store: keys on all its primaries, slots that move, and primaries that die.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

use crate::harness::{self, Client, Cluster, Control, Gateway, Valkey, until};

/// A failover takes some seconds, and more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Requests wait for the servers long enough on a busy machine.
const PATIENT: &str = "timeout = \"5s\"\n";
const STRICT: &str = "timeout = \"5s\"\nstrict = true\non_error = \"reject\"\n";

fn gateway(store: &str, rate: &str) -> Gateway {
    Gateway::start(&(store.to_owned() + &harness::limited("header:x-api-key", rate, "")))
}

fn ask(client: &mut Client, key: usize) -> u16 {
    client.get_with("/", &format!("X-Api-Key: k{key}\r\n")).status
}

#[test]
fn gateways_share_the_keys_on_all_nodes() {
    const KEYS: usize = 40;
    const QUOTA: usize = 20;
    let cluster = Cluster::start(3);
    for (more, extra) in [(STRICT, 0), (PATIENT, 4)] {
        let more = format!("{more}prefix = \"p{extra}\"");
        // One of the nodes knows the others.
        let gateways = [0, 1].map(|node| gateway(&cluster.store(&[node], &more), &format!("{QUOTA}/d")));
        let admitted = [const { AtomicUsize::new(0) }; KEYS];
        thread::scope(|scope| {
            for gateway in gateways.iter().cycle().take(4) {
                let admitted = &admitted;
                scope.spawn(move || {
                    let mut client = gateway.client();
                    for key in (0..QUOTA).flat_map(|_| 0..KEYS) {
                        match ask(&mut client, key) {
                            200 => _ = admitted[key].fetch_add(1, Relaxed),
                            429 => {}
                            other => panic!("{other}"),
                        }
                    }
                });
            }
        });
        let admitted = admitted.map(AtomicUsize::into_inner);
        assert!(admitted.iter().all(|one| (QUOTA..=QUOTA + extra).contains(one)), "{more}: {admitted:?}");
        for gateway in &gateways {
            assert_eq!(gateway.metric("gateway_store_errors_total"), Some(0.0));
            let up = |node: &Valkey| gateway.metric(&format!("gateway_store_up{{server=\"{}\"}}", node.address));
            assert_eq!([0, 1, 2].map(|node| up(&cluster.nodes[node])), [Some(1.0); 3]);
        }
        assert!(cluster.nodes.iter().all(|node| node.counted() > 0), "each node has some");
    }
}
