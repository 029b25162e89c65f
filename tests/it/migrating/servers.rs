//! The servers that are compared: nginx and HAProxy with a block of the page, and the gateway with the block of the same
//! name. Each has what a running server needs besides: a port of its own, the test's upstream, and the PROXY protocol, by which
//! the test tells who the client is.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use socket2::Socket;
use tempfile::TempDir;

use super::page::{block, replaced};
use crate::harness::{Gateway, Process, Upstream, reserved_port, until};

/// A server of another project; dropping it kills it.
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    _process: Process,
    _folder: TempDir,
    /// Keeps the port for this server.
    _reserved: Socket,
}

/// nginx with one process and this block of the page.
#[track_caller]
pub(super) fn nginx(name: &str, upstream: &Upstream) -> Peer {
    let fragment = block("nginx", name);
    start(|folder, address| {
        let folder = folder.display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {folder}/{kind};"))
            .concat();
        let server = replaced(&fragment, "listen 80;", &format!("listen {address} proxy_protocol;"));
        let config = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;\nevents {{}}\nhttp {{
            access_log off; {temporary}
            set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
            upstream app {{ server {}; }}\n{server}}}\n",
            upstream.address()
        );
        (config, vec!["nginx", "-e", "stderr", "-c"])
    })
}

/// HAProxy with one thread and this block of the page.
#[track_caller]
pub(super) fn haproxy(name: &str, upstream: &Upstream) -> Peer {
    let fragment = block("haproxy", name);
    start(|_, address| {
        let frontend = replaced(&fragment, "bind :80\n", &format!("bind {address} accept-proxy\n"));
        let config = format!(
            "global\n nbthread 1\ndefaults\n mode http\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n
            {frontend}\nbackend app\n server a {}\n",
            upstream.address()
        );
        (config, vec!["haproxy", "-db", "-q", "-f"])
    })
}

/// Starts a server with the configuration and the command that are made for a folder and an address.
#[track_caller]
fn start(make: impl FnOnce(&Path, SocketAddr) -> (String, Vec<&'static str>)) -> Peer {
    let folder = tempfile::tempdir().unwrap();
    let (reserved, address) = reserved_port();
    let (config, command) = make(folder.path(), address);
    let file = folder.path().join("config");
    std::fs::write(&file, config).unwrap();
    let mut child = Command::new(command[0]);
    // Debian installs servers where users have no path to.
    child.env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/usr/local/sbin");
    child.args(&command[1..]).arg(&file).stdin(Stdio::null());
    let child = child.spawn().unwrap_or_else(|error| panic!("{}: {error}; scripts/test installs it", command[0]));
    let mut process = Process(child);
    until("the server listens", Duration::from_secs(20), || {
        let ended = process.try_wait().unwrap();
        assert!(ended.is_none(), "{command:?} has ended: {ended:?}");
        TcpStream::connect(address).is_ok()
    });
    Peer { address, _process: process, _folder: folder, _reserved: reserved }
}

/// A gateway with one worker and this block of the page.
#[track_caller]
pub(super) fn gateway(name: &str, upstream: &Upstream) -> Gateway {
    let text = format!("{}\n[upstreams.app]\nservers = [\"http://{}\"]\n", block("toml", name), upstream.address());
    Gateway::with_server("proxy_protocol = true\nworkers = 1", &text)
}
