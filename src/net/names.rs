//! The addresses of names: looked up by the system, with at most one lookup of a name at a time, and the last known ones, which
//! outlive a reload.
//!
//! The system's resolver blocks its thread while a name server does not answer, and cannot be stopped. So each lookup has
//! its own thread. Requests that need the same name wait for the same lookup, each within its own time limit.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::base::metrics::SharedCounter;

/// An error is kept as kind and text, because several requests get a copy, and `io::Error` has no `Clone`.
type Found = Result<Arc<[SocketAddr]>, (io::ErrorKind, String)>;

fn look_up(host: &str) -> Found {
    // The lookup needs a port, which is replaced later.
    let found = (host, 0).to_socket_addrs().map(Iterator::collect::<Arc<[_]>>);
    match found {
        Ok(addresses) if addresses.is_empty() => Err((io::ErrorKind::NotFound, "the name has no address".to_owned())),
        found => found.map_err(|error| (error.kind(), error.to_string())),
    }
}

#[derive(Debug)]
pub struct Names {
    /// Whose names these are, such as "a server", for the log.
    of: &'static str,
    /// A lookup is finished when its sender is gone.
    lookups: Mutex<HashMap<String, watch::Receiver<Option<Found>>>>,
    known: Mutex<BTreeMap<String, Known>>,
    pub failures: SharedCounter,
}

#[derive(Debug, Default)]
struct Known {
    /// Sorted.
    addresses: Arc<[IpAddr]>,
    is_failing: bool,
}

impl Names {
    pub fn new(of: &'static str) -> Self {
        Self { of, lookups: Mutex::default(), known: Mutex::default(), failures: SharedCounter::default() }
    }

    /// The addresses of a host with this port, at least one, looked up now.
    pub async fn find(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let mut result = self.join(host)?;
        let found = result.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        let found = found.unwrap_or_else(|| Err((io::ErrorKind::Other, "the lookup failed unexpectedly".to_owned())));
        let mut addresses = found.map_err(|(kind, text)| io::Error::new(kind, text))?.to_vec();
        addresses.iter_mut().for_each(|address| address.set_port(port));
        Ok(addresses)
    }

    /// Joins the current lookup of this name, or begins one.
    fn join(&self, host: &str) -> io::Result<watch::Receiver<Option<Found>>> {
        let mut unfinished = self.lookups.lock();
        unfinished.retain(|_, result| result.has_changed().is_ok());
        if let Some(result) = unfinished.get(host) {
            return Ok(result.clone());
        }
        let (sender, result) = watch::channel(None);
        let name = host.to_owned();
        thread::Builder::new().name("lookup".to_owned()).spawn(move || {
            // All requests that needed the lookup may have ended.
            let _ = sender.send(Some(look_up(&name)));
        })?;
        unfinished.insert(host.to_owned(), result.clone());
        Ok(result)
    }

    /// As of the last lookup that succeeded.
    pub fn known(&self, name: &str) -> Arc<[IpAddr]> {
        self.known.lock().get(name).map(|known| known.addresses.clone()).unwrap_or_default()
    }

    /// Looks up a name again. If that fails, the known addresses stay.
    pub async fn look_up(&self, name: &str) {
        let found = self.find(name, 0).await;
        self.learn(name, found);
    }

    /// Like [`Self::look_up`], but a lookup without an answer within `limit` counts as failed. The lookup goes on, and the
    /// next call waits for its end.
    pub async fn look_up_within(&self, name: &str, limit: Duration) {
        let found = timeout(limit, self.find(name, 0)).await.unwrap_or_else(|late| Err(late.into()));
        self.learn(name, found);
    }

    fn learn(&self, name: &str, found: io::Result<Vec<SocketAddr>>) {
        let mut all = self.known.lock();
        let known = all.entry(name.to_owned()).or_default();
        match found {
            Ok(found) => {
                let mut addresses: Vec<_> = found.iter().map(SocketAddr::ip).collect();
                addresses.sort_unstable();
                addresses.dedup();
                if known.is_failing {
                    tracing::info!(name, "the name of {} is found again", self.of);
                }
                if known.addresses[..] != addresses[..] {
                    tracing::info!(name, ?addresses, "the name of {} has these addresses", self.of);
                }
                *known = Known { addresses: addresses.into(), is_failing: false };
            }
            Err(error) => {
                self.failures.one();
                if !known.is_failing {
                    let (addresses, of) = (&known.addresses, self.of);
                    if addresses.is_empty() {
                        tracing::warn!(name, %error, "the name of {of} is not found: it has no address until it is");
                    } else {
                        tracing::warn!(name, %error, ?addresses, "the name of {of} is not found: its known addresses stay in use");
                    }
                }
                known.is_failing = true;
            }
        }
    }

    pub fn retain(&self, wanted: impl Fn(&str) -> bool) {
        self.known.lock().retain(|name, _| wanted(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finds_names_and_addresses() {
        let names = Names::new("a server");
        for (host, port) in [("127.0.0.1", 80), ("::1", 8080), ("localhost", 443)] {
            let found = names.find(host, port).await.unwrap();
            assert!(
                !found.is_empty() && found.iter().all(|at| at.ip().is_loopback() && at.port() == port),
                "{found:?}"
            );
        }
        assert!(names.find("no such name", 80).await.is_err());
        assert!(names.join("localhost").unwrap().wait_for(Option::is_some).await.is_ok());
    }

    #[tokio::test]
    async fn requests_share_a_lookup_until_it_is_finished() {
        let names = Names::new("a server");
        let (sender, held) = watch::channel(None);
        names.lookups.lock().insert("a".to_owned(), held);
        let address = SocketAddr::from(([192, 0, 2, 1], 0));
        let all = async {
            let waiting = [names.find("a", 1), names.find("a", 2), names.find("a", 3)];
            let mut ports = Vec::new();
            for found in waiting {
                ports.extend(found.await.unwrap());
            }
            ports
        };
        let (found, ()) = tokio::join!(all, async { sender.send(Some(Ok([address].into()))).unwrap() });
        assert_eq!(found, [1, 2, 3].map(|port| SocketAddr::new(address.ip(), port)));
        drop(sender);
        assert!(names.find("a", 1).await.is_err(), "a new lookup finds nothing");
    }

    #[test]
    fn what_is_known_stays_when_a_lookup_fails() {
        let names = Names::new("a server");
        let found = |hosts: &[u8]| Ok(hosts.iter().map(|host| SocketAddr::from(([10, 0, 0, *host], 0))).collect());
        let known = || names.known("a").iter().map(ToString::to_string).collect::<Vec<_>>();
        let failed = || Err(io::Error::other("no answer"));
        names.learn("a", failed());
        assert_eq!(known(), [""; 0]);
        names.learn("a", found(&[2, 1, 2]));
        assert_eq!(known(), ["10.0.0.1", "10.0.0.2"]);
        names.learn("a", failed());
        assert_eq!((known().len(), names.failures.get()), (2, 2));
        names.learn("a", found(&[3]));
        assert_eq!(known(), ["10.0.0.3"]);
        names.retain(|name| name != "a");
        assert_eq!(known(), [""; 0]);
    }
}
