//! One server of an upstream, and the ids under which its connections are pooled. Ids outlive a reload.

use std::collections::BTreeMap;
use std::fmt;

use http::HeaderValue;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;

use crate::tls::ConnectorTls;

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// The id under which its connections are pooled. It is the same for the same host, port, TLS settings and protocol.
    pub id: usize,
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The Host header it expects.
    pub authority: HeaderValue,
    /// How its connections use TLS; `None` if they do not.
    pub tls: Option<EndpointTls>,
    /// Whether it is spoken to in HTTP/2: with TLS if it agrees, without TLS always.
    pub http2: bool,
}

/// How the connections to an endpoint use TLS.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointTls {
    /// Who is trusted, and what is shown.
    pub settings: ConnectorTls,
    /// The name for which the server needs a certificate.
    pub server_name: ServerName<'static>,
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

/// The endpoints of all upstreams.
#[derive(Debug, Default)]
pub struct Endpoints(Mutex<Ids>);

#[derive(Debug, Default)]
struct Ids {
    /// By host and port.
    known: BTreeMap<(String, u16), Vec<Known>>,
    /// No id is used twice, because requests of an earlier snapshot may still use the ids of removed endpoints.
    last: usize,
}

/// One of the endpoints at an address. A connection that was made with other TLS settings must not be used, so each of them
/// has its own id.
#[derive(Debug)]
struct Known {
    tls: Option<EndpointTls>,
    http2: bool,
    id: usize,
}

impl Endpoints {
    /// The id of this endpoint, whose own is ignored. It is the same for as long as the endpoint is in the configuration. The
    /// returned TLS settings have the sessions that can be resumed.
    pub fn get(&self, endpoint: Endpoint) -> Endpoint {
        let Ids { known, last } = &mut *self.0.lock();
        let at_address = known.entry((endpoint.host.clone(), endpoint.port)).or_default();
        let is_same = |known: &&Known| known.tls == endpoint.tls && known.http2 == endpoint.http2;
        if let Some(Known { tls, id, .. }) = at_address.iter().find(is_same) {
            return Endpoint { id: *id, tls: tls.clone(), ..endpoint };
        }
        *last += 1;
        at_address.push(Known { tls: endpoint.tls.clone(), http2: endpoint.http2, id: *last });
        Endpoint { id: *last, ..endpoint }
    }

    /// Drops the endpoints whose ids are not `wanted` any more.
    pub fn retain(&self, wanted: impl Fn(usize) -> bool) {
        self.0.lock().known.retain(|_, at_address| {
            at_address.retain(|known| wanted(known.id));
            !at_address.is_empty()
        });
    }

    /// How many are known.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.lock().known.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Authorities;

    fn endpoint(host: &str, port: u16) -> Endpoint {
        let authority = HeaderValue::from_static("a");
        Endpoint { id: 0, host: host.to_owned(), port, authority, tls: None, http2: false }
    }

    fn with_tls(name: &'static str) -> Endpoint {
        // Nobody is trusted, which makes no difference here.
        let settings = ConnectorTls::new(Authorities::new(Vec::new()).unwrap(), None).unwrap();
        let tls = EndpointTls { settings, server_name: name.try_into().unwrap() };
        Endpoint { tls: Some(tls), ..endpoint("a", 1) }
    }

    #[test]
    fn whatever_makes_a_difference_for_a_connection_makes_another_id() {
        let endpoints = Endpoints::default();
        let all = || {
            let http2 = |endpoint| Endpoint { http2: true, ..endpoint };
            [
                endpoint("a", 1),
                endpoint("b", 1),
                endpoint("a", 2),
                http2(endpoint("a", 1)),
                with_tls("a"),
                with_tls("b"),
                http2(with_tls("a")),
            ]
        };
        let ids = all().map(|endpoint| endpoints.get(endpoint).id);
        assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(all().map(|endpoint| endpoints.get(endpoint).id), ids, "for as long as they are known");
        endpoints.retain(|id| id == 5);
        assert_eq!(endpoints.count(), 1);
        assert_eq!(endpoints.get(with_tls("a")).id, 5);
        assert_eq!(endpoints.get(with_tls("b")).id, 8, "no id is used twice");
    }

    #[test]
    fn equal_settings_share_their_sessions() {
        let endpoints = Endpoints::default();
        let [first, again] = [0; 2].map(|_| endpoints.get(with_tls("a")).tls.unwrap().settings.config());
        assert!(std::sync::Arc::ptr_eq(&first, &again));
    }
}
