//! Finds the networks of an address among many, with one look-up for each prefix length that occurs.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use ipnet::IpNet;

use super::Grant;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Networks {
    pub(super) grants: HashMap<IpNet, Grant, RandomState>,
    /// Sorted, of both families.
    lengths: Vec<u8>,
}

impl Networks {
    /// All networks are truncated.
    pub(super) fn new(grants: HashMap<IpNet, Grant, RandomState>) -> Self {
        let mut lengths: Vec<_> = grants.keys().map(IpNet::prefix_len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        Self { grants, lengths }
    }

    /// The first network in the list that contains the address.
    pub(super) fn find(&self, address: IpAddr) -> Option<Grant> {
        let address = address.to_canonical();
        let networks = self.lengths.iter().filter_map(|length| IpNet::new(address, *length).ok());
        networks.filter_map(|network| self.grants.get(&network.trunc())).min().copied()
    }
}
