//! A real memcached that can be killed, stopped and started again on the same port.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;
use socket2::Socket;

use super::clock::until;
use super::process::{self, Process};
use super::server::Control;
use super::upstream::reserved_port;

/// Dropping it kills it.
pub(crate) struct Memcached {
    child: Process,
    options: &'static [&'static str],
    /// The counters that were ever seen in it.
    names: Mutex<BTreeSet<String>>,
    pub(crate) address: SocketAddr,
    /// Keeps the port while no server listens on it.
    _held: Option<Socket>,
}

impl Memcached {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more options for its command line.
    pub(crate) fn start_with(options: &'static [&'static str]) -> Self {
        let (held, address) = reserved_port();
        Self::run(address, options, Some(held))
    }

    /// At this address, which nobody else may listen on.
    pub(crate) fn start_at(address: SocketAddr) -> Self {
        Self::run(address, &[], None)
    }

    fn run(address: SocketAddr, options: &'static [&'static str], held: Option<Socket>) -> Self {
        let started = Self { child: spawn(address, options), options, names: Mutex::default(), address, _held: held };
        started.wait();
        started
    }

    fn wait(&self) {
        until("memcached is there", Duration::from_secs(30), || TcpStream::connect(self.address).is_ok());
    }

    /// A number from `stats`, such as `curr_items`.
    fn stat(&self, name: &str) -> u64 {
        let lines = self.tell("stats\r\n", "END");
        let line = lines.iter().find(|line| line.starts_with(&format!("STAT {name} "))).unwrap();
        line.split(' ').nth(2).unwrap().parse().unwrap()
    }

    fn list(&self) {
        let mut dump = Vec::new();
        until("memcached lists what is in it", Duration::from_secs(20), || {
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

    /// Sends commands and reads the lines of their answers, until one that is `last`.
    pub(crate) fn tell(&self, commands: &str, last: &str) -> Vec<String> {
        let mut lines = self.lines_until(commands, |line| line == last);
        lines.pop();
        lines
    }

    /// Returns the last line, too.
    fn lines_until(&self, commands: &str, is_last: impl Fn(&str) -> bool) -> Vec<String> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(commands.as_bytes()).unwrap();
        let mut answer = BufReader::new(stream).lines().map(Result::unwrap);
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| !is_last(line)) {
            lines.push(answer.next().unwrap());
        }
        lines
    }
}

impl Control for Memcached {
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = spawn(self.address, self.options);
        self.wait();
    }

    fn signal(&self, signal: Signal) {
        process::signal(&self.child, signal);
    }

    fn items(&self) -> u64 {
        self.stat("curr_items")
    }

    fn commands(&self) -> u64 {
        ["cmd_get", "total_items", "incr_hits", "incr_misses", "decr_hits", "decr_misses"]
            .map(|name| self.stat(name))
            .iter()
            .sum()
    }

    fn lookups(&self) -> u64 {
        self.stat("cmd_get")
    }

    fn connections(&self) -> u64 {
        self.stat("curr_connections") - 1
    }

    fn counters(&self) -> BTreeMap<String, u64> {
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

    fn evict(&self) {
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

    fn flush(&self) {
        self.tell("flush_all\r\n", "OK");
    }

    fn set(&self, name: &str, text: &str) {
        self.tell(&format!("set {name} 0 0 {}\r\n{text}\r\n", text.len()), "STORED");
    }

    fn get(&self, name: &str) -> Option<String> {
        self.tell(&format!("get {name}\r\n"), "END").into_iter().nth(1)
    }
}

fn spawn(address: SocketAddr, options: &[&str]) -> Process {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new("memcached");
    // As root, memcached needs a user.
    command.args(["-l", &host, "-U", "0", "-u", "root", "-p", &port]).args(options);
    Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}
