//! A cluster whose primaries die or hand over to their replicas.

use crate::cluster::{PATIENCE, PATIENT, STRICT, admitted_while, ask, gateway, names, slot_in_use};
use crate::harness::{Cluster, Control, until};

/// Returns how many of `quota` requests are admitted while the primary of the key dies.
fn admitted_over_a_failover(gateways: usize, more: &str, quota: usize) -> usize {
    let mut cluster = Cluster::start_with(3, &["--cluster-node-timeout", "3000"]);
    let replicas = [0, 1, 2].map(|primary| cluster.add_replica(primary));
    let gateways: Vec<_> =
        (0..gateways).map(|_| gateway(&cluster.store(&[0, 1, 2], more), &format!("{quota}/d"))).collect();
    let admitted = admitted_while(&gateways, |admitted| {
        until("they count", PATIENCE, || admitted() > quota / 4);
        let (_, dead) = slot_in_use(&cluster);
        let replica = replicas[dead];
        until("the replica has some", PATIENCE, || !names(&cluster.nodes[replica]).is_empty());
        cluster.nodes[dead].kill();
        until("the replica has taken its place", PATIENCE, || cluster.is_primary(replica));
        let up = format!("gateway_store_up{{server=\"{}\"}}", cluster.nodes[replica].address);
        until("the gateways know it", PATIENCE, || gateways.iter().all(|gateway| gateway.metric(&up) == Some(1.0)));
        let gone = format!("gateway_store_up{{server=\"{}\"}}", cluster.nodes[dead].address);
        assert!(gateways.iter().all(|gateway| gateway.metric(&gone).is_none()), "it has no slot any more");
        until("all is counted there", PATIENCE, || {
            cluster.nodes[replica].counted() >= quota as u64 && admitted() >= quota / 2
        });
    });
    println!("{admitted} of {quota} admitted");
    admitted
}

#[test]
fn a_failover_in_a_flood_changes_little_for_the_clients_of_a_gateway() {
    const QUOTA: usize = 6_000;
    let admitted = admitted_over_a_failover(1, PATIENT, QUOTA);
    // What the primary has not answered when it dies is counted once, twice, or not at all.
    assert!((QUOTA - 100..=QUOTA + 100).contains(&admitted), "{admitted} admitted");
}

#[test]
fn strictly_no_more_passes_over_a_failover_than_was_not_copied_yet() {
    const QUOTA: usize = 3_000;
    let admitted = admitted_over_a_failover(2, STRICT, QUOTA);
    // The replica is on the same machine, and copies at once.
    assert!((QUOTA / 2..=QUOTA + QUOTA / 10).contains(&admitted), "{admitted} admitted");
}

#[test]
fn a_primary_that_hands_over_is_followed_and_no_request_notices() {
    // No node must take another one for dead, and say that the cluster is down, because the machine is busy.
    let mut cluster = Cluster::start_with(3, &["--cluster-node-timeout", "60000"]);
    let replicas = [0, 1, 2].map(|primary| cluster.add_replica(primary));
    let gateway = gateway(&cluster.store(&[0], STRICT), "1000000000/d");
    let (mut client, mut count) = (gateway.client(), 0);
    let mut send = || {
        for key in 0..20 {
            assert_eq!(ask(&mut client, key), 200);
            count += 1;
        }
        count
    };
    send();
    for replica in replicas {
        assert_eq!(cluster.nodes[replica].ask(&["CLUSTER", "FAILOVER"]), ["OK"]);
        let up = format!("gateway_store_up{{server=\"{}\"}}", cluster.nodes[replica].address);
        until("the gateway counts there", PATIENCE, || {
            send();
            gateway.metric(&up) == Some(1.0)
        });
    }
    let all = send();
    assert_eq!(cluster.counted(None), all);
    assert_eq!(gateway.metric("gateway_store_errors_total"), Some(0.0));
}
