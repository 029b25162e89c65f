//! One server of an upstream, and the ids under which its connections are pooled. Ids outlive a reload.

use std::collections::BTreeMap;
use std::fmt;

use http::HeaderValue;
use parking_lot::Mutex;

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The id under which its connections are pooled. It is the same for the same host and port.
    pub id: usize,
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The Host header it expects.
    pub authority: HeaderValue,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The endpoints of all upstreams, by host and port.
#[derive(Debug, Default)]
pub struct Endpoints(Mutex<Ids>);

#[derive(Debug, Default)]
struct Ids {
    known: BTreeMap<(String, u16), usize>,
    /// No id is used twice, because requests of an earlier snapshot may still use the ids of removed endpoints.
    last: usize,
}

impl Endpoints {
    /// The endpoint at this host and port. It has the same id for as long as it is in the configuration.
    pub fn get(&self, host: String, port: u16, authority: HeaderValue) -> Endpoint {
        let Ids { known, last } = &mut *self.0.lock();
        let id = *known.entry((host.clone(), port)).or_insert_with(|| {
            *last += 1;
            *last
        });
        Endpoint { id, host, port, authority }
    }

    /// Drops the endpoints whose ids are not `wanted` any more.
    pub fn retain(&self, wanted: impl Fn(usize) -> bool) {
        self.0.lock().known.retain(|_, id| wanted(*id));
    }

    /// How many are known.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.lock().known.len()
    }
}
