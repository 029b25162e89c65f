//! Pebble, the test authority of Let's Encrypt: it checks RFC 8555 and RFC 8737, and looks at a gateway on one plain and one TLS
//! port.

use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::json;
use socket2::Socket;

use super::acme::gateway_text;
use super::clock::until;
use super::process::Process;
use super::tls::{Authority, curl};
use super::upstream::reserved_port;

/// Dropping it kills it.
pub(crate) struct Pebble {
    child: Option<Process>,
    authority: Authority,
    address: SocketAddr,
    management: SocketAddr,
    /// Where Pebble looks at gateways: plain, and in TLS.
    pub(crate) listeners: [SocketAddr; 2],
    dns: SocketAddr,
    /// Keeps the ports.
    _held: [Socket; 4],
}

impl Pebble {
    /// Its certificates live for `life` seconds.
    #[track_caller]
    pub(crate) fn start(life: u64) -> Self {
        let [(a, address), (b, management), (c, plain), (d, tls)] = [(); 4].map(|()| reserved_port());
        let authority = Authority::new();
        let own = authority.issue("pebble", "pebble", &["localhost", "127.0.0.1"]);
        let config = json!({ "pebble": {
            "listenAddress": address.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": own.cert,
            "privateKey": own.key,
            "httpPort": plain.port(),
            "tlsPort": tls.port(),
            "certificateValidityPeriod": life,
        } });
        std::fs::write(authority.folder().join("pebble.json"), config.to_string()).unwrap();
        let (listeners, dns) = ([plain, tls], names_lead_here());
        let mut pebble = Self { child: None, authority, address, management, listeners, dns, _held: [a, b, c, d] };
        pebble.run(&[]);
        pebble
    }

    /// Runs it again after it has ended, with these variables. It knows no earlier accounts.
    #[track_caller]
    pub(crate) fn run(&mut self, variables: &[(&str, &str)]) {
        let mut command = Command::new("pebble");
        command.arg("-config").arg(self.authority.folder().join("pebble.json")).args(["-strict", "-dnsserver"]);
        command.arg(self.dns.to_string()).env("PEBBLE_VA_NOSLEEP", "1").envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Process(command.spawn().expect("pebble: scripts/test installs it"));
        until("pebble listens", Duration::from_secs(20), || {
            assert!(child.try_wait().unwrap().is_none(), "pebble has ended");
            std::net::TcpStream::connect(self.address).is_ok()
        });
        self.child = Some(child);
    }

    pub(crate) fn end(&mut self) {
        self.child = None;
    }

    /// The whole text of a gateway at the listeners that Pebble looks at.
    pub(crate) fn config(&self, names: &[&str], more: &str, rest: &str) -> String {
        let listeners = self.listeners.map(|address| address.to_string());
        self.config_at(names, more, [&listeners[0], &listeners[1]], rest)
    }

    pub(crate) fn config_at(&self, names: &[&str], more: &str, listeners: [&str; 2], rest: &str) -> String {
        let directory = format!("https://localhost:{}/dir", self.address.port());
        gateway_text(&directory, names, &format!("ca = \"{}\"\n{more}", self.authority.ca().display()), listeners, rest)
    }

    /// A client that trusts its certificates, as long as it runs.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let (ca, url) = (self.authority.ca(), format!("https://localhost:{}/roots/0", self.management.port()));
        let root = curl(["--cacert", ca.to_str().unwrap(), &url]);
        assert!(root.status.success(), "{root:?}");
        let trusted = Authority::new();
        std::fs::File::create(trusted.ca()).unwrap().write_all(&root.stdout).unwrap();
        trusted.client(None)
    }
}

/// A DNS server for which every name has the address 127.0.0.1, and none of IPv6.
fn names_lead_here() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            let Some(end) = query[12..length].iter().position(|byte| *byte == 0).map(|at| 12 + at + 5) else {
                continue;
            };
            let is_v4 = query[end - 4..end - 2] == [0, 1];
            // RFC 1035, section 4.1: the id, the flag of an answer, one question, and one answer if the question is about IPv4.
            let mut answer =
                [&query[..2], &[0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0], &query[12..end]].concat();
            if is_v4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    address
}
