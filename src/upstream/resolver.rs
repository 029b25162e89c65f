//! Looking up the addresses of servers by their names: one lookup of a name at a time, however many want it.
//!
//! The system's resolver holds its thread for as long as a name server does not answer, and nothing can end that. So each
//! lookup has a thread of its own. Whoever wants the same name meanwhile waits for that lookup, as long as it likes.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tokio::sync::watch;

/// The lookups under way, of all workers.
#[derive(Debug, Default)]
pub struct Lookups {
    /// By the name. One whose sender is gone is over.
    under_way: Mutex<HashMap<String, watch::Receiver<Option<Found>>>>,
}

/// The addresses of a name, or why there are none: several wait for it, and an error cannot be cloned.
type Found = Result<Arc<[SocketAddr]>, (io::ErrorKind, String)>;

impl Lookups {
    /// The addresses of a host, of which there is at least one.
    pub(super) async fn find(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let mut result = self.join(host)?;
        let found = result.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        let found = found.unwrap_or_else(|| Err((io::ErrorKind::Other, "the lookup failed unexpectedly".to_owned())));
        let addresses = found.map_err(|(kind, text)| io::Error::new(kind, text))?;
        Ok(addresses.iter().map(|address| with_port(*address, port)).collect())
    }

    /// The lookup of this name that is under way, or a new one.
    fn join(&self, host: &str) -> io::Result<watch::Receiver<Option<Found>>> {
        let mut under_way = self.under_way.lock();
        under_way.retain(|_, result| result.has_changed().is_ok());
        if let Some(result) = under_way.get(host) {
            return Ok(result.clone());
        }
        let (sender, result) = watch::channel(None);
        let name = host.to_owned();
        thread::Builder::new().name("lookup".to_owned()).spawn(move || {
            // Nobody may want it any more.
            let _ = sender.send(Some(look_up(&name)));
        })?;
        under_way.insert(host.to_owned(), result.clone());
        Ok(result)
    }
}

fn look_up(host: &str) -> Found {
    // The port is not the name's.
    let found = (host, 0).to_socket_addrs().map(Iterator::collect::<Arc<[_]>>);
    match found {
        Ok(addresses) if addresses.is_empty() => Err((io::ErrorKind::NotFound, "the name has no address".to_owned())),
        found => found.map_err(|error| (error.kind(), error.to_string())),
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finds_names_and_addresses() {
        let lookups = Lookups::default();
        for (host, port) in [("127.0.0.1", 80), ("::1", 8080), ("localhost", 443)] {
            let found = lookups.find(host, port).await.unwrap();
            assert!(
                !found.is_empty() && found.iter().all(|at| at.ip().is_loopback() && at.port() == port),
                "{found:?}"
            );
        }
        assert!(lookups.find("no such name", 80).await.is_err());
        assert!(lookups.join("localhost").unwrap().wait_for(Option::is_some).await.is_ok());
    }

    #[tokio::test]
    async fn many_wait_for_one_lookup_and_for_a_new_one_when_it_is_over() {
        let lookups = Lookups::default();
        let (sender, held) = watch::channel(None);
        lookups.under_way.lock().insert("a".to_owned(), held);
        let address = SocketAddr::from(([192, 0, 2, 1], 0));
        let all = async {
            let waiting = [lookups.find("a", 1), lookups.find("a", 2), lookups.find("a", 3)];
            let mut ports = Vec::new();
            for found in waiting {
                ports.extend(found.await.unwrap());
            }
            ports
        };
        let (found, ()) = tokio::join!(all, async { sender.send(Some(Ok([address].into()))).unwrap() });
        assert_eq!(found, [1, 2, 3].map(|port| with_port(address, port)));
        drop(sender);
        assert!(lookups.find("a", 1).await.is_err(), "looked up anew, and not found");
    }
}
