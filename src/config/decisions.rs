//! `[decisions]`: the limits of the gateway for traffic that passes through other proxies.

use std::net::SocketAddr;

use http::StatusCode;

use super::route::Route;
use super::server::Listener;
use super::tls::Tls;
use crate::base::wildcard::Wildcard;
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
    /// `[[decisions.descriptors]]`; the first that fits a descriptor counts.
    pub descriptors: Vec<DescriptorRule>,
}

/// `[[decisions.descriptors]]`: which descriptors it fits, and what limits them.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorRule {
    /// The domain of the call.
    pub domain: String,
    /// The entries that a descriptor must have: their keys, and patterns of their values.
    pub entries: Vec<(String, Wildcard)>,
    /// Whether calls report what has been used, instead of asking for it.
    pub reports: bool,
    /// What its limits are compiled as. No request matches it by its path.
    pub route: Route,
}

impl Decisions {
    /// Its listener.
    pub fn listener(&self) -> Listener {
        Listener { address: self.listen, tls: self.tls.is_some(), traffic: Traffic::Decisions }
    }
}
