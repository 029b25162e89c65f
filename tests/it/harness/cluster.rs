//! A cluster of real Valkeys or Redises, whose slots can be moved and whose nodes can be killed.

use std::time::Duration;

use socket2::Socket;

use super::clock::until;
use super::server::Control;
use super::upstream::reserved_port;
use super::valkey::Valkey;

/// For what takes nodes some seconds, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const SLOTS: usize = 16_384;

/// Dropping it kills all nodes.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Valkey>,
    /// Keep the ports on which nodes speak to each other.
    buses: Vec<Socket>,
    options: Vec<String>,
}

impl Cluster {
    /// So many primaries with equal parts of the slots.
    pub(crate) fn start(primaries: usize) -> Self {
        Self::start_with(primaries, &[])
    }

    /// With more options for the command line of each node.
    pub(crate) fn start_with(primaries: usize, options: &[&str]) -> Self {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut cluster = Self { nodes: Vec::new(), buses: Vec::new(), options };
        for number in 0..primaries {
            let node = cluster.add_node();
            let (first, end) = (SLOTS * number / primaries, SLOTS * (number + 1) / primaries);
            let add = ["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()];
            assert_eq!(cluster.nodes[node].ask(&add), ["OK"]);
        }
        cluster.wait();
        cluster
    }

    /// Adds a node without slots, which the others will know. Returns its number.
    pub(crate) fn add_node(&mut self) -> usize {
        let (held, bus) = reserved_port();
        let bus = bus.port().to_string();
        let own = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "5000"];
        let options = own.into_iter().chain(self.options.iter().map(String::as_str));
        let node = Valkey::start_with(&options.collect::<Vec<_>>());
        // Two of the same epoch would take some time to agree.
        let epoch = (self.nodes.len() + 1).to_string();
        assert_eq!(node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]), ["OK"]);
        if let Some(first) = self.nodes.first() {
            let port = node.address.port().to_string();
            assert_eq!(first.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]), ["OK"]);
        }
        self.nodes.push(node);
        self.buses.push(held);
        self.nodes.len() - 1
    }

    /// Adds a node that follows another one. Returns its number.
    pub(crate) fn add_replica(&mut self, of: usize) -> usize {
        let (id, replica) = (self.id(of), self.add_node());
        until("it knows the node", PATIENCE, || self.nodes[replica].ask(&["CLUSTER", "REPLICATE", &id]) == ["OK"]);
        until("it has copied", PATIENCE, || {
            self.nodes[replica].ask(&["INFO", "replication"])[0].contains("master_link_status:up")
        });
        self.wait();
        replica
    }

    /// Until all nodes know each other and all slots.
    pub(crate) fn wait(&self) {
        let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
        until("the nodes agree", PATIENCE, || {
            self.nodes.iter().all(|node| {
                let told = node.ask(&["CLUSTER", "INFO"]).remove(0);
                told.contains("cluster_state:ok") && told.contains(&known)
            })
        });
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].ask(&["CLUSTER", "MYID"]).remove(0)
    }

    pub(crate) fn primaries(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| self.is_primary(*node))
    }

    pub(crate) fn is_primary(&self, node: usize) -> bool {
        self.nodes[node].ask(&["ROLE"])[0] == "master"
    }

    /// The slot of an item.
    pub(crate) fn slot(&self, name: &str) -> usize {
        self.nodes[0].ask(&["CLUSTER", "KEYSLOT", name])[0].parse().unwrap()
    }

    /// Moves a slot and its items from one primary to another. `meanwhile` is called before the items move, after some have, and
    /// before all know of it.
    pub(crate) fn move_slot(&self, slot: usize, from: usize, to: usize, mut meanwhile: impl FnMut()) {
        let (slot, port) = (slot.to_string(), self.nodes[to].address.port().to_string());
        let (from_id, to_id) = (self.id(from), self.id(to));
        let set = |node: usize, words: &[&str]| {
            assert_eq!(self.nodes[node].ask(&[&["CLUSTER", "SETSLOT", &slot], words].concat()), ["OK"]);
        };
        set(to, &["IMPORTING", &from_id]);
        set(from, &["MIGRATING", &to_id]);
        meanwhile();
        loop {
            let names = self.nodes[from].ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let Some(name) = names.first() else { break };
            let moved = self.nodes[from].ask(&["MIGRATE", "127.0.0.1", &port, name, "0", "5000"]);
            // It may have ended meanwhile.
            assert!(moved == ["OK"] || moved == ["NOKEY"], "{moved:?}");
            meanwhile();
        }
        set(to, &["NODE", &to_id]);
        meanwhile();
        self.primaries().filter(|node| *node != to).for_each(|node| set(node, &["NODE", &to_id]));
    }

    /// What all primaries but the dead one count.
    pub(crate) fn counted(&self, dead: Option<usize>) -> u64 {
        let live = (0..self.nodes.len()).filter(|node| Some(*node) != dead && self.is_primary(*node));
        live.map(|node| self.nodes[node].counted()).sum()
    }

    /// `[store]` with some of the nodes and more keys.
    pub(crate) fn store(&self, nodes: &[usize], more: &str) -> String {
        let servers: Vec<String> = nodes.iter().map(|node| self.nodes[*node].address.to_string()).collect();
        format!("[store]\ntype = \"valkey\"\nservers = {servers:?}\ncluster = true\n{more}\n")
    }
}
