//! What the gateway exchanges with a service manager, such as systemd. It tells that the gateway is ready, reloads or stops,
//! and that all of its workers still work (`sd_notify(3)`). It may pass listening sockets, as may a program that starts the
//! next gateway before the last one ends (`sd_listen_fds(3)`): connections wait in them while no gateway accepts any. Without a
//! service manager this does nothing.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use listenfd::ListenFd;
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
    /// Those of this process. They are not passed on to other processes.
    ///
    /// # Errors
    /// When one of them is not a listening socket of TCP or Unix.
    pub(super) fn of_process() -> io::Result<Self> {
        let (mut passed, mut all) = (ListenFd::from_env(), Self::default());
        for index in 0..passed.len() {
            if let Ok(Some(socket)) = passed.take_unix_listener(index) {
                socket.set_nonblocking(true)?;
                all.unix.push(socket);
            } else if let Some(socket) = passed.take_tcp_listener(index)? {
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

impl<'a> FreeSockets<'a> {
    /// The socket that listens on this address. A wildcard address also accepts the IPv6 wildcard.
    pub(super) fn take(&mut self, address: SocketAddr) -> Option<&'a TcpListener> {
        let is_wanted = |socket: &&TcpListener| socket.local_addr().is_ok_and(|bound| is_same(bound, address));
        let at = self.tcp.iter().position(is_wanted)?;
        Some(self.tcp.remove(at))
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

/// Whether a socket bound to `bound` serves a listener for `wanted`. The wildcard of IPv6 accepts IPv4, too, and is what
/// systemd binds if only a port is configured.
fn is_same(bound: SocketAddr, wanted: SocketAddr) -> bool {
    let is_any_of_both = bound.ip() == IpAddr::from([0_u16; 8]) && wanted.ip().is_unspecified();
    bound.port() == wanted.port() && (bound.ip() == wanted.ip() || is_any_of_both)
}

#[cfg(test)]
mod tests {
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
        for (bound, wanted, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "0.0.0.0:80", false),
            ("0.0.0.0:80", "127.0.0.1:80", false),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::]:80", "[::]:80", true),
            ("0.0.0.0:80", "[::]:80", false),
        ] {
            assert_eq!(is_same(bound.parse().unwrap(), wanted.parse().unwrap()), expected, "{bound} for {wanted}");
        }
    }
}
