//! The listening sockets of the process. A reload opens new ones, and closes those that are gone.
//!
//! New sockets are opened before anything else changes, so that an unusable address refuses the reload. Each worker gets
//! its changes over a channel, the first listeners included.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::StartError;
use super::service_manager::{InheritedSockets, UnusedSocket};
use super::source::{Version, version};
use crate::admin::{AdminChange, AdminListener};
use crate::config::{self, AdminAddress, Config};
use crate::net::{self, Traffic};
use crate::server::{Listener, ListenerChange};

/// The open listeners for clients and for other proxies, each with a socket for every worker.
#[derive(Clone, Debug)]
pub(super) struct OpenListeners {
    all: Vec<OpenListener>,
    next: usize,
    workers: usize,
    /// The Unix socket of the admin listener when it was bound; empty if there is none.
    admin_socket: Version,
    pub(super) inherited: Arc<InheritedSockets>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenListener {
    id: usize,
    /// As the configuration names it: the port may be 0.
    address: SocketAddr,
    port: u16,
    is_tls: bool,
    traffic: Traffic,
    is_v6_only: bool,
}

pub(super) struct ListenerPlan {
    afterwards: OpenListeners,
    /// With a socket for every worker.
    opened: Vec<(OpenListener, Vec<TcpListener>)>,
    admin: Option<AdminChange>,
    admin_uses_tls: bool,
    unused: Vec<UnusedSocket>,
}

pub(super) struct Listeners {
    pub(super) open: OpenListeners,
    workers: Vec<mpsc::UnboundedSender<ListenerChange>>,
    admin: mpsc::UnboundedSender<AdminChange>,
}

pub(super) struct ListenerChanges {
    pub(super) workers: Vec<mpsc::UnboundedReceiver<ListenerChange>>,
    pub(super) admin: mpsc::UnboundedReceiver<AdminChange>,
}

impl OpenListeners {
    /// Opens the additional listeners of `config`, or duplicates inherited ones. `running` is the configuration in force. The
    /// error names the first listener that cannot be opened.
    pub(super) fn plan(&self, running: Option<&Config>, config: &Config) -> Result<ListenerPlan, StartError> {
        let admin = |config: &Config| config.admin.as_ref().map(|admin| admin.listen.clone());
        let admin_tcp = admin(config).as_ref().and_then(tcp);
        let listed = config.listeners().map(|listener| listener.address);
        let all: Vec<SocketAddr> = listed.chain(admin_tcp).collect();
        let ports = self.all.iter().map(|open| open.port).chain(running.and_then(admin_port));
        let own_ports: Vec<_> = ports.collect();
        let mut free = self.inherited.free();
        let bind = |inherited: Option<&TcpListener>, address: SocketAddr, sockets: usize| {
            if let Some(socket) = inherited {
                // All workers accept from one queue.
                return (0..sockets).map(|_| socket.try_clone().map_err(StartError::System)).collect();
            }
            let bound =
                net::bind(address, sockets, net::is_v6_only(address, &all), !own_ports.contains(&address.port()));
            bound.map_err(|error| StartError::bind(&address, error))
        };
        let (inherited, admin_socket) = (self.inherited.clone(), self.admin_socket.clone());
        let afterwards = Self { all: Vec::new(), inherited, admin_socket, ..*self };
        let admin_uses_tls = config.admin.as_ref().is_some_and(|admin| admin.tls.is_some());
        let mut plan = ListenerPlan { afterwards, opened: Vec::new(), admin: None, admin_uses_tls, unused: Vec::new() };
        for config::Listener { address, tls: is_tls, traffic } in config.listeners() {
            let is_v6_only = net::is_v6_only(address, &all);
            // One that is open already uses it, too.
            let inherited = free.take(address);
            // Several listeners may have port 0, so each open one is taken once.
            let taken = &plan.afterwards.all;
            let is_same = |open: &&OpenListener| {
                (open.address, open.traffic, open.is_v6_only) == (address, traffic, is_v6_only)
                    && taken.iter().all(|other| other.id != open.id)
            };
            if let Some(open) = self.all.iter().find(is_same) {
                plan.afterwards.all.push(OpenListener { is_tls, ..*open });
                continue;
            }
            let sockets = bind(inherited, address, self.workers)?;
            let bound = sockets.first().map(TcpListener::local_addr).transpose()?;
            let port = bound.map_or(address.port(), |bound| bound.port());
            let open = OpenListener { id: plan.afterwards.next, address, port, is_tls, traffic, is_v6_only };
            plan.opened.push((open, sockets));
            plan.afterwards.all.push(open);
            plan.afterwards.next += 1;
        }
        let wanted = admin(config);
        let inherited = admin_tcp.and_then(|address| free.take(address));
        let inherited_unix = wanted.as_ref().and_then(unix).and_then(|path| free.take_unix(path));
        // Nobody can connect any more if the path is gone or another socket's.
        let is_lost = |path| inherited_unix.is_none() && self.admin_socket != version(path);
        if running.and_then(admin) != wanted || wanted.as_ref().and_then(unix).is_some_and(is_lost) {
            plan.admin = Some(match wanted {
                Some(AdminAddress::Tcp(address)) => {
                    let sockets = bind(inherited, address, 1)?;
                    sockets
                        .into_iter()
                        .next()
                        .map_or(AdminChange::Close, |socket| AdminChange::Open(AdminListener::Tcp(socket)))
                }
                Some(ref address @ AdminAddress::Unix(ref path)) => {
                    let bound = inherited_unix.map_or_else(|| net::bind_unix(path), UnixListener::try_clone);
                    let bound = bound.map_err(|error| StartError::bind(address, error))?;
                    plan.afterwards.admin_socket = version(path);
                    AdminChange::Open(AdminListener::Unix(bound))
                }
                None => AdminChange::Close,
            });
        }
        plan.unused = free.unused();
        Ok(plan)
    }
}

impl Listeners {
    pub(super) fn new(workers: usize, inherited: InheritedSockets) -> (Self, ListenerChanges) {
        let (inherited, admin_socket) = (Arc::new(inherited), Version::new());
        let open = OpenListeners { all: Vec::new(), next: 0, workers, admin_socket, inherited };
        let (senders, receivers) = (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
        let (admin, admin_changes) = mpsc::unbounded_channel();
        (Self { open, workers: senders, admin }, ListenerChanges { workers: receivers, admin: admin_changes })
    }

    pub(super) fn apply(&mut self, plan: ListenerPlan) {
        let ListenerPlan { afterwards, opened, admin, admin_uses_tls, unused } = plan;
        let before = std::mem::replace(&mut self.open, afterwards);
        for (OpenListener { id, is_tls, traffic, .. }, sockets) in opened {
            let name = match traffic {
                Traffic::Requests if is_tls => "https",
                Traffic::Requests => "http",
                Traffic::Decisions => "decisions",
            };
            announce(name, &sockets, None);
            for (worker, socket) in self.workers.iter().zip(sockets) {
                // A worker that has ended ends the process.
                let _ = worker.send(ListenerChange::Open(Listener { id, socket, is_tls, traffic }));
            }
        }
        for OpenListener { id, address, is_tls, .. } in before.all {
            match self.open.all.iter().find(|open| open.id == id) {
                Some(open) if open.is_tls != is_tls => {
                    tracing::info!(%address, tls = open.is_tls, "a listener has changed its protocol");
                    self.workers.iter().for_each(|worker| _ = worker.send(ListenerChange::UseTls(id, open.is_tls)));
                }
                Some(_) => {}
                None => {
                    tracing::info!(%address, "closed a listener");
                    self.workers.iter().for_each(|worker| _ = worker.send(ListenerChange::Close(id)));
                }
            }
        }
        if let Some(change) = admin {
            announce_admin(&change, admin_uses_tls);
            // The thread of the admin listener ends with the process.
            let _ = self.admin.send(change);
        }
        for UnusedSocket { address, help } in unused {
            let why = "no listener has its address";
            tracing::warn!(address, help, "connections wait in a socket that was passed to the gateway: {why}");
        }
    }
}

fn announce_admin(change: &AdminChange, uses_tls: bool) {
    match change {
        AdminChange::Open(AdminListener::Tcp(socket)) => {
            announce("admin", std::slice::from_ref(socket), Some(if uses_tls { "https" } else { "http" }));
        }
        AdminChange::Open(AdminListener::Unix(socket)) => {
            let path = socket.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
            let address = AdminAddress::Unix(path.unwrap_or_default());
            tracing::info!(listener = "admin", %address, "listening");
        }
        AdminChange::Close => tracing::info!("closed the admin listener"),
    }
}

fn tcp(address: &AdminAddress) -> Option<SocketAddr> {
    match address {
        AdminAddress::Tcp(address) => Some(*address),
        AdminAddress::Unix(_) => None,
    }
}

fn unix(address: &AdminAddress) -> Option<&Path> {
    match address {
        AdminAddress::Unix(path) => Some(path),
        AdminAddress::Tcp(_) => None,
    }
}

fn admin_port(config: &Config) -> Option<u16> {
    config.admin.as_ref().and_then(|admin| tcp(&admin.listen)).map(|address| address.port())
}

/// With port 0, only this line of the log tells the port. If the dashboard is here, `dashboard` is the scheme of its URL.
fn announce(listener: &str, sockets: &[TcpListener], dashboard: Option<&str>) {
    match sockets.first().map(TcpListener::local_addr) {
        Some(Ok(address)) => {
            let dashboard = dashboard.map(|scheme| format!("{scheme}://{address}/"));
            tracing::info!(listener, %address, dashboard, "listening");
        }
        Some(Err(error)) => tracing::error!(listener, %error, "listening on an address that is not known"),
        None => {}
    }
}
