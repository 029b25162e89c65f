//! `[decisions]`: the limits of the gateway for traffic that passes through other proxies.

use std::net::SocketAddr;

use http::StatusCode;

use super::server::Listener;
use super::tls::Tls;
use crate::net::Traffic;

/// `[decisions]`
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions {
    /// Where other proxies ask.
    pub listen: SocketAddr,
    /// `[decisions.tls]`
    pub tls: Option<Tls>,
    /// The status of the answer about a request that a limit refuses.
    pub refused_status: StatusCode,
}

impl Decisions {
    /// Its listener.
    pub fn listener(&self) -> Listener {
        Listener { address: self.listen, tls: self.tls.is_some(), traffic: Traffic::Decisions }
    }
}
