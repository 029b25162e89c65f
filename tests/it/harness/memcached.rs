//! A real memcached that can be killed, stopped and started again on the same port.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::clock::until;

/// One memcached; dropping it kills it.
pub(crate) struct Memcached {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Memcached {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("port");
        // -1 lets the system pick the port, which memcached writes into this file.
        let child = spawn("-1").env("MEMCACHED_PORT_FILENAME", &file).spawn().unwrap();
        let mut port = None;
        until("memcached writes its port", Duration::from_secs(10), || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            port = text.strip_prefix("TCP INET: ").and_then(|port| port.trim().parse().ok());
            port.is_some()
        });
        Self { child, address: SocketAddr::from(([127, 0, 0, 1], port.unwrap())) }
    }

    /// `[store]` with this server.
    pub(crate) fn store(&self) -> String {
        store(self.address, "")
    }

    /// `[store]` with this server and more keys.
    pub(crate) fn store_with(&self, more: &str) -> String {
        store(self.address, more)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, empty, where it was.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.address.port().to_string()).spawn().unwrap();
        until("memcached is back", Duration::from_secs(10), || TcpStream::connect(self.address).is_ok());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// How often something was counted in it.
    pub(crate) fn increments(&self) -> u64 {
        // The first count of a key is its creation.
        self.stat("total_items") + self.stat("incr_hits")
    }

    /// A number from `stats`, such as `curr_items`.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(b"stats\r\nquit\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with(&format!("STAT {name} "))).unwrap();
        line.split(' ').nth(2).unwrap().parse().unwrap()
    }
}

/// Runs the test with either store, given the `[store]` section.
pub(crate) fn both_stores(test: impl Fn(&str)) {
    test("[store]\ntype = \"memory\"\n");
    let memcached = Memcached::start();
    // With "reject" a request that memcached did not count shows.
    test(&memcached.store_with("on_error = \"reject\"\ntimeout = \"5s\""));
    assert!(memcached.stat("curr_items") > 0, "memcached was never asked");
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn store(address: SocketAddr, more: &str) -> String {
    format!("[store]\ntype = \"memcached\"\nservers = [\"{address}\"]\n{more}\n")
}

fn spawn(port: &str) -> Command {
    let mut command = Command::new("memcached");
    // As root it refuses to run without being told a user.
    command.args(["-l", "127.0.0.1", "-U", "0", "-u", "root", "-p", port]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
