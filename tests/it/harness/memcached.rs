//! A real memcached that can be killed, stopped and started again on the same port.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;

use super::clock::until;
use super::process::{self, Process};
use super::valkey::Valkey;

const LOOPBACK: &str = "127.0.0.1";

/// Dropping it kills it.
pub(crate) struct Memcached {
    child: Process,
    options: &'static [&'static str],
    /// The counters that were ever seen in it.
    names: Mutex<BTreeSet<String>>,
    pub(crate) address: SocketAddr,
}

impl Memcached {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more options for its command line.
    pub(crate) fn start_with(options: &'static [&'static str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("port");
        // With -1 the system picks the port, and memcached writes it into this file.
        let child = Process(spawn(LOOPBACK, "-1", options).env("MEMCACHED_PORT_FILENAME", &file).spawn().unwrap());
        let mut port = None;
        until("memcached writes its port", Duration::from_secs(10), || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            port = text.strip_prefix("TCP INET: ").and_then(|port| port.trim().parse().ok());
            port.is_some()
        });
        Self { child, options, names: Mutex::default(), address: SocketAddr::from(([127, 0, 0, 1], port.unwrap())) }
    }

    /// At this address, which nobody else may listen on.
    pub(crate) fn start_at(address: SocketAddr) -> Self {
        let child = Process(spawn(&address.ip().to_string(), &address.port().to_string(), &[]).spawn().unwrap());
        let started = Self { child, options: &[], names: Mutex::default(), address };
        started.wait();
        started
    }

    pub(crate) fn store(&self) -> String {
        store(self.address, "")
    }

    /// `[store]` with this server and more keys. Unless one of them is `timeout`, requests wait long enough on a busy
    /// machine.
    pub(crate) fn store_with(&self, more: &str) -> String {
        store(self.address, more)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, empty, at the same address.
    pub(crate) fn restart(&mut self) {
        self.child = Process(spawn(LOOPBACK, &self.address.port().to_string(), self.options).spawn().unwrap());
        self.wait();
    }

    fn wait(&self) {
        until("memcached is there", Duration::from_secs(10), || TcpStream::connect(self.address).is_ok());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        process::signal(&self.child, signal);
    }

    /// How often something was counted in it.
    pub(crate) fn increments(&self) -> u64 {
        // The first count of a key is its creation.
        self.stat("total_items") + self.stat("incr_hits")
    }

    /// The number of commands that read or write. Commands of the meta protocol count as their classic equivalents.
    pub(crate) fn commands(&self) -> u64 {
        ["cmd_get", "total_items", "incr_hits", "incr_misses", "decr_hits", "decr_misses"]
            .map(|name| self.stat(name))
            .iter()
            .sum()
    }

    /// A number from `stats`, such as `curr_items`.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let lines = self.tell("stats\r\n", "END");
        let line = lines.iter().find(|line| line.starts_with(&format!("STAT {name} "))).unwrap();
        line.split(' ').nth(2).unwrap().parse().unwrap()
    }

    /// Open connections, without the one that asks for this.
    pub(crate) fn connections(&self) -> u64 {
        self.stat("curr_connections") - 1
    }

    pub(crate) fn counted(&self) -> u64 {
        self.counters().values().sum()
    }

    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        self.list();
        let lines = self.tell_of_counters("mg", "k v");
        // The name is in the line before the value.
        let pairs = lines.iter().zip(lines.iter().skip(1));
        let counter = |(line, value): (&String, &String)| {
            let name = line.strip_prefix("VA ")?.split(" k").nth(1)?.trim_end();
            // Spaces fill up a longer previous number.
            Some((name.to_owned(), value.trim_end().parse().ok()?))
        };
        pairs.filter_map(counter).collect()
    }

    fn list(&self) {
        let mut dump = Vec::new();
        until("memcached lists what is in it", Duration::from_secs(10), || {
            // While it searches its keys by itself, as after its start, it only answers BUSY.
            let is_last = |line: &str| line == "END" || line.starts_with("BUSY");
            dump = self.lines_until("lru_crawler metadump all\r\n", is_last);
            dump.last().is_some_and(|line| line == "END")
        });
        let names = dump.iter().filter_map(|line| line.strip_prefix("key=gw%3A")?.split(' ').next());
        let names = names.map(|name| format!("gw:{}", name.replace("%3A", ":").replace("%23", "#")));
        // A list may lack some names, so names of earlier lists are kept.
        self.names.lock().unwrap().extend(names);
    }

    /// The answers to this command for every counter that was ever seen.
    fn tell_of_counters(&self, command: &str, flags: &str) -> Vec<String> {
        let names = self.names.lock().unwrap();
        let commands = names.iter().map(|name| format!("{command} {name} {flags}\r\n"));
        self.tell(&commands.chain(["mn\r\n".to_owned()]).collect::<String>(), "MN")
    }

    /// Fills it with other items until all known counters are gone.
    pub(crate) fn evict(&self) {
        let mut round = 0;
        until("all counters are evicted", Duration::from_secs(20), || {
            round += 1;
            // Items of every size that a counter may have, because each size has its own part of the cache.
            let sets = (0..16_000).map(|at| {
                let length = at % 8 * 15 + 1;
                format!("set other:{round}:{at} 0 0 {length} noreply\r\n{}\r\n", "x".repeat(length))
            });
            self.tell(&sets.chain(["mn\r\n".to_owned()]).collect::<String>(), "MN");
            // This question is no use of the counters, which would keep them.
            self.tell_of_counters("me", "").iter().all(|line| line == "EN")
        });
    }

    /// Sends commands and reads the lines of their answers, until one that is `last`.
    pub(crate) fn tell(&self, commands: &str, last: &str) -> Vec<String> {
        let mut lines = self.lines_until(commands, |line| line == last);
        lines.pop();
        lines
    }

    /// Returns the last line, too.
    fn lines_until(&self, commands: &str, is_last: impl Fn(&str) -> bool) -> Vec<String> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(commands.as_bytes()).unwrap();
        let mut answer = BufReader::new(stream).lines().map(Result::unwrap);
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| !is_last(line)) {
            lines.push(answer.next().unwrap());
        }
        lines
    }
}

/// Runs the test with each store, given the `[store]` section.
pub(crate) fn every_store(test: impl Fn(&str)) {
    test("[store]\ntype = \"memory\"\n");
    let memcached = Memcached::start();
    // With "reject" a request that memcached did not count shows.
    test(&memcached.store_with("on_error = \"reject\"\ntimeout = \"5s\""));
    assert!(memcached.stat("cmd_get") > 0, "memcached was never asked");
    let valkey = Valkey::start();
    test(&valkey.store_with("on_error = \"reject\"\ntimeout = \"5s\""));
    assert!(valkey.stat("keyspace_misses") > 0, "Valkey was never asked");
}

fn store(address: SocketAddr, more: &str) -> String {
    let timeout = if more.contains("timeout") { "" } else { "timeout = \"5s\"" };
    format!("[store]\ntype = \"memcached\"\nservers = [\"{address}\"]\n{timeout}\n{more}\n")
}

fn spawn(host: &str, port: &str, options: &[&str]) -> Command {
    let mut command = Command::new("memcached");
    // As root, memcached needs a user.
    command.args(["-l", host, "-U", "0", "-u", "root", "-p", port]).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
