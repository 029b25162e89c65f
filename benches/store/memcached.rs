//! A real memcached on its own core.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::cpu;

/// Dropping it kills the process.
pub(crate) struct Memcached {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Memcached {
    pub(crate) fn start(core: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("port");
        // The child ends with this process, even if this process is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "taskset", "-c", core]);
        // With -1 the system picks the port, and memcached writes it into this file. As root, memcached needs a user.
        command.args(["memcached", "-l", "127.0.0.1", "-p", "-1", "-U", "0", "-t", "1", "-u", "root", "-m", "256"]);
        command.env("MEMCACHED_PORT_FILENAME", &file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mut memcached = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let port = || fs::read_to_string(&file).ok()?.strip_prefix("TCP INET: ")?.trim().parse().ok();
        for _ in 0..500 {
            if let Some(port) = port() {
                memcached.address.set_port(port);
                return memcached;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("memcached does not start");
    }

    /// CPU seconds so far.
    pub(crate) fn cpu(&self) -> f64 {
        cpu::of(self.child.id())
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
