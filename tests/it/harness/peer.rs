//! Servers of other projects, which `scripts/test --all` installs.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use socket2::Socket;
use tempfile::TempDir;

use super::clock::until;
use super::process::Process;
use super::upstream::reserved_port;

/// Dropping it kills it.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    _process: Process,
    _folder: TempDir,
    /// Keeps the port for this server.
    _reserved: Socket,
}

impl Peer {
    /// Starts a server. `make` gets a folder and an address, and returns the configuration and the command.
    #[track_caller]
    pub(crate) fn start(make: impl FnOnce(&Path, SocketAddr) -> (String, Vec<&'static str>)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (reserved, address) = reserved_port();
        let (config, command) = make(folder.path(), address);
        let file = folder.path().join("config");
        std::fs::write(&file, config).unwrap();
        let mut child = Command::new(command[0]);
        // Debian installs servers outside of the users' PATH.
        child.env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/usr/local/sbin");
        // State that some servers keep between two starts ends with the test.
        child.env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
        child.args(&command[1..]).arg(&file).stdin(Stdio::null());
        let child = child.spawn().unwrap_or_else(|error| panic!("{}: {error}; scripts/test installs it", command[0]));
        let mut process = Process(child);
        until("the server listens", Duration::from_secs(20), || {
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "{command:?} has ended: {ended:?}");
            TcpStream::connect(address).is_ok()
        });
        Self { address, _process: process, _folder: folder, _reserved: reserved }
    }
}

/// The configuration of an nginx with one process, with this in its `http`.
pub(crate) fn nginx_config(folder: &Path, http: &str) -> String {
    let folder = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder}/{kind};"))
        .concat();
    format!(
        "daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;\nevents {{}}\nhttp {{
        access_log off; {temporary}\n{http}}}\n"
    )
}
