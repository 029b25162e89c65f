//! What the gateway exchanges with a service manager, such as systemd. It tells that the gateway is ready, reloads or stops,
//! and that all of its workers still work (`sd_notify(3)`). It may pass listening sockets, as may a program that starts the
//! next gateway before the last one ends (`sd_listen_fds(3)`): connections wait in them while no gateway accepts any. Without a
//! service manager this does nothing.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use listenfd::ListenFd;
use rustix::net::sockopt::{ipv6_v6only, socket_acceptconn};
use sd_notify::NotifyState;
use tokio::time::Instant;

use crate::base::metrics::{Counter, PerWorker};
use crate::net;

/// The longest pause between two heartbeats of a worker that works, on a busy machine.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload has begun. It ends with [`ready`].
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot tell the service manager about a reload"),
    }
}

pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// Tells the service manager regularly that the process works. Otherwise the service manager restarts the process.
pub(super) struct Watchdog {
    /// The longest pause that the service manager allows; `None` if it does not watch.
    longest: Option<Duration>,
    /// For each worker, its heartbeats at the last check, and since when that number is the same.
    seen: Vec<(u64, Instant)>,
}

impl Watchdog {
    pub(super) fn new(workers: usize) -> Self {
        Self { longest: sd_notify::watchdog_enabled(), seen: vec![(0, Instant::now()); workers] }
    }

    /// How often to call [`Self::check`]; `None` is never.
    pub(super) fn check_every(&self) -> Option<Duration> {
        // As sd_watchdog_enabled(3) recommends.
        self.longest.map(|longest| (longest / 2).max(Duration::from_millis(1)))
    }

    /// Reports that the process works, unless a worker has had no heartbeat for too long.
    pub(super) fn check(&mut self, heartbeats: &PerWorker<Counter>) {
        match self.hanging(heartbeats, Instant::now()) {
            None => tell(&[NotifyState::Watchdog]),
            Some(worker) => tracing::error!(worker, "a worker hangs: the service manager gets no sign of life"),
        }
    }

    fn hanging(&mut self, heartbeats: &PerWorker<Counter>, now: Instant) -> Option<usize> {
        for (worker, (count, since)) in self.seen.iter_mut().enumerate() {
            let current = heartbeats.of(worker).get();
            if current != *count {
                (*count, *since) = (current, now);
            }
        }
        self.seen.iter().position(|(_, since)| now - *since > LONGEST_PAUSE)
    }
}

/// The sockets that this process was started with. They stay open while listeners use duplicates of them, because a reload
/// may need them again, or for the first time.
#[derive(Debug, Default)]
pub(super) struct InheritedSockets {
    tcp: Vec<TcpListener>,
    unix: Vec<UnixListener>,
}

/// Those that no listener of a configuration uses yet.
pub(super) struct FreeSockets<'a> {
    tcp: Vec<&'a TcpListener>,
    unix: Vec<&'a UnixListener>,
}

/// A socket that no listener uses: connections to it wait for ever.
pub(super) struct UnusedSocket {
    pub(super) address: Option<String>,
    pub(super) help: &'static str,
}

impl InheritedSockets {
    /// Those of this process. They are not passed on to other processes. Fails when one of them is not a listening socket of
    /// TCP or Unix.
    pub(super) fn of_process() -> io::Result<Self> {
        let (mut passed, mut all) = (ListenFd::from_env(), Self::default());
        for index in 0..passed.len() {
            if let Ok(Some(socket)) = passed.take_unix_listener(index) {
                must_listen(&socket)?;
                socket.set_nonblocking(true)?;
                all.unix.push(socket);
            } else if let Some(socket) = passed.take_tcp_listener(index)? {
                must_listen(&socket)?;
                socket.set_nonblocking(true)?;
                net::keep_alive(&socket)?;
                all.tcp.push(socket);
            }
        }
        Ok(all)
    }

    pub(super) fn free(&self) -> FreeSockets<'_> {
        FreeSockets { tcp: self.tcp.iter().collect(), unix: self.unix.iter().collect() }
    }
}

fn must_listen(socket: impl AsFd) -> io::Result<()> {
    let is_listening = socket_acceptconn(socket)?;
    is_listening.then_some(()).ok_or_else(|| io::Error::other("a socket that was passed does not listen"))
}

impl<'a> FreeSockets<'a> {
    /// The socket that listens on this address. The wildcard of IPv4 also takes that of IPv6, which systemd binds if only a port is
    /// configured, if it accepts IPv4, too.
    pub(super) fn take(&mut self, address: SocketAddr) -> Option<&'a TcpListener> {
        let is_bound_to = |socket: &TcpListener, ip| {
            socket.local_addr().is_ok_and(|bound| (bound.ip(), bound.port()) == (ip, address.port()))
        };
        let is_of_both = |socket: &TcpListener| {
            address.ip() == Ipv4Addr::UNSPECIFIED
                && is_bound_to(socket, Ipv6Addr::UNSPECIFIED.into())
                && ipv6_v6only(socket) == Ok(false)
        };
        let exact = self.tcp.iter().position(|socket| is_bound_to(socket, address.ip()));
        Some(self.tcp.remove(exact.or_else(|| self.tcp.iter().position(|socket| is_of_both(socket)))?))
    }

    pub(super) fn take_unix(&mut self, path: &Path) -> Option<&'a UnixListener> {
        let is_wanted =
            |socket: &&UnixListener| socket.local_addr().is_ok_and(|bound| bound.as_pathname() == Some(path));
        let at = self.unix.iter().position(is_wanted)?;
        Some(self.unix.remove(at))
    }

    /// Those that are left after all listeners have taken theirs.
    pub(super) fn unused(self) -> Vec<UnusedSocket> {
        let of_tcp = "add its address to server.listen, or make it that of decisions.listen";
        let tcp = self.tcp.iter().map(|socket| (socket.local_addr().ok().map(|address| address.to_string()), of_tcp));
        let of_unix = "name its path in admin.listen";
        let unix = self.unix.iter().map(|socket| (socket.local_addr().ok().map(|at| format!("{at:?}")), of_unix));
        tcp.chain(unix).map(|(address, help)| UnusedSocket { address, help }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn a_worker_without_heartbeats_hangs_until_it_has_one() {
        let (begun, heartbeats) = (Instant::now(), PerWorker::<Counter>::new(2));
        let mut watchdog = Watchdog { longest: None, seen: vec![(0, begun); 2] };
        let mut at = |seconds, working: &[usize]| {
            working.iter().for_each(|worker| heartbeats.of(*worker).one());
            watchdog.hanging(&heartbeats, begun + Duration::from_secs(seconds))
        };
        assert_eq!([at(1, &[0, 1]), at(4, &[0]), at(6, &[0]), at(7, &[0])], [None, None, None, Some(1)]);
        assert_eq!([at(8, &[0, 1]), at(14, &[])], [None, Some(0)]);
    }

    #[test]
    fn a_socket_serves_its_address_or_all() {
        let bound = |address: &str| TcpListener::bind(address).unwrap();
        let of_ipv6 = |only_v6, port| {
            let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
            socket.set_only_v6(only_v6).unwrap();
            socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into()).unwrap();
            socket.listen(1).unwrap();
            TcpListener::from(socket)
        };
        let of_ipv4 = bound("0.0.0.0:0");
        let port = of_ipv4.local_addr().unwrap().port();
        let tcp = vec![of_ipv6(false, 0), of_ipv6(true, port), of_ipv4, bound("127.0.0.1:0")];
        let all = InheritedSockets { tcp, unix: Vec::new() };
        let ports: Vec<u16> = all.tcp.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        let taken = |wanted: &[(&str, u16)]| {
            let mut free = all.free();
            let place = |socket: &TcpListener| all.tcp.iter().position(|one| ptr::eq(one, socket));
            let take =
                |(ip, port): &(&str, u16)| free.take(SocketAddr::new(ip.parse().unwrap(), *port)).and_then(place);
            wanted.iter().map(take).collect::<Vec<_>>()
        };
        assert_eq!(taken(&[("0.0.0.0", ports[0]), ("::", ports[0])]), [Some(0), None]);
        assert_eq!(taken(&[("::", ports[0]), ("0.0.0.0", ports[0])]), [Some(0), None]);
        assert_eq!(taken(&[("0.0.0.0", port), ("::", port)]), [Some(2), Some(1)]);
        assert_eq!(taken(&[("0.0.0.0", port), ("0.0.0.0", port)]), [Some(2), None]);
        assert_eq!(taken(&[("0.0.0.0", ports[3]), ("127.0.0.1", ports[0]), ("::", ports[3])]), [None; 3]);
        assert_eq!(taken(&[("127.0.0.1", ports[3])]), [Some(3)]);
    }
}
