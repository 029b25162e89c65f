//! The last known addresses of names. They outlive a reload.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

use super::resolver::Lookups;

#[derive(Debug)]
pub struct Names {
    /// Whose names these are, such as "a server", for the log.
    of: &'static str,
    lookups: Lookups,
    known: Mutex<BTreeMap<String, Known>>,
    failures: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    /// Sorted.
    addresses: Arc<[IpAddr]>,
    is_failing: bool,
}

impl Names {
    pub fn new(of: &'static str) -> Self {
        Self { of, lookups: Lookups::default(), known: Mutex::default(), failures: AtomicU64::new(0) }
    }

    /// The addresses of a host with this port, looked up now.
    ///
    /// # Errors
    /// When the lookup fails.
    pub async fn find(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.lookups.find(host, port).await
    }

    /// As of the last lookup that succeeded.
    pub fn known(&self, name: &str) -> Arc<[IpAddr]> {
        self.known.lock().get(name).map(|known| known.addresses.clone()).unwrap_or_default()
    }

    /// Looks up a name again. If that fails, the known addresses stay.
    pub async fn look_up(&self, name: &str) {
        let found = self.lookups.find(name, 0).await;
        self.learn(name, found);
    }

    /// Like [`Self::look_up`], but a lookup without an answer within `limit` counts as failed. The lookup goes on, and the
    /// next call waits for its end.
    pub async fn look_up_within(&self, name: &str, limit: Duration) {
        let found = timeout(limit, self.lookups.find(name, 0)).await.unwrap_or_else(|late| Err(late.into()));
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
                self.failures.fetch_add(1, Ordering::Relaxed);
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

    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub fn retain(&self, wanted: impl Fn(&str) -> bool) {
        self.known.lock().retain(|name, _| wanted(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((known().len(), names.failures()), (2, 2));
        names.learn("a", found(&[3]));
        assert_eq!(known(), ["10.0.0.3"]);
        names.retain(|name| name != "a");
        assert_eq!(known(), [""; 0]);
    }
}
